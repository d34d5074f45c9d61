/* SPDX-License-Identifier: MIT
 *
 * loop.c: see loop.h.
 */
#include "loop/await.h"
#include "loop/sleep.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

#define EVENTS 16
#define BUFFER 16384
/* A thread that sends for others looks after itself, or leaves it to one of them, after so many writes. */
#define WRITES_MOST 16
/* The attendant sleeps so long at most while there is something to do now and then: nobody needs to wake it for a new
 * deadline that comes later. */
#define ATTENDANCE HFI_SECOND
/* Who is patient waits so long for room in a socket before it looks after itself. */
#define ROOM_WAIT_MS 50

hfi_time hfi_loop_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * HFI_SECOND + now.tv_nsec;
}

bool hfi_loop_open(struct hfi_loop *loop)
{
    struct epoll_event event = { .events = EPOLLIN };
    *loop = (struct hfi_loop){ .epoll = HFI_FD(epoll_create1(EPOLL_CLOEXEC)),
                               .bell = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) };
    pthread_mutex_init(&loop->mutex, NULL);
    return loop->epoll >= 0 && loop->bell >= 0 && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->bell, &event) == 0;
}

void hfi_loop_close(struct hfi_loop *loop)
{
    assert(loop->op_count == 0 && !loop->sources);
    hfi_fd_close(loop->epoll);
    hfi_fd_close(loop->bell);
    pthread_mutex_destroy(&loop->mutex);
}

/* --- sources --- */

void hfi_source_add(struct hfi_loop *loop, struct hfi_source *source)
{
    source->next = loop->sources;
    loop->sources = source;
}

static void let_go(struct hfi_source *source)
{
    hfi_free(source->out.data);
    hfi_free(source->spare.data);
    source->gone(source);
}

void hfi_source_remove(struct hfi_loop *loop, struct hfi_source *source)
{
    struct hfi_source **link = &loop->sources;
    while (*link != source)
        link = &(*link)->next;
    *link = source->next;
    for (link = &loop->dirty; *link && *link != source;)
        link = &(*link)->next_dirty;
    if (*link)
        *link = source->next_dirty;
    while (source->sleepers.first)
        hfi_sleeper_wake(loop, source->sleepers.first, HFI_MOVED);
    if (source->armed)
        epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
    source->removed = true;
    if (source->read)
        shutdown(source->fd, SHUT_RD); /* whoever reads it comes back; by TCP it says nothing to the other side */
    if (!source->read && !source->sending)
        let_go(source);
}

void hfi_source_say(struct hfi_loop *loop, struct hfi_source *source)
{
    if (source->dirty)
        return;
    source->dirty = true;
    source->next_dirty = loop->dirty;
    loop->dirty = source;
}

bool hfi_bytes_reserve(struct hfi_bytes *bytes, size_t more)
{
    if (bytes->used + more <= bytes->room)
        return true;
    char *larger = hfi_alloc(2 * (bytes->used + more));
    if (!larger)
        return false;
    if (bytes->used)
        memcpy(larger, bytes->data, bytes->used);
    hfi_free(bytes->data);
    bytes->data = larger;
    bytes->room = 2 * (bytes->used + more);
    return true;
}

/* --- sending --- */

/* What the socket had no room for goes in front of what came since. */
static bool put_back(struct hfi_source *source, const struct hfi_bytes *rest, size_t sent)
{
    const size_t left = rest->used - sent;
    if (!hfi_bytes_reserve(&source->out, left))
        return false;
    memmove(source->out.data + left, source->out.data, source->out.used);
    memcpy(source->out.data, rest->data + sent, left);
    source->out.used += left;
    return true;
}

/* Takes the mutex again. False: the source was removed meanwhile, and may be gone. */
static bool stop_sending(struct hfi_loop *loop, struct hfi_source *source)
{
    pthread_mutex_lock(&loop->mutex);
    const bool removed = source->removed;
    source->sending = false;
    if (removed && !source->read)
        let_go(source);
    return !removed;
}

static void ring(struct hfi_loop *loop)
{
    if (!loop->driver || loop->rung) /* else whoever is about to drive looks before it sleeps */
        return;
    loop->rung = true;
    eventfd_write(loop->bell, 1);
}

/* Leaves the sending to a thread whose operation awaits an answer from it; if there is none, to whoever drives: the one
 * that reads it comes back when it hears something, or after long. */
