/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_ensemble.c: three servers, of which some are killed, paused and started again. Whatever happens to a
 * holder, it knows before anybody else holds the lock, and tokens grow.
 */
#include "zookeeper_support.h"

#include <string.h>

/* Renewed until the servers answer again. */
static void await_renewal(hf_lock *lock)
{
    hf_error err = { 0 };
    while (hf_renew(lock, 0, &err) != HF_OK) {
        CHECK(err.status != HF_LOST);
        REQUIRE(err.status != HF_LOST && test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(20);
    }
}

static void check_survives(void (*strike)(struct zookeeper_server **servers))
{
    struct zookeeper_server *servers[3];
    serve_three(servers, "maxSessionTimeout=60000");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = with_ttl(30000);
    struct loss loss = { 0 };
    struct waiter waiter;
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    const uint64_t token = hf_token(lock);
    waiter_start(&waiter, other, "x", &options);
    await_waiters(client, "x", 1);
    strike(servers);
    await_renewal(lock);
    CHECK(hf_remaining_ms(lock) > 0);
    CHECK_INT(0, gate_count(&loss.told));
    CHECK_INT(0, gate_count(&waiter.ended));
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > token);
    must_release(waiter.lock);
    check_becomes_free(client, "x");
    hf_close(client);
    hf_close(other);
}

static void kill_leader(struct zookeeper_server **servers)
{
    struct zookeeper_server *leader = zookeeper_leader(servers, 3);
    zookeeper_server_kill(leader);
}

TEST_LIMIT(the_death_of_the_leader_costs_no_lock, 90)
{
    check_survives(kill_leader);
}

static void restart_all(struct zookeeper_server **servers)
{
    for (int i = 0; i < 3; i++)
        zookeeper_server_kill(servers[i]);
    for (int i = 0; i < 3; i++)
        zookeeper_server_launch(servers[i]);
    for (int i = 0; i < 3; i++)
        zookeeper_server_await(servers[i]);
}

TEST_LIMIT(a_restart_of_everything_costs_no_lock, 90)
{
    check_survives(restart_all);
}

/* Whoever is connected to it goes to another one long before its session is over. */
static void pause_followers(struct zookeeper_server **servers)
{
    const struct zookeeper_server *leader = zookeeper_leader(servers, 3);
    for (int i = 0; i < 3; i++) {
        if (servers[i] == leader)
            continue;
        zookeeper_server_pause(servers[i]);
        for (int j = 0; j < 3; j++) { /* some of them try it first */
            hf_client *client = open_client();
            check_free(client, "y");
            hf_close(client);
        }
        zookeeper_server_continue(servers[i]);
    }
}

TEST_LIMIT(a_server_that_hangs_is_left, 120)
{
    check_survives(pause_followers);
}

/* The others notice after syncLimit, and elect another one. */
static void pause_leader(struct zookeeper_server **servers)
{
    struct zookeeper_server *leader = zookeeper_leader(servers, 3), *others[2];
    int count = 0;
    for (int i = 0; i < 3; i++) {
        if (servers[i] != leader)
            others[count++] = servers[i];
    }
    zookeeper_server_pause(leader);
    zookeeper_leader(others, 2);
    zookeeper_server_continue(leader);
}

TEST_LIMIT(a_leader_that_hangs_is_replaced, 120)
{
    check_survives(pause_leader);
}

/* ------------------------------------------------------------------------------------------------------------ storm */

#define CONTENDERS 16
#define SECOND_NS 1000000000LL

struct storm {
    _Atomic bool over;
    _Atomic int64_t inside_until_ns; /* when whoever is inside must be out; 0: nobody is */
    _Atomic uint64_t last_token;
    _Atomic uint32_t entries, overlaps, disorders;
    _Atomic int64_t entered_ns;
};

/* Inside until it leaves or its own deadline has come. */
static void visit(struct storm *storm, const hf_lock *lock)
{
    const int64_t now_ns = test_now_ns();
    const int64_t mine_ns = now_ns + (hf_remaining_ms(lock) - 1) * 1000000;
    const int64_t before_ns = atomic_exchange(&storm->inside_until_ns, mine_ns);
    if (now_ns < mine_ns && before_ns > test_now_ns())
        atomic_fetch_add(&storm->overlaps, 1);
    if (now_ns < mine_ns && atomic_exchange(&storm->last_token, hf_token(lock)) >= hf_token(lock) &&
        hf_remaining_ms(lock) > 0)
        atomic_fetch_add(&storm->disorders, 1);
    atomic_fetch_add(&storm->entries, 1);
    atomic_store(&storm->entered_ns, now_ns);
    pause_ms(1);
    int64_t expected = mine_ns;
    if (hf_remaining_ms(lock) > 0)
        atomic_compare_exchange_strong(&storm->inside_until_ns, &expected, 0);
}

static void contend(void *arg)
{
    struct storm *storm = arg;
    hf_client *client = open_client();
    const hf_options options = with_ttl(3000);
    while (!atomic_load(&storm->over)) {
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        const hf_status status = hf_acquire(&lock, client, "storm", &options, &err);
        if (status == HF_OK)
            visit(storm, lock);
        else if (status != HF_UNAVAILABLE && status != HF_UNKNOWN)
            FAIL("hf_acquire: %s: %s", hf_status_name(status), err.message);
        hf_release(lock, NULL);
    }
    hf_close(client);
}

/* For so long, one of three is killed every `period_s` and started again; how long the lock then stood still. */
static void check_storm(int seconds, int period_s)
{
    struct zookeeper_server *servers[3];
    struct storm *storm = shared_new(sizeof *storm);
    pid_t pids[CONTENDERS];
    int64_t longest_ns = 0;
    serve_three(servers, "");
    for (int i = 0; i < CONTENDERS; i++)
        pids[i] = helper_start(contend, storm);
    while (atomic_load(&storm->entries) < 50)
        pause_ms(10);
    const int64_t end_ns = test_now_ns() + seconds * SECOND_NS;
    for (int i = 0; test_now_ns() < end_ns; i++) {
        const int64_t began_ns = test_now_ns();
        struct zookeeper_server *victim = i % 2 ? servers[random_below(3)] : zookeeper_leader(servers, 3);
        zookeeper_server_kill(victim);
        pause_ms(random_below(1000));
        zookeeper_server_restart(victim);
        const int64_t recovered_ns = test_now_ns();
        const uint32_t entries = atomic_load(&storm->entries);
        while (atomic_load(&storm->entries) < entries + 10) {
            REQUIRE(test_now_ns() < test_deadline_ns() - SECOND_NS);
            pause_ms(5);
        }
        if (test_now_ns() - recovered_ns > longest_ns)
            longest_ns = test_now_ns() - recovered_ns;
        while (test_now_ns() < began_ns + period_s * SECOND_NS)
            pause_ms(10);
    }
    atomic_store(&storm->over, true);
    for (int i = 0; i < CONTENDERS; i++)
        helper_join(pids[i]);
    test_note("%u entries, ten more within %d ms of each recovery", atomic_load(&storm->entries),
              (int)(longest_ns / 1000000));
    CHECK_INT(0, atomic_load(&storm->overlaps));
    CHECK_INT(0, atomic_load(&storm->disorders));
    CHECK(longest_ns < 3 * SECOND_NS * test_slowness());
}

TEST_LIMIT(sixteen_compete_while_servers_are_killed, 120)
{
    check_storm(4, 1);
}

TEST_LIMIT(soak_sixteen_compete_for_two_minutes_while_servers_are_killed, 300)
{
    check_storm(120, 5);
}
