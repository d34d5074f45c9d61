/* SPDX-License-Identifier: MIT
 *
 * test_file_once.c: what the file engine records as done: its price, its clock, and what it does when it cannot be
 * written.
 */
#include "core.h"
#include "engines/file/lockrecord.h"
#include "file_tests.h"
#include "shared.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MINUTE_MS INT64_C(60000)
#define HOUR_MS (60 * MINUTE_MS)

static hf_status ask(hf_client *client, const char *name, hf_lock **lock, hf_error *err)
{
    hf_options options = HF_OPTIONS_INIT;
    options.owner = HF_OWNER_HANDLE;
    options.once_per_ms = HOUR_MS;
    options.note = "backup";
    return hf_try_acquire(lock, client, name, &options, err);
}

static hf_lock *take_once(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, ask(client, name, &lock, &err), &err);
    return lock;
}

static hf_status is_done(hf_client *client, const char *name)
{
    hf_lock *lock = NULL;
    const hf_status status = ask(client, name, &lock, NULL);
    hf_release(lock, NULL);
    return status;
}

static void do_it(hf_client *client, const char *name)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release_done(take_once(client, name), &err), &err);
}

/* --- the clock --- */

TEST(a_clock_that_was_set_ends_it_earlier_or_later_but_not_never)
{
    const int64_t now = INT64_C(1800000000000);
    CHECK_INT(HOUR_MS, hfi_wall_done_left_ms(now, now, HOUR_MS));
    CHECK_INT(1, hfi_wall_done_left_ms(now, now - HOUR_MS + 1, HOUR_MS));
    CHECK_INT(0, hfi_wall_done_left_ms(now, now - HOUR_MS, HOUR_MS));
    CHECK_INT(0, hfi_wall_done_left_ms(now, now - 2 * HOUR_MS, HOUR_MS));
    CHECK_INT(HOUR_MS + MINUTE_MS, hfi_wall_done_left_ms(now, now + MINUTE_MS, HOUR_MS)); /* was set back */
    CHECK_INT(2 * HOUR_MS, hfi_wall_done_left_ms(now, now + HOUR_MS, HOUR_MS));
    CHECK_INT(0, hfi_wall_done_left_ms(now, now + HOUR_MS + 1, HOUR_MS));
    CHECK_INT(0, hfi_wall_done_left_ms(now, INT64_MIN, INT64_MAX));
    CHECK_INT(0, hfi_wall_done_left_ms(now, INT64_MAX, INT64_MAX));
    CHECK_INT(0, hfi_wall_done_left_ms(now, now, INT64_MIN));
    CHECK_INT(0, hfi_wall_done_left_ms(now, now, 0));
}

static void pretend(const char *name, int64_t ago_ms)
{
    struct file_done done = { .token = 7, .pid = 1, .done_ms = hfi_wall_ms() - ago_ms, .for_ms = HOUR_MS };
    const int fd = open(in_directory("x"), O_RDWR | O_CLOEXEC);
    snprintf(done.host, sizeof done.host, "somewhere");
    snprintf(done.name, sizeof done.name, "%s", name);
    REQUIRE_STATUS(HF_OK, hfi_file_write_done(fd, &done, NULL), NULL);
    close(fd);
}

TEST(what_is_done_counts_by_the_wall_clock)
{
    set_up();
    hf_client *client = open_client();
    do_it(client, "x");
    pretend("x", 59 * MINUTE_MS);
    CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
    pretend("x", 61 * MINUTE_MS);
    CHECK_STATUS(HF_OK, is_done(client, "x"), NULL);
    pretend("x", -30 * MINUTE_MS);
    CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
    pretend("x", -61 * MINUTE_MS);
    CHECK_STATUS(HF_OK, is_done(client, "x"), NULL);
    pretend("X", 0); /* as on a file system that does not tell small letters from capitals */
    CHECK_STATUS(HF_OK, is_done(client, "x"), NULL);
    hf_close(client);
    tear_down(false);
}

