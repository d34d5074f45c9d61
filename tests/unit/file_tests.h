/* SPDX-License-Identifier: MIT
 *
 * file_tests.h: what the tests of the file engine share: a directory of its own for each test.
 */
#ifndef FILE_TESTS_H
#define FILE_TESTS_H

#include "test.h"

extern char directory[256];
extern char url[300];

void set_up(void);
/* Removes the directory. What a process that was killed at a random instruction leaves behind is tidied away a minute
 * later; without such kills nothing may be left. */
void tear_down(bool after_kills);
const char *in_directory(const char *name);
hf_client *open_client(void);
/* Takes the lock as an owner of its own. */
hf_lock *take(hf_client *client, const char *name);
hf_status try_once(const char *name, hf_error *err);
/* hf_inspect() for its side effect: it tidies up behind the dead. */
void tidy_up(hf_client *client);
void await_waiters(hf_client *client, const char *name, int64_t wanted);

#endif
