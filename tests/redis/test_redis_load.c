/* SPDX-License-Identifier: MIT
 *
 * test_redis_load.c: processes compete for locks behind Sentinels while one master after the other is taken away. With
 * replicas nobody is inside beside a holder whose own deadline has not come, tokens only grow, and whoever held a lock
 * over the failover either still has it at the new master or knows that it is lost.
 */
#include "group_support.h"

#include <stdio.h>

#define PROCESSES 4
#define THREADS 3
#define NAMES 4
#define VISITS_MOST 65536

/* One lock, and who is inside. */
struct room {
    _Atomic uint32_t visits;                  /* gives each its number */
    _Atomic uint32_t inside;                  /* the number of whoever came in last and is still in; 0: nobody */
    _Atomic int64_t deadline_ns[VISITS_MOST]; /* until when a visit is certain to be alone; 0: it knows of its loss */
    struct fenced_register place;
};

struct load {
    char url[450];
    uint32_t ttl_ms;
    _Atomic bool over;
    _Atomic uint32_t failovers;
    _Atomic uint32_t entries, overlaps, disorders, troubles;
    _Atomic uint32_t kept, lost; /* over a failover */
    struct room rooms[NAMES];
};

struct visit {
    struct room *room;
    uint32_t number;
    _Atomic bool lost;
};

struct worker {
    struct load *load;
    hf_client *client;
    uint32_t process;
};

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct visit *visit = arg;
    (void)lock;
    (void)why;
    atomic_store(&visit->lost, true);
    atomic_store(&visit->room->deadline_ns[visit->number], 0);
}

/* The clock is read first: a pause in between makes the answer earlier, not later. What remains is rounded up. */
static void publish(struct visit *visit, const hf_lock *lock)
{
    const int64_t now_ns = test_now_ns();
    atomic_store(&visit->room->deadline_ns[visit->number], now_ns + (hf_remaining_ms(lock) - 1) * 1000000);
    if (atomic_load(&visit->lost))
        atomic_store(&visit->room->deadline_ns[visit->number], 0);
}

static void enter(struct load *load, struct visit *visit, const hf_lock *lock)
{
    struct room *room = visit->room;
    publish(visit, lock);
    const uint32_t before = atomic_exchange(&room->inside, visit->number);
    const int64_t now_ns = test_now_ns();
    if (before != 0 && now_ns < atomic_load(&room->deadline_ns[visit->number]) &&
        now_ns < atomic_load(&room->deadline_ns[before]))
        atomic_fetch_add(&load->overlaps, 1);
    atomic_fetch_add(&load->entries, 1);
}

/* Only whoever comes too late may be refused. */
static void write_fenced(struct load *load, struct room *room, const hf_lock *lock)
{
    if (!fenced_write(&room->place, hf_token(lock)) && hf_remaining_ms(lock) > 0)
        atomic_fetch_add(&load->disorders, 1);
}

/* Stays for `ms`, or until the lock is lost or all is over. */
static void stay(struct load *load, struct visit *visit, const hf_lock *lock, uint32_t ms)
{
    const uint32_t failovers = atomic_load(&load->failovers);
    const int64_t end_ns = test_now_ns() + ms * 1000000LL;
    while (test_now_ns() < end_ns && hf_remaining_ms(lock) > 0 && !atomic_load(&load->over)) {
        write_fenced(load, visit->room, lock);
        publish(visit, lock);
        pause_ms(2);
    }
    write_fenced(load, visit->room, lock);
    if (hf_remaining_ms(lock) <= 0)
        atomic_fetch_add(&load->lost, 1);
    else if (atomic_load(&load->failovers) != failovers)
        atomic_fetch_add(&load->kept, 1);
}

