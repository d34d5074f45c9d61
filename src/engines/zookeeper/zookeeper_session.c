/* SPDX-License-Identifier: MIT
 *
 * zookeeper_session.c: one session with the servers, which keeps all nodes of all locks with the same time-to-live.
 *
 * What is certain about time. The leader ends a session when it has not heard of it for the negotiated time-out. But a
 * client usually talks to a follower, which answers reads and pings by itself and only reports now and then, when the
 * leader pings it, whom it has heard: every half tick, and a time-out is two ticks at least. A follower that is cut off
 * goes on answering for a while, and its clients believe that all is well when the leader has given their session up.
 * So an answer as such proves nothing here. What does:
 *
 *  - A connection that is let in: the server it was made to asked the leader, which started to count anew.
 *  - A write that is answered: it went through the leader and a majority. It came over the same way as the reports, so
 *    the reports before it have arrived too: the leader has heard of every request that was answered a quarter of the
 *    time-out before that write was sent.
 *
 * `proven_ns` is the moment at which the last such request was sent. The session lives until then + time-out at least,
 * and a lock is never believed in for longer. Sessions ask for half as much again as the time-to-live, so that what is
 * left is usually all of it.
 */
#include "zookeeper.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define PATIENCE_LEAST (300 * HFI_MS)
#define PATIENCE_ALONE HFI_SECOND
#define ANSWERS_MOST 64
#define REST_FIRST (5 * HFI_MS)
#define RESTS_MOST 8
#define DEFAULT_TTL_MS 30000u

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static hfi_time timeout_ns(const struct zookeeper_session *session)
{
    return session->timeout_ms * HFI_MS;
}

/* --- what is certain --- */

/* How long a server may owe us something before another one is tried, or the same one anew: half of what a call may
 * take, since one that is only slow would be as slow after it was left; and less for one that has not let us in yet, so
 * that all of them get their turn. */
static hfi_time patience_ns(const struct zookeeper_session *session)
{
    const struct zookeeper_store *store = session->store;
    const hfi_time least = store->address_count > 1 ? PATIENCE_LEAST : PATIENCE_ALONE;
    const unsigned share = session->connected ? 2 : store->address_count + 1;
    const hfi_time most = earlier(timeout_ns(session) / 3, store->env->timeout_ns / share);
    return most > least ? most : least;
}

/* Half a tick at most, after which the leader has heard of whatever its followers have. */
static hfi_time report_ns(const struct zookeeper_session *session)
{
    return timeout_ns(session) / 4;
}

/* How often a session shows by itself that it is there, so that there is always a recent request to prove. */
static hfi_time beat_ns(const struct zookeeper_session *session)
{
    return timeout_ns(session) / 6;
}

void hfi_zookeeper_session_sent(struct zookeeper_session *session, hfi_time now_ns)
{
    session->last_sent_ns = now_ns;
    if (session->calls++ == 0)
        session->silent_ns = now_ns;
    session->due_ns = earlier(session->due_ns, session->silent_ns + patience_ns(session));
}

static void remember_touch(struct zookeeper_session *session, hfi_time sent_ns, hfi_time now_ns)
{
    const size_t last = session->touch_count ? session->touch_count - 1 : 0;
    if (session->touch_count && sent_ns < session->touches[last].sent_ns + timeout_ns(session) / 20)
        return;
    if (session->touch_count == HFI_ZOOKEEPER_TOUCHES) {
        memmove(session->touches, session->touches + 1, last * sizeof session->touches[0]);
        session->touch_count--;
    }
    session->touches[session->touch_count++] = (struct zookeeper_touch){ sent_ns, now_ns };
}

void hfi_zookeeper_session_answered(struct zookeeper_session *session, hfi_time sent_ns, bool write)
{
    const hfi_time now = session->store->env->now_ns();
    session->silent_ns = session->calls ? now : HFI_NEVER;
    for (size_t i = session->touch_count; write && i-- > 0;) {
        if (session->touches[i].answered_ns + report_ns(session) <= sent_ns) {
            if (session->touches[i].sent_ns > session->proven_ns)
                session->proven_ns = session->touches[i].sent_ns;
            break;
        }
    }
    remember_touch(session, sent_ns, now);
}

