/* SPDX-License-Identifier: MIT
 *
 * test_file_engine.c: what only the file engine promises, for one process: hostile directories, damaged files, full
 * disks, missing descriptors, URLs.
 */
#include "core.h"
#include "engines/file/file.h"
#include "file_tests.h"
#include "registry.h"
#include "shared.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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
    tear_down(false);
}

/* A file of the user's that somebody has given a second name in the directory. */
static void check_untouched(int victim)
{
    struct stat stat;
    REQUIRE_INT(0, fstat(victim, &stat));
    CHECK_INT(0, stat.st_size);
}

TEST(nothing_is_written_to_what_stands_in_for_a_fifo)
{
    hf_error err = { 0 };
    set_up();
    const int victim = open(in_directory("victim"), O_CREAT | O_RDWR, 0600);
    /* In place of the FIFO of a queue that the lock file names. */
    CHECK_STATUS(HF_OK, try_once("x", &err), &err);
    const uint64_t number = 0x1234, words[2] = { number, number ^ 0x686f6c6466617374u };
    const int file = open(in_directory("x"), O_RDWR);
    REQUIRE_INT(sizeof words, pwrite(file, words, sizeof words, 2048));
    REQUIRE_INT(0, link(in_directory("victim"), in_directory(".k-0000000000001234")));
    CHECK_STATUS(HF_OK, try_once("x", &err), &err);
    check_untouched(victim);
    unlink(in_directory(".k-0000000000001234"));

    /* In place of the FIFO of a holder that is asked to let go. */
    hf_client *client = open_client();
    hf_lock *lock = take(client, "x");
    char name[NAME_MAX + 1] = "";
    DIR *stream = opendir(directory);
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;)
        if (strncmp(entry->d_name, ".c-", 3) == 0)
            snprintf(name, sizeof name, "%s", entry->d_name);
    closedir(stream);
    REQUIRE_INT(0, unlink(in_directory(name)));
    REQUIRE_INT(0, link(in_directory("victim"), in_directory(name)));
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *other = NULL;
    options.timeout_ms = 200;
    REQUIRE_STATUS(HF_OK, hf_open(&other, url, &options, &err), &err);
    CHECK_STATUS(HF_UNAVAILABLE, hf_break(other, "x", &err), &err);
    check_untouched(victim);
    hf_close(other);
    hf_release(lock, NULL);
    hf_close(client);
    close(file);
    close(victim);
    tear_down(false);
}

/* Links to one folder. */
static const char *const ways[] = { "relative/locks", "absolute/locks", "last" };

static void set_up_links(void)
{
    set_up();
    REQUIRE_INT(0, mkdir(in_directory("real"), 0700));
    REQUIRE_INT(0, mkdir(in_directory("real/locks"), 0700));
    REQUIRE_INT(0, symlink("real", in_directory("relative")));
    REQUIRE_INT(0, symlink(in_directory("relative"), in_directory("absolute")));
    REQUIRE_INT(0, symlink("absolute/locks/../locks", in_directory("last")));
}

static void tear_down_links(void)
{
    rmdir(in_directory("real/locks"));
    rmdir(in_directory("real"));
    tear_down(false);
}

TEST(ones_own_symbolic_links_on_the_way_to_the_directory_are_followed)
{
    char way[600];
    hf_client *client = NULL;
    hf_error err = { 0 };
    set_up_links();
    for (int i = 0; i < 3; i++) {
        snprintf(way, sizeof way, "file://%s", in_directory(ways[i]));
        CHECK_STATUS(HF_OK, hf_open(&client, way, NULL, &err), &err);
        CHECK(strstr(hf_url(client), "/real/locks") != NULL);
        hf_close(client);
    }
    REQUIRE_INT(0, symlink("round", in_directory("round")));
    snprintf(way, sizeof way, "file://%s", in_directory("round"));
    CHECK(hf_open(&client, way, NULL, &err) != HF_OK);
    tear_down_links();
}