/* The record in the lock file is of the boot that wrote it; what is done is not. */
TEST(what_is_done_outlasts_a_reboot)
{
    struct lock_slots slots;
    set_up();
    hf_client *client = open_client();
    do_it(client, "x");
    hf_close(client);
    const int fd = open(in_directory("x"), O_RDWR | O_CLOEXEC);
    REQUIRE_INT(sizeof slots, pread(fd, &slots, sizeof slots, 0));
    for (int i = 0; i < 2; i++) {
        struct lock_slot *slot = &slots.slot[i];
        memcpy(slot->boot, "another", 8);
        slot->checksum = hfi_lockrecord_checksum(&slot->sequence, sizeof *slot - offsetof(struct lock_slot, sequence));
    }
    REQUIRE_INT(sizeof slots, pwrite(fd, &slots, sizeof slots, 0));
    close(fd);
    client = open_client();
    CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
    hf_close(client);
    tear_down(false);
}

/* --- what cannot be written, or read --- */

TEST(what_was_cut_short_is_not_done)
{
    set_up();
    hf_client *client = open_client();
    for (off_t at = 2560; at < 2560 + 512; at += 37) {
        char byte = 0;
        do_it(client, "x");
        CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
        const int fd = open(in_directory("x"), O_RDWR | O_CLOEXEC);
        REQUIRE_INT(1, pread(fd, &byte, 1, at));
        byte = (char)~byte;
        REQUIRE_INT(1, pwrite(fd, &byte, 1, at));
        close(fd);
        CHECK_STATUS(HF_OK, is_done(client, "x"), NULL);
    }
    hf_close(client);
    tear_down(false);
}

TEST(a_full_disk_does_not_keep_it_from_being_recorded)
{
    need_namespaces();
    hf_error err = { 0 };
    set_up();
    enter_namespaces(CLONE_NEWNS);
    REQUIRE_INT(0, mount("tmpfs", directory, "tmpfs", 0, "size=16k,mode=700"));
    hf_client *client = open_client();
    hf_lock *lock = take_once(client, "x");
    const int filler = open(in_directory("filler"), O_CREAT | O_WRONLY, 0600);
    char block[4096] = { 1 };
    for (int i = 0; i < 16 && write(filler, block, sizeof block) > 0; i++)
        ;
    CHECK(write(filler, block, sizeof block) < 0 && errno == ENOSPC);
    close(filler);
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
    CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
    hf_close(client);
    umount(directory);
    tear_down(false);
}

static void limit_files_to(rlim_t size)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = size;
    REQUIRE_INT(0, setrlimit(RLIMIT_FSIZE, &limit));
}

/* The caller is told at once; the lock stays until it is recorded, so that nobody does it again. */
TEST(what_cannot_be_recorded_now_is_recorded_later)
{
    hf_error err = { 0 };
    hf_status status;
    set_up();
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = take_once(client, "x");
    limit_files_to(2600); /* in the midst of it */
    CHECK_STATUS(HF_UNAVAILABLE, hf_release_done(lock, &err), &err);
    CHECK(strstr(err.message, "cannot record what is done") != NULL);
    CHECK_STATUS(HF_BUSY, is_done(other, "x"), NULL);
    limit_files_to(RLIM_INFINITY);
    while ((status = is_done(other, "x")) == HF_BUSY && test_now_ns() < test_deadline_ns())
        sched_yield();
    CHECK_STATUS(HF_DONE, status, NULL);
    while ((status = try_once("x", &err)) == HF_BUSY && test_now_ns() < test_deadline_ns())
        sched_yield();
    CHECK_STATUS(HF_OK, status, &err);
    hf_close(client);
    hf_close(other);
    tear_down(false);
}

TEST(what_cannot_be_recorded_keeps_nobody_out_when_its_client_is_closed)
{
    hf_error err = { 0 };
    set_up();
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = take_once(client, "x");
    limit_files_to(2600);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release_done(lock, &err), &err);
    CHECK_STATUS(HF_BUSY, is_done(other, "x"), NULL);
    hf_close(client);
    CHECK_STATUS(HF_OK, is_done(other, "x"), NULL);
    hf_close(other);
    tear_down(false);
}

