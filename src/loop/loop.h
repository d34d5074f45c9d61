/* SPDX-License-Identifier: MIT
 *
 * loop.h: connections that threads share, driven by whoever waits.
 *
 * An operation awaits an answer from one source, or something that only the loop brings about: that a connection is
 * made, say. A thread that waits for it reads that source, and blocks in the read: a lone operation costs a send and a
 * recv, and nothing else. If another thread reads the source already, it sleeps: whoever reads does so for all. For
 * everything else one thread drives the loop, by epoll, over the sources that nobody reads. Whoever stops reading, or
 * driving, wakes the next one that needs it.
 *
 * An operation may be started without a thread that waits for it. For these one thread attends to the loop: it drives
 * when nobody else does, and leaves the reading to threads that wait for answers of their own. Whoever reads an answer
 * finishes the operation, for whomever it was. A single one is sent at once by the thread that starts it; those that
 * are started while others are under way are sent together by the attendant, which is told of the first of them.
 *
 * One thread at a time sends to a source, without the mutex. What others want to send meanwhile it sends next, in one
 * write: nobody's request waits for anybody's answer, and those of threads that are in each other's way go together.
 */
#ifndef HFI_LOOP_H
#define HFI_LOOP_H

#include "loop/op.h"
#include <pthread.h>
#include <sys/types.h>

/* A read that blocks lasts so long at most: the sockets' SO_RCVTIMEO. With a nearer deadline there is a poll before. */
#define HFI_LOOP_BLOCK_NS HFI_SECOND

struct hfi_sleepers {
    struct hfi_sleeper *first, *last;
};

struct hfi_bytes {
    char *data;
    size_t used, room;
};

/* A descriptor that the loop looks after. Zeroed but for the functions, `fd` and `events`. */
struct hfi_source {
    struct hfi_source *next, *next_dirty;
    int fd;
    uint32_t events;     /* EPOLLIN, EPOLLOUT */
    uint32_t armed;      /* what epoll knows; one that a thread reads needs none */
    bool connected;      /* it blocks, and may be read; until then step() is called when it is ready */
    bool removed;        /* it goes as soon as no thread uses it */
    bool dirty;          /* there is something to send */
    bool sending;        /* a thread is at it, and goes on until there is nothing left */
    bool read;           /* a thread sits in a read of it */
    unsigned unattended; /* operations that await it, and no thread waits for them */
    struct hfi_bytes out, spare;
    struct hfi_sleepers sleepers; /* threads whose operations await it */
    /* NULL, or puts more into `out`; false: it is of no use any more. */
    bool (*fill)(struct hfi_source *source);
    /* Bytes have come; or, with `got` 0 or less, it is broken. Both may remove it. */
    void (*take)(struct hfi_source *source, const void *buffer, ssize_t got);
    void (*step)(struct hfi_source *source); /* may change `fd` */
    /* It was removed, and nobody uses it any more: closes it, and may free it. */
    void (*gone)(struct hfi_source *source);
};

struct hfi_loop {
    pthread_mutex_t mutex;
    int epoll;
    struct hfi_source *sources, *dirty;
    struct hfi_timers timers;
    size_t op_count;
    struct hfi_op_list ready;     /* operations that can go on */
    struct hfi_op_list finished;  /* those whose done() is to be called, */
    bool tells;                   /* which a thread is at */
    struct hfi_sleepers sleepers; /* threads whose operations await no source */
    struct hfi_sleeper *to_wake;
    struct hfi_op *driver;               /* its thread waits for all sources that nobody reads; NULL: none does */
    hfi_time looks_ns;                   /* when that thread looks by itself */
    int bell;                            /* an eventfd that wakes it: another one has something for it to do */
    bool rung;                           /* so it has been */
    struct hfi_op *attendant;            /* of the thread in hfi_loop_attend(); NULL: there is none */
    bool dismissed, busy;                /* it is to end; it has had something to do lately */
    void (*on_await)(struct hfi_op *op); /* for tests: an operation has come to an await */
};

bool hfi_loop_open(struct hfi_loop *loop); /* false, with errno: no descriptor left */
void hfi_loop_close(struct hfi_loop *loop);
hfi_time hfi_loop_now_ns(void);

/* Runs an operation until it is finished, on this thread, and for others meanwhile; without the mutex. */
hf_status hfi_loop_run(struct hfi_loop *loop, struct hfi_op *op);
/* Starts an operation that has a done(): it is finished by whoever attends to the loop, if not before. */
void hfi_loop_start(struct hfi_loop *loop, struct hfi_op *op);
/* Does what must be done for those that were started, on this thread, until the loop is dismissed. */
void hfi_loop_attend(struct hfi_loop *loop);
void hfi_loop_dismiss(struct hfi_loop *loop); /* once, and for all time */
/* Around anything else that is done to sources; hfi_loop_leave() sends what there is to send, and wakes whom it
 * concerns. */
void hfi_loop_enter(struct hfi_loop *loop);
void hfi_loop_leave(struct hfi_loop *loop);

/* --- for the engines' side, with the mutex --- */

void hfi_source_add(struct hfi_loop *loop, struct hfi_source *source);
/* Whoever awaits it must have been woken. */
void hfi_source_remove(struct hfi_loop *loop, struct hfi_source *source);
/* There is something in `out`, or for fill(). */
void hfi_source_say(struct hfi_loop *loop, struct hfi_source *source);
bool hfi_bytes_reserve(struct hfi_bytes *bytes, size_t more); /* false: no memory */

#endif
