/* SPDX-License-Identifier: MIT
 *
 * mysql_look.c: who holds what and who waits, forced release, and fencing.
 */
#include "mysql_engine.h"
#include <inttypes.h>
#include <mysqld_error.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often it is looked whether a connection that was told to end has done so. */
#define END_PAUSE_MS 5

/* Who waits for less is not worth the time that it takes to say so. */
#define WORTH_A_LINE (100 * HFI_MS)

void hfi_mysql_enter_line(struct mysql_store *store, struct mysql_connection *connection,
                          const struct mysql_values *values, hfi_time deadline_ns)
{
    if (!store->config.strategy->sql[SQL_ENTER].text || deadline_ns - store->env->now_ns() < WORTH_A_LINE)
        return;
    hfi_mysql_run(store, connection, SQL_ENTER, values, NULL, deadline_ns, NULL);
    if (!connection->broken && !atomic_exchange(&store->tidied, true))
        hfi_mysql_run(store, connection, SQL_TIDY, values, NULL, deadline_ns, NULL);
}

bool hfi_mysql_is_in_line(struct mysql_store *store, const struct mysql_lock *lock, hfi_time deadline_ns)
{
    const struct mysql_values values = { .connection = lock->connection->id };
    const hfi_time usual = store->env->now_ns() + store->env->timeout_ns;
    struct mysql_answer answer = { .found = false };
    if (!store->config.strategy->sql[SQL_WAITS].text)
        return false;
    const hf_status status =
        hfi_mysql_ask(store, SQL_WAITS, &values, &answer, usual < deadline_ns ? usual : deadline_ns, NULL);
    return status != HF_OK || !answer.found || answer.row.text[0][0] == '1';
}

static int show(const struct mysql_row *row, hf_inspect_fn each, void *arg)
{
    const hf_info info = { .size = sizeof info,
                           .name = row->text[0],
                           .host = row->text[1],
                           .pid = (int64_t)hfi_mysql_number(row, 2),
                           .token = hfi_mysql_number(row, 3),
                           .held_ms = strtoll(row->text[4], NULL, 10),
                           .remaining_ms = row->null[5] ? -1 : strtoll(row->text[5], NULL, 10),
                           .waiters = strtoll(row->text[6], NULL, 10),
                           .note = row->text[7] };
    return each(&info, arg);
}

static hf_status show_all(struct mysql_store *store, enum mysql_sql inspect, const char *text, hf_inspect_fn each,
                          void *arg, hfi_time deadline_ns, hf_error *err)
{
    const struct mysql_values values = { .name = text, .note = "" };
    struct mysql_connection *connection = NULL;
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_ask_on(store, &connection, inspect, &values, &answer, deadline_ns, err);
    if (connection && status != HF_OK)
        connection->broken = true;
    bool more = status == HF_OK && answer.found && show(&answer.row, each, arg) == 0;
    while (more && connection && hfi_mysql_next_row(connection))
        more = show(&connection->row, each, arg) == 0;
    hfi_mysql_give_back(store, connection);
    return status;
}

hf_status hfi_mysql_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                            hf_error *err)
{
    return show_all(memory, SQL_INSPECT, prefix, each, arg, deadline_ns, err);
}

hf_status hfi_mysql_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err)
{
    return show_all(memory, SQL_INSPECT_ONE, name, each, arg, deadline_ns, err);
}

hf_status hfi_mysql_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err)
{
    return show_all(memory, SQL_MARKS, prefix, each, arg, deadline_ns, err);
}

/* Only the mark that was seen: a request that comes late must not take back what was done since. */
hf_status hfi_mysql_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct mysql_values values = { .name = name };
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_ask(memory, SQL_LOOK_AT_MARK, &values, &answer, deadline_ns, err);
    if (status != HF_OK || !answer.found)
        return status;
    values.version = hfi_mysql_number(&answer.row, 3);
    return hfi_mysql_ask(memory, SQL_FORGET, &values, NULL, deadline_ns, err);
}

