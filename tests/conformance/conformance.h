/* SPDX-License-Identifier: MIT
 *
 * conformance.h: what the scenarios of the conformance suite share. They use the public header alone, so that anybody
 * can run the suite against a deployment. Lock names carry a random tag and disturb nobody's locks.
 *
 * A client does not cross fork(): helper processes open their own.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "shared.h"
#include "test.h"

#include <holdfast.h>
#include <pthread.h>

extern const char *store_url;
extern uint32_t store_caps;
/* Of those that open_client() opens: 0, the default, unless a test of one store looks at its queue. */
extern int64_t store_handoff_ms;

/* Beside the store's capabilities, of the build: forks while other threads allocate. The sanitizers' allocators do
 * not. */
#define CAN_FORK_BUSY (1u << 31)
/* Of the engine: operations wait in the store without a thread each. */
#define PARKS (1u << 30)

/* A scenario of a promise, which needs HF_CAP_ bits (0: none) of the store. */
#define PROMISE(name_, needs_) TEST_DEFINE(name_, 60, needs_, 0)
#define PROMISE_LIMIT(name_, needs_, seconds_) TEST_DEFINE(name_, seconds_, needs_, 0)
/* One that is only right for a store which lacks some. */
#define PROMISE_WITHOUT(name_, needs_, lacks_) TEST_DEFINE(name_, 60, needs_, lacks_)

bool store_can(uint32_t caps);

/* --- names, times, chance --- */

struct name {
    char text[512];
};

/* The same text gives the same name in all processes of one test, and another one in every other test and run. */
struct name unique_name(const char *text);
struct name numbered_name(const char *text, unsigned number);

/* A time-to-live that a test can afford to wait for, and one that ends after the test's own limit. */
uint32_t short_ttl_ms(void);
uint32_t endless_ttl_ms(void);
/* For a holder that is going to be killed: endless where its death frees the lock at once, short where only time
 * does. */
uint32_t ttl_ms_of_the_doomed(void);

/* A time-to-live, 0 for the default, and nothing else. */
hf_options with_ttl(uint32_t ttl_ms);
/* The same for a stranger to all others, as most waiters are. */
hf_options stranger(uint32_t ttl_ms);

void pause_ms(uint32_t ms);
/* From the seed that was printed. */
uint32_t random_below(uint32_t limit);
/* The same from a seed of one's own, for threads. */
uint32_t chance(uint64_t *seed, uint32_t limit);
/* Lets somebody else run for a random while: where to strike is what the test is about. */
void random_pause(uint32_t most_us);

/* --- locks --- */

hf_client *open_client(void);
/* One whose threads pass a lock on among themselves for so long; less than 0: every waiter of which stands in the
 * store's own queue. */
hf_client *open_client_with_handoff(int64_t handoff_ms);
/* One of many that log in at once, on a machine that may have other things to do: the default is too short then. */
hf_client *open_patient_client(void);
hf_lock *must_acquire(hf_client *client, const char *name, const hf_options *options);
/* Waits for what is held, until the deadline and not shorter. */
void must_wait_in_vain(hf_client *client, const char *name, uint32_t wait_ms);
void must_release(hf_lock *lock);
/* Asks as a stranger, who re-enters nothing. */
void check_busy(hf_client *client, const char *name);
void check_free(hf_client *client, const char *name);
/* Waits for ever as a stranger, which the test's limit ends; for locks that are being freed in the background. */
void check_becomes_free(hf_client *client, const char *name);

/* Waits until `count` are seen waiting, or where the store cannot tell, long enough for them to be. */
void await_waiters(hf_client *client, const char *name, int64_t count);

/* A thread that asks for a lock. */
struct waiter {
    pthread_t thread;
    hf_client *client;
    const char *name;
    hf_options options;
    hf_status status;
    hf_error err;
    hf_lock *lock;
    uint64_t token;
    int64_t ended_ns;
    struct gate began, ended;
};

/* Starts it as a stranger unless `options` say otherwise. */
void waiter_start(struct waiter *waiter, hf_client *client, const char *name, const hf_options *options);
/* Waits for its end and checks how it ended. */
void waiter_join(struct waiter *waiter, hf_status expected);
/* Waits until it has the lock, and gives that back. */
void waiter_finish(struct waiter *waiter);

/* --- many at once --- */

typedef void (*member_fn)(void *arg, uint32_t index);

void run_threads(uint32_t count, member_fn run, void *arg);
void run_processes(uint32_t count, member_fn run, void *arg);
pid_t start_process(member_fn run, void *arg, uint32_t index);

/* --- a process that holds a lock; in shared memory --- */

struct holder {
    struct name name;
    hf_options options;         /* on_lost is taken by the holder itself */
    struct gate held, go, told; /* it has the lock; it may release it; it was told of the loss */
    _Atomic uint64_t token;
    _Atomic int64_t told_ns;      /* when it was told */
    _Atomic int64_t believed_ns;  /* when it last saw time remaining, while it waits for `go` */
    _Atomic int64_t remaining_ms; /* right after `go` */
    _Atomic int released;         /* what hf_release() said */
};

struct holder *holder_new(const char *name);
/* Starts it. */
pid_t holder_launch(struct holder *holder);
/* Starts it and waits until it holds. */
pid_t holder_start(struct holder *holder);
/* Lets it release, waits for its end, and checks what hf_release() said. */
void holder_finish(struct holder *holder, pid_t pid, hf_status expected);

/* --- operations --- */

bool has_events(hf_client *client, int wait_ms);
void check_no_event(hf_client *client);
hf_op *must_start(hf_client *client, const char *name, const hf_options *options, void *tag);

/* --- losses --- */

struct loss {
    struct gate told; /* how often on_lost was called */
    _Atomic int64_t told_ns;
    char why[256]; /* with that */
};

/* Sets on_lost and arg so that `loss` records them. */
void record_loss(hf_options *options, struct loss *loss);
/* Waits until hf_lost_fd() is readable. */
void await_lost_fd(const hf_lock *lock);

#endif
