/* SPDX-License-Identifier: MIT
 *
 * zookeeper_drive.c: who looks after the sockets. One thread at a time is on duty: it sleeps on all of them and calls
 * the library when there is news, so that an answer goes from the socket to the thread that asked without a detour.
 * Others who wait for an answer sleep until it is there, or until they can take over. When nobody is on duty the keeper
 * is, by the push connection.
 */
#include "zookeeper.h"
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

/* --- the push connection --- */

static void set_timer(struct zookeeper_store *store, hfi_time now_ns, hfi_time at_ns)
{
    const hfi_time left = at_ns > now_ns ? at_ns - now_ns : 1;
    const struct itimerspec at = { .it_value = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND } };
    store->timer_ns = at_ns;
    timerfd_settime(store->timer, 0, &at, NULL);
}

void hfi_zookeeper_call_keeper(struct zookeeper_store *store)
{
    set_timer(store, 0, 0);
}

static hfi_time next_due(const struct zookeeper_store *store)
{
    hfi_time due = HFI_NEVER;
    for (const struct zookeeper_session *one = store->sessions; one; one = one->next) {
        if (!one->dead)
            due = earlier(due, one->due_ns);
    }
    return due;
}

/* A timer that rings too early does no harm, so it is not set back. */
static void expect(struct zookeeper_store *store)
{
    const hfi_time due = next_due(store);
    if (due < store->timer_ns)
        set_timer(store, store->env->now_ns(), due);
}

static void listen_to(const struct zookeeper_session *session, int operation, short events)
{
    struct epoll_event event = { .events = (events & POLLIN ? EPOLLIN : 0u) | (events & POLLOUT ? EPOLLOUT : 0u) };
    if (session->fd >= 0)
        epoll_ctl(session->store->push, operation, session->fd, &event);
}

void hfi_zookeeper_hear_socket(struct zookeeper_session *session)
{
    listen_to(session, EPOLL_CTL_ADD, session->store->on_duty ? 0 : POLLIN | POLLOUT);
}

/* While somebody is on duty the keeper must not wake for each answer too. */
static void go_on_duty(struct zookeeper_store *store, bool on_duty)
{
    store->on_duty = on_duty;
    for (const struct zookeeper_session *one = store->sessions; one; one = one->next)
        listen_to(one, EPOLL_CTL_MOD, on_duty ? 0 : one->wants);
    if (!on_duty) {
        expect(store);
        pthread_cond_broadcast(&store->changed); /* who else waits for an answer can take over */
    }
}

/* --- stepping --- */

static size_t sockets_of(const struct zookeeper_store *store, struct pollfd *fds)
{
    size_t count = 0;
    for (const struct zookeeper_session *one = store->sessions; one && count < HFI_ZOOKEEPER_SESSIONS_MOST;
         one = one->next) {
        if (one->fd >= 0 && !one->dead)
            fds[count++] = (struct pollfd){ .fd = one->fd, .events = one->wants };
    }
    return count;
}

/* What its socket has to say is asked here: it may be another one than was slept on. */
void hfi_zookeeper_look_after(struct zookeeper_session *session)
{
    struct pollfd socket = { .fd = session->fd, .events = session->wants };
    const bool some = session->fd >= 0 && poll(&socket, 1, 0) > 0;
    if (some || session->store->env->now_ns() >= session->due_ns)
        hfi_zookeeper_session_step(session, some ? socket.revents : 0);
}

static void look_after_all(struct zookeeper_store *store)
{
    for (struct zookeeper_session *one = store->sessions; one; one = one->next)
        hfi_zookeeper_look_after(one);
}

/* --- sleeping --- */

static void poll_until(struct zookeeper_store *store, struct pollfd *fds, size_t count, hfi_time until_ns)
{
    const hfi_time left = until_ns - store->env->now_ns();
    const struct timespec time = { .tv_sec = left > 0 ? left / HFI_SECOND : 0,
                                   .tv_nsec = left > 0 ? left % HFI_SECOND : 0 };
    ppoll(fds, count, until_ns == HFI_NEVER ? NULL : &time, NULL);
}

static void sleep_off_duty(struct zookeeper_store *store, hfi_time until_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const hfi_time left = until_ns - store->env->now_ns();
    const hfi_time at = until.tv_sec * HFI_SECOND + until.tv_nsec + (left > 0 ? left : 0);
    until = (struct timespec){ .tv_sec = at / HFI_SECOND, .tv_nsec = at % HFI_SECOND };
    pthread_cond_clockwait(&store->changed, &store->mutex, CLOCK_MONOTONIC, &until);
}