TEST(a_symbolic_link_of_another_user_on_the_way_to_the_directory_is_refused)
{
    char way[600];
    hf_client *client = NULL;
    hf_error err = { 0 };
    need_root(); /* to give a link to another user */
    set_up_links();
    REQUIRE_INT(0, lchown(in_directory("relative"), 12345, 12345));
    for (int i = 0; i < 3; i++) {
        snprintf(way, sizeof way, "file://%s", in_directory(ways[i]));
        CHECK_STATUS(HF_DENIED, hf_open(&client, way, NULL, &err), &err);
        CHECK(strstr(err.message, "symbolic link") != NULL);
    }
    tear_down_links();
}

struct swapping {
    char ours[300], theirs[300];
    atomic_bool stop;
};

static void swap_once(const struct swapping *swapping)
{
    REQUIRE_INT(0, renameat2(AT_FDCWD, swapping->ours, AT_FDCWD, swapping->theirs, RENAME_EXCHANGE));
}

static void *swap_links(void *argument)
{
    const struct swapping *swapping = argument;
    while (!atomic_load(&swapping->stop))
        swap_once(swapping);
    return NULL;
}

/* HF_OK, or HF_DENIED for the link's sake; counts how often the link of the other user was followed. */
static hf_status open_by_link(const char *way, int *followed)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    const hf_status status = hf_open(&client, way, NULL, &err);
    if (status == HF_OK)
        hf_close(client);
    else if (strstr(err.message, "belongs to user 12345") != NULL)
        ++*followed;
    else
        CHECK(strstr(err.message, "symbolic link") != NULL);
    return status;
}

/* Whoever is looked at must be whoever is followed. */
TEST_LIMIT(a_symbolic_link_that_is_swapped_for_that_of_another_user_is_refused_or_not_followed, 60)
{
    struct swapping swapping = { .stop = false };
    pthread_t thread;
    char way[600];
    int followed = 0;
    need_root(); /* to give a link to another user */
    set_up();
    REQUIRE_INT(0, mkdir(in_directory("real"), 0700));
    REQUIRE_INT(0, mkdir(in_directory("trap"), 0700));
    REQUIRE_INT(0, chown(in_directory("trap"), 12345, 12345)); /* so that whoever gets there says so */
    snprintf(swapping.ours, sizeof swapping.ours, "%s", in_directory("ours"));
    snprintf(swapping.theirs, sizeof swapping.theirs, "%s", in_directory("theirs"));
    REQUIRE_INT(0, symlink("real", swapping.ours));
    REQUIRE_INT(0, symlink("trap", swapping.theirs));
    REQUIRE_INT(0, lchown(swapping.theirs, 12345, 12345));
    snprintf(way, sizeof way, "file://%s", swapping.ours);
    CHECK_INT(HF_OK, open_by_link(way, &followed));
    swap_once(&swapping);
    CHECK_INT(HF_DENIED, open_by_link(way, &followed));
    REQUIRE_INT(0, pthread_create(&thread, NULL, swap_links, &swapping));
    /* Some thousand openings meet the gap between the look and the step; slow machines make fewer of them. */
    const int64_t until_ns = test_now_ns() + 5 * HFI_SECOND;
    for (int i = 0; i < 10000 && test_now_ns() < until_ns; i++)
        open_by_link(way, &followed);
    atomic_store(&swapping.stop, true);
    pthread_join(thread, NULL);
    CHECK_INT(0, followed);
    rmdir(in_directory("trap"));
    rmdir(in_directory("real"));
    tear_down(false);
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
    tear_down(false);
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
    tear_down(false);
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
    tear_down(false);
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
    tear_down(false);
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
    tear_down(false);
}

TEST(a_full_disk_is_named_and_nothing_stays_locked)
{
    need_namespaces();
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
    tear_down(false);
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
    CHECK_STATUS(HF_NOMEM, hf_try_acquire(&lock, client, "another", NULL, &err), &err);
    CHECK(err.message[0] != 0);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    hf_release(take(client, "x"), NULL);
    hf_close(client);
    tear_down(false);
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
    tear_down(false);
}

static void *wait_for_it(void *client)
{
    hf_release(take(client, "x"), NULL);
    return NULL;
}

