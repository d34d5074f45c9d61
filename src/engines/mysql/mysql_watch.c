/* SPDX-License-Identifier: MIT
 *
 * mysql_watch.c: the connections that hold something are watched by the keeper: a lock that is bound to its connection
 * ends with it, and a row whose connection was ended has perhaps been broken. Every few seconds they are pinged: a
 * server that hears nothing ends the connection, and nobody answers where a network swallows everything, or where the
 * server has ended a connection whose other half a proxy keeps open.
 */
#include "mysql_engine.h"
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#define WATCHED_AT_ONCE 16
#define BEAT_BOUND 2
#define BEAT 600
/* How long a ping may be unanswered. With a beat before it, less than SILENCE_BOUND in mysql_connect.c: the holder
 * knows before the server gives its lock away because it hears nothing. */
#define PATIENCE (8 * HFI_SECOND)

hf_status hfi_mysql_watch_open(struct mysql_store *store, hf_error *err)
{
    return hfi_sql_watch_open(&store->watch, &store->heart, store->config.strategy->bound ? BEAT_BOUND : BEAT, err);
}

/* Once it has ended, it is heard of once. */
static int listen_to(const struct mysql_store *store, const struct mysql_connection *connection, int how)
{
    struct epoll_event event = { .events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = connection->number };
    return epoll_ctl(store->watch, how, mysql_get_socket(connection->client), &event);
}

hf_status hfi_mysql_watch_connection(struct mysql_store *store, struct mysql_connection *connection, hf_error *err)
{
    pthread_mutex_lock(&store->mutex);
    connection->number = ++store->connections;
    connection->ends = store->ends;
    pthread_mutex_unlock(&store->mutex);
    return listen_to(store, connection, EPOLL_CTL_ADD) == 0 ? HF_OK
                                                            : hfi_fail_errno(err, errno, "watch", "a connection");
}

void hfi_mysql_watch(struct mysql_store *store, struct mysql_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    lock->watched = true;
    lock->next = store->watched;
    store->watched = lock;
    store->watched_count++;
    if (lock->connection->ends != store->ends) { /* it may have been this one */
        lock->connection->ends = store->ends;
        listen_to(store, lock->connection, EPOLL_CTL_MOD);
    }
    pthread_mutex_unlock(&store->mutex);
}

struct mysql_connection *hfi_mysql_take_connection(struct mysql_store *store, struct mysql_lock *lock)
{
    pthread_mutex_lock(&store->mutex);
    struct mysql_connection *connection = lock->connection;
    if (lock->watched) {
        struct mysql_lock **link = &store->watched;
        while (*link != lock)
            link = &(*link)->next;
        *link = lock->next;
        lock->watched = false;
        store->watched_count--;
    }
    lock->connection = NULL;
    pthread_mutex_unlock(&store->mutex);
    return connection;
}

/* With the mutex. Nothing comes on a connection at rest but its end, and the answer to a ping. */
bool hfi_mysql_has_ended(struct mysql_connection *connection)
{
    struct pollfd one = { .fd = mysql_get_socket(connection->client), .events = POLLIN };
    if (connection->broken)
        return true;
    if (connection->step == STEP_PING) {
        hfi_mysql_go_on(connection);
        if (connection->wanted)
            return false;
        connection->step = STEP_NONE;
        connection->broken = connection->failed != 0;
    } else if (one.fd < 0 || poll(&one, 1, 0) != 0) {
        connection->broken = true;
    }
    return connection->broken;
}

/* A server that ends a connection closes it without a word, whatever the reason is. */
const char *hfi_mysql_why_ended(const struct mysql_connection *connection)
{
    return connection->silent ? "its connection to the server does not answer any more"
                              : "its connection to the server was closed: it was broken, or ended there";
}

/* What came of the last ping is read before the next is sent; one that is not answered in time ends its connection,
 * and the end is heard of like any other. */
static void beat(struct mysql_store *store)
{
    uint64_t count;
    if (read(store->heart, &count, sizeof count) != sizeof count)
        return;
    const hfi_time now = store->env->now_ns();
    for (struct mysql_lock *lock = store->watched; lock; lock = lock->next) {
        struct mysql_connection *connection = lock->connection;
        if (hfi_mysql_has_ended(connection))
            continue;
        if (connection->step == STEP_PING && now - connection->pinged_ns >= PATIENCE) {
            connection->silent = true;
            hfi_mysql_reset(mysql_get_socket(connection->client));
        }
        hfi_mysql_ping(connection, now);
    }
}

/* With the mutex. */
static void note_end(struct mysql_store *store, uint64_t number)
{
    struct mysql_lock *lock = store->watched;
    while (lock && lock->connection->number != number)
        lock = lock->next;
    if (lock)
        lock->connection->broken = true;
    else
        store->ends++;
}

/* With the mutex. Takes one lock whose connection has ended, and of which nobody was told yet; serial 0: there is none.
 * A beat finds some that are not heard of: a connection that is still open, or that libmariadb has closed. */
static struct hfi_owner next_ended(struct mysql_store *store, const char **why)
{
    struct mysql_lock *lock = store->watched;
    while (lock && (!lock->connection->broken || lock->connection->told))
        lock = lock->next;
    if (!lock)
        return (struct hfi_owner){ .serial = 0 };
    lock->connection->told = true;
    *why = hfi_mysql_why_ended(lock->connection);
    return lock->owner;
}

void hfi_mysql_take_push(void *memory)
{
    struct mysql_store *store = memory;
    const struct hfi_env *env = store->env;
    struct epoll_event events[WATCHED_AT_ONCE];
    struct hfi_owner ended;
    const char *why = "";
    pthread_mutex_lock(&store->mutex);
    const int ready = epoll_wait(store->watch, events, WATCHED_AT_ONCE, 0);
    for (int i = 0; i < ready; i++) {
        if (events[i].data.u64 == HFI_SQL_HEART)
            beat(store);
        else
            note_end(store, events[i].data.u64);
    }
    while ((ended = next_ended(store, &why)).serial) {
        pthread_mutex_unlock(&store->mutex);
        if (store->config.strategy->bound)
            env->lost(env->core, ended, why);
        else
            env->recheck(env->core, 0);
        pthread_mutex_lock(&store->mutex);
    }
    pthread_mutex_unlock(&store->mutex);
}
