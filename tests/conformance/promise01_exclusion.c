/* SPDX-License-Identifier: MIT
 *
 * Promise 1, exclusion: at most one holder. A witness in shared memory sees who is inside, and a counter that is
 * incremented by read, pause and write comes out wrong if ever two are.
 */
#include "conformance.h"

struct contest {
    struct witness witness;
    struct name name;
    hf_client *client; /* shared by all; NULL: each opens its own */
    uint32_t rounds;
    atomic_bool over;
};

static struct contest *contest_new(uint32_t rounds)
{
    struct contest *contest = shared_new(sizeof *contest);
    contest->name = unique_name("contest");
    contest->rounds = rounds;
    return contest;
}

static void compete(void *arg, uint32_t index)
{
    struct contest *contest = arg;
    hf_client *client = contest->client ? contest->client : open_patient_client();
    for (uint32_t i = 0; i < contest->rounds; i++) {
        hf_lock *lock = must_acquire(client, contest->name.text, NULL);
        witness_visit(&contest->witness, index + 1, hf_token(lock));
        must_release(lock);
    }
    if (!contest->client)
        hf_close(client);
}

static void check_contest(struct contest *contest, uint32_t members)
{
    witness_check(&contest->witness);
    CHECK_INT(members * contest->rounds, atomic_load(&contest->witness.entries));
    CHECK_INT(members * contest->rounds, atomic_load(&contest->witness.counter));
}

PROMISE(p01_threads_of_one_client, 0)
{
    struct contest *contest = contest_new(50);
    contest->client = open_client();
    run_threads(8, compete, contest);
    check_contest(contest, 8);
    hf_close(contest->client);
}

PROMISE(p01_threads_with_own_clients, 0)
{
    struct contest *contest = contest_new(50);
    run_threads(8, compete, contest);
    check_contest(contest, 8);
}

PROMISE(p01_processes, HF_CAP_PROCESSES)
{
    struct contest *contest = contest_new(50);
    run_processes(8, compete, contest);
    check_contest(contest, 8);
}

PROMISE_LIMIT(p01_64_threads_on_a_counter, 0, 40)
{
    struct contest *contest = contest_new(4);
    contest->client = open_client();
    run_threads(64, compete, contest);
    check_contest(contest, 64);
    hf_close(contest->client);
}

PROMISE_LIMIT(p01_64_processes_on_a_counter, HF_CAP_PROCESSES, 40)
{
    struct contest *contest = contest_new(4);
    run_processes(64, compete, contest);
    check_contest(contest, 64);
}

/* Threads that mix every way to ask for the same lock. */
static void compete_in_all_ways(void *arg, uint32_t index)
{
    struct contest *contest = arg;
    hf_client *client = contest->client ? contest->client : open_patient_client();
    for (uint32_t i = 0; i < contest->rounds;) {
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        options.owner = (index + i) % 2 ? HF_OWNER_THREAD : HF_OWNER_HANDLE;
        options.wait_ms = 1 + (index * 7 + i) % 5;
        hf_status status = i % 3 == 0 ? hf_try_acquire(&lock, client, contest->name.text, &options, &err)
                                      : hf_acquire(&lock, client, contest->name.text, &options, &err);
        /* One that came too late waits like all others, so that every round ends. */
        if (status == HF_BUSY || status == HF_TIMEOUT)
            lock = must_acquire(client, contest->name.text, NULL);
        else
            REQUIRE_STATUS(HF_OK, status, &err);
        witness_visit(&contest->witness, index + 1, hf_token(lock));
        must_release(lock);
        i++;
    }
    if (!contest->client)
        hf_close(client);
}

PROMISE(p01_tries_and_short_waits_mixed, 0)
{
    struct contest *contest = contest_new(30);
    contest->client = open_client();
    run_threads(8, compete_in_all_ways, contest);
    check_contest(contest, 8);
    hf_close(contest->client);
}

PROMISE(p01_tries_and_short_waits_mixed_across_processes, HF_CAP_PROCESSES)
{
    struct contest *contest = contest_new(30);
    run_processes(8, compete_in_all_ways, contest);
    check_contest(contest, 8);
}

static void compete_until_killed(void *arg, uint32_t index)
{
    struct contest *contest = arg;
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms_of_the_doomed();
    while (!atomic_load(&contest->over)) {
        hf_lock *lock = must_acquire(client, contest->name.text, &options);
        witness_visit(&contest->witness, index, hf_token(lock));
        must_release(lock);
    }
    hf_close(client);
}

PROMISE_LIMIT(p01_holders_and_waiters_killed_at_random, HF_CAP_PROCESSES, 40)
{
    enum { WORKERS = 4 };
    struct contest *contest = contest_new(0);
    uint32_t kills = store_can(HF_CAP_BOUND) ? 40 : 5;
    uint32_t next = 1;
    uint32_t numbers[WORKERS];
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        numbers[i] = next++;
        workers[i] = start_process(compete_until_killed, contest, numbers[i]);
    }
    for (uint32_t i = 0; i < kills; i++) {
        uint32_t victim = random_below(WORKERS);
        random_pause(20000);
        witness_mark_dead(&contest->witness, numbers[victim]);
        helper_kill(workers[victim]);
        numbers[victim] = next++;
        workers[victim] = start_process(compete_until_killed, contest, numbers[victim]);
    }
    /* Life goes on after the last death. */
    uint32_t entries = atomic_load(&contest->witness.entries);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, contest->name.text, NULL);
    witness_visit(&contest->witness, WITNESS_MOST, hf_token(lock));
    must_release(lock);
    CHECK(atomic_load(&contest->witness.entries) > entries);
    atomic_store(&contest->over, true);
    for (int i = 0; i < WORKERS; i++)
        helper_join(workers[i]);
    witness_check(&contest->witness);
    hf_close(client);
}
