/* SPDX-License-Identifier: MIT
 *
 * crowd.c: see crowd.h.
 */
#include "crowd.h"

#include "conformance.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define PROCESSES 8
#define BLOWS 12         /* at least */
#define BETWEEN_BLOWS 20 /* entries */

struct crowd {
    _Atomic bool over;
    _Atomic uint32_t inside, entries, overlaps, disorders, late;
    _Atomic uint32_t doomed; /* is being killed: the server may know of its end before there is nobody of that number */
    _Atomic uint64_t counter; /* read, pause, write: wrong unless protected */
    _Atomic int64_t until_ns; /* how long the last one to come in is certain to be alone */
    struct fenced_register place;
    uint32_t ttl_ms;
};

/* A lock that is bound to a connection has no end that is known. */
static int64_t certain_until_ns(const hf_lock *lock)
{
    const int64_t left_ms = hf_remaining_ms(lock);
    return left_ms < INT32_MAX ? test_now_ns() + left_ms * 1000000 : INT64_MAX;
}

static void visit(struct crowd *crowd, const hf_lock *lock)
{
    const uint32_t me = (uint32_t)getpid();
    const int64_t until_ns = atomic_exchange(&crowd->until_ns, certain_until_ns(lock));
    const uint32_t before = atomic_exchange(&crowd->inside, me);
    /* Who was here before has left, was or is being killed, or was held up for so long that its time is over. */
    const bool was_overlap =
        before != 0 && before != atomic_load(&crowd->doomed) && until_ns > test_now_ns() && kill((pid_t)before, 0) == 0;
    const bool was_disorder = !fenced_write(&crowd->place, hf_token(lock));
    const uint64_t value = atomic_load(&crowd->counter);
    sched_yield();
    atomic_store(&crowd->counter, value + 1);
    const bool mine = hf_remaining_ms(lock) > 0; /* else it was held up for too long, and knows it */
    atomic_fetch_add(&crowd->overlaps, was_overlap && mine);
    atomic_fetch_add(&crowd->disorders, was_disorder && mine);
    atomic_fetch_add(&crowd->late, !mine);
    atomic_fetch_add(&crowd->entries, 1);
    uint32_t expected = me;
    atomic_compare_exchange_strong(&crowd->inside, &expected, 0);
}

static void compete(void *arg)
{
    struct crowd *crowd = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = crowd->ttl_ms;
    hf_client *client = open_client();
    while (!atomic_load(&crowd->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, "counter", &options, &err);
        if (status == HF_UNAVAILABLE || status == HF_UNKNOWN)
            continue;
        REQUIRE_STATUS(HF_OK, status, &err);
        visit(crowd, lock);
        hf_release(lock, NULL);
    }
    hf_close(client);
}

static void await_entries(const struct crowd *crowd, uint32_t count)
{
    while (atomic_load(&crowd->entries) < count)
        await_a_moment();
}

void check_crowd_for(int64_t seconds, const char *label)
{
    pid_t pids[PROCESSES];
    struct crowd *crowd = shared_new(sizeof *crowd);
    const int64_t end_ns = test_now_ns() + seconds * 1000000000LL;
    uint32_t blows = 0;
    crowd->ttl_ms = short_ttl_ms();
    for (int i = 0; i < PROCESSES; i++)
        pids[i] = helper_start(compete, crowd);
    for (; blows < BLOWS || test_now_ns() < end_ns; blows++) {
        await_entries(crowd, atomic_load(&crowd->entries) + BETWEEN_BLOWS);
        random_pause(20000);
        const uint32_t victim = random_below(PROCESSES);
        atomic_store(&crowd->doomed, (uint32_t)pids[victim]);
        helper_kill(pids[victim]);
        pids[victim] = helper_start(compete, crowd);
    }
    atomic_store(&crowd->over, true);
    for (int i = 0; i < PROCESSES; i++)
        helper_join(pids[i]);
    const uint64_t entries = atomic_load(&crowd->entries), late = atomic_load(&crowd->late);
    test_note("%s: %u entries, %u deaths, %u late", label, (unsigned)entries, blows, (unsigned)late);
    CHECK_INT(0, atomic_load(&crowd->overlaps));
    CHECK_INT(0, atomic_load(&crowd->disorders));
    /* Each death may come between the counter and the note of it. */
    CHECK(atomic_load(&crowd->counter) + late >= entries);
    CHECK(atomic_load(&crowd->counter) <= entries + blows);
}

void check_crowd(const char *label)
{
    const char *seconds = getenv("CROWD_SECONDS");
    check_crowd_for(seconds ? strtoll(seconds, NULL, 10) : 0, label);
}
