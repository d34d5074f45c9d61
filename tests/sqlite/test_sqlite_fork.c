/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_fork.c: a process forks while its threads use the database, and its children use the same one: SQLite
 * itself would let them write over each other.
 */
#include "sqlite_support.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHILDREN 30
#define THREADS 2

struct family {
    struct witness witness;
    _Atomic bool over;
    _Atomic uint32_t born;
    hf_client *client;
};

static void *visit_in_thread(void *arg)
{
    struct family *family = arg;
    const uint32_t me = 100 + atomic_fetch_add(&family->born, 1);
    while (!atomic_load(&family->over)) {
        hf_lock *lock = must_acquire(family->client, "x", NULL);
        witness_visit(&family->witness, me, hf_token(lock));
        must_release(lock);
    }
    return NULL;
}

static void check_descriptors(const char *path)
{
    DIR *list = opendir("/proc/self/fd");
    REQUIRE(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;) {
        char target[500] = "";
        if (readlinkat(dirfd(list), entry->d_name, target, sizeof target - 1) > 0 && strstr(target, path))
            FAIL("a child inherits %s", target);
    }
    closedir(list);
}

struct child {
    struct family *family;
    const char *path;
    uint32_t number;
};

static void visit_as_child(void *arg)
{
    const struct child *child = arg;
    check_descriptors(child->path);
    hf_client *client = open_client();
    for (int i = 0; i < 3; i++) {
        hf_lock *lock = must_acquire(client, "x", NULL);
        witness_visit(&child->family->witness, child->number, hf_token(lock));
        must_release(lock);
    }
    hf_close(client);
}

static void check_family(const char *label, const char *options)
{
    struct family *family = shared_new(sizeof *family);
    const char *path = new_store(label, options);
    pthread_t threads[THREADS];
    pid_t pids[CHILDREN];
    family->client = open_client();
    for (int i = 0; i < THREADS; i++)
        REQUIRE_INT(0, pthread_create(&threads[i], NULL, visit_in_thread, family));
    for (uint32_t i = 0; i < CHILDREN; i++) {
        struct child child = { family, path, i + 1 };
        random_pause(2000);
        pids[i] = helper_start(visit_as_child, &child);
    }
    for (uint32_t i = 0; i < CHILDREN; i++)
        helper_join(pids[i]);
    atomic_store(&family->over, true);
    for (int i = 0; i < THREADS; i++)
        REQUIRE_INT(0, pthread_join(threads[i], NULL));
    hf_close(family->client);
    witness_check(&family->witness);
    check_intact(path);
}

TEST_LIMIT(children_use_the_database_of_a_busy_parent, 60)
{
    check_family("fork", "synchronous=off");
}

TEST_LIMIT(children_use_the_database_of_a_busy_parent_wal, 60)
{
    check_family("fork-wal", "journal=wal&synchronous=off");
}

/* A fork does not wait for a file that another program has locked, nor is the request that waits for it lost. */
struct locked {
    const char *path;
    struct gate locked, go;
};

static void lock_the_file(void *arg)
{
    struct locked *it = arg;
    sqlite3 *db = NULL;
    REQUIRE_INT(SQLITE_OK, sqlite3_open(it->path, &db));
    REQUIRE_INT(SQLITE_OK, sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL));
    gate_pass(&it->locked);
    gate_await(&it->go, 1);
    sqlite3_close(db);
}

static void do_nothing(void *arg)
{
    (void)arg;
}

TEST(a_fork_does_not_wait_for_a_locked_file)
{
    struct locked *it = shared_new(sizeof *it);
    struct waiter waiter;
    it->path = new_store("fork-locked", "synchronous=off");
    hf_client *client = open_client();
    pid_t pid = helper_start(lock_the_file, it);
    gate_await(&it->locked, 1);
    waiter_start(&waiter, client, "x", NULL);
    for (int i = 0; i < 5; i++)
        helper_join(helper_start(do_nothing, NULL)); /* while the file is still locked */
    CHECK_INT(0, gate_count(&waiter.ended));
    gate_pass(&it->go);
    helper_join(pid);
    waiter_finish(&waiter);
    hf_close(client);
}