uint32_t hfi_zookeeper_session_valid_ms(const struct zookeeper_session *session, hfi_time from_ns, uint32_t most_ms)
{
    const hfi_time left = session->proven_ns + timeout_ns(session) - from_ns;
    if (left < HFI_MS)
        return 0;
    return left / HFI_MS < most_ms ? (uint32_t)(left / HFI_MS) : most_ms;
}

/* --- what the library says; called by it, so within step() or a call --- */

void hfi_zookeeper_session_expire(struct zookeeper_session *session)
{
    session->dead = true;
    session->connected = false;
    for (struct zookeeper_lock *lock = session->locks; lock; lock = lock->next) {
        lock->news = true;
        if (lock->waker)
            hfi_waker_wake(lock->waker);
    }
    hfi_zookeeper_call_keeper(session->store);
    pthread_cond_broadcast(&session->store->changed);
}

static void take_state(struct zookeeper_session *session, int state)
{
    session->connected = state == ZOO_CONNECTED_STATE;
    if (session->connected) {
        session->misses = 0;
        session->timeout_ms = zoo_recv_timeout(session->zh);
        session->proven_ns = session->introduced_ns;
        session->touch_count = 0; /* another server may not have reported what this one was told */
        session->silent_ns = session->calls ? session->introduced_ns : HFI_NEVER;
        session->last_sent_ns = session->introduced_ns;
    }
    if (state == ZOO_AUTH_FAILED_STATE)
        session->refused = true;
    if (state == ZOO_EXPIRED_SESSION_STATE || state == ZOO_AUTH_FAILED_STATE)
        hfi_zookeeper_session_expire(session);
    pthread_cond_broadcast(&session->store->changed);
}

static void hear_of_own(const struct zookeeper_session *session, struct zookeeper_lock *lock, bool deleted)
{
    lock->own_watched_ns = 0;
    lock->gone = deleted && !lock->removal; /* else by ourselves */
    if (lock->gone && lock->state == ZOOKEEPER_HELD)
        hfi_zookeeper_call_keeper(session->store);
}

/* What was watched by an earlier connection may be told in any order. */
static void hear_of_other(const struct zookeeper_session *session, struct zookeeper_lock *lock, bool deleted)
{
    if (deleted && lock->behind_holder && lock->own_watched_ns == session->introduced_ns &&
        lock->state == ZOOKEEPER_QUEUED)
        lock->state = ZOOKEEPER_NEXT_UP;
}

static void hear_library(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    struct zookeeper_session *session = context;
    (void)zh;
    if (type == ZOO_SESSION_EVENT) {
        take_state(session, state);
        return;
    }
    for (struct zookeeper_lock *lock = session->locks; lock; lock = lock->next) {
        const bool own = strcmp(strrchr(path, '/') + 1, lock->node) == 0;
        if (own)
            hear_of_own(session, lock, type == ZOO_DELETED_EVENT);
        else if (lock->watched && strcmp(lock->watched, path) == 0)
            hear_of_other(session, lock, type == ZOO_DELETED_EVENT);
        else
            continue;
        lock->news = true;
        if (lock->waker)
            hfi_waker_wake(lock->waker);
    }
}

static void say_nothing(const char *message)
{
    (void)message;
}

/* --- its socket --- */

/* Ends a connection that does not answer; the library then takes the next server. */
static void cut(const struct zookeeper_session *session)
{
    shutdown(session->fd, SHUT_RDWR);
}

/* `refused`: it was more than silence. */
static void forget_socket(struct zookeeper_session *session, bool refused)
{
    hfi_fd_forget(session->fd);
    session->fd = -1;
    session->connected = false;
    session->failures += refused;
    session->misses++;
    session->silent_ns = HFI_NEVER;
}

/* Noting a descriptor must not fail once the library has one: it cannot be taken away from it. */
static bool make_room_for_socket(void)
{
    const bool room = hfi_fd_note(INT_MAX) >= 0;
    if (room)
        hfi_fd_forget(INT_MAX);
    return room;
}

static void take_socket(struct zookeeper_session *session, int fd, hfi_time now_ns)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC); /* the library does not do it */
    session->fd = hfi_fd_note(fd);
    session->silent_ns = now_ns;
    hfi_zookeeper_hear_socket(session);
}

static int library_events(short revents)
{
    const bool broken = revents & (POLLERR | POLLHUP | POLLNVAL);
    return (revents & POLLIN || broken ? ZOOKEEPER_READ : 0) | (revents & POLLOUT || broken ? ZOOKEEPER_WRITE : 0);
}

