/* SPDX-License-Identifier: MIT
 *
 * push.h: those who wait for what a store says by itself, on one push connection. One of them is the listener: it reads
 * for all, so that a message goes from the socket to the thread it is for without a detour; when it leaves, it wakes
 * another one to take over. An operation that waits needs no thread, as long as there is a listener: it is parked.
 *
 * If nobody else is there, an operation listens, on the thread of its runner; and not the keeper: that may be in a
 * user's callback, which may wait for that very operation.
 *
 * The connection is made by one of those who want it, when it is first wanted. The others wait for what comes of that,
 * operations without a thread: they would be in each other's way, and one that hangs would keep a thread of each.
 *
 * An engine says who waits, what is listened to, and what a message means. All functions are called with its mutex.
 */
#ifndef HFI_PUSH_H
#define HFI_PUSH_H

#include "engine.h"
#include <pthread.h>

/* One that a message may come for. Zeroed before it is used. */
struct hfi_waiter {
    struct hfi_waiter *next, *prev;               /* in order of arrival */
    struct hfi_waiter *next_same;                 /* in the table */
    struct hfi_waiter *next_asleep, *prev_asleep; /* in the order in which they fell asleep */
    struct hfi_push *push;                        /* where it waits; NULL: nowhere */
    uint64_t id;                                  /* what its messages are addressed to; 0: none are, so far */
    uint64_t number;                              /* of the push connection that it lined up under */
    hfi_time ask_again_ns;                        /* when it is to ask, should it hear nothing */
    struct hfi_waker *waker;                      /* while its thread sleeps, or it is parked */
    struct hfi_asleep *asleep_in;                 /* then: this list */
    const struct hfi_push *refused_by;            /* while it waited there, no connection could be made */
};

struct hfi_asleep {
    struct hfi_waiter *first, *last;
};

#define HFI_WAITER_OF(type, member, waiter) ((type *)(void *)((char *)(waiter)-offsetof(type, member)))

struct hfi_push {
    const struct hfi_env *env;
    pthread_mutex_t *mutex;
    /* There is, and it need not wait any more. */
    bool (*has_news)(const struct hfi_waiter *waiter);
    /* Takes what has come, on the listener's thread: `fd` has something, or `look_ns` has come, which it changes. */
    void (*hear)(struct hfi_push *push);
    int fd;           /* what is listened to; -1: nothing */
    uint64_t number;  /* grows with every new connection: what came in between was missed */
    hfi_time look_ns; /* when to look after one that says nothing */
    struct hfi_waiter *first, *last;
    struct hfi_waiter **table; /* by `id`; NULL as long as they are few */
    size_t table_size, count;
    struct hfi_asleep threads, parked; /* the latter are operations */
    struct hfi_asleep kept_out;        /* both, until there is a connection */
    bool opens;                        /* somebody is about to make it */
    hf_error refusal;                  /* what came of that, if there is none */
    struct hfi_waiter *listener;       /* NULL: nobody listens */
    bool hears;                        /* that one is awake */
};

/* `push` is zeroed. `fd`: one that never changes, or -1. */
void hfi_push_init(struct hfi_push *push, const struct hfi_env *env, pthread_mutex_t *mutex, int fd,
                   bool (*has_news)(const struct hfi_waiter *waiter), void (*hear)(struct hfi_push *push));
void hfi_push_free(struct hfi_push *push); /* nobody waits any more */
/* True: there is no connection, and the caller is to make one, without the mutex, by request->deadline_ns; and to call
 * hfi_push_opened(). False: there is one, HF_OK; or somebody else has tried in vain; or HF_TIMEOUT or HFI_PARKED, as of
 * an engine's wait(). */
bool hfi_push_open(struct hfi_push *push, struct hfi_waiter *waiter, const struct hfi_request *request,
                   hf_status *status, hf_error *err);
/* `refusal`: what all those who waited for it are told; NULL: there is one, or they are to try for themselves. */
void hfi_push_opened(struct hfi_push *push, const hf_error *refusal);
/* There is a new connection, to be looked after at `look_ns`. */
void hfi_push_connected(struct hfi_push *push, int fd, hfi_time look_ns);
/* There is none any more: whatever is missed from now on must be asked for, by all. */
void hfi_push_broken(struct hfi_push *push);
void hfi_push_look_at(struct hfi_push *push, hfi_time look_ns);

/* A message for it may come from now on, by the present connection. It may be there already. */
void hfi_push_add(struct hfi_push *push, struct hfi_waiter *waiter, uint64_t id);
void hfi_push_address(struct hfi_waiter *waiter, uint64_t id); /* another one */
void hfi_push_remove(struct hfi_waiter *waiter);               /* it may not be there */
struct hfi_waiter *hfi_push_find(const struct hfi_push *push, uint64_t id);
/* Wakes it, if it sleeps: there are news, or it is to ask earlier than it thought. */
void hfi_push_call(const struct hfi_push *push, const struct hfi_waiter *waiter);
/* An engine's wait(): until there are news, the connection broke, it is time to ask again, or the deadline has come. */
hf_status hfi_push_wait(struct hfi_push *push, struct hfi_waiter *waiter, const struct hfi_request *request);

#endif
