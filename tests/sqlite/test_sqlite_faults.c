/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_faults.c: programs that die within a transaction, files that are deleted and replaced, folders that are
 * removed, another boot, and eight processes that are killed at random.
 */
#include "crowd.h"
#include "sqlite_support.h"

#include "engines/local.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------ a program that dies while it writes */

struct doomed {
    const char *path;
    struct gate written;
};

/* So much of a transaction that it no longer fits into memory, and is in the file already. */
static void write_and_never_commit(void *arg)
{
    struct doomed *it = arg;
    sqlite3 *db = NULL;
    REQUIRE_INT(SQLITE_OK, sqlite3_open(it->path, &db));
    REQUIRE_INT(SQLITE_OK,
                sqlite3_exec(db,
                             "PRAGMA cache_size = 1; BEGIN IMMEDIATE; UPDATE holdfast_locks SET token = 77, client = 1,"
                             " serial = 1, expires = 9223372036854775807;"
                             "CREATE TABLE ballast (text); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM"
                             " n WHERE i < 2000) INSERT INTO ballast SELECT hex(randomblob(200)) FROM n",
                             NULL, NULL, NULL));
    gate_pass(&it->written);
    gate_await(&it->written, UINT32_MAX);
}

static void check_death_within_a_transaction(const char *label, const char *options, const char *left_behind)
{
    struct doomed *it = shared_new(sizeof *it);
    char leftover[500];
    it->path = new_store(label, options);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    const uint64_t token = hf_token(lock);
    must_release(lock);
    pid_t pid = helper_start(write_and_never_commit, it);
    gate_await(&it->written, 1);
    helper_kill(pid);
    snprintf(leftover, sizeof leftover, "%s%s", it->path, left_behind);
    CHECK_INT(0, access(leftover, F_OK));
    lock = must_acquire(client, "x", NULL);
    CHECK_INT(token + 1, hf_token(lock));
    must_release(lock);
    hf_close(client);
    check_intact(it->path);
}

TEST(a_hot_journal_is_rolled_back)
{
    check_death_within_a_transaction("hot-journal", "", "-journal");
}

TEST(an_unfinished_wal_is_ignored)
{
    check_death_within_a_transaction("hot-wal", "journal=wal", "-wal");
}

/* ------------------------------------------------------------------------------ a file that is deleted or replaced */

/* With what belongs to it, as whoever deletes a database should. */
static void remove_journals(const char *path)
{
    char file[500];
    snprintf(file, sizeof file, "%s-wal", path);
    unlink(file);
    snprintf(file, sizeof file, "%s-shm", path);
    unlink(file);
}

static void check_replaced(const char *label, const char *options, bool by_another)
{
    const char *path = new_store(label, options);
    char copy[500];
    hf_client *client = open_client(), *other = NULL;
    hf_options lease = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    snprintf(copy, sizeof copy, "%s.copy", path);
    unlink(copy);
    if (by_another)
        raw_do(path, "VACUUM INTO '%s'", copy);
    lease.ttl_ms = endless_ttl_ms();
    record_loss(&lease, &loss);
    hf_lock *lock = must_acquire(client, "x", &lease);
    remove_journals(path);
    if (by_another)
        REQUIRE_INT(0, rename(copy, path));
    else
        REQUIRE_INT(0, unlink(path));
    /* Whoever opens it now knows nothing of us; and we learn of it with the next thing that this client does. */
    other = open_client();
    hf_lock *theirs = must_acquire(other, "x", NULL);
    must_release(must_acquire(client, "y", NULL));
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, "x");
    must_release(theirs);
    check_free(client, "x");
    hf_close(client);
    hf_close(other);
    check_intact(path);
}

TEST(a_database_that_is_deleted)
{
    check_replaced("deleted", "synchronous=off", false);
    check_replaced("deleted-wal", "journal=wal", false);
}

TEST(a_database_that_is_replaced)
{
    check_replaced("replaced", "synchronous=off", true);
    check_replaced("replaced-wal", "journal=wal", true);
}

struct newcomer {
    struct gate come, held, go;
};

static void hold_when_told(void *arg)
{
    struct newcomer *it = arg;
    gate_await(&it->come, 1);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    gate_pass(&it->held);
    gate_await(&it->go, 1);
    must_release(lock);
    hf_close(client);
}

/* The log and its index only, of which SQLite says that it damages the database. Who opens it then knows nothing of us,
 * and we learn of it with the next thing that we do. The other is a process, as SQLite has one log for all connections
 * of one; and it is there from the beginning, as ours are opened anew after a fork. `age_ms`: how long the log has been
 * there. */
