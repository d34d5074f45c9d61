/* SPDX-License-Identifier: MIT
 *
 * test_mysql_crowd.c: eight processes and one counter, and one of them after the other is killed, on every strategy;
 * for CROWD_SECONDS, or not for long.
 */
#include "crowd.h"
#include "mysql_support.h"

#define CROWD(name_, strategy_)                                                                                        \
    TEST_LIMIT(counter_with_random_deaths_##name_, 120)                                                                \
    {                                                                                                                  \
        start_store(strategy_, "");                                                                                    \
        check_crowd(strategy_);                                                                                        \
    }
CROWD(lease, "lease")
CROWD(insert, "insert")
CROWD(version, "version")
CROWD(for_update, "for-update")
CROWD(get_lock, "get-lock")