static void note_introduction(struct zookeeper_session *session, int before, hfi_time now_ns)
{
    if (before != ZOO_ASSOCIATING_STATE && zoo_state(session->zh) == ZOO_ASSOCIATING_STATE)
        session->introduced_ns = now_ns;
}

static void process(struct zookeeper_session *session, short revents, bool silent, hfi_time now_ns)
{
    const int before = zoo_state(session->zh);
    int rc = zookeeper_process(session->zh, library_events(revents));
    note_introduction(session, before, now_ns);
    for (unsigned i = 0; rc == ZOK && i < ANSWERS_MOST && zoo_state(session->zh) == ZOO_CONNECTED_STATE; i++)
        rc = zookeeper_process(session->zh, ZOOKEEPER_READ);
    if (rc != ZOK && rc != ZNOTHING)
        forget_socket(session, !silent);
}

/* Asks the library what it waits for, which is when it connects, pings and gives up. */
static void ask_interest(struct zookeeper_session *session, hfi_time now_ns)
{
    int rc = ZSYSTEMERROR;
    session->starved = session->starved || (session->fd < 0 && !make_room_for_socket());
    for (unsigned i = 0; i < 2 && !session->dead && !session->starved; i++) {
        int fd = -1, interest = 0;
        struct timeval time = { 0 };
        const int before = zoo_state(session->zh);
        rc = zookeeper_interest(session->zh, &fd, &interest, &time);
        note_introduction(session, before, now_ns);
        if (rc == ZOK && fd >= 0 && session->fd < 0)
            take_socket(session, fd, now_ns);
        session->wants = (short)((interest & ZOOKEEPER_READ ? POLLIN : 0) | (interest & ZOOKEEPER_WRITE ? POLLOUT : 0));
        session->due_ns = now_ns + time.tv_sec * HFI_SECOND + time.tv_usec * 1000 + HFI_MS;
        if (rc == ZOK && fd < 0) /* after the last of its servers it rests: not for long the first times */
            session->due_ns = earlier(session->due_ns, now_ns + (REST_FIRST << earlier(session->misses, RESTS_MOST)));
        if (rc == ZOK)
            break;
        session->starved = rc == ZSYSTEMERROR; /* socket() failed */
        forget_socket(session, rc != ZOPERATIONTIMEOUT);
    }
    if (rc != ZOK)
        session->due_ns = now_ns + 10 * HFI_MS;
}

void hfi_zookeeper_session_step(struct zookeeper_session *session, short revents)
{
    const hfi_time now = session->store->env->now_ns();
    if (session->dead)
        return;
    const bool silent = session->fd >= 0 && !revents && session->silent_ns != HFI_NEVER &&
                        now - session->silent_ns >= patience_ns(session);
    if (silent) {
        cut(session);
        revents = POLLHUP;
    }
    hfi_fd_begin();
    if (session->fd >= 0 && revents)
        process(session, revents, silent, now);
    if (!session->dead)
        ask_interest(session, now);
    hfi_fd_end(-1);
    if (session->connected && now - session->last_sent_ns >= beat_ns(session))
        hfi_zookeeper_beat(session);
    if (session->connected)
        session->due_ns = earlier(session->due_ns, session->last_sent_ns + beat_ns(session));
    if (session->silent_ns != HFI_NEVER)
        session->due_ns = earlier(session->due_ns, session->silent_ns + patience_ns(session));
}

/* --- beginning and end --- */

static zhandle_t *start(struct zookeeper_session *session)
{
    const struct zookeeper_store *store = session->store;
    const char *credentials = store->config.credentials;
    hfi_fd_begin();
    /* The addresses are in random order already, and the library would seed the process's random numbers for it. */
    zoo_deterministic_conn_order(1);
    zhandle_t *zh = zookeeper_init2(store->addresses, hear_library, session->asked_ms, NULL, session,
                                    ZOO_NO_LOG_CLIENTENV, say_nothing);
    zoo_deterministic_conn_order(0);
#ifdef HFI_ZOOKEEPER_RESOLVES
    /* It would look up the addresses before each exchange: a netlink socket and four system calls for numbers. */
    if (zh)
        zoo_set_servers_resolution_delay(zh, -1);
#endif
    if (zh && credentials)
        zoo_add_auth(zh, "digest", credentials, (int)strlen(credentials), NULL, NULL);
    hfi_fd_end(-1);
    return zh;
}