static void check_log_removed(const char *label, const char *options, uint32_t age_ms)
{
    const char *path = new_store(label, options);
    struct newcomer *it = shared_new(sizeof *it);
    const pid_t pid = helper_start(hold_when_told, it);
    hf_client *client = open_client();
    hf_options lease = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    lease.ttl_ms = endless_ttl_ms();
    record_loss(&lease, &loss);
    raw_do(path, "PRAGMA wal_checkpoint(TRUNCATE)"); /* the tables are in the database itself */
    pause_ms(age_ms);
    must_release(must_acquire(client, "y", &lease));
    hf_lock *lock = must_acquire(client, "x", &lease);
    remove_journals(path);
    gate_pass(&it->come);
    gate_await(&it->held, 1);
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, "x");
    gate_pass(&it->go);
    helper_join(pid);
    check_free(client, "x");
    hf_close(client);
    check_intact(path);
}

TEST_LIMIT(a_write_ahead_log_that_is_removed, 60)
{
    for (size_t i = 0; i < STRATEGIES; i++) {
        char label[40], options[60];
        snprintf(label, sizeof label, "log-removed-%s", strategy_names[i]);
        snprintf(options, sizeof options, "journal=wal&strategy=%s", strategy_names[i]);
        check_log_removed(label, options, 0);
        check_log_removed(label, options, 2500); /* nothing has changed in the folder for a while */
    }
}

/* ---------------------------------------------------------------------------------------------- folders and FIFOs */

static unsigned count_fifos(const char *path)
{
    char folder[500];
    unsigned count = 0;
    snprintf(folder, sizeof folder, "%s-holdfast", path);
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list && (entry = readdir(list)) != NULL;)
        count += strncmp(entry->d_name, ".c-", 3) == 0;
    if (list)
        closedir(list);
    return count;
}

static void remove_fifos(const char *path)
{
    char folder[500];
    snprintf(folder, sizeof folder, "%s-holdfast", path);
    DIR *list = opendir(folder);
    REQUIRE(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (strncmp(entry->d_name, ".c-", 3) == 0)
            REQUIRE_INT(0, unlinkat(dirfd(list), entry->d_name, 0));
    }
    closedir(list);
    REQUIRE_INT(0, rmdir(folder));
}

TEST(nothing_is_left_beside_the_database)
{
    const char *path = new_store("beside", "synchronous=off");
    char folder[500];
    snprintf(folder, sizeof folder, "%s-holdfast", path);
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    CHECK_INT(1, count_fifos(path));
    hf_close(client);
    CHECK(access(folder, F_OK) != 0);
}

/* Waiters whose folder is gone cannot be told, and are struck off: they ask when the holder's time would be over. */
TEST(the_folder_is_removed_under_a_waiter)
{
    const char *path = new_store("folder", "synchronous=off");
    hf_client *client = open_client(), *other = open_client();
    hf_options lease = HF_OPTIONS_INIT;
    struct waiter waiter;
    lease.ttl_ms = short_ttl_ms();
    hf_lock *lock = must_acquire(client, "x", &lease);
    waiter_start(&waiter, other, "x", NULL);
    await_waiters(client, "x", 1);
    remove_fifos(path);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    /* And it can be reached again: this one would outlast the test. */
    lease.ttl_ms = endless_ttl_ms();
    must_release(waiter.lock);
    lock = must_acquire(client, "x", &lease);
    waiter_start(&waiter, other, "x", NULL);
    await_waiters(client, "x", 1);
    CHECK_INT(1, count_fifos(path));
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(other);
}

/* A file where the folder should be: nobody can be reached, and everybody still gets the lock, by asking. */
TEST(a_folder_that_cannot_be_made)
{
    const char *path = new_store("no-folder", "synchronous=off");
    char folder[500];
    struct waiter waiter;
    snprintf(folder, sizeof folder, "%s-holdfast", path);
    const int fd = open(folder, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    close(fd);
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    waiter_start(&waiter, other, "x", NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 300));
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(other);
    CHECK_INT(0, unlink(folder));
}

/* The first in line is paused, so it cannot take what it is given. The second looks after it when the claim is over,
 * and not when the old holder's time would be. */
