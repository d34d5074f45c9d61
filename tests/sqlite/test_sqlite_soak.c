/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_soak.c: eight processes on one counter, killed at random, for half a minute on each strategy.
 */
#include "crowd.h"
#include "sqlite_support.h"

#define SECONDS 30

TEST_LIMIT(half_a_minute_of_deaths_lease, 120)
{
    const char *path = new_store("soak-lease", "");
    check_crowd_for(SECONDS, "lease");
    check_intact(path);
}

TEST_LIMIT(half_a_minute_of_deaths_lease_wal, 120)
{
    const char *path = new_store("soak-wal", "journal=wal");
    check_crowd_for(SECONDS, "lease");
    check_intact(path);
}

TEST_LIMIT(half_a_minute_of_deaths_insert, 120)
{
    const char *path = new_store("soak-insert", "strategy=insert");
    check_crowd_for(SECONDS, "insert");
    check_intact(path);
}

TEST_LIMIT(half_a_minute_of_deaths_version, 120)
{
    const char *path = new_store("soak-version", "strategy=version&journal=wal");
    check_crowd_for(SECONDS, "version");
    check_intact(path);
}
