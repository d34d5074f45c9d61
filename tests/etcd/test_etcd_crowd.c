/* SPDX-License-Identifier: MIT
 *
 * test_etcd_crowd.c: many processes on one lock, while members of the cluster are killed and come back. With
 * HOLDFAST_TEST_SOAK=SECONDS for so long, else for a few blows.
 */
#include "etcd_support.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define CONTENDERS 16
#define PAUSE_S 5

struct crowd {
    _Atomic bool over;
    _Atomic uint32_t entries, overlaps, disorders, losses;
    _Atomic uint32_t inside; /* the process; 0: nobody */
    _Atomic int64_t inside_until_ns;
    struct fenced_register place;
};

static void compete(void *arg)
{
    struct crowd *crowd = arg;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 4000;
    hf_client *client = open_client();
    while (!atomic_load(&crowd->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, "crowd", &options, &err);
        if (status == HF_UNAVAILABLE || status == HF_UNKNOWN)
            continue;
        REQUIRE_STATUS(HF_OK, status, &err);
        /* Who was inside before us had left, or its own deadline had passed. */
        const uint32_t me = (uint32_t)getpid();
        const int64_t until_ns = test_now_ns() + hf_remaining_ms(lock) * 1000000;
        const uint32_t before = atomic_exchange(&crowd->inside, me);
        if (before != 0 && test_now_ns() < atomic_load(&crowd->inside_until_ns))
            atomic_fetch_add(&crowd->overlaps, 1);
        atomic_store(&crowd->inside_until_ns, until_ns);
        if (!fenced_write(&crowd->place, hf_token(lock)))
            atomic_fetch_add(&crowd->disorders, 1);
        atomic_fetch_add(&crowd->entries, 1);
        uint32_t expected = me;
        atomic_compare_exchange_strong(&crowd->inside, &expected, 0);
        if (hf_release(lock, NULL) == HF_LOST)
            atomic_fetch_add(&crowd->losses, 1);
    }
    hf_close(client);
}

/* How long until somebody comes in again, in milliseconds. */
static int64_t await_progress(const struct crowd *crowd)
{
    const uint32_t seen = atomic_load(&crowd->entries);
    const int64_t start_ns = test_now_ns();
    while (atomic_load(&crowd->entries) < seen + 3) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 3000000000LL);
        pause_ms(2);
    }
    return (test_now_ns() - start_ns) / 1000000;
}

TEST_LIMIT(a_crowd_while_members_are_killed, 300)
{
    const char *soak = getenv("HOLDFAST_TEST_SOAK");
    const int blows = soak ? (int)strtol(soak, NULL, 10) / PAUSE_S : 3;
    struct etcd_cluster *cluster = start_store(3, QUICK);
    struct crowd *crowd = shared_new(sizeof *crowd);
    pid_t pids[CONTENDERS];
    int64_t slowest_ms = 0;
    for (int i = 0; i < CONTENDERS; i++)
        pids[i] = helper_start(compete, crowd);
    for (int blow = 0; blow < blows; blow++) {
        await_progress(crowd);
        /* The leader as often as not. */
        struct etcd_server *victim = blow % 2 ? &cluster->servers[random_below(3)] : etcd_cluster_leader(cluster);
        etcd_server_kill(victim);
        if (soak)
            pause_ms(PAUSE_S * 1000 / 2);
        await_progress(crowd);
        etcd_server_restart(victim);
        etcd_cluster_await(cluster);
        const int64_t took_ms = await_progress(crowd);
        slowest_ms = took_ms > slowest_ms ? took_ms : slowest_ms;
        if (soak)
            pause_ms(PAUSE_S * 1000 / 2);
    }
    atomic_store(&crowd->over, true);
    for (int i = 0; i < CONTENDERS; i++)
        helper_join(pids[i]);
    CHECK_INT(0, atomic_load(&crowd->overlaps));
    CHECK_INT(0, atomic_load(&crowd->disorders));
    CHECK(slowest_ms < 3000 * test_slowness());
    test_note("%u entries, %u losses, %d ms until the first after a recovery at the worst",
              atomic_load(&crowd->entries), atomic_load(&crowd->losses), (int)slowest_ms);
}
