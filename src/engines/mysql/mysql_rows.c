/* SPDX-License-Identifier: MIT
 *
 * mysql_rows.c: lease, insert and version: the lock is a row with an owner and an end.
 *
 * A holder keeps the connection with which it took the row, for the bell that is on it (see mysql_strategies.c). A
 * waiter waits for the bell with a connection of its own, in the server's queue; whoever gets it is first in line, and
 * asks for the row. If the holder has no bell, because its connection broke or because it holds too many locks, the
 * first in line, and no other, asks from time to time. All ask when the time of the holder is over, without leaving the
 * queue.
 */
#include "mysql_engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More locks than these are held without a bell: a connection for each would be too much. */
#define PINNED_MOST 8
/* When the holder's time is over, its waiters ask by themselves: the first in line at once, the others when it should
 * have been served, in case that there is no first because the bell is stuck. They do so every ten seconds, too, or a
 * first that stands still would cost the whole time-to-live of whoever was before it. */
#define BACKSTOP_FIRST (10 * HFI_MS)
#define BACKSTOP_OTHERS (1000 * HFI_MS)
#define BACKSTOP_SPREAD (60 * HFI_MS)
#define BACKSTOP_MOST INT64_C(10000)
/* How often the first in line asks a holder without a bell. */
#define POLL_PAUSE (250 * HFI_MS)
#define TRIES_MOST 4

/* The columns of SQL_LOOK. */
enum {
    COLUMN_MINE,
    COLUMN_HOST,
    COLUMN_PID,
    COLUMN_LEFT,
    COLUMN_BELL,
    COLUMN_FIRST,
    COLUMN_VERSION,
    COLUMN_FREE,
    COLUMN_AHEAD
};

static bool is_true(const struct mysql_row *row, int column)
{
    return row->text[column][0] == '1';
}

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static hfi_time spread(const struct mysql_store *store, hfi_time most)
{
    return (hfi_time)(store->env->random() % (uint64_t)most);
}

/* The lock's own connection, if it has one that lives. */
static struct mysql_connection *take_own(struct mysql_store *store, struct mysql_lock *lock)
{
    struct mysql_connection *connection = hfi_mysql_take_connection(store, lock);
    if (!connection || hfi_mysql_is_alive(store, connection))
        return connection;
    hfi_mysql_disconnect(connection);
    return NULL;
}

/* --- asking for the row --- */

static uint64_t next_request(struct mysql_store *store)
{
    return atomic_fetch_add(&store->requests, 1) + 1;
}

static hf_status take(struct mysql_store *store, struct mysql_connection **connection, struct mysql_values *values,
                      struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    values->sent_ns = store->env->now_ns();
    values->request = next_request(store);
    const enum mysql_sql statement = values->once ? SQL_TAKE_ONCE : SQL_TAKE;
    hf_status status = hfi_mysql_ask_on(store, connection, statement, values, answer, deadline_ns, err);
    if (status == HF_OK && hfi_mysql_is_done(values, answer))
        return HF_DONE;
    if (status == HF_OK && store->config.strategy->sql[SQL_COUNT].text)
        status = hfi_mysql_ask_on(store, connection, SQL_COUNT, values, answer, deadline_ns, err);
    return status != HF_OK || answer->changed > 0 ? status : HF_BUSY;
}

/* Who has it; and if its end is too far away, that is mended first. */
static hf_status look(struct mysql_store *store, struct mysql_connection **connection,
                      const struct mysql_values *values, struct mysql_answer *answer, hfi_time deadline_ns,
                      hf_error *err)
{
    hf_status status = hfi_mysql_ask_on(store, connection, SQL_LOOK, values, answer, deadline_ns, err);
    if (status != HF_OK || !answer->found || !is_true(&answer->row, COLUMN_AHEAD))
        return status;
    status = hfi_mysql_ask_on(store, connection, SQL_MEND, values, answer, deadline_ns, err);
    return status == HF_OK ? hfi_mysql_ask_on(store, connection, SQL_LOOK, values, answer, deadline_ns, err) : status;
}

/* Until the answer is yes or no: a name that was never used gets its row, a version that has changed meanwhile is
 * looked at again. After HF_OK answer->number is the token, after HF_BUSY the row says who has it, after HF_DONE the
 * bell was let go of. */