TEST(the_second_in_line_looks_after_the_first)
{
    new_store("second", "synchronous=off");
    struct holder *first = holder_new("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options lease = HF_OPTIONS_INIT;
    struct waiter second;
    lease.ttl_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(client, first->name.text, &lease);
    pid_t pid = holder_launch(first);
    await_waiters(client, first->name.text, 1);
    waiter_start(&second, other, first->name.text, NULL);
    await_waiters(client, first->name.text, 2);
    helper_stop(pid);
    must_release(lock);
    waiter_finish(&second);
    helper_continue(pid);
    gate_await(&first->held, 1);
    CHECK(atomic_load(&first->token) > second.token);
    holder_finish(first, pid, HF_OK);
    hf_close(client);
    hf_close(other);
}

/* The kernel ends this process when it is about to tell another client anything: after the commit, and with the message
 * still in its hands. Nothing else writes as many bytes at once in this way. */
static void die_instead_of_telling(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(struct hfi_message), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = { .len = sizeof filter / sizeof filter[0], .filter = filter };
    REQUIRE_INT(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    REQUIRE_INT(0, syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

static void release_and_die(void *arg)
{
    struct holder *it = arg;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, it->name.text, &it->options);
    atomic_store(&it->token, hf_token(lock));
    gate_pass(&it->held);
    gate_await(&it->go, 1);
    die_instead_of_telling();
    hf_release(lock, NULL);
    FAIL("it lives");
}

/* It frees the lock and dies before it can tell whom it has given it to. That one does not wait until the time of the
 * dead would have been over: it would outlast the test. */
static void check_death_before_the_message(const char *strategy)
{
    char label[60], options[60];
    snprintf(label, sizeof label, "message-%s", strategy);
    snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy);
    new_store(label, options);
    struct holder *doomed = holder_new("x");
    hf_client *client = open_client();
    struct waiter waiter;
    doomed->options.ttl_ms = endless_ttl_ms();
    const pid_t pid = helper_start(release_and_die, doomed);
    gate_await(&doomed->held, 1);
    waiter_start(&waiter, client, doomed->name.text, NULL);
    await_waiters(client, doomed->name.text, 1);
    gate_pass(&doomed->go);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > atomic_load(&doomed->token));
    helper_kill(pid); /* it is dead, or has failed */
    must_release(waiter.lock);
    hf_close(client);
}

TEST(a_releaser_that_dies_before_it_tells_the_first_in_line)
{
    for (size_t i = 0; i < STRATEGIES; i++)
        check_death_before_the_message(strategy_names[i]);
}

/* ----------------------------------------------------------------------------------------------------------- boots */

/* A row of another boot, which was up for longer than this one, is nobody's, however long it was to last; and the token
 * leaps. */
static void check_boot(const char *strategy)
{
    char label[40], options[60];
    snprintf(label, sizeof label, "boot-%s", strategy);
    snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy);
    const char *path = new_store(label, options);
    hf_client *client = open_client(), *other = open_client();
    hf_options lease = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    lease.ttl_ms = endless_ttl_ms();
    record_loss(&lease, &loss);
    hf_lock *lock = must_acquire(client, "x", &lease);
    CHECK_INT(1, hf_token(lock));
    raw_do(path, "UPDATE holdfast_locks SET boot = boot + 1, renewed = renewed + 1e15, expires = expires + 1e15;"
                 " UPDATE holdfast_locks_grants SET boot = boot + 1");
    hf_lock *theirs = must_acquire(other, "x", NULL);
    CHECK_INT(1 + 1048576, hf_token(theirs));
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, NULL), NULL);
    CHECK_INT(1, gate_count(&loss.told));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(theirs);
    lock = must_acquire(client, "x", NULL);
    CHECK_INT(2 + 1048576, hf_token(lock));
    must_release(lock);
    hf_close(client);
    hf_close(other);
}

TEST(rows_of_another_boot_are_free)
{
    for (size_t i = 0; i < STRATEGIES; i++)
        check_boot(strategy_names[i]);
}

/* One that was not up for longer cannot be told from this one by a container with a name of its own for the boot: the
 * row ends when its time is over. */
TEST(a_row_of_another_boot_lasts_no_longer_than_its_time)
{
    for (size_t i = 0; i < STRATEGIES; i++) {
        char label[40], options[60];
        snprintf(label, sizeof label, "boot-ends-%s", strategy_names[i]);
        snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy_names[i]);
        const char *path = new_store(label, options);
        hf_client *client = open_client(), *other = open_client();
        hf_options lease = HF_OPTIONS_INIT;
        lease.ttl_ms = short_ttl_ms();
        lease.renew = HF_RENEW_OFF;
        hf_lock *lock = must_acquire(client, "x", &lease);
        raw_do(path, "UPDATE holdfast_locks SET boot = boot + 1");
        must_release(must_acquire(other, "x", NULL));
        hf_release(lock, NULL);
        hf_close(client);
        hf_close(other);
    }
}

/* ------------------------------------------------------------------------------------------------------- containers */

struct container {
    char url[500], file[300];
    struct gate held, seen;
};