/* It is an administrator's to say that it does not matter. */
TEST(what_cannot_be_recorded_can_be_broken)
{
    hf_error err = { 0 };
    hf_status status;
    set_up();
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = take_once(client, "x");
    limit_files_to(2600);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release_done(lock, &err), &err);
    hf_break(other, "x", &err); /* HF_OK, or it takes a while: the next try lets go */
    while ((status = is_done(other, "x")) == HF_BUSY && test_now_ns() < test_deadline_ns())
        sched_yield();
    CHECK_STATUS(HF_OK, status, NULL);
    hf_close(client);
    hf_close(other);
    tear_down(false);
}

TEST(who_has_lost_the_file_has_not_done_it)
{
    hf_error err = { 0 };
    set_up();
    hf_client *client = open_client();
    hf_lock *lock = take_once(client, "x");
    unlink(in_directory("x")); /* an administrator's mistake: exclusion ends here */
    CHECK_STATUS(HF_LOST, hf_release_done(lock, &err), &err);
    CHECK(strstr(err.message, "removed") != NULL);
    CHECK_STATUS(HF_OK, is_done(client, "x"), NULL);
    hf_close(client);
    tear_down(false);
}

/* --- in a directory that others can reach --- */

static void as_another_user(void (*work)(void))
{
    int state = 0;
    const pid_t child = fork();
    if (child == 0) {
        REQUIRE_INT(0, setgid(12345));
        REQUIRE_INT(0, setuid(12345));
        work();
        test_exit_child();
    }
    REQUIRE_INT(child, waitpid(child, &state, 0));
    CHECK_INT(0, state);
}

static void forget_and_do_it(void)
{
    hf_error err = { 0 };
    hf_client *client = open_client();
    CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
    CHECK_STATUS(HF_OK, hf_forget_done(client, "x", &err), &err);
    do_it(client, "x");
    do_it(client, "theirs");
    hf_close(client);
}

TEST(users_who_share_locks_share_what_is_done)
{
    hf_error err = { 0 };
    need_root(); /* to be another user */
    set_up();
    REQUIRE_INT(0, chmod(directory, 01777));
    hf_client *client = open_client();
    do_it(client, "x");
    hf_close(client);
    as_another_user(forget_and_do_it);
    client = open_client();
    CHECK_STATUS(HF_DONE, is_done(client, "x"), NULL);
    CHECK_STATUS(HF_DONE, is_done(client, "theirs"), NULL);
    CHECK_STATUS(HF_OK, hf_forget_done(client, "theirs", &err), &err);
    do_it(client, "theirs");
    hf_close(client);
    tear_down(false);
}

TEST(forgetting_changes_no_file_but_a_lock_file)
{
    hf_error err = { 0 };
    struct stat stat;
    set_up();
    hf_client *client = open_client();
    const int victim = open(in_directory("victim"), O_CREAT | O_RDWR, 0600);
    REQUIRE_INT(0, symlink("victim", in_directory("link")));
    CHECK_STATUS(HF_OK, hf_forget_done(client, "link", &err), &err);
    REQUIRE_INT(0, link(in_directory("victim"), in_directory("second")));
    CHECK_STATUS(HF_OK, hf_forget_done(client, "second", &err), &err);
    REQUIRE_INT(0, mkfifo(in_directory("fifo"), 0600));
    CHECK_STATUS(HF_OK, hf_forget_done(client, "fifo", &err), &err);
    CHECK_STATUS(HF_OK, hf_forget_done(client, "nothing", &err), &err);
    CHECK(access(in_directory("nothing"), F_OK) != 0);
    REQUIRE_INT(0, fstat(victim, &stat));
    CHECK_INT(0, stat.st_size);
    close(victim);
    hf_close(client);
    tear_down(false);
}