static void leave_to_another(struct hfi_loop *loop, struct hfi_source *source)
{
    if (source->sleepers.first)
        hfi_sleeper_wake(loop, source->sleepers.first, HFI_MOVED);
    else
        ring(loop);
}

/* The socket has no room for the rest. Whoever drives waits for that, too; but a thread that reads does not. */
static void wait_for_room(struct hfi_loop *loop, struct hfi_source *source, bool patient)
{
    struct pollfd one = { .fd = source->fd, .events = POLLOUT };
    if (!source->read) {
        source->events = EPOLLIN | EPOLLOUT;
        return;
    }
    hfi_source_say(loop, source);
    if (!patient) {
        leave_to_another(loop, source);
        return;
    }
    source->sending = true;
    hfi_unlock_and_wake(loop);
    poll(&one, 1, ROOM_WAIT_MS);
    stop_sending(loop, source);
}

/* Lets go of the mutex while it sends; false: there is no room for more. A connection that breaks is ended by whoever
 * reads it. */
static bool send_once(struct hfi_loop *loop, struct hfi_source *source, bool patient)
{
    struct hfi_bytes batch = source->out;
    source->out = source->spare;
    source->out.used = 0;
    source->spare = (struct hfi_bytes){ NULL, 0, 0 };
    source->sending = true;
    hfi_unlock_and_wake(loop);
    ssize_t sent;
    do
        sent = batch.used ? send(source->fd, batch.data, batch.used, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    while (sent < 0 && errno == EINTR);
    const bool broken = sent < 0 && errno != EAGAIN;
    const size_t done = sent > 0 ? (size_t)sent : 0;
    source->spare = batch;
    if (!stop_sending(loop, source))
        return true;
    source->events = EPOLLIN;
    if (broken || (done < batch.used && !put_back(source, &batch, done)))
        shutdown(source->fd, SHUT_RDWR); /* nothing may follow half of a command */
    else if (done < batch.used)
        wait_for_room(loop, source, patient);
    return done == batch.used;
}

/* True: something was sent, and the mutex was let go of meanwhile; there may be more. Who is not `patient`, as it has
 * nothing of its own to wait for, leaves what takes long to others. */
static bool send_all(struct hfi_loop *loop, bool patient)
{
    unsigned writes = 0;
    struct hfi_source **link = &loop->dirty, *source;
    while ((source = *link) != NULL) {
        if (source->sending) { /* whoever does so goes on with it */
            link = &source->next_dirty;
            continue;
        }
        if (writes >= WRITES_MOST && patient)
            break;
        if (writes >= WRITES_MOST && source->sleepers.first) {
            leave_to_another(loop, source);
            return false;
        }
        *link = source->next_dirty;
        source->dirty = false;
        if (source->fill && !source->fill(source))
            shutdown(source->fd, SHUT_RDWR);
        writes++;
        if (!send_once(loop, source, patient))
            return patient;
        link = &loop->dirty;
    }
    return writes > 0;
}

/* --- reading --- */

static int milliseconds(hfi_time until_ns)
{
    const hfi_time left = until_ns == HFI_NEVER ? HFI_NEVER : until_ns - hfi_loop_now_ns();
    return left <= 0 ? 0 : left > 1000 * HFI_SECOND ? 1000000 : (int)((left + HFI_MS - 1) / HFI_MS);
}

/* It is enough to wait for bytes from it. */
static bool can_be_read(const struct hfi_source *source)
{
    return source->connected && source->events == EPOLLIN;
}

/* Of sources that a thread reads epoll knows nothing. What the attendant knows of one that nobody needs it for may stay
 * as it is: threads that read it one after the other would undo it each time. But not that it waits for room, when
 * there is some. */
static uint32_t wanted_of(const struct hfi_loop *loop, const struct hfi_source *source)
{
    if (source->read)
        return 0;
    const bool attends = loop->driver && loop->driver == loop->attendant;
    return attends && can_be_read(source) && !source->unattended ? source->armed & source->events : source->events;
}

/* Takes effect for a thread that sits in epoll_wait(), too. */
static void arm(struct hfi_loop *loop)
{
    for (struct hfi_source *source = loop->sources; source; source = source->next) {
        const uint32_t wanted = wanted_of(loop, source);
        if (source->armed == wanted)
            continue;
        struct epoll_event event = { .events = wanted, .data.ptr = source };
        const int how = source->armed ? wanted ? EPOLL_CTL_MOD : EPOLL_CTL_DEL : EPOLL_CTL_ADD;
        if (epoll_ctl(loop->epoll, how, source->fd, &event) == 0)
            source->armed = wanted;
    }
}

/* Somebody sees to it that an operation goes on which a thread waits for. That thread reads by itself, if nobody else
 * does but the attendant. */
static bool is_covered(const struct hfi_loop *loop, const struct hfi_source *source)
{
    if (!source || !loop->driver)
        return source ? source->read : loop->driver != NULL;
    return source->read || (source->armed && (loop->driver != loop->attendant || !can_be_read(source)));
}

/* Whoever stops to read or to drive, for good or to do the other, sees to it that somebody does so for those who need
 * it. */
static void hand_over(struct hfi_loop *loop)
{
    if (loop->driver)
        arm(loop);
    else if (loop->sleepers.first)
        hfi_sleeper_wake(loop, loop->sleepers.first, HFI_MOVED);
    for (struct hfi_source *source = loop->sources; source; source = source->next) {
        if (source->sleepers.first && !is_covered(loop, source))
            hfi_sleeper_wake(loop, source->sleepers.first, HFI_MOVED);
    }
}

/* By one thread, which blocks. Lets go of the mutex. */
static void read_source(struct hfi_loop *loop, struct hfi_source *source, hfi_time until_ns)
{
    char buffer[BUFFER];
    const bool near = until_ns != HFI_NEVER && until_ns - hfi_loop_now_ns() < HFI_LOOP_BLOCK_NS;
    ssize_t got = -1;
    source->read = true;
    hand_over(loop);
    hfi_unlock_and_wake(loop);
    errno = EAGAIN;
    struct pollfd one = { .fd = source->fd, .events = POLLIN };
    if (!near || poll(&one, 1, milliseconds(until_ns)) > 0)
        got = recv(source->fd, buffer, sizeof buffer, near ? MSG_DONTWAIT : 0);
    const bool nothing = got < 0 && (errno == EAGAIN || errno == EINTR);
    pthread_mutex_lock(&loop->mutex);
    source->read = false;
    if (source->removed && !source->sending)
        let_go(source);
    else if (!source->removed && !nothing)
        source->take(source, buffer, got);
}

static bool is_there(const struct hfi_loop *loop, const struct hfi_source *wanted)
{
    const struct hfi_source *source = loop->sources;
    while (source && source != wanted)
        source = source->next;
    return source != NULL;
}

static void take_event(struct hfi_loop *loop, const struct epoll_event *event)
{
    char buffer[BUFFER];
    eventfd_t rings;
    struct hfi_source *source = event->data.ptr;
    if (!source) {
        eventfd_read(loop->bell, &rings);
        loop->rung = false;
        return;
    }
    if (!is_there(loop, source) || source->read) /* an event before this one has closed it, or a thread reads it now */
        return;
    if (!source->connected) {
        /* Its descriptor may be another one afterwards, with the same number. */
        epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
        source->armed = 0;
        source->step(source);
        return;
    }
    if (event->events & EPOLLOUT)
        hfi_source_say(loop, source);
    if (!(event->events & ~(uint32_t)EPOLLOUT))
        return;
    const ssize_t got = recv(source->fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR))
        source->take(source, buffer, got);
}

