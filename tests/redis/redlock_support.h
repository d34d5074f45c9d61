/* SPDX-License-Identifier: MIT
 *
 * redlock_support.h: what the tests of the redlock: engine share. They look at the masters themselves: a lock NAME is
 * the key NAME, the queue on its usher the sorted set hf:{NAME}:w, its last token the first word of hf:{NAME}:t.
 */
#ifndef REDLOCK_SUPPORT_H
#define REDLOCK_SUPPORT_H

#include "redis_group.h"
#include "redis_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NAME "the-lock"
#define SECOND_NS 1000000000LL
#define DURABLE "--appendonly yes --appendfsync always"

/* Starts masters and makes them those that open_client() opens. */
static inline struct redis_group *start_masters(int count, const char *arguments)
{
    struct redis_group *group = redis_masters_start(count, &(struct redis_group_options){ .arguments = arguments });
    use_url(group->url);
    return group;
}

/* The same masters, the last one first. */
static inline void reverse_url(char *out, size_t size, const struct redis_group *group)
{
    int used = snprintf(out, size, "redlock://");
    for (int i = group->count - 1; i >= 0; i--)
        used += snprintf(out + used, size - (size_t)used, "%s:%d%s", group->server[i]->address, group->server[i]->port,
                         i ? "," : "");
}

static inline int running(struct redis_group *group)
{
    int count = 0;
    for (int i = 0; i < group->count; i++)
        count += redis_server_runs(group->server[i]);
    return count;
}

/* How many of the masters that run have the lock. */
static inline int votes(struct redis_group *group)
{
    int count = 0;
    for (int i = 0; i < group->count; i++)
        count += redis_server_runs(group->server[i]) && redis_server_number(group->server[i], "EXISTS %s", NAME) == 1;
    return count;
}

static inline void await_votes(struct redis_group *group, int count)
{
    while (votes(group) != count)
        await_a_moment();
}

static inline int64_t line_at(struct redis_server *server)
{
    return redis_server_number(server, "ZCARD hf:{%s}:w", NAME);
}

static inline void await_line(struct redis_server *server, int64_t count)
{
    while (line_at(server) != count)
        await_a_moment();
}

/* How many stand in line on the masters that run, all together. */
static inline int64_t in_line(struct redis_group *group)
{
    int64_t count = 0;
    for (int i = 0; i < group->count; i++)
        count += redis_server_runs(group->server[i]) ? line_at(group->server[i]) : 0;
    return count;
}

/* Waits until no master that runs has the lock, or anybody in line. Where its time-to-live is endless, somebody must
 * have removed it. */
static inline void await_clean(struct redis_group *group)
{
    while (votes(group) != 0 || in_line(group) != 0)
        await_a_moment();
}

/* How often a token had to be written back in so many pairs since `before`, on the master on which that was most often:
 * when the guess was late, for want of a processor say. It goes to those masters alone that need it. */
static inline int64_t write_backs_since(struct redis_group *group, const int64_t before[], int64_t pairs)
{
    int64_t most = 0;
    for (int i = 0; i < group->count; i++) {
        int64_t more;
        while ((more = redis_server_sent(group->server[i]) - before[i] - 2 * pairs) < 0)
            await_a_moment();
        CHECK(more <= pairs);
        most = more > most ? more : most;
    }
    return most;
}

static inline void note_sent(struct redis_group *group, int64_t before[])
{
    for (int i = 0; i < group->count; i++)
        before[i] = redis_server_sent(group->server[i]);
}

/* The first use of a script is an EVALSHA that fails and an EVAL; the first guess is none; and a majority need not wait
 * until the others let us in. Returns when all masters that run know the client and the scripts. */
static inline void teach_masters(struct redis_group *group, hf_client *client)
{
    const hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    for (int i = 0, taught = -1; taught < i; i++) {
        hf_lock *lock = must_acquire(client, NAME, &options);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
        pause_ms(1);
        if (votes(group) < running(group) || i == 0)
            taught = i + 1; /* once more */
        must_release(lock);
        await_clean(group);
    }
}

