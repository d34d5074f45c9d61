/* SPDX-License-Identifier: MIT
 *
 * placeholder
 */
#include "redis_support.h"
TEST(x)
{
}