/* By when the driver must look. */
static hfi_time next_look(const struct hfi_loop *loop, const struct hfi_op *op)
{
    const struct hfi_timer *first = hfi_timers_first(&loop->timers);
    const hfi_time at = first ? first->at_ns : HFI_NEVER;
    const hfi_time most = op == loop->attendant && loop->busy ? hfi_loop_now_ns() + ATTENDANCE : HFI_NEVER;
    return at < most ? at : most;
}

/* For `op`, and for all that await a source which nobody reads. */
static void poll_all(struct hfi_loop *loop, struct hfi_op *op)
{
    struct epoll_event events[EVENTS];
    const hfi_time until = next_look(loop, op);
    loop->driver = op;
    loop->looks_ns = until;
    arm(loop);
    hfi_unlock_and_wake(loop);
    const int count = epoll_wait(loop->epoll, events, EVENTS, milliseconds(until));
    pthread_mutex_lock(&loop->mutex);
    loop->driver = NULL;
    loop->busy = count > 0;
    for (int i = 0; i < count; i++)
        take_event(loop, &events[i]);
}

/* --- threads that wait --- */

/* True: something was sent, or some operation went on; then there may be more to do. */
static bool advance(struct hfi_loop *loop, bool patient)
{
    const bool sent = send_all(loop, patient);
    const bool goes_on = loop->ready.first != NULL;
    hfi_op_go_on_all(loop);
    return sent || goes_on;
}

