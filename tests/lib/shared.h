/* SPDX-License-Identifier: MIT
 *
 * shared.h: what several processes of one test need: memory in common, gates to meet at, helper processes, and
 * witnesses who see whether a lock excludes. Every wait ends with the test's own time limit at the latest, and then
 * fails the test.
 */
#ifndef SHARED_H
#define SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Zeroed memory that forked children share; lasts as long as the test. */
void *shared_new(size_t size);

/* --- gates: a count that only grows, and can be waited for across threads and processes --- */

struct gate {
    _Atomic uint32_t count;
};

void gate_pass(struct gate *gate);
/* Waits until `count` have passed. */
void gate_await(struct gate *gate, uint32_t count);
/* The same for at most `ms`; false: they have not. For showing that something does NOT happen. */
bool gate_await_for(struct gate *gate, uint32_t count, uint32_t ms);
uint32_t gate_count(const struct gate *gate);

/* In a loop, for a condition that nobody passes a gate for: a few milliseconds. */
void await_a_moment(void);

/* --- helper processes --- */

typedef void (*helper_fn)(void *arg);

/* Runs `run` in a child, which counts its own failed checks. */
pid_t helper_start(helper_fn run, void *arg);
/* Waits for its end and fails the test unless it ended well. */
void helper_join(pid_t helper);
/* kill -9, and waits until it is dead. */
void helper_kill(pid_t helper);
/* SIGSTOP, and waits until it is stopped; SIGCONT. */
void helper_stop(pid_t helper);
void helper_continue(pid_t helper);

/* --- connections --- */

/* shutdown() on all connections of this process to that port; how many there were. */
int shut_connections(int port, int how);

/* --- witnesses --- */

#define WITNESS_MOST 128

struct witness {
    _Atomic uint32_t inside;         /* who is in, by number from 1; 0: nobody */
    _Atomic uint64_t last_token;     /* of the last one to come in */
    _Atomic uint32_t entries;        /* how many came in */
    _Atomic uint32_t overlaps;       /* came in, or found on leaving, that somebody else was in */
    _Atomic uint32_t disorders;      /* came in with a token that is not larger than the last */
    _Atomic uint64_t counter;        /* incremented by read, pause, write: wrong unless protected */
    _Atomic bool dead[WITNESS_MOST]; /* these were killed: finding one of them inside is no overlap */
};

void witness_enter(struct witness *witness, uint32_t who, uint64_t token);
void witness_leave(struct witness *witness, uint32_t who);
/* Adds one to the counter, not atomically. */
void witness_increment(struct witness *witness);
/* Enter, increment, leave. */
void witness_visit(struct witness *witness, uint32_t who, uint64_t token);
/* Called before `who` is killed. Its number must not be used again. */
void witness_mark_dead(struct witness *witness, uint32_t who);
/* Fails the test if anything was seen that a lock forbids. */
void witness_check(struct witness *witness);

/* A place that is written to, which refuses a token smaller than the largest it has seen. */
struct fenced_register {
    _Atomic uint64_t largest;
    _Atomic uint32_t refused;
};

bool fenced_write(struct fenced_register *place, uint64_t token);

/* The test is not run where it may not do what comes next: in a chroot, users must not make namespaces. */
void need_namespaces(void);
/* … where only root may do it. */
void need_root(void);
/* Enters namespaces of its own (CLONE_NEWNS and the like), as root of a user namespace where the tests do not run as
 * root. */
void enter_namespaces(int flags);

#endif
