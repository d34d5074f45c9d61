/* SPDX-License-Identifier: MIT
 *
 * test_file_crowd.c: what only the file engine promises, for many processes: order, one wake-up per release, deaths at
 * any instruction and in other PID namespaces, tokens through reboots, breaking.
 */
#include "file_tests.h"
#include "shared.h"
#include "who.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- waiting --- */

struct crowd {
    struct gate turns, started, served;
    _Atomic int order[128];
    _Atomic int number;
    struct witness witness;
};

static struct crowd *crowd;

static void wait_in_line(void *arg)
{
    const int who = (int)(intptr_t)arg;
    gate_await(&crowd->turns, (uint32_t)who + 1);
    hf_client *client = open_client();
    gate_pass(&crowd->started);
    hf_lock *lock = take(client, "line");
    witness_enter(&crowd->witness, (uint32_t)who + 1, hf_token(lock));
    atomic_store(&crowd->order[atomic_fetch_add(&crowd->number, 1)], who);
    witness_leave(&crowd->witness, (uint32_t)who + 1);
    hf_release(lock, NULL);
    gate_pass(&crowd->served);
    hf_close(client);
}

/* Before this process has threads: a sanitizer for threads cannot follow a fork after that. */
static void start_line(pid_t *helpers, int count)
{
    for (int i = 0; i < count; i++)
        helpers[i] = helper_start(wait_in_line, (void *)(intptr_t)i);
}

TEST_LIMIT(sixty_four_processes_are_served_in_order_of_arrival, 60)
{
    pid_t helpers[64];
    set_up();
    crowd = shared_new(sizeof *crowd);
    start_line(helpers, 64);
    hf_client *client = open_client();
    hf_lock *lock = take(client, "line");
    for (int i = 0; i < 64; i++) {
        gate_pass(&crowd->turns);
        await_waiters(client, "line", i + 1);
    }
    hf_release(lock, NULL);
    for (int i = 0; i < 64; i++)
        helper_join(helpers[i]);
    for (int i = 0; i < 64; i++)
        CHECK_INT(i, crowd->order[i]);
    witness_check(&crowd->witness);
    hf_close(client);
    tear_down(false);
}

/* Some of the waiters die or are stopped in the line; the others keep their order. */
TEST_LIMIT(dead_waiters_are_skipped_and_the_order_kept, 60)
{
    pid_t helpers[12];
    set_up();
    crowd = shared_new(sizeof *crowd);
    start_line(helpers, 12);
    hf_client *client = open_client();
    hf_lock *lock = take(client, "line");
    for (int i = 0; i < 12; i++) {
        gate_pass(&crowd->turns);
        await_waiters(client, "line", i + 1);
    }
    helper_kill(helpers[1]);
    helper_kill(helpers[5]);
    helper_kill(helpers[11]);
    await_waiters(client, "line", 9);
    hf_release(lock, NULL);
    static const int left[] = { 0, 2, 3, 4, 6, 7, 8, 9, 10 };
    for (int i = 0; i < 9; i++)
        helper_join(helpers[left[i]]);
    for (int i = 0; i < 9; i++)
        CHECK_INT(left[i], crowd->order[i]);
    witness_check(&crowd->witness);
    tidy_up(client);
    hf_close(client);
    tear_down(false);
}

static void *give_up_first(void *arg)
{
    hf_client *client = arg;
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    options.owner = HF_OWNER_HANDLE;
    CHECK_STATUS(HF_CANCELED, hf_acquire(&lock, client, "line", &options, NULL), NULL);
    return NULL;
}

/* The first waiter keeps the queue of those behind it: when it gives up, the second takes it over. */
TEST(the_first_waiter_gives_up_and_the_order_is_kept)
{
    pid_t helpers[3];
    pthread_t first;
    set_up();
    crowd = shared_new(sizeof *crowd);
    start_line(helpers, 3);
    hf_client *holder = open_client();
    hf_lock *lock = take(holder, "line");
    hf_client *client = open_client();
    pthread_create(&first, NULL, give_up_first, client);
    await_waiters(holder, "line", 1);
    for (int i = 0; i < 3; i++) {
        gate_pass(&crowd->turns);
        await_waiters(holder, "line", i + 2);
    }
    hf_cancel(client, "line");
    pthread_join(first, NULL);
    await_waiters(holder, "line", 3);
    hf_release(lock, NULL);
    for (int i = 0; i < 3; i++)
        helper_join(helpers[i]);
    for (int i = 0; i < 3; i++)
        CHECK_INT(i, crowd->order[i]);
    hf_close(client);
    hf_close(holder);
    tear_down(false);
}

static long switches_of(pid_t pid)
{
    char path[64], line[128];
    long count = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL);
    while (fgets(line, sizeof line, file))
        sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    fclose(file);
    return count;
}