hf_status hfi_mysql_look_at_mark(struct mysql_store *store, const struct mysql_values *values, struct hfi_grant *grant,
                                 hfi_time deadline_ns, hf_error *err)
{
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_ask(store, SQL_LOOK_AT_MARK, values, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const struct mysql_row *row = &answer.row;
    const long long left = answer.found ? strtoll(row->text[5], NULL, 10) : 0;
    if (left <= 0)
        return HF_BUSY;
    snprintf(grant->holder, sizeof grant->holder, "%.64s:%.20s%s%.70s", row->text[1], row->text[2],
             *row->text[7] ? " " : "", row->text[7]);
    grant->holder_left_ms = left;
    grant->done_ago_ms = strtoll(row->text[4], NULL, 10);
    return HF_DONE;
}

/* Who has the name. */
struct holder {
    bool found;
    unsigned long long connection;    /* 0: none */
    char word[HFI_MYSQL_KEY_MAX + 1]; /* the user-level lock by which the connection is known */
    char owner[33];                   /* of a row … */
    uint64_t token;                   /* … and its token */
};

static hf_status find_holder(struct mysql_store *store, const struct mysql_values *values, struct holder *holder,
                             hfi_time deadline_ns, hf_error *err)
{
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_ask(store, SQL_RINGER, values, &answer, deadline_ns, err);
    *holder = (struct holder){ .found = status == HF_OK && answer.found };
    if (!holder->found)
        return status;
    holder->connection = hfi_mysql_number(&answer.row, 0);
    snprintf(holder->word, sizeof holder->word, "%.*s", HFI_MYSQL_KEY_MAX, answer.row.text[1]);
    if (!store->config.strategy->bound) {
        snprintf(holder->owner, sizeof holder->owner, "%.32s", answer.row.text[2]);
        holder->token = hfi_mysql_number(&answer.row, 3);
    }
    return status;
}

/* Only while it has what it was found by, or what arrives late would end a connection that has other locks by then. */
static hf_status end_connection(struct mysql_store *store, const struct holder *holder, hfi_time deadline_ns,
                                hf_error *err)
{
    char text[160];
    hf_error trouble = { .native = 0 };
    struct mysql_connection *connection = NULL;
    if (strpbrk(holder->word, "'\\")) /* no word of ours: somebody has written it into the table */
        return hfi_fail(err, HF_INVALID, 0, "the row of the lock names a user-level lock that is not ours");
    snprintf(text, sizeof text, "KILL IF(IS_USED_LOCK('%s') <=> %llu, %llu, 0)", holder->word, holder->connection,
             holder->connection);
    hf_status status = hfi_mysql_borrow(store, &connection, deadline_ns, err);
    if (status != HF_OK)
        return status;
    status = hfi_mysql_say(store, connection, text, NULL, deadline_ns, &trouble);
    hfi_mysql_give_back(store, connection);
    if (status == HF_OK || trouble.native == ER_NO_SUCH_THREAD)
        return HF_OK;
    return hfi_fail(err, status, trouble.native, "%s", trouble.message);
}

/* A lock that is bound to a connection ends with its connection: until the one that has it now has it no more. Who is
 * served next keeps it. */
static hf_status end_holder(struct mysql_store *store, const struct mysql_values *values, hfi_time deadline_ns,
                            hf_error *err)
{
    struct holder first, now;
    hf_status status = find_holder(store, values, &first, deadline_ns, err);
    if (status == HF_OK && first.connection != 0)
        status = end_connection(store, &first, deadline_ns, err);
    while (status == HF_OK && first.connection != 0) {
        status = find_holder(store, values, &now, deadline_ns, err);
        if (status == HF_OK && now.connection != first.connection)
            break;
        if (status == HF_OK && store->env->now_ns() >= deadline_ns)
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "the holder of %.100s does not end", values->name);
        poll(NULL, 0, END_PAUSE_MS);
    }
    return status;
}

/* After the row was freed, so that nobody is blamed for what was not done, and before its holder's connection is ended,
 * as the holder asks for it then. If it cannot be done within a second, the holder is told less: those who wait for the
 * lock wait for this as well, since the bell is that connection's. A busy server may need some of it. */
static void blame(struct mysql_store *store, struct mysql_values *values, const struct holder *holder, const char *by,
                  hfi_time deadline_ns)
{
    char broken[HFI_SQL_BROKEN_MAX];
    const hfi_time until = hfi_sql_patience(store->env->now_ns(), deadline_ns);
    hfi_sql_write_broken(broken, holder->token, by);
    values->note = broken;
    hfi_mysql_ask(store, SQL_BLAME, values, NULL, until, NULL);
    values->note = "";
}

hf_status hfi_mysql_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct mysql_store *store = memory;
    const struct hfi_request request = { .name = name, .note = "" };
    struct mysql_values values;
    struct mysql_answer answer = { .found = false };
    struct holder holder;
    hfi_mysql_values(&values, store, &request);
    if (store->config.strategy->bound)
        return end_holder(store, &values, deadline_ns, err);
    hf_status status = find_holder(store, &values, &holder, deadline_ns, err);
    if (status != HF_OK || !holder.found)
        return status;
    snprintf(values.owner, sizeof values.owner, "%s", holder.owner);
    status = hfi_mysql_ask(store, SQL_EVICT, &values, &answer, deadline_ns, err);
    if (status == HF_OK && answer.changed > 0)
        blame(store, &values, &holder, by, deadline_ns);
    /* The bell, on which others wait, and the holder hears of it at once. Whoever may not do that leaves it to the
     * holder's next renewal. */
    if (status == HF_OK && answer.changed > 0 && holder.connection != 0)
        end_connection(store, &holder, deadline_ns, NULL);
    return status;
}

hf_status hfi_mysql_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err)
{
    const struct mysql_values values = { .name = resource, .version = token };
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_ask(memory, SQL_GUARD, &values, &answer, deadline_ns, err);
    if (status == HF_OK && answer.number != token)
        return hfi_fail(err, HF_LOST, 0, "a greater token than %" PRIu64 " was shown for %.120s", token, resource);
    return status;
}