static struct zookeeper_session *session_open(struct zookeeper_store *store, int32_t asked_ms)
{
    struct zookeeper_session *session = hfi_alloc(sizeof *session);
    if (!session)
        return NULL;
    session->store = store;
    session->fd = -1;
    session->asked_ms = session->timeout_ms = asked_ms;
    session->silent_ns = HFI_NEVER;
    session->zh = start(session);
    if (!session->zh) {
        hfi_free(session);
        return NULL;
    }
    session->next = store->sessions;
    store->sessions = session;
    store->session_count++;
    hfi_zookeeper_session_step(session, 0);
    return session;
}

/* Ends the session at the servers. The library would block for seconds, and with all other clients' calls behind it; so
 * it is told nothing, and its socket is used: a request of kind closeSession (-11), which the server answers by hanging
 * up. */
static void say_farewell(const struct zookeeper_session *session, hfi_time deadline_ns)
{
    static const unsigned char farewell[] = { 0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5 };
    const struct zookeeper_store *store = session->store;
    char rest[256];
    struct pollfd socket = { .fd = session->fd, .events = POLLIN };
    hfi_time left = deadline_ns - store->env->now_ns();
    ssize_t got = send(session->fd, farewell, sizeof farewell, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (got > 0 && left > 0 && poll(&socket, 1, (int)(left / HFI_MS) + 1) > 0) {
        got = recv(session->fd, rest, sizeof rest, MSG_DONTWAIT);
        left = deadline_ns - store->env->now_ns();
    }
}

void hfi_zookeeper_session_close(struct zookeeper_session *session, hfi_time deadline_ns)
{
    struct zookeeper_store *store = session->store;
    struct zookeeper_session **link = &store->sessions;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
    store->session_count--;
    session->locks = NULL; /* those whose release was given up may be gone */
    /* Not where there is doubt whether anybody listens, or where half a request has been sent. */
    if (session->connected && session->calls == 0 && !(session->wants & POLLOUT))
        say_farewell(session, deadline_ns);
    if (session->fd >= 0)
        cut(session); /* so that the library does not try it too */
    hfi_fd_begin();
    hfi_fd_forget(session->fd);
    zookeeper_close(session->zh);
    hfi_fd_end(-1);
    while (session->all_calls) /* of releases that were given up */
        hfi_zookeeper_call_free(session->all_calls);
    hfi_free(session);
}

static void close_if_unused(struct zookeeper_session *session)
{
    if (session->dead && session->users == 0 && session->calls == 0)
        hfi_zookeeper_session_close(session, 0);
}

/* --- finding one --- */

static int32_t time_out_for(const struct zookeeper_store *store, uint32_t ttl_ms)
{
    const uint64_t wanted = store->config.session_ms ? store->config.session_ms : (uint64_t)ttl_ms + ttl_ms / 2;
    return wanted < HFI_ZOOKEEPER_SESSION_MOST_MS ? (int32_t)wanted : HFI_ZOOKEEPER_SESSION_MOST_MS;
}

/* With as many sessions as there may be, the next longer one serves, or the longest. */
static struct zookeeper_session *find(struct zookeeper_store *store, int32_t asked_ms)
{
    struct zookeeper_session *fits = NULL;
    for (struct zookeeper_session *one = store->sessions; one; one = one->next) {
        if (one->dead)
            continue;
        if (one->asked_ms == asked_ms)
            return one;
        const bool longer = one->asked_ms > asked_ms;
        if (!fits || (longer && (fits->asked_ms < asked_ms || one->asked_ms < fits->asked_ms)) ||
            (!longer && one->asked_ms > fits->asked_ms))
            fits = one;
    }
    return store->session_count < HFI_ZOOKEEPER_SESSIONS_MOST ? NULL : fits;
}

static void close_unused(struct zookeeper_store *store)
{
    for (struct zookeeper_session *one = store->sessions, *next; one; one = next) {
        next = one->next;
        close_if_unused(one);
    }
}

struct hope {
    const struct zookeeper_session *session;
    unsigned failures; /* this many, and every server has refused */
};

static bool is_settled(const void *arg)
{
    const struct hope *hope = arg;
    const struct zookeeper_session *session = hope->session;
    return session->connected || session->dead || session->starved || session->failures >= hope->failures;
}

static hf_status await_connection(struct zookeeper_session *session, hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = session->store;
    session->starved = false;
    hfi_zookeeper_look_after(session); /* a connection that has ended meanwhile is no server that failed */
    const struct hope hope = { session, session->failures + store->address_count };
    hfi_zookeeper_await(store, is_settled, &hope, deadline_ns);
    if (session->connected)
        return HF_OK;
    if (session->starved)
        return hfi_fail(err, HF_NOMEM, EMFILE, "no descriptor left for a connection to ZooKeeper");
    if (session->refused)
        return hfi_fail(err, HF_DENIED, ZAUTHFAILED, "ZooKeeper at %.100s refuses the user", store->config.hosts);
    store->look_up_again = true;
    return hfi_fail(err, HF_UNAVAILABLE, ZCONNECTIONLOSS, "no ZooKeeper answers at %.150s", store->config.hosts);
}

hf_status hfi_zookeeper_session_borrow(struct zookeeper_store *store, uint32_t ttl_ms, struct zookeeper_session **out,
                                       hfi_time deadline_ns, hf_error *err)
{
    const int32_t asked_ms = time_out_for(store, ttl_ms ? ttl_ms : DEFAULT_TTL_MS);
    hf_status status = HF_UNAVAILABLE;
    *out = NULL;
    for (unsigned tries = 0; tries < 2; tries++) { /* the first one may turn out to have expired long ago */
        close_unused(store);
        struct zookeeper_session *session = ttl_ms || !store->sessions ? find(store, asked_ms) : store->sessions;
        if (!session || session->dead)
            session = session_open(store, asked_ms);
        if (!session)
            return hfi_zookeeper_no_memory(err);
        session->users++;
        status = await_connection(session, deadline_ns, err);
        if (status == HF_OK) {
            *out = session;
            return HF_OK;
        }
        const bool again = session->dead && !session->refused;
        hfi_zookeeper_session_give_back(session);
        if (!again)
            break;
    }
    return status;
}

void hfi_zookeeper_session_give_back(struct zookeeper_session *session)
{
    session->users--;
}

hf_status hfi_zookeeper_session_join(struct zookeeper_store *store, struct zookeeper_lock *lock, uint32_t ttl_ms,
                                     hfi_time deadline_ns, hf_error *err)
{
    if (lock->session && !lock->session->dead)
        return await_connection(lock->session, deadline_ns, err);
    hfi_zookeeper_session_leave(lock);
    const hf_status status = hfi_zookeeper_session_borrow(store, ttl_ms, &lock->session, deadline_ns, err);
    if (lock->session) {
        lock->next = lock->session->locks;
        lock->session->locks = lock;
    }
    return status;
}

void hfi_zookeeper_session_leave(struct zookeeper_lock *lock)
{
    struct zookeeper_session *session = lock->session;
    if (!session)
        return;
    struct zookeeper_lock **link = &session->locks;
    while (*link != lock)
        link = &(*link)->next;
    *link = lock->next;
    lock->session = NULL;
    lock->state = ZOOKEEPER_NEW;
    lock->incarnation++;
    lock->node[0] = 0;
    lock->leaves = false;
    struct zookeeper_call **const calls[] = { &lock->search[0], &lock->search[1], &lock->removal, &lock->breaker };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        hfi_zookeeper_call_free(*calls[i]);
        *calls[i] = NULL;
    }
    hfi_free(lock->watched);
    lock->watched = NULL;
    hfi_zookeeper_session_give_back(session);
}

struct renewal_of_trust {
    const struct zookeeper_session *session;
    hfi_time since_ns;
    struct hope hope;
};

static bool is_introduced_again(const void *arg)
{
    const struct renewal_of_trust *trust = arg;
    return is_settled(&trust->hope) && (!trust->session->connected || trust->session->proven_ns >= trust->since_ns);
}

hf_status hfi_zookeeper_session_prove(struct zookeeper_session *session, hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = session->store;
    const struct renewal_of_trust trust = { session,
                                            store->env->now_ns(),
                                            { session, session->failures + 1 + store->address_count } };
    if (session->fd >= 0)
        cut(session);
    hfi_zookeeper_session_step(session, POLLHUP);
    hfi_zookeeper_await(store, is_introduced_again, &trust, deadline_ns);
    if (session->connected && session->proven_ns >= trust.since_ns)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE, ZCONNECTIONLOSS, "no ZooKeeper answers at %.150s", store->config.hosts);
}
