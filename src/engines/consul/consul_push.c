/* SPDX-License-Identifier: MIT
 *
 * consul_push.c: what the keeper waits for on behalf of all: the renewals of sessions, and a long poll for each session
 * that holds something. Their sockets and one timer are in one epoll descriptor.
 *
 * A thread that waits for a lock has a long poll of its own, and reads its answer itself: HTTP/1.1 answers one question
 * at a time, and one question about all keys below the prefix would be answered for every lock that anybody takes.
 */
#include "consul.h"
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVENTS 32
/* The server adds up to a sixteenth to the time of a long poll. */
#define LISTEN_MOST ((HFI_CONSUL_POLL_S + HFI_CONSUL_POLL_S / 16 + 5) * HFI_SECOND)
/* A renewal that is not answered by then is sent again, on another connection. */
#define RENEWAL_MOST (2 * HFI_SECOND)
#define LISTEN_AGAIN HFI_SECOND

bool hfi_consul_push_open(struct consul_store *store)
{
    store->push = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    store->timer = HFI_FD(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
    return store->push >= 0 && store->timer >= 0 && epoll_ctl(store->push, EPOLL_CTL_ADD, store->timer, &event) == 0;
}

void hfi_consul_push_close(struct consul_store *store)
{
    hfi_fd_close(store->push);
    hfi_fd_close(store->timer);
}

/* --- calls --- */

static void listen_to(struct consul_store *store, struct consul_call *call)
{
    const struct consul_connection *connection = call->exchange.connection;
    struct epoll_event event = { .events = (connection->wants & POLLIN ? EPOLLIN : 0u) |
                                           (connection->wants & POLLOUT ? EPOLLOUT : 0u),
                                 .data.ptr = call };
    /* While it connects, its descriptor may become another one. */
    if (epoll_ctl(store->push, EPOLL_CTL_MOD, connection->fd, &event) != 0)
        epoll_ctl(store->push, EPOLL_CTL_ADD, connection->fd, &event);
}

void hfi_consul_call_end(struct consul_store *store, struct consul_call *call)
{
    if (!call->exchange.connection)
        return;
    struct consul_call **link = &store->calls;
    while (*link && *link != call)
        link = &(*link)->next;
    *link = call->next;
    epoll_ctl(store->push, EPOLL_CTL_DEL, call->exchange.connection->fd, NULL);
    hfi_consul_end(store, &call->exchange);
}

/* What was begun is sent, and its answer waited for. False: it could not be. */
static bool await_call(struct consul_store *store, struct consul_call *call, hfi_time most_ns)
{
    call->sent_ns = call->exchange.begun_ns;
    call->give_up_ns = call->sent_ns + most_ns;
    call->next = store->calls;
    store->calls = call;
    const hf_status status = hfi_consul_step(store, &call->exchange, NULL); /* no answer can be there yet */
    listen_to(store, call);
    if (status == HF_TIMEOUT) {
        hfi_consul_push_arm(store);
        return true;
    }
    hfi_consul_call_end(store, call);
    return false;
}

static void prepare(struct consul_call *call, enum consul_errand errand, struct consul_session *session)
{
    call->errand = errand;
    call->session = session;
    call->exchange.locked = true;
}

hf_status hfi_consul_poll(struct consul_store *store, struct consul_exchange *exchange, const char *key, uint64_t index)
{
    char path[3 * HFI_CONSUL_KEY_MAX + 80];
    const size_t used = (size_t)snprintf(path, sizeof path, "/v1/kv/");
    hfi_consul_escape(path + used, key);
    const size_t end = strlen(path);
    snprintf(path + end, sizeof path - end, "?index=%llu&wait=%ds", (unsigned long long)index, HFI_CONSUL_POLL_S);
    const struct consul_request request = { .method = "GET", .path = path };
    return hfi_consul_begin(store, exchange, &request, NULL);
}

static void listen_for(struct consul_store *store, struct consul_session *session)
{
    char key[HFI_CONSUL_KEY_MAX];
    struct consul_call *call = &session->listener;
    prepare(call, CONSUL_LISTEN, session);
    call->index = session->fence;
    hfi_consul_session_key(key, store, session->id);
    const bool listens =
        hfi_consul_poll(store, &call->exchange, key, call->index) == HF_OK && await_call(store, call, LISTEN_MOST);
    session->listen_at_ns = listens ? HFI_NEVER : store->env->now_ns() + LISTEN_AGAIN;
}

static void renew(struct consul_store *store, struct consul_session *session)
{
    char path[80];
    struct consul_call *call = &session->renewal;
    const hfi_time now = store->env->now_ns();
    const hfi_time again = session->ttl_ms * HFI_MS / 10;
    hfi_consul_call_end(store, call);
    prepare(call, CONSUL_RENEWAL, session);
    snprintf(path, sizeof path, "/v1/session/renew/%s", session->id);
    const struct consul_request request = { .method = "PUT", .path = path };
    session->renew_at_ns = now + (again < RENEWAL_MOST ? again : RENEWAL_MOST); /* unless it is answered */
    if (hfi_consul_begin(store, &call->exchange, &request, NULL) == HF_OK)
        await_call(store, call, session->renew_at_ns - now);
}

/* --- answers --- */

static void heard_listener(struct consul_store *store, struct consul_call *call, hf_status status)
{
    struct consul_session *session = call->session;
    const struct consul_reply *reply = call->exchange.reply;
    const bool answered = status == HF_OK && (reply->status == 200 || reply->status == 404);
    session->listen_at_ns = store->env->now_ns() + (answered ? 0 : LISTEN_AGAIN);
    if (!answered)
        return;
    store->doubt = store->doubt || (session->users > 0 && reply->index != call->index);
    if (reply->status == 404) { /* gone, or deleted by somebody */
        session->listen_at_ns = HFI_NEVER;
        hfi_consul_session_suspect(store, session);
    } else if (reply->index > session->fence) {
        session->fence = reply->index;
    }
}

static void heard_renewal(struct consul_store *store, struct consul_call *call, hf_status status)
{
    const struct consul_reply *reply = call->exchange.reply;
    if (status == HF_OK && reply->status == 200)
        hfi_consul_session_renewed(store, call->session, call->sent_ns);
    else if (status == HF_OK && reply->status == 404)
        hfi_consul_session_suspect(store, call->session);
}

static void finish(struct consul_store *store, struct consul_call *call, hf_status status)
{
    if (call->errand == CONSUL_LISTEN)
        heard_listener(store, call, status);
    else
        heard_renewal(store, call, status);
    hfi_consul_call_end(store, call);
}

static void go_on(struct consul_store *store, struct consul_call *call)
{
    if (!call->exchange.connection) /* ended while the one before was looked at */
        return;
    const hf_status status = hfi_consul_step(store, &call->exchange, NULL);
    if (status == HF_TIMEOUT)
        listen_to(store, call);
    else
        finish(store, call, status);
}

/* --- time --- */

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* Only a holder has something to lose; whoever waits has a long poll already. */
static bool should_listen(const struct consul_session *session)
{
    return session->users && session->holds && !session->dead && !session->making;
}

void hfi_consul_push_arm(struct consul_store *store)
{
    hfi_time due = store->doubt ? 0 : HFI_NEVER;
    for (const struct consul_call *call = store->calls; call; call = call->next)
        due = earlier(due, call->give_up_ns);
    for (const struct consul_session *session = store->sessions; session; session = session->next) {
        if (session->users && !session->dead && !session->making)
            due = earlier(due, session->renew_at_ns);
        if (should_listen(session))
            due = earlier(due, session->listen_at_ns);
    }
    due = due > 1 ? due : 1; /* 0 would switch the timer off */
    if (due == store->armed_ns)
        return;
    store->armed_ns = due;
    const struct itimerspec at = { .it_value = { .tv_sec = due == HFI_NEVER ? 0 : due / HFI_SECOND,
                                                 .tv_nsec = due == HFI_NEVER ? 0 : due % HFI_SECOND } };
    timerfd_settime(store->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void do_what_is_due(struct consul_store *store)
{
    const hfi_time now = store->env->now_ns();
    for (struct consul_call *call = store->calls, *next; call; call = next) {
        next = call->next;
        if (now >= call->give_up_ns)
            finish(store, call, HF_UNKNOWN);
    }
    for (struct consul_session *session = store->sessions; session; session = session->next) {
        if (!session->users || session->dead || session->making)
            continue;
        if (now >= session->renew_at_ns)
            renew(store, session);
        if (should_listen(session) && now >= session->listen_at_ns)
            listen_for(store, session);
    }
}

void hfi_consul_take_push(struct consul_store *store)
{
    struct epoll_event events[EVENTS];
    uint64_t times;
    pthread_mutex_lock(&store->mutex);
    const int count = epoll_wait(store->push, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr)
            go_on(store, events[i].data.ptr);
        else if (read(store->timer, &times, sizeof times) == sizeof times)
            store->armed_ns = HFI_NEVER;
    }
    do_what_is_due(store);
    const bool doubt = store->doubt;
    store->doubt = false;
    hfi_consul_push_arm(store);
    pthread_mutex_unlock(&store->mutex);
    if (doubt)
        store->env->recheck(store->env->core, 0);
}
