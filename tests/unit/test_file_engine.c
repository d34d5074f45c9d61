/* SPDX-License-Identifier: MIT
 *
 * test_file_engine.c: what only the file engine promises: hostile directories, damaged files, full disks, crashes at any
 * point, other PID namespaces, order and tokens through all of it.
 */
#include "engines/file/lockrecord.h"
#include "shared.h"
#include "test.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[256];
static char url[300];

/* Every test in a directory of its own. */
static void set_up(void)
{
    const char *base = getenv("TEST_DIRECTORY");
    snprintf(directory, sizeof directory, "%s/file-engine-XXXXXX", base ? base : "/tmp");
    REQUIRE(mkdtemp(directory) != NULL);
    snprintf(url, sizeof url, "file://%s", directory);
}

/* Removes the directory; fails if a hidden file was left behind in it. */
static void tear_down(void)
{
    DIR *stream = opendir(directory);
    REQUIRE(stream != NULL);
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        /* ".t-…" is a lifeline whose client was killed while it made it; it is tidied away after a minute. */
        test_check(entry->d_name[0] != '.' || entry->d_name[1] == 't', __FILE__, __LINE__, "%s was left behind",
                   entry->d_name);
        unlinkat(dirfd(stream), entry->d_name, 0);
    }
    closedir(stream);
    CHECK_INT(0, rmdir(directory));
}

static const char *in_directory(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static hf_client *open_client(void)
{
    hf_client *client = NULL;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, NULL, &err), &err);
    return client;
}

static hf_lock *take(hf_client *client, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    hf_error err;
    options.owner = HF_OWNER_HANDLE;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, name, &options, &err), &err);
    return lock;
}

static hf_status try_once(const char *name, hf_error *err)
{
    hf_lock *lock = NULL;
    hf_client *client = NULL;
    hf_status status = hf_open(&client, url, NULL, err);
    if (status == HF_OK)
        status = hf_try_acquire(&lock, client, name, NULL, err);
    hf_release(lock, NULL);
    hf_close(client);
    return status;
}