static hf_status contest(struct mysql_store *store, struct mysql_connection **connection, struct mysql_values *values,
                         struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    const bool looks_first = store->config.strategy->looks_first;
    hf_status status = looks_first ? HF_BUSY : take(store, connection, values, answer, deadline_ns, err);
    for (unsigned tries = 0; status == HF_BUSY && tries < TRIES_MOST; tries++) {
        status = look(store, connection, values, answer, deadline_ns, err);
        if (status != HF_OK)
            return status;
        const bool missing = !answer->found;
        const uint64_t version = missing ? 0 : hfi_mysql_number(&answer->row, COLUMN_VERSION);
        const bool open = !missing && (is_true(&answer->row, COLUMN_MINE) || is_true(&answer->row, COLUMN_FREE));
        if (!missing && (!looks_first || !open || (tries > 0 && version == values->version)))
            return HF_BUSY;
        if (missing)
            status = hfi_mysql_ask_on(store, connection, SQL_ADD, values, answer, deadline_ns, err);
        values->version = version;
        if (status == HF_OK)
            status = take(store, connection, values, answer, deadline_ns, err);
    }
    if (status == HF_BUSY)
        answer->found = false; /* it changes hands faster than we can look */
    return status;
}

/* --- the place in line --- */

/* Gives up the connection that waits for the bell, or has it. */
static void leave_line(struct mysql_store *store, struct mysql_lock *lock, hfi_time deadline_ns)
{
    struct mysql_connection *connection = lock->connection;
    if (connection && !connection->broken && lock->calling)
        hfi_mysql_cancel(store, connection, NULL, deadline_ns);
    if (connection && !connection->broken && (lock->calling || lock->got))
        hfi_mysql_let_go(store, connection, deadline_ns, NULL);
    hfi_mysql_give_back(store, connection);
    lock->connection = NULL;
    lock->calling = lock->got = false;
    lock->bell[0] = 0;
}

/* Has the bell come? */
static void hear_bell(struct mysql_store *store, struct mysql_lock *lock)
{
    struct mysql_answer answer = { .found = false };
    if (!lock->calling)
        return;
    const hf_status status = hfi_mysql_poll(store, lock->connection, &answer, NULL);
    if (status == HF_BUSY)
        return;
    lock->calling = false;
    lock->got = status == HF_OK && answer.found && is_true(&answer.row, 1); /* beside the sign that it waits */
    if (status != HF_OK) {
        lock->connection->broken = true;
        leave_line(store, lock, 0);
    }
}

static void say_who(const struct mysql_row *row, struct hfi_grant *grant)
{
    const char *host = row->text[COLUMN_HOST];
    if (*host && !is_true(row, COLUMN_FREE))
        snprintf(grant->holder, sizeof grant->holder, "%.100s:%.20s", host, row->text[COLUMN_PID]);
    const long long left = strtoll(row->text[COLUMN_LEFT], NULL, 10);
    grant->holder_left_ms = left < 0 ? 0 : left;
}

/* The connection that waits may have ended behind a proxy that does not say so. As long as others stand in line the
 * bell would go from one of them to the next, and never come. */
static void look_after_wait(struct mysql_store *store, struct mysql_lock *lock, hfi_time deadline_ns)
{
    const hfi_time now = store->env->now_ns();
    if (!lock->calling || now < lock->look_at_ns)
        return;
    lock->look_at_ns = now + HFI_MYSQL_LOOK_PAUSE;
    if (hfi_mysql_is_in_line(store, lock, deadline_ns))
        return;
    lock->connection->broken = true;
    leave_line(store, lock, deadline_ns);
}

/* Somebody else has it. `connection` is the one that was asked with. */
static void stay_in_line(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                         struct mysql_connection *connection, const struct mysql_answer *answer,
                         struct hfi_grant *grant)
{
    const struct mysql_row *row = &answer->row;
    bool first = false;
    look_after_wait(store, lock, request->deadline_ns);
    grant->holder_left_ms = 0;
    if (answer->found) {
        say_who(row, grant);
        first = is_true(row, COLUMN_FIRST);
        if (strcmp(lock->bell, row->text[COLUMN_BELL]) != 0) { /* another bell, another line */
            leave_line(store, lock, request->deadline_ns);
            snprintf(lock->bell, sizeof lock->bell, "%.*s", HFI_MYSQL_KEY_MAX, row->text[COLUMN_BELL]);
        }
    }
    const hfi_time left = earlier(grant->holder_left_ms, BACKSTOP_MOST) * HFI_MS + spread(store, BACKSTOP_SPREAD);
    lock->ask_again_ns = store->env->now_ns() + left + (first ? BACKSTOP_FIRST : BACKSTOP_OTHERS);
    if (request->queue && !lock->connection && answer->found) {
        lock->connection = connection;
        lock->got = first;
    } else {
        if (first || !answer->found) /* nobody may wait for what lies in the pool */
            hfi_mysql_let_go(store, connection, request->deadline_ns, NULL);
        hfi_mysql_give_back(store, connection);
    }
}