/* As LXC and systemd-nspawn do: a boot_id of its own. */
static void hold_with_another_boot_id(void *arg)
{
    struct container *it = arg;
    hf_options lease = HF_OPTIONS_INIT;
    lease.ttl_ms = endless_ttl_ms();
    enter_namespaces(CLONE_NEWNS);
    REQUIRE_INT(0, mount(it->file, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL));
    store_url = it->url;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", &lease);
    gate_pass(&it->held);
    gate_await(&it->seen, 1);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
    must_release(lock);
    hf_close(client);
}

TEST_LIMIT(a_container_with_another_boot_id_excludes_the_others, 60)
{
    need_namespaces();
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct container *it = shared_new(sizeof *it);
        char label[40], options[60];
        snprintf(label, sizeof label, "container-%s", strategy_names[i]);
        snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy_names[i]);
        const char *path = new_store(label, options);
        snprintf(it->url, sizeof it->url, "%s", store_url);
        snprintf(it->file, sizeof it->file, "%s.boot_id", path);
        FILE *file = fopen(it->file, "we");
        REQUIRE(file != NULL && fputs("01234567-89ab-cdef-0123-456789abcdef\n", file) >= 0 && fclose(file) == 0);
        pid_t pid = helper_start(hold_with_another_boot_id, it);
        gate_await(&it->held, 1);
        hf_client *client = open_client();
        check_busy(client, "x");
        gate_pass(&it->seen);
        helper_join(pid);
        check_free(client, "x");
        hf_close(client);
    }
}

/* The command, as the test's own clock is another one in there; its exit status. */
static int try_in_a_time_namespace(const char *url, const char *offset)
{
    int status = 0;
    const int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, offset, strlen(offset)) == (ssize_t)strlen(offset));
    close(fd);
    const pid_t pid = fork(); /* children are in it */
    if (pid == 0) {
        execl(getenv("HOLDFAST"), "holdfast", "--url", url, "run", "-n", "x", "--", "/bin/true", (char *)NULL);
        _exit(127);
    }
    REQUIRE_INT(pid, waitpid(pid, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct time_travel {
    char url[500];
    int expected;
};

static void try_from_tomorrow(void *arg)
{
    const struct time_travel *it = arg;
    enter_namespaces(CLONE_NEWTIME);
    CHECK_INT(it->expected, try_in_a_time_namespace(it->url, "boottime 86400 0\n"));
}

/* Its clock is a day ahead: every lease looks as if it were over. */
TEST_LIMIT(a_time_namespace_excludes_the_others, 60)
{
    need_namespaces();
    enum { HELD_BY_ANOTHER = 75 };
    for (size_t i = 0; i < STRATEGIES; i++) {
        struct time_travel *it = shared_new(sizeof *it);
        char label[40], options[60];
        hf_options lease = HF_OPTIONS_INIT;
        snprintf(label, sizeof label, "time-%s", strategy_names[i]);
        snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy_names[i]);
        new_store(label, options);
        snprintf(it->url, sizeof it->url, "%s", store_url);
        lease.ttl_ms = endless_ttl_ms();
        hf_client *client = open_client();
        hf_lock *lock = must_acquire(client, "x", &lease);
        it->expected = HELD_BY_ANOTHER;
        helper_join(helper_start(try_from_tomorrow, it));
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        must_release(lock);
        it->expected = 0;
        helper_join(helper_start(try_from_tomorrow, it));
        check_free(client, "x"); /* what was taken and released there is not held until tomorrow */
        hf_close(client);
    }
}

/* --------------------------------------------------------------------------------------- the textbook's own rows */

/* Whoever inserts a row by hand holds the lock until the row is deleted. */
TEST(a_row_that_was_inserted_by_hand_is_a_lock)
{
    const char *path = new_store("by-hand", "synchronous=off&strategy=insert");
    hf_client *client = open_client();
    struct waiter waiter;
    raw_do(path, "INSERT INTO holdfast_locks (name) VALUES ('x')");
    check_busy(client, "x");
    waiter_start(&waiter, client, "x", NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 100));
    raw_do(path, "DELETE FROM holdfast_locks WHERE name = 'x'");
    waiter_finish(&waiter);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------ a counter, and random deaths */

TEST_LIMIT(counter_with_random_deaths_lease, 60)
{
    const char *path = new_store("crowd-lease", "synchronous=off");
    check_crowd("lease");
    check_intact(path);
}

TEST_LIMIT(counter_with_random_deaths_insert, 60)
{
    const char *path = new_store("crowd-insert", "strategy=insert&journal=wal&synchronous=normal");
    check_crowd("insert");
    check_intact(path);
}

TEST_LIMIT(counter_with_random_deaths_version, 60)
{
    const char *path = new_store("crowd-version", "strategy=version&journal=persist&synchronous=off");
    check_crowd("version");
    check_intact(path);
}