static void write_text(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* Enters namespaces of its own, as root of a user namespace where the tests do not run as root. */
static void enter_namespaces(int flags)
{
    char map[64];
    snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
    const bool root = geteuid() == 0;
    REQUIRE_INT(0, unshare(flags | (root ? 0 : CLONE_NEWUSER)));
    if (!root)
        write_text("/proc/self/uid_map", map);
    if (flags & CLONE_NEWNS)
        REQUIRE_INT(0, mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static int remember_waiters(const hf_info *info, void *arg)
{
    *(int64_t *)arg = info->waiters;
    return 0;
}

static void await_waiters(hf_client *client, const char *name, int64_t wanted)
{
    int64_t waiters = -1;
    while (waiters != wanted) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        hf_inspect(client, name, remember_waiters, &waiters, NULL);
        poll(NULL, 0, 1);
    }
}

/* --- a directory that others can reach --- */

TEST(links_and_strange_files_are_not_followed)
{
    hf_error err = { 0 };
    set_up();
    const char *const target = "/tmp/holdfast-must-not-exist";
    REQUIRE_INT(0, symlink(target, in_directory("link")));
    CHECK_STATUS(HF_DENIED, try_once("link", &err), &err);
    CHECK(access(target, F_OK) != 0);
    REQUIRE_INT(0, mkfifo(in_directory("fifo"), 0600));
    CHECK_STATUS(HF_DENIED, try_once("fifo", &err), &err);
    REQUIRE_INT(0, mkdir(in_directory("dir"), 0700));
    CHECK_STATUS(HF_UNAVAILABLE, try_once("dir", &err), &err);
    rmdir(in_directory("dir"));
    /* A second name of somebody's file must not be written to. */
    const int victim = open(in_directory("victim"), O_CREAT | O_WRONLY, 0600);
    REQUIRE_INT(0, link(in_directory("victim"), "/tmp/holdfast-second-name"));
    CHECK_STATUS(HF_DENIED, try_once("victim", &err), &err);
    struct stat stat;
    REQUIRE_INT(0, fstat(victim, &stat));
    CHECK_INT(0, stat.st_size);
    close(victim);
    unlink("/tmp/holdfast-second-name");
    tear_down();
}

TEST(no_name_leaves_the_directory)
{
    static const char *const names[] = { "../escaped", "/etc/escaped", "a/../../escaped", ".", ".." };
    set_up();
    hf_client *client = open_client();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        hf_release(take(client, names[i]), NULL);
    hf_close(client);
    CHECK(access(in_directory("../escaped"), F_OK) != 0);
    int files = 0;
    DIR *stream = opendir(directory);
    while (readdir(stream) != NULL)
        files++;
    closedir(stream);
    CHECK_INT(2 + sizeof names / sizeof names[0], files);
    tear_down();
}

TEST(directories_that_are_not_safe_are_refused)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    set_up();
    REQUIRE_INT(0, chmod(directory, 0777));
    CHECK_STATUS(HF_DENIED, hf_open(&client, url, NULL, &err), &err);
    CHECK(strstr(err.message, "chmod") != NULL);
    REQUIRE_INT(0, chmod(directory, 01777));
    CHECK_STATUS(HF_OK, hf_open(&client, url, NULL, &err), &err);
    hf_close(client);
    REQUIRE_INT(0, chmod(directory, 0700));
    if (geteuid() == 0) {
        REQUIRE_INT(0, chown(directory, 12345, 12345));
        CHECK_STATUS(HF_DENIED, hf_open(&client, url, NULL, &err), &err);
        CHECK(strstr(err.message, "12345") != NULL);
        REQUIRE_INT(0, chown(directory, 0, 0));
    } else {
        CHECK_STATUS(HF_DENIED, hf_open(&client, "file:///root", NULL, &err), &err);
    }
    tear_down();
}

TEST(files_are_as_open_as_their_directory)
{
    static const struct {
        mode_t directory, file;
    } modes[] = { { 0700, 0600 }, { 0755, 0600 }, { 0770, 0660 }, { 01777, 0666 } };
    set_up();
    umask(077);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        struct stat stat;
        REQUIRE_INT(0, chmod(directory, modes[i].directory));
        hf_client *client = open_client();
        hf_lock *lock = take(client, "x");
        REQUIRE_INT(0, lstat(in_directory("x"), &stat));
        CHECK_INT(modes[i].file, stat.st_mode & 07777);
        hf_release(lock, NULL);
        hf_close(client);
        unlink(in_directory("x"));
    }
    tear_down();
}

/* --- bad files, full disks, no descriptors --- */

TEST(a_file_full_of_garbage_is_refused_and_left_alone)
{
    char garbage[5000], after[5000];
    hf_error err = { 0 };
    set_up();
    memset(garbage, 'g', sizeof garbage);
    int fd = open(in_directory("x"), O_CREAT | O_RDWR, 0600);
    REQUIRE_INT(sizeof garbage, write(fd, garbage, sizeof garbage));
    CHECK_STATUS(HF_INTERNAL, try_once("x", &err), &err);
    CHECK(strstr(err.message, "damaged") != NULL);
    CHECK_INT(sizeof after, pread(fd, after, sizeof after, 0));
    CHECK(memcmp(garbage, after, sizeof after) == 0);
    /* Nothing stayed locked: with the garbage gone it works. */
    REQUIRE_INT(0, ftruncate(fd, 0));
    close(fd);
    CHECK_STATUS(HF_OK, try_once("x", &err), &err);
    tear_down();
}

TEST(a_removed_file_is_no_lock_any_more)
{
    hf_error err;
    set_up();
    hf_client *client = open_client();
    hf_lock *lock = take(client, "x");
    unlink(in_directory("x")); /* an administrator's mistake: exclusion ends here */
    CHECK_STATUS(HF_OK, try_once("x", &err), &err);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    CHECK_STATUS(HF_OK, try_once("x", &err), &err);
    hf_close(client);
    tear_down();
}