/* One thread of every other process stays for long, so that each failover meets holders; the others for a moment. */
static void compete(void *arg, uint32_t index)
{
    const struct worker *worker = arg;
    struct load *load = worker->load;
    const uint32_t ms = index == 0 && worker->process % 2 == 0 ? load->ttl_ms * 2 / 3 : 1;
    for (uint32_t turn = worker->process + index; !atomic_load(&load->over); turn++) {
        char name[20];
        struct visit visit = { .room = &load->rooms[turn % NAMES] };
        hf_options options = stranger(load->ttl_ms);
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        visit.number = atomic_fetch_add(&visit.room->visits, 1) % (VISITS_MOST - 1) + 1;
        snprintf(name, sizeof name, "room-%u", turn % NAMES);
        options.wait_ms = load->ttl_ms / 40;
        options.on_lost = note_loss;
        options.arg = &visit;
        const hf_status status = hf_acquire(&lock, worker->client, name, &options, &err);
        if (status == HF_OK) {
            enter(load, &visit, lock);
            stay(load, &visit, lock, ms);
            uint32_t number = visit.number;
            atomic_compare_exchange_strong(&visit.room->inside, &number, 0);
        } else if (status == HF_UNAVAILABLE || status == HF_UNKNOWN) {
            atomic_fetch_add(&load->troubles, 1);
        } else if (status != HF_TIMEOUT) {
            FAIL("hf_acquire: %s: %s", hf_status_name(status), err.message);
        }
        hf_release(lock, NULL);
    }
}

static void work(void *arg)
{
    struct worker *worker = arg;
    worker->client = open_url("%s", worker->load->url);
    run_threads(THREADS, compete, worker);
    hf_close(worker->client);
}

/* Waits until all locks have been through many more hands. */
static void await_entries(const struct load *load, uint32_t more)
{
    const uint32_t enough = atomic_load(&load->entries) + more;
    while (atomic_load(&load->entries) < enough)
        await_a_moment();
}

enum fall { DIES, STANDS_STILL, STEPS_DOWN };

static void replace_master(struct redis_group *group, struct load *load, enum fall fall)
{
    struct redis_server *old = redis_sentinel_await_settled(group);
    if (fall == DIES)
        redis_server_kill(old);
    else if (fall == STANDS_STILL)
        redis_server_pause(old);
    else
        redis_sentinel_failover(group);
    redis_sentinel_await_change(group, old);
    atomic_fetch_add(&load->failovers, 1);
    if (fall == DIES)
        redis_server_restart(old, true, "");
    else if (fall == STANDS_STILL)
        redis_server_continue(old);
    await_entries(load, 100);
}

static void run_load(const char *options, const enum fall *falls, int count)
{
    struct redis_group *group = redis_sentinel_start(NULL);
    struct load *load = shared_new(sizeof *load);
    pid_t pids[PROCESSES];
    snprintf(load->url, sizeof load->url, "%s%s", group->url, options);
    load->ttl_ms = test_ms(6000);
    for (uint32_t i = 0; i < PROCESSES; i++) {
        struct worker worker = { .load = load, .process = i };
        pids[i] = helper_start(work, &worker);
    }
    await_entries(load, 100);
    for (int i = 0; i < count; i++)
        replace_master(group, load, falls[i]);
    atomic_store(&load->over, true);
    for (uint32_t i = 0; i < PROCESSES; i++)
        helper_join(pids[i]);
    test_note("%u entries, %u kept over a failover, %u lost, %u troubles", atomic_load(&load->entries),
              atomic_load(&load->kept), atomic_load(&load->lost), atomic_load(&load->troubles));
    CHECK_INT(0, atomic_load(&load->overlaps));
    CHECK_INT(0, atomic_load(&load->disorders));
    CHECK(atomic_load(&load->kept) + atomic_load(&load->lost) > 0);
}

TEST_LIMIT(with_a_replica_no_two_holders_and_no_token_twice_while_masters_die_and_stand_still_under_load, 100)
{
    static const enum fall falls[] = { DIES, STANDS_STILL, DIES };
    run_load("?replicas=1&replica_timeout=500", falls, 3);
}

/* A master that steps down goes on serving for a moment while one of its replicas is a master already: only what ALL
 * replicas have confirmed is known to that one. */
TEST_LIMIT(with_all_replicas_no_two_holders_and_no_token_twice_while_masters_step_down_under_load, 100)
{
    static const enum fall falls[] = { STEPS_DOWN, STEPS_DOWN };
    run_load("?replicas=2&replica_timeout=500", falls, 2);
}