/* All masters that run have it. A majority does not wait for one that is slow, which then has no vote, or still has
 * that of the holder before: in that case it is taken once more. `asked_ns`: when; NULL if nobody wants to know. */
static inline hf_lock *acquire_on_all(struct redis_group *group, hf_client *client, const hf_options *options,
                                      int64_t *asked_ns)
{
    for (;;) {
        if (asked_ns)
            *asked_ns = test_now_ns();
        hf_lock *lock = must_acquire(client, NAME, options);
        for (int i = 0; i < 200; i++) {
            if (votes(group) == running(group))
                return lock;
            await_a_moment();
        }
        must_release(lock);
        await_clean(group);
    }
}

static inline int64_t wall_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* Waits until the clocks have passed a token, which is a little ahead of them: what a majority forgets before then may
 * be granted again. */
static inline void await_clock(uint64_t token)
{
    while ((uint64_t)wall_clock_us() <= token)
        await_a_moment();
}

/* --- what happens to masters --- */

enum fault { KILLED, PAUSED, CUT };

static inline const char *fault_name(enum fault fault)
{
    return fault == KILLED ? "killed" : fault == PAUSED ? "paused" : "cut off";
}

static inline void strike(struct redis_group *group, int index, enum fault fault)
{
    if (fault == KILLED)
        redis_server_kill(group->server[index]);
    else if (fault == PAUSED)
        redis_server_pause(group->server[index]);
    else
        netns_cut(group->options.places[index]);
}

/* Restarted, it has forgotten everything unless it is DURABLE. */
static inline void heal(struct redis_group *group, int index, enum fault fault)
{
    if (fault == KILLED)
        redis_server_restart(group->server[index], true, "");
    else if (fault == PAUSED)
        redis_server_continue(group->server[index]);
    else
        netns_heal(group->options.places[index]);
}

/* Masters on hosts of their own, and the test on another one. */
static inline struct redis_group *start_masters_apart(int count)
{
    static struct netns *places[REDIS_GROUP_MOST];
    for (int i = 0; i < count; i++)
        places[i] = netns_new();
    struct redis_group *group = redis_masters_start(count, &(struct redis_group_options){ .places = places });
    netns_enter(netns_new());
    use_url(group->url);
    return group;
}

/* --- a lock that somebody holds --- */

struct held {
    hf_client *client;
    hf_lock *lock;
    struct loss loss;
    int64_t asked_ns;
    uint32_t ttl_ms;
};

/* All masters that run have it. */
static inline struct held *hold_lock(struct redis_group *group, uint32_t ttl_ms)
{
    struct held *held = shared_new(sizeof *held);
    hf_options options = stranger(ttl_ms);
    record_loss(&options, &held->loss);
    held->ttl_ms = ttl_ms;
    held->client = open_client();
    teach_masters(group, held->client);
    held->lock = acquire_on_all(group, held->client, &options, &held->asked_ns);
    return held;
}

/* Gives it back, which must end as expected, and looks whether a loss was told. */
static inline void finish(struct held *held, hf_status expected)
{
    hf_error err = { 0 };
    CHECK_STATUS(expected, hf_release(held->lock, &err), &err);
    CHECK_INT(expected == HF_LOST ? 1 : 0, gate_count(&held->loss.told));
    hf_close(held->client);
}

/* Waits until it has been renewed in the background after now. */
static inline void await_renewal(const hf_lock *lock)
{
    int64_t before_ms = hf_remaining_ms(lock), left_ms = before_ms;
    while (left_ms <= before_ms) {
        await_a_moment();
        before_ms = left_ms;
        left_ms = hf_remaining_ms(lock);
    }
    CHECK(left_ms > 0);
}

#endif
