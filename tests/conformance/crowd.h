/* SPDX-License-Identifier: MIT
 *
 * crowd.h: eight processes and one counter, and one of them after the other is killed; for tests that start a store of
 * their own.
 */
#ifndef CROWD_H
#define CROWD_H

#include <stdint.h>

/* `label` is for the report. */
void check_crowd_for(int64_t seconds, const char *label);
/* For CROWD_SECONDS of the environment, or not for long. */
void check_crowd(const char *label);

#endif
