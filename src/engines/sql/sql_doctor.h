/* SPDX-License-Identifier: MIT
 *
 * sql_doctor.h: what engines for SQL servers look at in the same way when a deployment is examined.
 */
#ifndef HFI_SQL_DOCTOR_H
#define HFI_SQL_DOCTOR_H

#include "engine.h"

/* A setting of the server's that has one good value, or one bad one. */
struct hfi_sql_rule {
    const char *what, *setting;
    const char *good, *bad; /* NULL: the other one counts */
    hf_finding_level level; /* of what is not good */
    const char *fine;       /* what follows if it is good */
    const char *follows;    /* what follows if not */
    const char *remedy;
};

/* `show`: the statement that shows it, with %s for its name. */
void hfi_sql_judge(const struct hfi_examination *examination, const struct hfi_sql_rule *rule, const char *value,
                   const char *show);

/* What the server's clock said between two looks at ours, all in milliseconds since 1970. */
void hfi_sql_judge_clock(const struct hfi_examination *examination, int64_t before_ms, int64_t server_ms,
                         int64_t after_ms, const char *show);

/* How many connections there may be by the tightest limit, and are. `bound`: each lock has one of its own. */
struct hfi_sql_connections {
    const char *limit, *show, *remedy;
    int64_t most, used;
    bool bound;
};
void hfi_sql_judge_connections(const struct hfi_examination *examination, const struct hfi_sql_connections *found);

/* What two connections at the same time say of their sessions; `go_between`: what gives them to others. */
struct hfi_sql_sessions {
    const char *go_between, *show, *remedy;
    int64_t first, second;
};
void hfi_sql_judge_sessions(const struct hfi_examination *examination, const struct hfi_sql_sessions *found);

/* One look of many: what the user may not see ends it, and not the others, unless the connection has broken. */
struct doctor; /* the engine's own */
struct hfi_sql_look {
    const char *what;
    hf_status (*look)(const struct doctor *doctor, hf_error *err);
};
hf_status hfi_sql_look(const struct hfi_examination *examination, const struct hfi_sql_look *looks, size_t count,
                       const struct doctor *doctor, const bool *broken, const char *remedy, hf_error *err);

#endif
