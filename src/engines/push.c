/* SPDX-License-Identifier: MIT
 *
 * push.c: who waits, who of them listens, and who is to be next.
 */
#include "engines/push.h"

/* From so many on they are in a table. */
#define TABLE_LEAST 16

void hfi_push_init(struct hfi_push *push, const struct hfi_env *env, pthread_mutex_t *mutex, int fd,
                   bool (*has_news)(const struct hfi_waiter *waiter), void (*hear)(struct hfi_push *push))
{
    push->env = env;
    push->mutex = mutex;
    push->fd = fd;
    push->look_ns = HFI_NEVER;
    push->has_news = has_news;
    push->hear = hear;
}

void hfi_push_free(struct hfi_push *push)
{
    hfi_free(push->table);
    push->table = NULL;
}

/* --- the table --- */

/* Numbers that follow each other, as a rule. */
static struct hfi_waiter **place_of(const struct hfi_push *push, uint64_t id)
{
    return &push->table[id & (push->table_size - 1)];
}

static void enter(struct hfi_push *push, struct hfi_waiter *waiter)
{
    if (!push->table || !waiter->id)
        return;
    struct hfi_waiter **place = place_of(push, waiter->id);
    waiter->next_same = *place;
    *place = waiter;
}

static void leave(struct hfi_push *push, struct hfi_waiter *waiter)
{
    if (!push->table || !waiter->id)
        return;
    struct hfi_waiter **link = place_of(push, waiter->id);
    while (*link != waiter)
        link = &(*link)->next_same;
    *link = waiter->next_same;
}

/* Without memory for it the search takes longer. */
static void grow(struct hfi_push *push)
{
    const size_t size = push->table ? 2 * push->table_size : 2 * TABLE_LEAST;
    struct hfi_waiter **table = hfi_alloc(size * sizeof(struct hfi_waiter *));
    if (!table)
        return;
    hfi_free(push->table);
    push->table = table;
    push->table_size = size;
    for (struct hfi_waiter *one = push->first; one; one = one->next)
        enter(push, one);
}

struct hfi_waiter *hfi_push_find(const struct hfi_push *push, uint64_t id)
{
    struct hfi_waiter *one = !id ? NULL : push->table ? *place_of(push, id) : push->first;
    while (one && one->id != id)
        one = push->table ? one->next_same : one->next;
    return one;
}

/* --- those who sleep --- */

static void wake_up(struct hfi_waiter *waiter)
{
    struct hfi_asleep *list = waiter->asleep_in;
    if (!waiter->waker)
        return;
    *(waiter->prev_asleep ? &waiter->prev_asleep->next_asleep : &list->first) = waiter->next_asleep;
    *(waiter->next_asleep ? &waiter->next_asleep->prev_asleep : &list->last) = waiter->prev_asleep;
    waiter->waker = NULL;
}

static void fall_asleep(struct hfi_asleep *list, struct hfi_waiter *waiter, struct hfi_waker *waker)
{
    waiter->waker = waker;
    waiter->asleep_in = list;
    waiter->next_asleep = NULL;
    waiter->prev_asleep = list->last;
    *(list->last ? &list->last->next_asleep : &list->first) = waiter;
    list->last = waiter;
}

void hfi_push_call(const struct hfi_push *push, const struct hfi_waiter *waiter)
{
    if (waiter->waker && !(push->hears && waiter == push->listener))
        hfi_waker_wake(waiter->waker);
}

/* Somebody must go on listening: a thread that sleeps, rather than an operation, which needs one first. */
static void pass_duty_on(const struct hfi_push *push)
{
    const struct hfi_waiter *next = push->threads.first ? push->threads.first : push->parked.first;
    if (!push->listener && next)
        hfi_waker_wake(next->waker);
}

/* --- the connection --- */

bool hfi_push_open(struct hfi_push *push, struct hfi_waiter *waiter, const struct hfi_request *request,
                   hf_status *status, hf_error *err)
{
    wake_up(waiter); /* it may have been parked */
    *status = HF_TIMEOUT;
    while (push->fd < 0 && push->opens && waiter->refused_by != push) {
        if (hfi_waker_called_back(request->waker) || push->env->now_ns() >= request->deadline_ns)
            return false;
        fall_asleep(&push->kept_out, waiter, request->parked ? request->parked : request->waker);
        if (request->parked) {
            *status = hfi_waker_park(request->parked, request->deadline_ns);
            return false;
        }
        pthread_mutex_unlock(push->mutex);
        hfi_waker_sleep(request->waker, NULL, 0, request->deadline_ns);
        pthread_mutex_lock(push->mutex);
        wake_up(waiter);
    }
    const bool refused = push->fd < 0 && waiter->refused_by == push;
    waiter->refused_by = NULL;
    *status = refused ? push->refusal.status : HF_OK;
    if (refused && err)
        *err = push->refusal;
    if (refused || push->fd >= 0)
        return false;
    push->opens = true;
    return true;
}