TEST(a_full_disk_is_named_and_nothing_stays_locked)
{
    hf_error err = { 0 };
    set_up();
    enter_namespaces(CLONE_NEWNS);
    REQUIRE_INT(0, mount("tmpfs", directory, "tmpfs", 0, "size=16k,mode=700"));
    CHECK_STATUS(HF_OK, try_once("before", &err), &err);
    const int filler = open(in_directory("filler"), O_CREAT | O_WRONLY, 0600);
    char block[4096] = { 1 };
    for (int i = 0; i < 16 && write(filler, block, sizeof block) > 0; i++)
        ;
    close(filler);
    CHECK_STATUS(HF_UNAVAILABLE, try_once("new", &err), &err);
    CHECK_INT(ENOSPC, err.native);
    CHECK_STATUS(HF_OK, try_once("before", &err), &err); /* what exists needs no new block */
    unlink(in_directory("filler"));
    CHECK_STATUS(HF_OK, try_once("new", &err), &err);
    umount(directory);
    tear_down();
}

TEST(running_out_of_descriptors_is_named)
{
    struct rlimit limit;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    set_up();
    hf_client *client = open_client();
    hf_release(take(client, "x"), NULL);
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK_STATUS(HF_NOMEM, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    CHECK(err.message[0] != 0);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    hf_release(take(client, "x"), NULL);
    hf_close(client);
    tear_down();
}

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
    tear_down();
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
    int64_t none = 0;
    hf_inspect(client, NULL, remember_waiters, &none, NULL); /* tidies up behind the dead */
    hf_close(client);
    tear_down();
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
    tear_down();
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
    hf_inspect(client, NULL, remember_waiters, &(int64_t){ 0 }, NULL);
    hf_close(client);
    tear_down();
}

/* A holder in a PID namespace of its own, whose number means nothing here, is killed. */
TEST(a_holder_in_another_pid_namespace_is_noticed_when_it_dies)
{
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
    hf_inspect(client, NULL, remember_waiters, &(int64_t){ 0 }, NULL);
    hf_close(client);
    tear_down();
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

/* Processes are killed at random instructions while they hand the lock around: no token ever comes twice or falls, and the
 * lock never gets stuck. */
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
    hf_inspect(client, NULL, remember_waiters, &(int64_t){ 0 }, NULL);
    hf_close(client);
    tear_down();
}

/* What a reboot after a power failure leaves: the record of another boot, perhaps an old one. */
TEST(tokens_go_on_above_the_mark_after_a_reboot)
{
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
        enter_namespaces(CLONE_NEWNS);
        REQUIRE_INT(0, mount(fake, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL));
        char program[600], argument[320];
        snprintf(argument, sizeof argument, "HOLDFAST_URL=%s", url);
        const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
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
    tear_down();
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
    hf_inspect(client, NULL, remember_waiters, &(int64_t){ 0 }, NULL);
    hf_close(client);
    tear_down();
}

TEST(file_urls)
{
    static const char *const bad[] = { "file:relative", "file:dir/x",   "file://host/x", "file:///x?y=z",
                                       "file:///x%zz",  "file:///x%00", "file://" };
    hf_client *client = NULL;
    hf_error err = { 0 };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_STATUS(HF_INVALID, hf_open(&client, bad[i], NULL, &err), &err);
    CHECK_STATUS(HF_UNAVAILABLE, hf_open(&client, "file:///no/such/place", NULL, &err), &err);
    CHECK_STATUS(HF_INVALID, hf_open(&client, "file:///etc/passwd", NULL, &err), &err);
    set_up();
    char spaced[400];
    snprintf(spaced, sizeof spaced, "file:%s/a%%20b", directory);
    REQUIRE_STATUS(HF_OK, hf_open(&client, spaced, NULL, &err), &err);
    CHECK(strstr(hf_url(client), "a%20b") != NULL);
    hf_close(client);
    rmdir(in_directory("a b"));
    tear_down();
}
