/* SPDX-License-Identifier: MIT
 *
 * test_mysql_clock.c: the clock of the server is set, while locks are held and waited for.
 */
#include "clock_jumps.h"
#include "mysql_support.h"
#include "server_clock.h"

static struct mysql_server *server;

static void use(const char *strategy)
{
    use_strategy(server, strategy);
}

static int64_t seconds(void)
{
    return mysql_server_number(server, "SELECT UNIX_TIMESTAMP()");
}

static struct clock_jumps start_with_clock(void)
{
    static const char *const leases[] = { "lease", "insert", "version" };
    server = start_store("lease", "");
    mysql_server_own_clock(server);
    return (struct clock_jumps){ .clock = server->clock, .seconds = seconds, .leases = leases, .count = 3, .use = use };
}

TEST_LIMIT(a_clock_set_forward_ends_rows_early_and_the_loser_is_fenced, 60)
{
    const struct clock_jumps jumps = start_with_clock();
    check_clock_set_forward(&jumps);
}

TEST_LIMIT(a_clock_set_back_leaves_nobody_waiting_for_the_dead, 60)
{
    const struct clock_jumps jumps = start_with_clock();
    check_clock_set_back(&jumps);
}

TEST_LIMIT(a_clock_that_is_set_does_nothing_to_bound_locks, 60)
{
    const struct clock_jumps jumps = start_with_clock();
    jumps.use("get-lock");
    check_clock_does_not_matter(&jumps);
}

#define HOUR_MS 3600000u

TEST_LIMIT(a_mark_ends_by_the_clock_of_the_server, 60)
{
    const struct clock_jumps jumps = start_with_clock();
    for (size_t i = 0; i < STRATEGIES; i++) {
        const char *name = strategy_names[i];
        hf_options options = HF_OPTIONS_INIT;
        hf_lock *lock = NULL;
        hf_error err = { 0 };
        options.once_per_ms = HOUR_MS;
        jumps.use(name);
        hf_client *client = open_client();
        server_clock_set(jumps.clock, 0);
        CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, name, &options), &err), &err);
        server_clock_set(jumps.clock, HOUR_MS - 300000);
        CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, client, name, &options, &err), &err);
        server_clock_set(jumps.clock, HOUR_MS + 1000);
        if (CHECK_STATUS(HF_OK, hf_try_acquire(&lock, client, name, &options, &err), &err))
            must_release(lock);
        hf_close(client);
    }
}