void hfi_push_opened(struct hfi_push *push, const hf_error *refusal)
{
    struct hfi_waiter *waiter;
    push->opens = false;
    if (refusal)
        push->refusal = *refusal;
    while ((waiter = push->kept_out.first) != NULL) {
        struct hfi_waker *waker = waiter->waker;
        waiter->refused_by = refusal ? push : NULL;
        wake_up(waiter);
        hfi_waker_wake(waker);
    }
}

void hfi_push_connected(struct hfi_push *push, int fd, hfi_time look_ns)
{
    push->fd = fd;
    push->number++;
    push->look_ns = look_ns;
}

void hfi_push_broken(struct hfi_push *push)
{
    push->fd = -1;
    push->look_ns = HFI_NEVER;
    for (const struct hfi_waiter *one = push->first; one; one = one->next)
        hfi_push_call(push, one);
}

void hfi_push_look_at(struct hfi_push *push, hfi_time look_ns)
{
    const bool sooner = look_ns < push->look_ns;
    push->look_ns = look_ns;
    if (sooner && push->listener)
        hfi_push_call(push, push->listener);
}

/* --- coming and going --- */

void hfi_push_add(struct hfi_push *push, struct hfi_waiter *waiter, uint64_t id)
{
    waiter->number = push->number;
    if (waiter->push)
        return;
    waiter->push = push;
    waiter->id = id;
    waiter->next = NULL;
    waiter->prev = push->last;
    *(push->last ? &push->last->next : &push->first) = waiter;
    push->last = waiter;
    enter(push, waiter);
    if (++push->count >= TABLE_LEAST && push->count > push->table_size)
        grow(push);
}

void hfi_push_address(struct hfi_waiter *waiter, uint64_t id)
{
    leave(waiter->push, waiter);
    waiter->id = id;
    enter(waiter->push, waiter);
}

void hfi_push_remove(struct hfi_waiter *waiter)
{
    struct hfi_push *push = waiter->push;
    if (!push) {
        wake_up(waiter); /* it may have been kept out */
        return;
    }
    leave(push, waiter);
    *(waiter->prev ? &waiter->prev->next : &push->first) = waiter->next;
    *(waiter->next ? &waiter->next->prev : &push->last) = waiter->prev;
    push->count--;
    waiter->push = NULL;
    waiter->id = 0;
    if (!waiter->waker)
        return;
    wake_up(waiter); /* parked: it may have been called to listen, and does not come */
    pass_duty_on(push);
}

/* --- waiting --- */

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static bool is_over(const struct hfi_push *push, const struct hfi_waiter *waiter)
{
    return push->fd < 0 || waiter->number != push->number || push->has_news(waiter);
}

/* Until it is woken, or `until_ns`, for which it answers false; and listens for all meanwhile, if nobody else does. */
static bool sleep_until(struct hfi_push *push, struct hfi_waiter *waiter, struct hfi_waker *waker, hfi_time until_ns)
{
    if (!push->listener)
        push->listener = waiter;
    const bool listens = push->listener == waiter;
    const uint64_t number = push->number;
    const hfi_time look = listens ? earlier(push->look_ns, until_ns) : until_ns;
    struct pollfd socket = { .fd = push->fd, .events = POLLIN };
    pthread_mutex_unlock(push->mutex);
    const bool woken = hfi_waker_sleep(waker, &socket, listens ? 1 : 0, look);
    pthread_mutex_lock(push->mutex);
    const bool same = push->fd >= 0 && push->number == number; /* it may have been closed meanwhile */
    if (listens && same && (socket.revents || !woken)) {
        push->hears = true;
        push->hear(push);
        push->hears = false;
    }
    return woken || look < until_ns;
}

hf_status hfi_push_wait(struct hfi_push *push, struct hfi_waiter *waiter, const struct hfi_request *request)
{
    struct hfi_waker *const waker = request->waker;
    hfi_time until = earlier(waiter->ask_again_ns, request->deadline_ns);
    bool in_time = true;
    wake_up(waiter); /* it may have been parked */
    if (request->parked && waiter->push && push->listener && !is_over(push, waiter) && !hfi_waker_called_back(waker) &&
        push->env->now_ns() < until) {
        fall_asleep(&push->parked, waiter, request->parked);
        return hfi_waker_park(request->parked, until);
    }
    fall_asleep(&push->threads, waiter, waker);
    while (in_time && !is_over(push, waiter) && !hfi_waker_called_back(waker)) {
        until = earlier(waiter->ask_again_ns, request->deadline_ns);
        in_time = sleep_until(push, waiter, waker, until);
        /* It may have heard that there is no need to ask yet. */
        in_time = in_time || earlier(waiter->ask_again_ns, request->deadline_ns) > until;
    }
    wake_up(waiter);
    if (push->listener == waiter)
        push->listener = NULL;
    pass_duty_on(push);
    return in_time || is_over(push, waiter) || until < request->deadline_ns ? HF_OK : HF_TIMEOUT;
}