bool hfi_zookeeper_await(struct zookeeper_store *store, bool (*over)(const void *arg), const void *arg,
                         hfi_time deadline_ns)
{
    bool duty = false;
    while (!over(arg) && store->env->now_ns() < deadline_ns) {
        struct pollfd fds[HFI_ZOOKEEPER_SESSIONS_MOST];
        if (!duty && store->on_duty) { /* by somebody who does not know that our server owes us something */
            sleep_off_duty(store, earlier(deadline_ns, next_due(store)));
            if (store->env->now_ns() >= next_due(store))
                look_after_all(store);
            continue;
        }
        if (!duty)
            go_on_duty(store, duty = true);
        const hfi_time until = earlier(deadline_ns, next_due(store));
        const size_t count = sockets_of(store, fds);
        pthread_mutex_unlock(&store->mutex);
        poll_until(store, fds, count, until);
        pthread_mutex_lock(&store->mutex);
        look_after_all(store);
    }
    if (duty)
        go_on_duty(store, false);
    return over(arg);
}

bool hfi_zookeeper_await_news(struct zookeeper_store *store, struct zookeeper_lock *lock, struct hfi_waker *waker,
                              hfi_time deadline_ns)
{
    bool duty = false;
    lock->waker = waker;
    while (!lock->news && !hfi_waker_called_back(waker) && store->env->now_ns() < deadline_ns) {
        struct pollfd fds[HFI_ZOOKEEPER_SESSIONS_MOST];
        if (!duty && !store->on_duty)
            go_on_duty(store, duty = true);
        const hfi_time until = duty ? earlier(deadline_ns, next_due(store)) : deadline_ns;
        const size_t count = duty ? sockets_of(store, fds) : 0;
        pthread_mutex_unlock(&store->mutex);
        hfi_waker_sleep(waker, fds, count, until);
        pthread_mutex_lock(&store->mutex);
        if (duty)
            look_after_all(store);
    }
    if (duty)
        go_on_duty(store, false);
    lock->waker = NULL;
    return lock->news;
}

/* --- the keeper --- */

int hfi_zookeeper_push_fd(void *memory)
{
    const struct zookeeper_store *store = memory;
    return store->push;
}

/* Asks who has deleted the node of a lock that is held. True: that is known, or was asked for long enough. */
static bool is_explained(struct zookeeper_store *store, struct zookeeper_lock *lock)
{
    const hfi_time now = store->env->now_ns();
    if (!lock->breaker) {
        lock->tell_by_ns = now + HFI_ZOOKEEPER_BREAKER_MOST;
        lock->breaker = hfi_zookeeper_ask_breaker(lock);
    }
    if (!lock->breaker || lock->breaker->done || now >= lock->tell_by_ns)
        return true;
    lock->breaker->for_keeper = true;
    if (lock->tell_by_ns < store->timer_ns)
        set_timer(store, now, lock->tell_by_ns);
    return false;
}

/* Takes one lock that is lost, and not reported yet, with its node or its session; serial 0: there is none. */
static struct hfi_owner next_lost(struct zookeeper_store *store, char why[HFI_WHY_MAX])
{
    for (struct zookeeper_session *one = store->sessions; one; one = one->next) {
        for (struct zookeeper_lock *lock = one->locks; lock; lock = lock->next) {
            if (lock->state != ZOOKEEPER_HELD || lock->told ||
                !(one->dead || (lock->gone && is_explained(store, lock))))
                continue;
            lock->told = true;
            const char *by = hfi_zookeeper_breaker_of(lock->breaker, lock);
            if (by)
                hfi_say_broken(why, by);
            else
                snprintf(why, HFI_WHY_MAX, one->dead ? "its session has expired" : "its node was deleted");
            return lock->owner;
        }
    }
    return (struct hfi_owner){ .serial = 0 };
}

void hfi_zookeeper_take_push(void *memory)
{
    struct zookeeper_store *store = memory;
    uint64_t rings;
    struct hfi_owner owner;
    char why[HFI_WHY_MAX];
    pthread_mutex_lock(&store->mutex);
    if (read(store->timer, &rings, sizeof rings) == sizeof rings)
        store->timer_ns = HFI_NEVER;
    if (!store->on_duty) {
        look_after_all(store);
        go_on_duty(store, false); /* what the sockets are listened to for may have changed */
    }
    while ((owner = next_lost(store, why)).serial) {
        pthread_mutex_unlock(&store->mutex);
        store->env->lost(store->env->core, owner, why);
        pthread_mutex_lock(&store->mutex);
    }
    pthread_mutex_unlock(&store->mutex);
}
