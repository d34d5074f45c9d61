/* SPDX-License-Identifier: MIT
 *
 * etcd_push.c: one connection per client that stays open, with two streams: on one the server tells of keys that were
 * deleted, on the other the leases are kept alive. It never waits: it is pumped by the keeper, and by one of those who
 * wait, see push.h.
 *
 * A server looks at a stream's token again for each watch, and refuses what has become too old; what is watched already
 * it goes on telling. So a new token needs new streams.
 *
 * All functions but the last two are called with the mutex.
 */
#include "etcd.h"
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* A server that stands still is noticed by a keep-alive that it does not answer: so there is one at least so often,
 * however long the lease, and so long is waited for the answer. */
#define KEEP_PAUSE_MOST (5 * HFI_SECOND)
#define KEEP_PATIENCE_LEAST (500 * HFI_MS)
#define KEEP_PATIENCE_MOST (2 * HFI_SECOND)
#define CONNECT_PATIENCE (3 * HFI_SECOND)
#define RETRY_FIRST (25 * HFI_MS)
#define RETRY_MOST HFI_SECOND

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* --- what the keeper listens to --- */

hf_status hfi_etcd_push_open(struct etcd_store *store, hf_error *err)
{
    struct etcd_push *push = &store->push;
    push->epoll = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    push->timer = HFI_FD(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
    push->armed_ns = HFI_NEVER;
    hfi_etcd_watches_open(store);
    push->watch.path = "/etcdserverpb.Watch/Watch";
    push->keep.path = "/etcdserverpb.Lease/LeaseKeepAlive";
    struct epoll_event event = { .events = EPOLLIN };
    if (push->epoll < 0 || push->timer < 0 || epoll_ctl(push->epoll, EPOLL_CTL_ADD, push->timer, &event) != 0)
        return hfi_fail_errno(err, errno, "make", "a client");
    return HF_OK;
}

static void listen_to_socket(const struct etcd_push *push)
{
    const struct etcd_connection *connection = push->connection;
    struct epoll_event event = { .events = (connection->wants & POLLIN ? EPOLLIN : 0u) |
                                           (connection->wants & POLLOUT ? EPOLLOUT : 0u) };
    /* A socket that was closed has left by itself, and the next may have got its number. */
    if (epoll_ctl(push->epoll, EPOLL_CTL_MOD, connection->fd, &event) != 0)
        epoll_ctl(push->epoll, EPOLL_CTL_ADD, connection->fd, &event);
}

static void arm(struct etcd_push *push, hfi_time due_ns)
{
    struct itimerspec at = { .it_value = { .tv_nsec = 0 } };
    if (due_ns != HFI_NEVER) {
        const hfi_time due = due_ns > 0 ? due_ns : 1; /* 0 would switch it off */
        at.it_value.tv_sec = due / HFI_SECOND;
        at.it_value.tv_nsec = due % HFI_SECOND;
    }
    push->armed_ns = due_ns;
    timerfd_settime(push->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

void hfi_etcd_push_expect(struct etcd_store *store, hfi_time due_ns)
{
    if (due_ns < store->push.armed_ns)
        arm(&store->push, due_ns);
}

/* --- the connection --- */

static void disconnect(struct etcd_push *push)
{
    hfi_etcd_disconnect(push->connection);
    push->connection = NULL;
    push->state = ETCD_PUSH_NONE;
    push->refused = false;
    hfi_etcd_stream_free(&push->login);
    hfi_etcd_stream_free(&push->watch);
    hfi_etcd_stream_free(&push->keep);
    hfi_etcd_errands_free(push);
}

/* What was asked on it is asked again on the next. */
static void hang_up(struct etcd_store *store)
{
    if (store->push.connection)
        hfi_dial_reset(store->push.connection->fd); /* what was said last may not have been answered */
    disconnect(&store->push);
    for (struct etcd_lease *lease = store->leases; lease; lease = lease->next)
        lease->asked_ns = 0;
    hfi_etcd_watches_broken(store);
}

void hfi_etcd_push_outdated(struct etcd_store *store)
{
    if (store->push.state == ETCD_PUSH_READY)
        hang_up(store);
    store->push.try_again_ns = 0; /* one that was refused need not wait any longer */
    hfi_etcd_push_expect(store, store->env->now_ns());
}

/* The next server is tried at once, until all were. */
static void break_off(struct etcd_store *store)
{
    struct etcd_push *push = &store->push;
    const size_t nodes = store->config.address_count;
    if (push->refused)
        hfi_etcd_login_refused(store, push->logged_in);
    hang_up(store);
    push->next_node = (push->next_node + 1) % nodes;
    hfi_time pause = 0;
    if (++push->failures >= nodes) {
        pause = RETRY_FIRST << (push->failures - nodes < 6 ? push->failures - nodes : 6);
        pause = earlier(pause, RETRY_MOST);
        pause = pause / 2 + (hfi_time)(store->env->random() % (uint64_t)(pause / 2));
    }
    push->try_again_ns = store->env->now_ns() + pause;
}

static void open_streams(struct etcd_store *store)
{
    struct etcd_push *push = &store->push;
    const char *token = hfi_etcd_token(store);
    push->logged_in = store->logins;
    push->watch.stays_open = push->keep.stays_open = true;
    if (hfi_etcd_begin(push->connection, &push->watch, push->node->authority, token, 0) &&
        hfi_etcd_begin(push->connection, &push->keep, push->node->authority, token, 0) &&
        hfi_etcd_flush(push->connection))
        push->state = ETCD_PUSH_READY;
    else
        break_off(store);
}

static void go_on_logging_in(struct etcd_store *store, hfi_time now_ns)
{
    struct etcd_push *push = &store->push;
    const bool works = hfi_etcd_fetch(push->connection);
    if (works && !push->login.closed && now_ns - push->since_ns < CONNECT_PATIENCE)
        return;
    if (works && push->login.closed && hfi_etcd_login_take(store, &push->login))
        open_streams(store);
    else
        break_off(store);
}

static void go_on_connecting(struct etcd_store *store, hfi_time now_ns)
{
    struct etcd_push *push = &store->push;
    const hf_status status = hfi_etcd_connect_step(push->connection, push->node->address, store->tls, NULL);
    if (status == HF_TIMEOUT && now_ns - push->since_ns < CONNECT_PATIENCE)
        return;
    if (status != HF_OK) {
        break_off(store);
        return;
    }
    if (!hfi_etcd_needs_login(store))
        open_streams(store);
    else if (hfi_etcd_login_prepare(store, &push->login) &&
             hfi_etcd_begin(push->connection, &push->login, push->node->authority, NULL, CONNECT_PATIENCE) &&
             hfi_etcd_flush(push->connection))
        push->state = ETCD_PUSH_LOGGING_IN;
    else
        break_off(store);
}

static void start_connecting(struct etcd_store *store, hfi_time now_ns)
{
    struct etcd_push *push = &store->push;
    if (push->failures == 0)
        push->next_node = store->current;
    push->node = &store->nodes[push->next_node];
    push->since_ns = now_ns;
    if (hfi_etcd_connect_begin(&push->connection, push->node->address, false, NULL) != HF_OK) {
        break_off(store);
        return;
    }
    /* The first step sees to it that the next of several addresses gets its turn, should this one stay silent. */
    push->state = ETCD_PUSH_CONNECTING;
    go_on_connecting(store, now_ns);
}

void hfi_etcd_push_say(struct etcd_store *store, struct etcd_stream *stream, const ProtobufCMessage *message)
{
    struct etcd_push *push = &store->push;
    if (hfi_etcd_add_message(stream, message))
        hfi_etcd_resume(push->connection, stream);
    else
        stream->closed = true; /* no memory: it is broken off when it is looked at next */
}

/* --- keeping leases --- */

static hfi_time keep_pause(const struct etcd_lease *lease)
{
    return earlier(lease->length_ns / 3, KEEP_PAUSE_MOST);
}

static hfi_time keep_patience(const struct etcd_lease *lease)
{
    const hfi_time pause = keep_pause(lease);
    return pause < KEEP_PATIENCE_LEAST ? KEEP_PATIENCE_LEAST : earlier(pause, KEEP_PATIENCE_MOST);
}

static void keep_lease(struct etcd_store *store, struct etcd_lease *lease, hfi_time now_ns)
{
    Etcd__LeaseRequest request = ETCD__LEASE_REQUEST__INIT;
    request.id = lease->id;
    lease->asked_ns = now_ns;
    hfi_etcd_push_say(store, &store->push.keep, &request.base);
}

/* Asks to keep those whose time it is; *silent: the server owes an answer. When the next is due. */
static hfi_time keep_leases(struct etcd_store *store, hfi_time now_ns, bool *silent)
{
    hfi_time due = HFI_NEVER;
    const bool ready = store->push.state == ETCD_PUSH_READY;
    hfi_etcd_leases_tidy(store, now_ns);
    for (struct etcd_lease *lease = store->leases; lease; lease = lease->next) {
        if (lease->state != ETCD_LEASE_ALIVE || (lease->retired && lease->users == lease->refused))
            continue;
        if (ready && !lease->asked_ns && now_ns >= lease->kept_ns + keep_pause(lease))
            keep_lease(store, lease, now_ns);
        const hfi_time mine =
            lease->asked_ns ? lease->asked_ns + keep_patience(lease) : lease->kept_ns + keep_pause(lease);
        *silent = *silent || (lease->asked_ns && now_ns >= mine);
        due = earlier(due, mine);
    }
    return due;
}

static void take_kept(struct etcd_store *store, const Etcd__LeaseKeepAliveResponse *answer)
{
    struct etcd_lease *lease = store->leases;
    while (lease && (lease->id != answer->id || lease->state != ETCD_LEASE_ALIVE))
        lease = lease->next;
    if (!lease || !lease->asked_ns)
        return;
    store->push.failures = 0;
    if (answer->ttl <= 0) {
        hfi_etcd_lease_mark_gone(store, lease);
        return;
    }
    if (lease->asked_ns > lease->kept_ns) /* it proves nothing: see hfi_etcd_lease_kept() */
        lease->kept_ns = lease->asked_ns;
    lease->asked_ns = 0;
}

/* --- all of it --- */

/* Takes what has come. False: the connection is of no use any more. */
static bool take_news(struct etcd_store *store)
{
    struct etcd_push *push = &store->push;
    ProtobufCMessage *message;
    bool sense = hfi_etcd_fetch(push->connection);
    while (sense &&
           (sense = hfi_etcd_take_message(&push->keep, &etcd__lease_keep_alive_response__descriptor, &message)) &&
           message) {
        take_kept(store, (const Etcd__LeaseKeepAliveResponse *)message);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    while (sense && (sense = hfi_etcd_take_message(&push->watch, &etcd__watch_response__descriptor, &message)) &&
           message) {
        hfi_etcd_watch_take(store, (const Etcd__WatchResponse *)message);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    hfi_etcd_errands_take(store);
    return sense && !push->refused && !push->watch.closed && !push->keep.closed && !push->connection->leaving;
}

void hfi_etcd_push_pump(struct etcd_store *store)
{
    struct etcd_push *push = &store->push;
    const hfi_time now = store->env->now_ns();
    uint64_t ticks;
    if (now >= push->armed_ns && read(push->timer, &ticks, sizeof ticks) > 0)
        push->armed_ns = HFI_NEVER;
    if (push->state == ETCD_PUSH_CONNECTING)
        go_on_connecting(store, now);
    else if (push->state == ETCD_PUSH_LOGGING_IN)
        go_on_logging_in(store, now);
    else if (push->state == ETCD_PUSH_READY && !take_news(store))
        break_off(store);

    bool silent = false;
    hfi_time due = earlier(keep_leases(store, now, &silent), hfi_etcd_watches_send(store, now));
    due = earlier(due, hfi_etcd_errands_send(store, now));
    const bool talks = push->state == ETCD_PUSH_LOGGING_IN || push->state == ETCD_PUSH_READY;
    if (talks && (silent || push->watch.closed || push->keep.closed || !hfi_etcd_flush(push->connection)))
        break_off(store);
    /* Something is to be said, and nobody there to say it to. */
    if (push->state == ETCD_PUSH_NONE && due <= now && now >= push->try_again_ns)
        start_connecting(store, now);
    if (push->state == ETCD_PUSH_NONE && due != HFI_NEVER)
        due = due > push->try_again_ns ? due : push->try_again_ns;
    if (push->state == ETCD_PUSH_CONNECTING || push->state == ETCD_PUSH_LOGGING_IN)
        due = push->since_ns + CONNECT_PATIENCE;
    if (push->connection)
        listen_to_socket(push);
    if (due != push->armed_ns)
        arm(push, due);
}

void hfi_etcd_push_close(struct etcd_store *store)
{
    disconnect(&store->push);
    hfi_push_free(&store->push.shared);
    hfi_fd_close(store->push.timer);
    hfi_fd_close(store->push.epoll);
}

void hfi_etcd_tell_losses(struct etcd_store *store)
{
    pthread_mutex_lock(&store->mutex);
    const bool losses = store->push.losses;
    store->push.losses = false;
    pthread_mutex_unlock(&store->mutex);
    if (losses) /* the keeper renews all, and is told which are lost */
        store->env->recheck(store->env->core, 0);
}

void hfi_etcd_take_push(void *memory)
{
    struct etcd_store *store = memory;
    pthread_mutex_lock(&store->mutex);
    hfi_etcd_push_pump(store);
    pthread_mutex_unlock(&store->mutex);
    hfi_etcd_tell_losses(store);
}
