/* SPDX-License-Identifier: MIT
 *
 * findings.h: what hf_examine() finds, for tests.
 *
 *     struct findings *found = find_with(client, 30000);
 *     must_find(found, HF_FINDING_RISK, "persistence", "appendfsync is everysec");
 *     must_find_nothing(find_with(other, 0));
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
struct findings *find_with(hf_client *client, uint32_t ttl_ms);
/* One of this level about `what` has `words` in it. */
void must_find(const struct findings *findings, hf_finding_level level, const char *what, const char *words);
/* No other than HF_FINDING_OK; and one of these at least. */
void must_find_nothing(const struct findings *findings);
/* The same, but for what is about one of these. */
void must_find_nothing_but(const struct findings *findings, const char *const *whats, int count);

/* Nothing that is a risk or worse; and one that is HF_FINDING_OK at least. */
void must_find_no_risk(const struct findings *findings);

#endif