/* What is to be done before anything is waited for; true: something was. */
static bool prepare(struct hfi_loop *loop)
{
    hfi_op_interrupt_due(loop);
    return advance(loop, true);
}

static void drive(struct hfi_loop *loop, struct hfi_op *op)
{
    if (prepare(loop))
        return;
    poll_all(loop, op);
    hfi_op_go_on_all(loop);
}

/* What a thread does for its operation while others do the rest. False: it is done, and the mutex is given up. */
static bool sleep_while_covered(struct hfi_loop *loop, struct hfi_op *op)
{
    if (prepare(loop))
        return true; /* things may have changed meanwhile */
    hand_over(loop);
    const enum hfi_waking why = hfi_sleep_for(loop, op);
    if (why == HFI_FINISHED)
        return false;
    pthread_mutex_lock(&loop->mutex);
    if (why == HFI_TIME_IS_OVER && hfi_loop_now_ns() >= op->deadline_ns)
        hfi_op_interrupt(op);
    hfi_op_go_on_all(loop);
    return true;
}

/* Whoever drives does so for this one, too, from now on; true: so it is. Else there would be two of them, and one would
 * miss what the other takes. */
static bool wait_for_this_too(struct hfi_loop *loop, const struct hfi_op *op)
{
    if (!op->source || can_be_read(op->source))
        return false;
    arm(loop);
    return is_covered(loop, op->source);
}

hf_status hfi_loop_run(struct hfi_loop *loop, struct hfi_op *op)
{
    pthread_mutex_lock(&loop->mutex);
    hfi_op_begin(loop, op);
    while (!op->finished) {
        if (hfi_op_tell_finished(loop))
            continue;
        if (loop->ready.first) {
            hfi_op_go_on_all(loop);
        } else if (is_covered(loop, op->source)) {
            if (!sleep_while_covered(loop, op))
                return op->status;
        } else if (loop->driver && wait_for_this_too(loop, op)) {
            continue;
        } else if (!op->source || !can_be_read(op->source)) {
            drive(loop, op);
        } else if (!prepare(loop)) {
            read_source(loop, op->source, op->deadline_ns);
            hfi_op_go_on_all(loop);
        }
    }
    hfi_loop_leave(loop);
    return op->status;
}

void hfi_loop_enter(struct hfi_loop *loop)
{
    pthread_mutex_lock(&loop->mutex);
}

void hfi_loop_leave(struct hfi_loop *loop)
{
    do {
        while (advance(loop, false))
            ; /* until there is nothing left to send */
    } while (hfi_op_tell_finished(loop));
    hand_over(loop);
    hfi_unlock_and_wake(loop);
}

/* --- operations that no thread waits for --- */

/* No other is under way to where this one's words go: they need not wait for company. */
static bool is_alone(const struct hfi_source *source)
{
    return !source || (source->unattended == 1 && !source->read && !source->sleepers.first);
}

void hfi_loop_start(struct hfi_loop *loop, struct hfi_op *op)
{
    pthread_mutex_lock(&loop->mutex);
    hfi_op_begin(loop, op);
    if (op->deadline_ns < loop->looks_ns)
        ring(loop);
    if (op->finished || loop->ready.first || is_alone(op->source)) {
        hfi_loop_leave(loop);
        return;
    }
    ring(loop);
    hand_over(loop);
    hfi_unlock_and_wake(loop);
}

static hf_status withdraw_attendant(struct hfi_op *op)
{
    (void)op;
    return HF_OK;
}

static int attend(struct hfi_op *op)
{
    struct hfi_loop *loop = op->loop;
    loop->attendant = loop->dismissed ? NULL : op;
    if (loop->attendant)
        hfi_op_park(op, NULL, withdraw_attendant);
    return loop->attendant ? HFI_AWAITING : HF_OK;
}

void hfi_loop_attend(struct hfi_loop *loop)
{
    struct hfi_op op = { .run = attend, .deadline_ns = HFI_NEVER };
    hfi_loop_run(loop, &op);
}

void hfi_loop_dismiss(struct hfi_loop *loop)
{
    hfi_loop_enter(loop);
    loop->dismissed = true;
    if (loop->attendant)
        hfi_op_interrupt(loop->attendant);
    hfi_loop_leave(loop);
}
