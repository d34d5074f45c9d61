/* SPDX-License-Identifier: MIT
 *
 * diagnosis.h: what hf_examine() says of a store, for tests that set one up badly.
 *
 *     CHECK_FOUND(client, HF_FINDING_RISK, "disk", "fsync is off");
 *     check_healthy(client);
 */
#ifndef DIAGNOSIS_H
#define DIAGNOSIS_H

#include <holdfast.h>

/* Exactly one finding about `what` has that level, and `words` in its sentence or its evidence; it says what to do if
 * it is bad, and where to look. */
#define CHECK_FOUND(client, level, what, words) check_found(__FILE__, __LINE__, client, level, what, words, 0)
/* The same for locks of that time-to-live. */
#define CHECK_FOUND_FOR(client, ttl_ms, level, what, words)                                                            \
    check_found(__FILE__, __LINE__, client, level, what, words, ttl_ms)
void check_found(const char *file, int line, hf_client *client, hf_finding_level level, const char *what,
                 const char *words, uint32_t ttl_ms);
/* Nothing is worse than HF_FINDING_NOTE, and something is HF_FINDING_OK. */
void check_healthy(hf_client *client);

#endif
