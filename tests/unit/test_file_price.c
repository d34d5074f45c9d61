/* SPDX-License-Identifier: MIT
 *
 * test_file_price.c: how many system calls a pair makes, with and without once_per_ms. Not for valgrind, which makes
 * calls of its own.
 */
#include "file_tests.h"
#include "test.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOUR_MS 3600000

enum { PAIRS = 20 };

static void work_under_watch(bool once)
{
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    options.owner = HF_OWNER_HANDLE;
    options.once_per_ms = once ? HOUR_MS : 0;
    for (int i = 0; i < 2 * PAIRS; i++) { /* the first half is for memory and the like */
        if (i == PAIRS)
            raise(SIGSTOP);
        REQUIRE_STATUS(HF_OK, hf_try_acquire(&lock, client, "x", &options, NULL), NULL);
        REQUIRE_STATUS(HF_OK, hf_release(lock, NULL), NULL);
    }
    raise(SIGSTOP);
    hf_close(client);
}

/* How many system calls a pair makes, counted by the kernel's own means. */
static long calls_of_a_pair(bool once)
{
    long stops = 0;
    int state = 0;
    const pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        work_under_watch(once);
        test_exit_child();
    }
    REQUIRE_INT(child, waitpid(child, &state, 0));
    REQUIRE(WIFSTOPPED(state) && WSTOPSIG(state) == SIGSTOP);
    REQUIRE_INT(0, ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD));
    do {
        REQUIRE_INT(0, ptrace(PTRACE_SYSCALL, child, NULL, NULL));
        REQUIRE_INT(child, waitpid(child, &state, 0));
        REQUIRE(WIFSTOPPED(state));
        stops += WSTOPSIG(state) == (SIGTRAP | 0x80);
    } while (WSTOPSIG(state) != SIGSTOP);
    REQUIRE_INT(0, ptrace(PTRACE_DETACH, child, NULL, NULL));
    REQUIRE_INT(child, waitpid(child, &state, 0));
    CHECK_INT(0, state);
    return stops / 2 / PAIRS;
}

/* Lock, look at the file, whether it has a queue, read and write its record; unlock, and look for a queue again. */
TEST(once_costs_one_read_and_nothing_is_paid_without_it)
{
    set_up();
    const long without = calls_of_a_pair(false);
    CHECK_INT(7, without);
    CHECK_INT(without + 1, calls_of_a_pair(true));
    tear_down(false);
}
