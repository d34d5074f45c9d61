/* SPDX-License-Identifier: MIT
 *
 * findings.h: what hf_examine() finds, for tests.
 *
 *     struct findings *found = examine(client, 30000);
 *     check_found(found, HF_FINDING_RISK, "persistence", "appendfsync is everysec");
 *     check_all_ok(examine(other, 0));
 */
#ifndef FINDINGS_H
#define FINDINGS_H

#include <holdfast.h>

#define FINDINGS_MOST 200

struct one_finding {
    hf_finding_level level;
    char what[40];
    char text[1000]; /* sentence, evidence and remedy, a line each */
};

struct findings {
    hf_status status;
    hf_error err;
    int count;
    struct one_finding list[FINDINGS_MOST];
};

/* The result belongs to the test, and is never freed. */
struct findings *examine(hf_client *client, uint32_t ttl_ms);
/* One of this level about `what` has `words` in it. */
void check_found(const struct findings *findings, hf_finding_level level, const char *what, const char *words);
/* No other than HF_FINDING_OK; and one of these at least. */
void check_all_ok(const struct findings *findings);
/* The same, but for what begins with one of these. */
void check_ok_but(const struct findings *findings, const char *const *whats, int count);

/* Nothing that is a risk or worse; and one that is HF_FINDING_OK at least. */
void check_healthy(const struct findings *findings);

#endif