static void hold_when_served(void *arg)
{
    const int who = (int)(intptr_t)arg;
    gate_await(&crowd->turns, (uint32_t)who + 1);
    hf_client *client = open_client();
    hf_lock *lock = take(client, "line");
    gate_pass(&crowd->served);
    gate_await(&crowd->started, (uint32_t)who + 1);
    hf_release(lock, NULL);
    hf_close(client);
}

/* The kernel counts how often each waiter was woken: a release wakes the one whose turn it is. */
TEST(a_release_wakes_one_waiter)
{
    enum { N = 8 };
    pid_t helpers[N];
    long before[N];
    set_up();
    crowd = shared_new(sizeof *crowd);
    for (int i = 0; i < N; i++)
        helpers[i] = helper_start(hold_when_served, (void *)(intptr_t)i);
    hf_client *client = open_client();
    hf_lock *lock = take(client, "line");
    for (int i = 0; i < N; i++) {
        gate_pass(&crowd->turns);
        await_waiters(client, "line", i + 1);
    }
    for (int turn = 0; turn < N; turn++) {
        poll(NULL, 0, 20); /* the last to line up is shown before it sleeps */
        for (int i = turn; i < N; i++)
            before[i] = switches_of(helpers[i]);
        if (turn == 0)
            hf_release(lock, NULL);
        else
            gate_pass(&crowd->started);
        gate_await(&crowd->served, (uint32_t)turn + 1);
        for (int i = turn + 1; i < N; i++)
            CHECK_INT(before[i], switches_of(helpers[i]));
    }
    gate_pass(&crowd->started);
    for (int i = 0; i < N; i++)
        helper_join(helpers[i]);
    hf_close(client);
    tear_down(false);
}

/* --- death --- */

static void hold_until_killed(void *arg)
{
    hf_client *client = open_client();
    take(client, arg);
    gate_pass(&crowd->started);
    for (;;)
        pause();
}

TEST(the_death_of_the_holder_wakes_the_waiters)
{
    set_up();
    crowd = shared_new(sizeof *crowd);
    hf_client *client = open_client();
    for (int round = 0; round < 20; round++) {
        const pid_t holder = helper_start(hold_until_killed, (char *)"line");
        gate_await(&crowd->started, (uint32_t)(3 * round + 1));
        gate_pass(&crowd->turns);
        gate_pass(&crowd->turns);
        const pid_t one = helper_start(wait_in_line, (void *)(intptr_t)(2 * round));
        const pid_t two = helper_start(wait_in_line, (void *)(intptr_t)(2 * round + 1));
        gate_await(&crowd->started, (uint32_t)(3 * round + 3));
        if (round % 2)
            await_waiters(client, "line", 2); /* else: killed while they are lining up */
        helper_kill(holder);
        helper_join(one);
        helper_join(two);
    }
    witness_check(&crowd->witness);
    tidy_up(client);
    hf_close(client);
    tear_down(true);
}

/* A holder in a PID namespace of its own, whose number means nothing here, is killed. */
TEST(a_holder_in_another_pid_namespace_is_noticed_when_it_dies)
{
    need_namespaces();
    set_up();
    crowd = shared_new(sizeof *crowd);
    hf_client *client = open_client();
    const pid_t outer = fork();
    if (outer == 0) {
        enter_namespaces(CLONE_NEWPID);
        const pid_t inner = fork();
        if (inner == 0) {
            if (getpid() != 1)
                _exit(3);
            hold_until_killed((char *)"line");
        }
        int status;
        waitpid(inner, &status, 0);
        _exit(WIFSIGNALED(status) ? 0 : 4);
    }
    gate_await(&crowd->started, 1);
    gate_pass(&crowd->turns);
    const pid_t waiter = helper_start(wait_in_line, (void *)(intptr_t)0);
    await_waiters(client, "line", 1);
    char children[128];
    snprintf(children, sizeof children, "/proc/%d/task/%d/children", (int)outer, (int)outer);
    FILE *file = fopen(children, "r");
    int inner = 0;
    REQUIRE(file && fscanf(file, "%d", &inner) == 1);
    fclose(file);
    kill(inner, SIGKILL);
    helper_join(waiter);
    int status;
    waitpid(outer, &status, 0);
    CHECK_INT(0, status);
    tidy_up(client);
    hf_close(client);
    tear_down(false);
}

struct tokens {
    _Atomic uint64_t largest; /* seen by anybody who held it */
    _Atomic int bad;
    _Atomic int grants;
};

static struct tokens *tokens;

static void take_and_release(void *arg)
{
    (void)arg;
    hf_client *client = open_client();
    for (;;) {
        hf_lock *lock = take(client, "t");
        const uint64_t token = hf_token(lock);
        if (token <= atomic_load(&tokens->largest))
            atomic_fetch_add(&tokens->bad, 1);
        atomic_store(&tokens->largest, token);
        atomic_fetch_add(&tokens->grants, 1);
        hf_release(lock, NULL);
    }
}

/* Processes are killed at random instructions while they hand the lock around: no token ever comes twice or falls, and
 * the lock never gets stuck. */
