/* SPDX-License-Identifier: MIT
 *
 * sql_doctor.c: see sql_doctor.h.
 */
#include "sql_doctor.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Clocks that are disciplined are nearer to each other than that. */
#define CLOCKS_APART_MS 1000
/* Fewer are gone with the next burst. */
#define SPARE_LEAST 5

void hfi_sql_judge(const struct hfi_examination *examination, const struct hfi_sql_rule *rule, const char *value,
                   const char *show)
{
    char command[120];
    snprintf(command, sizeof command, "%.*s%s%s", (int)strcspn(show, "%"), show, rule->setting,
             strchr(show, '%') ? strchr(show, '%') + 2 : "");
    if (rule->good ? strcasecmp(value, rule->good) != 0 : strcasecmp(value, rule->bad) == 0)
        hfi_finding(examination, rule->level, rule->what, "%s\n%s is %s (%s)\n%s", rule->follows, rule->setting, value,
                    command, rule->remedy);
    else
        hfi_finding(examination, HF_FINDING_OK, rule->what, "%s\n%s is %s (%s)", rule->fine, rule->setting, value,
                    command);
}

void hfi_sql_judge_clock(const struct hfi_examination *examination, int64_t before_ms, int64_t server_ms,
                         int64_t after_ms, const char *show)
{
    const int64_t behind = before_ms - server_ms, ahead = server_ms - after_ms;
    if (behind > CLOCKS_APART_MS)
        hfi_finding(examination, HF_FINDING_RISK, "clock",
                    "leases end by the server's clock: when it is put right, all of them end that much too early, and "
                    "a lock can have two holders until the first one's next renewal\n"
                    "it is %" PRId64 " ms behind the clock of this machine (%s)\n"
                    "synchronise the clocks, and let them be slewed, not set, while locks are held",
                    behind, show);
    else if (ahead > CLOCKS_APART_MS)
        hfi_finding(examination, HF_FINDING_RISK, "clock",
                    "leases end by the server's clock: one that is set back keeps the locks of the dead for longer, "
                    "and the next server's tokens may be smaller than those of this one after a failover\n"
                    "it is %" PRId64 " ms ahead of the clock of this machine (%s)\n"
                    "synchronise the clocks, and let them be slewed, not set, while locks are held",
                    ahead, show);
    else
        hfi_finding(examination, HF_FINDING_OK, "clock",
                    "leases end by the server's clock, which agrees with that of this machine\n"
                    "less than %" PRId64 " ms apart (%s)",
                    CLOCKS_APART_MS + after_ms - before_ms, show);
}

void hfi_sql_judge_connections(const struct hfi_examination *examination, const struct hfi_sql_connections *found)
{
    const int64_t spare = found->most - found->used;
    const char *each = found->bound ? "; each lock that is held or waited for needs one" : "";
    if (spare < SPARE_LEAST || spare < found->most / 20)
        hfi_finding(examination, HF_FINDING_RISK, "connections",
                    "a client that gets no connection cannot acquire, and one that has lost its own cannot renew, so "
                    "its lock ends%s\n%" PRId64 " of %" PRId64 " allowed by %s are in use (%s)\n%s",
                    each, found->used, found->most, found->limit, found->show, found->remedy);
    else
        hfi_finding(examination, HF_FINDING_OK, "connections",
                    "there is room for more clients%s\n%" PRId64 " of %" PRId64 " allowed by %s are in use (%s)", each,
                    found->used, found->most, found->limit, found->show);
}

void hfi_sql_judge_sessions(const struct hfi_examination *examination, const struct hfi_sql_sessions *found)
{
    if (found->first == found->second)
        hfi_finding(examination, HF_FINDING_BROKEN, found->go_between,
                    "pooler=session says that the %s keeps sessions together, and it does not: what one client sets, "
                    "waits for or locks, others have\n"
                    "two connections at the same time have the number %" PRId64 " (%s)\n%s",
                    found->go_between, found->first, found->show, found->remedy);
    else
        hfi_finding(examination, HF_FINDING_OK, found->go_between,
                    "pooler=session: two connections have two sessions\nnumbers %" PRId64 " and %" PRId64 " (%s)",
                    found->first, found->second, found->show);
}

hf_status hfi_sql_look(const struct hfi_examination *examination, const struct hfi_sql_look *looks, size_t count,
                       const struct doctor *doctor, const bool *broken, const char *remedy, hf_error *err)
{
    hf_error trouble = { .status = HF_OK };
    for (size_t i = 0; i < count; i++) {
        const hf_status status = looks[i].look(doctor, &trouble);
        if (status != HF_OK && *broken)
            return hfi_fail(err, status, trouble.native, "%s", trouble.message);
        if (status != HF_OK)
            hfi_finding(examination, status == HF_DENIED ? HF_FINDING_BROKEN : HF_FINDING_NOTE, looks[i].what,
                        "what locks need here could not be looked at\n%s\n%s", trouble.message,
                        status == HF_DENIED ? remedy : "");
    }
    return HF_OK;
}
