/* SPDX-License-Identifier: MIT
 *
 * test_sql.c: what the engines for SQL databases share.
 */
#include "engines/sql/sql_common.h"
#include "test.h"

TEST(a_loss_waits_for_its_reason_for_half_of_what_is_left_and_a_second_at_most)
{
    const hfi_time now = 5 * HFI_SECOND;
    CHECK_INT(now + HFI_SECOND, hfi_sql_patience(now, HFI_NEVER));
    CHECK_INT(now + HFI_SECOND, hfi_sql_patience(now, now + 3 * HFI_SECOND));
    CHECK_INT(now + HFI_SECOND, hfi_sql_patience(now, now + 2 * HFI_SECOND));
    CHECK_INT(now + 300 * HFI_MS, hfi_sql_patience(now, now + 600 * HFI_MS));
    CHECK_INT(now, hfi_sql_patience(now, now));
    CHECK(hfi_sql_patience(now, now - HFI_SECOND) <= now);
}
