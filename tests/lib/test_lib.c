/* SPDX-License-Identifier: MIT
 *
 * test_lib.c: tests of the test library itself: that gates, helpers and witnesses see what they are there to see. That
 * the runner fails what must fail is tried by running this program again on the tests whose names start with
 * "must_fail", which are left out unless HOLDFAST_TEST_MUST_FAIL is set.
 */
#include "fault.h"
#include "shared.h"
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- what the runner must call failed --- */

TEST(must_fail_check)
{
    CHECK_INT(1, 2);
}

TEST(must_fail_status)
{
    hf_error err = { HF_BUSY, 0, "the butler did it" };
    REQUIRE_STATUS(HF_OK, HF_BUSY, &err);
}

TEST(must_fail_signal)
{
    raise(SIGKILL);
}

TEST_LIMIT(must_fail_limit, 1)
{
    for (;;)
        pause();
}

static void sleep_for_ever(void *arg)
{
    (void)arg;
    for (;;)
        pause();
}

TEST(must_fail_leftover_here)
{
    /* Without the signal of helper_start(), which would end it together with the test. */
    if (fork() == 0)
        sleep_for_ever(NULL);
}

TEST(must_fail_leftover_elsewhere)
{
    if (fork() == 0) {
        setsid();
        sleep_for_ever(NULL);
    }
}

static void fail_in_helper(void *arg)
{
    (void)arg;
    CHECK(1 + 1 == 3);
}

TEST(must_fail_helper)
{
    helper_join(helper_start(fail_in_helper, NULL));
}

TEST_LIMIT(must_fail_gate, 2)
{
    struct gate *gate = shared_new(sizeof *gate);
    gate_await(gate, 1);
}

/* --- runner --- */

/* Runs this program on the tests named `filter` and returns its exit status; what it prints goes to `output`. */
static int run_again(const char *filter, char *output, size_t size)
{
    char command[600], self[400] = "";
    REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "HOLDFAST_TEST_MUST_FAIL=1 HOLDFAST_TEST_SLOW=1 '%s' '%s'", self, filter);
    FILE *pipe = popen(command, "re");
    REQUIRE(pipe != NULL);
    size_t used = fread(output, 1, size - 1, pipe);
    output[used] = '\0';
    int status = pclose(pipe);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_failure(const char *name, const char *words)
{
    char output[8000];
    CHECK_INT(1, run_again(name, output, sizeof output));
    if (!CHECK(strstr(output, "not ok 1") && strstr(output, words)))
        test_note("the output was:\n%s", output);
}

TEST(runner_reports_each_kind_of_failure)
{
    expect_failure("must_fail_check", "2: expected 1, got 2");
    expect_failure("must_fail_status", "expected HF_OK, got HF_BUSY: the butler did it");
    expect_failure("must_fail_signal", "killed by signal 9");
    expect_failure("must_fail_limit", "killed after 1 s");
    expect_failure("must_fail_leftover_here", "left processes behind");
    expect_failure("must_fail_leftover_elsewhere", "left processes behind");
    expect_failure("must_fail_helper", "1 + 1 == 3 does not hold");
    expect_failure("must_fail_gate", "0 of 1 came to the gate in time");
}

TEST(runner_fails_if_no_test_ran)
{
    char output[2000];
    CHECK_INT(1, run_again("no such test", output, sizeof output));
    CHECK(strstr(output, "0 passed, 0 failed") != NULL);
}

/* --- gates and witnesses --- */

static void pass_gate(void *arg)
{
    gate_pass(arg);
}

TEST(gates_count_across_processes)
{
    struct gate *gate = shared_new(sizeof *gate);
    CHECK(!gate_await_for(gate, 1, 20));
    pid_t first = helper_start(pass_gate, gate);
    pid_t second = helper_start(pass_gate, gate);
    gate_await(gate, 2);
    helper_join(first);
    helper_join(second);
    CHECK_INT(2, gate_count(gate));
}

TEST(helpers_stop_go_on_and_die)
{
    struct gate *gate = shared_new(sizeof *gate);
    pid_t helper = helper_start(sleep_for_ever, NULL);
    helper_stop(helper);
    helper_continue(helper);
    helper_kill(helper);
    CHECK_INT(0, gate_count(gate));
}

TEST(witness_sees_overlap_and_disorder)
{
    struct witness *witness = shared_new(sizeof *witness);
    witness_visit(witness, 1, 10);
    witness_visit(witness, 2, 11);
    witness_check(witness);
    CHECK_INT(2, atomic_load(&witness->counter));
    CHECK_INT(2, atomic_load(&witness->entries));

    witness_enter(witness, 1, 12);
    witness_enter(witness, 2, 13);
    witness_leave(witness, 1);
    CHECK_INT(2, atomic_load(&witness->overlaps));
    witness_leave(witness, 2);

    witness_visit(witness, 1, 13);
    CHECK_INT(1, atomic_load(&witness->disorders));
}

TEST(witness_forgives_the_dead)
{
    struct witness *witness = shared_new(sizeof *witness);
    witness_enter(witness, 1, 1);
    witness_mark_dead(witness, 1);
    witness_visit(witness, 2, 2);
    witness_check(witness);
}

TEST(fenced_register_refuses_smaller_tokens)
{
    struct fenced_register place = { 0 };
    CHECK(fenced_write(&place, 5));
    CHECK(fenced_write(&place, 5));
    CHECK(!fenced_write(&place, 4));
    CHECK(fenced_write(&place, 6));
    CHECK_INT(1, atomic_load(&place.refused));
}

/* --- faults --- */

static long countdown, needed;

static void set_countdown(long after)
{
    countdown = after;
}

static hf_status allocate_some(void *arg)
{
    (void)arg;
    return countdown && countdown <= needed ? HF_NOMEM : HF_OK;
}

TEST(faults_come_at_every_allocation)
{
    needed = 7;
    CHECK_INT(7, fault_each_allocation(set_countdown, allocate_some, NULL));
    CHECK_INT(0, countdown);
    needed = 0;
    CHECK_INT(0, fault_each_allocation(set_countdown, allocate_some, NULL));
}

static bool leave_out_what_must_fail(const struct test *test, char *reason, size_t size)
{
    snprintf(reason, size, "fails by design; tried by runner_reports_each_kind_of_failure");
    return strncmp(test->name, "must_fail", 9) != 0 || getenv("HOLDFAST_TEST_MUST_FAIL");
}

int main(int argc, char **argv)
{
    return test_run(argc - 1, argv + 1, leave_out_what_must_fail);
}