TEST_LIMIT(tokens_only_grow_through_kills_at_any_instruction, 60)
{
    enum { N = 6, KILLS = 150 };
    pid_t helpers[N];
    unsigned seed = (unsigned)test_now_ns();
    set_up();
    test_note("seed %u", seed);
    tokens = shared_new(sizeof *tokens);
    for (int i = 0; i < N; i++)
        helpers[i] = helper_start(take_and_release, NULL);
    for (int i = 0; i < KILLS; i++) {
        const int before = tokens->grants;
        while (tokens->grants - before < rand_r(&seed) % 40) {
            REQUIRE(test_now_ns() < test_deadline_ns()); /* stuck */
            sched_yield();
        }
        const int victim = rand_r(&seed) % N;
        helper_kill(helpers[victim]);
        helpers[victim] = helper_start(take_and_release, NULL);
    }
    for (int i = 0; i < N; i++)
        helper_kill(helpers[i]);
    CHECK_INT(0, tokens->bad);
    test_note("%d grants", tokens->grants);
    hf_client *client = open_client();
    hf_lock *lock = take(client, "t");
    CHECK(hf_token(lock) > tokens->largest);
    hf_release(lock, NULL);
    tidy_up(client);
    hf_close(client);
    tear_down(true);
}

/* What a reboot after a power failure leaves: the record of another boot, perhaps an old one. */
TEST(tokens_go_on_above_the_mark_after_a_reboot)
{
    need_namespaces();
    set_up();
    hf_client *client = open_client();
    uint64_t given = 0;
    for (int i = 0; i < 100; i++) {
        hf_lock *lock = take(client, "x");
        given = hf_token(lock);
        hf_release(lock, NULL);
    }
    /* In a mount namespace whose /proc has another boot_id, with the file as it was. */
    const pid_t child = fork();
    if (child == 0) {
        char fake[600];
        snprintf(fake, sizeof fake, "%s/boot", directory);
        FILE *file = fopen(fake, "w");
        fputs("00000000-1111-2222-3333-444444444444\n", file);
        fclose(file);
        char program[600], argument[320];
        snprintf(argument, sizeof argument, "HOLDFAST_URL=%s", url);
        /* Before: in a chroot the link leads out of it once the mounts are others. */
        const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
        enter_namespaces(CLONE_NEWNS);
        REQUIRE_INT(0, mount(fake, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL));
        char *const environment[] = { argument, (char *)"PRINT_TOKEN=1", NULL };
        execle(program, program, (char *)NULL, environment);
        _exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK_INT(0, status);
    hf_lock *lock = take(client, "x");
    CHECK(hf_token(lock) > given + 1000000); /* above the mark, twice */
    hf_release(lock, NULL);
    hf_close(client);
    unlink(in_directory("boot"));
    tear_down(false);
}

/* The part of the test above that runs as a program of its own, in "another boot". */
__attribute__((constructor)) static void take_once_in_another_boot(void)
{
    hf_client *client;
    hf_lock *lock;
    if (!getenv("PRINT_TOKEN"))
        return;
    if (hf_open(&client, NULL, NULL, NULL) != HF_OK || hf_acquire(&lock, client, "x", NULL, NULL) != HF_OK)
        _exit(4);
    hf_release(lock, NULL);
    hf_close(client);
    _exit(0);
}

/* --- break --- */

struct told {
    struct gate gate;
    char why[300];
};

static void note_why(hf_lock *lock, const char *why, void *arg)
{
    struct told *told = arg;
    (void)lock;
    snprintf(told->why, sizeof told->why, "%s", why);
    gate_pass(&told->gate);
}

TEST(a_holder_is_told_who_breaks_its_lock)
{
    struct told *told = shared_new(sizeof *told);
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    set_up();
    hf_client *client = open_client(), *other = open_client();
    options.on_lost = note_why;
    options.arg = told;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", &options, &err), &err);
    CHECK_STATUS(HF_OK, hf_break(other, "x", &err), &err);
    gate_await(&told->gate, 1);
    check_we_broke_it(told->why);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    CHECK_STR(told->why, err.message);
    hf_close(client);
    hf_close(other);
    tear_down(false);
}

TEST(a_holder_that_cannot_hear_is_named)
{
    hf_error err = { 0 };
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *client;
    set_up();
    crowd = shared_new(sizeof *crowd);
    options.timeout_ms = 200;
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &options, &err), &err);
    const pid_t holder = helper_start(hold_until_killed, (char *)"line");
    gate_await(&crowd->started, 1);
    helper_stop(holder);
    CHECK_STATUS(HF_UNAVAILABLE, hf_break(client, "line", &err), &err);
    char number[16];
    snprintf(number, sizeof number, "%d", (int)holder);
    CHECK(strstr(err.message, number) != NULL);
    helper_kill(holder);
    CHECK_STATUS(HF_OK, hf_break(client, "line", &err), &err);
    CHECK_STATUS(HF_OK, hf_break(client, "never used", &err), &err);
    tidy_up(client);
    hf_close(client);
    tear_down(false);
}