/* A process that has no descriptor left but the lock's own must still be able to wake the first waiter. */
TEST(releasing_without_a_spare_descriptor_wakes_the_waiter)
{
    struct rlimit limit;
    pthread_t waiter;
    set_up();
    hf_client *holder = open_client();
    hf_client *client = open_client();
    hf_release(take(client, "before"), NULL); /* so that the waiter needs no descriptor for its keeper */
    hf_lock *lock = take(holder, "x");
    pthread_create(&waiter, NULL, wait_for_it, client);
    await_waiters(holder, "x", 1);
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    hf_release(lock, NULL);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    pthread_join(waiter, NULL); /* by the backstop at the latest */
    hf_close(client);
    hf_close(holder);
    tear_down(false);
}

TEST(looking_without_descriptors_is_no_success)
{
    struct rlimit limit;
    hf_error err = { 0 };
    set_up();
    hf_client *client = open_client();
    hf_lock *lock = take(client, "x");
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK_STATUS(HF_NOMEM, hf_break(client, "x", &err), &err);
    CHECK_STATUS(HF_NOMEM, hf_inspect(client, NULL, NULL, NULL, &err), &err);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
    hf_close(client);
    tear_down(false);
}

/* A neighbour in a shared directory may send what it likes. */
TEST(parcels_of_the_wrong_size_are_refused)
{
    enum { FDS = 5 };
    for (int count = 0; count <= FDS; count++) {
        int ends[2], lock_fd = -1;
        struct file_queue queue = HFI_FILE_NO_QUEUE;
        uint64_t parcel[2] = { 1, 'L' };
        char room[CMSG_SPACE(FDS * sizeof(int))] = { 0 };
        struct iovec text = { .iov_base = parcel, .iov_len = sizeof parcel };
        struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1 };
        REQUIRE_INT(0, socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
        if (count > 0) {
            message.msg_control = room;
            message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
            struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
            const int fds[FDS] = { 0, 1, 2, 0, 1 };
            memcpy(CMSG_DATA(rights), fds, (size_t)count * sizeof(int));
        }
        REQUIRE(sendmsg(ends[0], &message, 0) > 0);
        const int next = dup(0);
        close(next);
        const bool taken = hfi_file_queue_take(ends[1], &queue, &lock_fd);
        CHECK(taken == (count >= 3)); /* what is too much is closed by the kernel, and never arrives */
        hfi_file_queue_close(&queue);
        hfi_fd_close(lock_fd);
        const int after = dup(0);
        CHECK_INT(next, after); /* nothing stays open */
        close(after);
        close(ends[0]);
        close(ends[1]);
    }
}

static hfi_time tell_time(void)
{
    return test_now_ns();
}

static uint64_t tell_random(void)
{
    return 77;
}

/* The core asks again when an answer took longer than the lease lasts: it must find its own success. */
TEST(asking_again_finds_ones_own_lock)
{
    const struct hfi_engine *engine = &hfi_engine_file;
    const struct hfi_env env = { .client = 5, .now_ns = tell_time, .random = tell_random };
    struct hfi_grant first = { 0 }, second = { 0 };
    hf_error err;
    struct hfi_opened opened = { 0 };
    set_up();
    const struct hfi_url split = { "file", url + 5 };
    const struct hfi_request request = {
        .name = "x", .owner = { 5, 1 }, .ttl_ms = 100, .deadline_ns = HFI_NEVER, .note = "", .queue = true
    };
    void *store = hfi_alloc(engine->store_size);
    void *lock = hfi_alloc(engine->lock_size);
    REQUIRE_STATUS(HF_OK, engine->open(store, &split, &env, &opened, &err), &err);
    CHECK_STATUS(HF_OK, engine->attempt(store, lock, &request, &first, &err), &err);
    CHECK_STATUS(HF_OK, engine->attempt(store, lock, &request, &second, &err), &err);
    CHECK_INT(first.token, second.token);
    CHECK_STATUS(HF_OK, engine->release(store, lock, &request, &err), &err);
    engine->close(store);
    hfi_free(lock);
    hfi_free(store);
    hfi_free(opened.shown);
    tear_down(false);
}