/* --- attempt --- */

static void become_holder(struct mysql_store *store, struct mysql_lock *lock, struct mysql_connection *connection,
                          hfi_time deadline_ns)
{
    if (lock->connection) { /* the holder's time was over before its bell was heard */
        lock->connection->broken = true;
        leave_line(store, lock, deadline_ns);
    }
    lock->connection = connection;
    lock->held = true;
    lock->got = lock->calling = lock->unsure = false;
    pthread_mutex_lock(&store->mutex);
    const bool room = store->watched_count < PINNED_MOST;
    pthread_mutex_unlock(&store->mutex);
    if (room) {
        hfi_mysql_watch(store, lock);
    } else {
        lock->connection = NULL;
        hfi_mysql_let_go(store, connection, deadline_ns, NULL);
        hfi_mysql_give_back(store, connection);
    }
}

hf_status hfi_mysql_row_attempt(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                struct hfi_grant *grant, hf_error *err)
{
    struct mysql_values values;
    struct mysql_answer answer = { .found = false };
    struct mysql_connection *connection = NULL;
    hfi_mysql_values(&values, store, request);
    lock->owner = request->owner;
    hear_bell(store, lock);
    if (!lock->calling) { /* also of a grant that came too late for the core: it is asked for again */
        connection = take_own(store, lock);
        lock->got = lock->held = false;
    }
    hf_status status = contest(store, &connection, &values, &answer, request->deadline_ns, err);
    if (status == HF_OK) {
        grant->token = answer.number;
        grant->counted_from_ns = values.sent_ns;
        lock->token = grant->token;
        become_holder(store, lock, connection, request->deadline_ns);
    } else if (status == HF_BUSY) {
        stay_in_line(store, lock, request, connection, &answer, grant);
        if (request->once && store->config.strategy->looks_first) /* and did not ask for what others have */
            status = hfi_mysql_look_at_mark(store, &values, grant, request->deadline_ns, err);
    } else if (status == HF_DONE) {
        hfi_mysql_give_back(store, connection);
        hfi_mysql_look_at_mark(store, &values, grant, request->deadline_ns, NULL); /* it may have been taken back */
    } else {
        lock->unsure = true;
        lock->unanswered = lock->unanswered || status == HF_UNKNOWN;
        if (connection)
            connection->broken = true;
        hfi_mysql_give_back(store, connection);
    }
    return status;
}

/* --- wait --- */

static hf_status join_line(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                           hf_error *err)
{
    const hfi_time limit = earlier(store->env->now_ns() + store->env->timeout_ns, request->deadline_ns);
    struct mysql_values values;
    hf_status status = HF_OK;
    hfi_mysql_values(&values, store, request);
    values.bell = lock->bell;
    if (!lock->connection)
        status = hfi_mysql_borrow(store, &lock->connection, limit, err);
    if (status == HF_OK)
        hfi_mysql_enter_line(store, lock->connection, &values, limit);
    if (status == HF_OK)
        status = hfi_mysql_send(store, lock->connection, SQL_CALL, &values, limit, err);
    lock->calling = status == HF_OK;
    lock->look_at_ns = store->env->now_ns() + HFI_MYSQL_LOOK_PAUSE;
    if (status != HF_OK && lock->connection) {
        lock->connection->broken = true;
        leave_line(store, lock, 0);
    }
    if (status == HF_OK)
        hfi_mysql_warm_pool(store, limit);
    /* A wait that was too short for that is over, and nothing else. */
    return status == HF_UNAVAILABLE && store->env->now_ns() >= request->deadline_ns ? HF_TIMEOUT : status;
}

