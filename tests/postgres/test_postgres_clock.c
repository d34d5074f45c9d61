/* SPDX-License-Identifier: MIT
 *
 * test_postgres_clock.c: the clock of the server is set, while locks are held and waited for.
 */
#include "clock_jumps.h"
#include "postgres_support.h"

static struct postgres_server *server;

static void use(const char *strategy)
{
    use_strategy(server, strategy);
}

static int64_t seconds(void)
{
    return postgres_server_number(server, "SELECT extract(epoch FROM clock_timestamp())::bigint");
}

static struct clock_jumps start_with_clock(void)
{
    static const char *const leases[] = { "lease", "insert", "version" };
    server = start_store("lease", "");
    postgres_server_own_clock(server);
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
    jumps.use("advisory");
    check_clock_does_not_matter(&jumps);
}
