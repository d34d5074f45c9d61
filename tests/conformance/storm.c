/* SPDX-License-Identifier: MIT
 *
 * storm.c: see storm.h.
 */
#include "storm.h"

#include <time.h>

/* When it ends at the earliest. The clock is read first: a pause in between makes the answer earlier, not later. The
 * time that remains is rounded up. */
static int64_t safe_until_ns(const hf_lock *lock)
{
    const int64_t now_ns = test_now_ns();
    return now_ns + (hf_remaining_ms(lock) - 1) * 1000000;
}

/* Tokens are not in order; that is no wonder where the lock was lost before they were shown. */
static void note_disorder(struct storm *storm, const hf_lock *lock, uint64_t largest)
{
    const int64_t left_ms = hf_remaining_ms(lock);
    if (left_ms > 0 && atomic_fetch_add(&storm->disorders, 1) < 5)
        test_note("token %llu came with %d ms left, after %llu", (unsigned long long)hf_token(lock), (int)left_ms,
                  (unsigned long long)largest);
}

/* A write with the token, as a holder should make it. */
static void write_fenced(struct storm *storm, const hf_lock *lock)
{
    if (fenced_write(&storm->place, hf_token(lock)))
        return;
    atomic_fetch_add(&storm->refused, 1);
    note_disorder(storm, lock, atomic_load(&storm->place.largest));
}

void storm_visit(struct storm *storm, const hf_lock *lock, uint32_t process, uint32_t stay_us)
{
    const struct timespec stay = { .tv_sec = stay_us / 1000000, .tv_nsec = stay_us % 1000000 * 1000L };
    const int64_t mine_ns = safe_until_ns(lock);
    const uint32_t number = atomic_fetch_add(&storm->visits, 1) % (STORM_VISITS - 1) + 1;
    atomic_store(&storm->deadline_ns[number], mine_ns);
    atomic_store(&storm->process[number], process);
    const uint32_t before = atomic_exchange(&storm->inside, number);
    const int64_t now_ns = test_now_ns();
    if (before != 0 && now_ns < mine_ns) {
        if (now_ns < atomic_load(&storm->deadline_ns[before]))
            atomic_fetch_add(&storm->overlaps, 1);
        else
            atomic_fetch_add(&storm->outlived, 1);
    }
    const uint64_t last_token = atomic_exchange(&storm->last_token, hf_token(lock));
    if (last_token >= hf_token(lock))
        note_disorder(storm, lock, last_token);
    atomic_fetch_add(&storm->entries, 1);
    write_fenced(storm, lock);
    nanosleep(&stay, NULL);
    write_fenced(storm, lock);
    uint32_t expected = number;
    atomic_compare_exchange_strong(&storm->inside, &expected, 0);
}

void storm_compete(void *arg)
{
    struct storm *storm = arg;
    hf_client *client = open_client();
    const hf_options options = stranger(storm->ttl_ms);
    while (!atomic_load(&storm->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, STORM_NAME, &options, &err);
        if (status == HF_OK)
            storm_visit(storm, lock, 0, 1000);
        else if (status != HF_UNAVAILABLE)
            CHECK_STATUS(HF_UNKNOWN, status, &err);
        hf_release(lock, NULL);
    }
    hf_close(client);
}

int64_t storm_await(const struct storm *storm, uint32_t more)
{
    const int64_t start_ns = test_now_ns();
    const uint32_t before = atomic_load(&storm->entries);
    while (atomic_load(&storm->entries) - before < more)
        await_a_moment();
    return (test_now_ns() - start_ns) / 1000000;
}

void storm_end(struct storm *storm, const pid_t *pids, uint32_t count)
{
    atomic_store(&storm->over, true);
    for (uint32_t i = 0; i < count; i++)
        helper_join(pids[i]);
    test_note("%u entries, %u outlived, %u writes refused", atomic_load(&storm->entries), atomic_load(&storm->outlived),
              atomic_load(&storm->refused));
    CHECK_INT(0, atomic_load(&storm->overlaps));
    CHECK_INT(0, atomic_load(&storm->disorders));
}