hf_status hfi_mysql_row_wait(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                             hf_error *err)
{
    hf_status status = HF_OK;
    if (!*lock->bell || lock->got) {
        const hfi_time pause = POLL_PAUSE / 2 + spread(store, POLL_PAUSE / 2);
        lock->ask_again_ns = earlier(lock->ask_again_ns, store->env->now_ns() + pause);
    } else if (!lock->calling) {
        status = join_line(store, lock, request, err);
    }
    const hfi_time until = earlier(lock->ask_again_ns, request->deadline_ns);
    while (status == HF_OK && !hfi_waker_called_back(request->waker)) {
        struct pollfd socket = { .events = POLLIN };
        if (lock->calling && !lock->connection->wanted)
            break; /* the bell was free, or came at once */
        if (lock->calling)
            socket.fd = mysql_get_socket(lock->connection->client);
        if (!hfi_waker_sleep(request->waker, &socket, lock->calling ? 1 : 0, until))
            return until < request->deadline_ns ? HF_OK : HF_TIMEOUT;
        if (socket.revents)
            hfi_mysql_go_on(lock->connection);
    }
    return status;
}

/* --- who broke it --- */

/* Of those that are lost: a hold that was broken has left that in the row of grants. Whatever becomes of this, they are
 * lost. */
static void find_breakers(struct mysql_store *store, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns)
{
    const hfi_time until = hfi_sql_patience(store->env->now_ns(), deadline_ns);
    hf_status status = HF_OK;
    for (size_t i = 0; i < count && status == HF_OK; i++) {
        if (renewals[i].status != HF_LOST)
            continue;
        const struct mysql_lock *lock = renewals[i].lock;
        const struct mysql_values values = { .name = renewals[i].name };
        struct mysql_answer answer = { .found = false };
        status = hfi_mysql_ask(store, SQL_BROKEN, &values, &answer, until, NULL);
        if (status == HF_OK && answer.found)
            hfi_sql_read_broken(renewals[i].why, answer.row.text[0], lock->token);
    }
}

/* A release that finds it gone. Whoever does not want to know why is not kept waiting. */
static hf_status fail_lost(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                           hf_error *err)
{
    struct hfi_renewal lost = { .lock = lock, .name = request->name, .status = HF_LOST };
    if (err)
        find_breakers(store, &lost, 1, request->deadline_ns);
    return hfi_fail(err, HF_LOST, 0, "%s", *lost.why ? lost.why : "the server no longer had it");
}

/* --- release --- */

static hf_status free_row(struct mysql_store *store, const struct mysql_lock *lock,
                          struct mysql_connection **connection, const struct hfi_request *request, uint64_t *changed,
                          hf_error *err)
{
    struct mysql_values values;
    struct mysql_answer answer = { .changed = 0 };
    hf_status status = HF_OK, marked = HF_OK;
    hfi_mysql_values(&values, store, request);
    if (lock->unanswered) /* or what arrives after this would take it for nobody */
        status = hfi_mysql_ask_on(store, connection, SQL_REFUSE, &values, &answer, request->deadline_ns, err);
    if (status == HF_OK && request->done_ms) {
        marked = hfi_mysql_ask_on(store, connection, SQL_MARK, &values, &answer, request->deadline_ns, err);
        status = hfi_mysql_is_final(marked) ? HF_OK : marked; /* it is freed all the same */
    }
    if (status == HF_OK && store->config.strategy->sql[SQL_CLAIM].text)
        status = hfi_mysql_ask_on(store, connection, SQL_CLAIM, &values, &answer, request->deadline_ns, err);
    if (status == HF_OK)
        status = hfi_mysql_ask_on(store, connection, SQL_FREE, &values, &answer, request->deadline_ns, err);
    *changed = answer.changed;
    return status == HF_OK ? marked : status;
}

static hf_status release_held(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                              hf_error *err)
{
    struct mysql_connection *connection = take_own(store, lock);
    uint64_t changed = 0;
    const bool pinned = connection != NULL;
    hf_status status = free_row(store, lock, &connection, request, &changed, err);
    if (status == HF_OK && changed == 0) {
        if (pinned)
            hfi_mysql_let_go(store, connection, request->deadline_ns, NULL);
        status = fail_lost(store, lock, request, err);
    }
    if (connection && status != HF_OK && status != HF_LOST)
        connection->broken = true;
    hfi_mysql_give_back(store, connection);
    return status;
}

hf_status hfi_mysql_row_release(struct mysql_store *store, struct mysql_lock *lock, const struct hfi_request *request,
                                hf_error *err)
{
    hf_status status = HF_OK;
    if (lock->held) {
        status = release_held(store, lock, request, err);
    } else {
        struct mysql_connection *connection = NULL;
        uint64_t changed;
        leave_line(store, lock, request->deadline_ns);
        if (lock->unsure || lock->unanswered)
            status = free_row(store, lock, &connection, request, &changed, err);
        if (connection && status != HF_OK)
            connection->broken = true;
        hfi_mysql_give_back(store, connection);
    }
    if (status == HF_OK || status == HF_LOST)
        lock->held = lock->unsure = lock->unanswered = false;
    return status;
}

/* --- renew --- */

static hf_status renew_one(struct mysql_store *store, struct hfi_renewal *renewal, hfi_time deadline_ns, hf_error *err)
{
    const struct hfi_request request = {
        .name = renewal->name, .owner = renewal->owner, .ttl_ms = renewal->ttl_ms, .note = ""
    };
    struct mysql_values values;
    struct mysql_answer answer = { .found = false };
    hfi_mysql_values(&values, store, &request);
    values.request = next_request(store);
    const hf_status status = hfi_mysql_ask(store, SQL_RENEW, &values, &answer, deadline_ns, err);
    if (status == HF_OK)
        renewal->status = answer.changed > 0 ? HF_OK : HF_LOST;
    return status;
}

/* Fewer rows than locks were extended: which? */
static hf_status find_lost(struct mysql_store *store, struct hfi_renewal **group, size_t count,
                           const struct mysql_values *values, hfi_time deadline_ns, hf_error *err)
{
    struct mysql_connection *connection = NULL;
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_ask_on(store, &connection, SQL_ALIVE_MANY, values, &answer, deadline_ns, err);
    for (size_t i = 0; i < count; i++)
        group[i]->status = HF_LOST;
    for (bool more = status == HF_OK && answer.found; more; more = hfi_mysql_next_row(connection)) {
        for (size_t i = 0; i < count; i++) {
            if (strcmp(values->many->owners[i], connection->row.text[0]) == 0)
                group[i]->status = HF_OK;
        }
    }
    if (connection && status != HF_OK)
        connection->broken = true;
    hfi_mysql_give_back(store, connection);
    return status;
}

/* Up to HFI_MYSQL_MANY locks with the same time-to-live by one statement. */
static hf_status renew_group(struct mysql_store *store, struct hfi_renewal **group, size_t count, hfi_time deadline_ns,
                             hf_error *err)
{
    struct mysql_many many;
    struct mysql_answer answer = { .found = false };
    const struct mysql_values values = { .ttl_ms = group[0]->ttl_ms, .request = next_request(store), .many = &many };
    for (size_t i = 0; i < HFI_MYSQL_MANY; i++) {
        const struct hfi_renewal *one = group[i < count ? i : count - 1]; /* the last one fills it up */
        many.names[i] = one->name;
        hfi_mysql_owner_text(many.owners[i], one->owner);
    }
    const hf_status status = hfi_mysql_ask(store, SQL_RENEW_MANY, &values, &answer, deadline_ns, err);
    for (size_t i = 0; i < count && status == HF_OK; i++)
        group[i]->status = HF_OK;
    return status == HF_OK && answer.changed < count ? find_lost(store, group, count, &values, deadline_ns, err)
                                                     : status;
}

static hf_status renew_several(struct mysql_store *store, struct hfi_renewal *renewals, size_t count,
                               hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_OK;
    for (size_t i = 0; i < count; i++)
        renewals[i].status = HF_INTERNAL; /* not asked yet */
    for (size_t first = 0; first < count && status == HF_OK; first++) {
        struct hfi_renewal *group[HFI_MYSQL_MANY];
        size_t size = 0;
        if (renewals[first].status != HF_INTERNAL)
            continue;
        for (size_t i = first; i < count && size < HFI_MYSQL_MANY; i++) {
            if (renewals[i].status == HF_INTERNAL && renewals[i].ttl_ms == renewals[first].ttl_ms)
                group[size++] = &renewals[i];
        }
        status = renew_group(store, group, size, deadline_ns, err);
    }
    return status;
}

hf_status hfi_mysql_row_renew(struct mysql_store *store, struct hfi_renewal *renewals, size_t count,
                              hfi_time deadline_ns, hf_error *err)
{
    const hf_status status = count == 1 ? renew_one(store, renewals, deadline_ns, err)
                                        : renew_several(store, renewals, count, deadline_ns, err);
    if (status == HF_OK)
        find_breakers(store, renewals, count, deadline_ns);
    return status;
}
