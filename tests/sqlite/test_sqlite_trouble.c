/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_trouble.c: what can be wrong with a URL, a file, a table or a disk has a status and a sentence; and what
 * is not ours in a database stays as it is.
 */
#include "engines/local.h"
#include "findings.h"
#include "sqlite_support.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

TEST(urls_that_make_no_sense)
{
    check_open("sqlite:", HF_INVALID, "looks like this");
    check_open("sqlite:here.db", HF_INVALID, "looks like this");
    check_open("sqlite://host/a.db", HF_INVALID, "looks like this");
    check_open("sqlite::memory:", HF_INVALID, "looks like this");
    check_open("sqlite:///", HF_INVALID, "looks like this");
    check_open("sqlite:///tmp/%zz", HF_INVALID, "hexadecimal");
    check_open("sqlite:///tmp/a%00", HF_INVALID, "%00");
    check_open("sqlite:///tmp/a.db#b", HF_INVALID, "%23");
    check_open("sqlite:///tmp/a.db?strategy=mutex", HF_INVALID, "lease, insert or version");
    check_open("sqlite:///tmp/a.db?strategy=", HF_INVALID, "strategy");
    check_open("sqlite:///tmp/a.db?table=1a", HF_INVALID, "table is a name");
    check_open("sqlite:///tmp/a.db?table=a'b", HF_INVALID, "table is a name");
    check_open("sqlite:///tmp/a.db?table=sqlite_a", HF_INVALID, "table is a name");
    check_open("sqlite:///tmp/a.db?create=maybe", HF_INVALID, "yes or no");
    check_open("sqlite:///tmp/a.db?journal=off", HF_INVALID, "journal is");
    check_open("sqlite:///tmp/a.db?synchronous=never", HF_INVALID, "synchronous is");
    check_open("sqlite:///tmp/a.db?colour=blue", HF_INVALID, "colour");
}

TEST(strategies_that_no_sqlite_file_can_have)
{
    check_open("sqlite:///tmp/a.db?strategy=for-update", HF_UNSUPPORTED, "no row locks");
    check_open("sqlite:///tmp/a.db?strategy=advisory", HF_UNSUPPORTED, "no session's locks");
    check_open("sqlite:///tmp/a.db?strategy=get-lock", HF_UNSUPPORTED, "lock the whole file");
    CHECK(access("/tmp/a.db", F_OK) != 0);
}

TEST(network_file_systems_are_known)
{
    static const uint32_t shared[] = {
        0x6969,      0xfe534d42u, 0x00c36400u, 0x65735546u, 0x01021997u, /* NFS, SMB, Ceph, FUSE, 9p */
        0x0bd00bd0u, 0x47504653u, 0x7461636fu, 0x01161970u, 0x19830326u, /* Lustre, GPFS, OCFS2, GFS2, BeeGFS */
        0x786f4256u, 0x6b414653u, 0x5346414fu, 0x20030528u,              /* VirtualBox, AFS twice, OrangeFS */
    };
    static const uint32_t local[] = { 0xef53, 0x58465342, 0x9123683e, 0x01021994, 0x794c7630, 0x2fc12fc1 };
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        CHECK(hfi_is_network_file_system(shared[i], 0));
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) /* ext4, XFS, Btrfs, tmpfs, overlay, ZFS */
        CHECK(!hfi_is_network_file_system(local[i], 0));
}

static void write_file(const char *path, const char *text, size_t times, long offset)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    for (size_t i = 0; i < times; i++)
        REQUIRE_INT(strlen(text), pwrite(fd, text, strlen(text), offset + (long)(i * strlen(text))));
    close(fd);
}

TEST(files_that_are_no_database)
{
    const char *path = new_path("no-database");
    check_open_path("/no-such-folder/a.db", "", HF_UNAVAILABLE, "/no-such-folder/a.db");
    check_open_path(getenv("TEST_DIRECTORY"), "", HF_UNAVAILABLE, "cannot open");
    check_open_path(path, "create=no", HF_INVALID, "create=no");
    CHECK(access(path, F_OK) != 0);
    write_file(path, "a letter to my aunt, which is no database. ", 200, 0);
    check_open_path(path, "", HF_INVALID, "not an SQLite database");
}

TEST(a_damaged_database)
{
    const char *path = new_store("damaged", "synchronous=off");
    raw_do(path, "INSERT INTO holdfast_locks (name) VALUES ('x')");
    for (long page = 1; page < 3; page++) /* the schema is on the first, and is read when it is opened */
        write_file(path, "\xff\xfe\xfd\xfc", 512, page * 4096);
    hf_client *client = open_client();
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INTERNAL, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "damaged") != NULL);
    hf_close(client);
}

/* --- rights --- */

static void become_nobody(void)
{
    if (geteuid() != 0)
        return; /* then the bits of the files say it already */
    REQUIRE_INT(0, setgroups(0, NULL));
    REQUIRE_INT(0, setgid(NOBODY));
    REQUIRE_INT(0, setuid(NOBODY));
}

struct folder {
    char text[64];
};

/* Where others may look too, unlike in the build's own. */
static struct folder open_folder_for_all(void)
{
    struct folder folder = { "/tmp/holdfast-sqlite-XXXXXX" };
    REQUIRE(mkdtemp(folder.text) != NULL);
    REQUIRE_INT(0, chmod(folder.text, 0755));
    return folder;
}

static void remove_folder(const struct folder *folder)
{
    char path[100];
    snprintf(path, sizeof path, "%s/a.db", folder->text);
    unlink(path);
    rmdir(folder->text);
}

static void open_as_nobody(void *arg)
{
    const char *const *what = arg;
    become_nobody();
    check_open_path(what[0], "", HF_DENIED, what[1]);
}

static void acquire_as_nobody(void *arg)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    store_url = arg;
    become_nobody();
    hf_client *client = open_client();
    CHECK_STATUS(HF_DENIED, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "folder is read-only") != NULL);
    hf_close(client);
}

TEST(files_that_may_not_be_written)
{
    const struct folder folder = open_folder_for_all();
    char path[100];
    snprintf(path, sizeof path, "%s/a.db", folder.text);
    const char *what[] = { path, "cannot open" };
    new_store("loaded", ""); /* loads the engine, which may be where nobody cannot get: in root's home */
    REQUIRE_INT(0, chmod(folder.text, 0555));
    helper_join(helper_start(open_as_nobody, what)); /* no file, and none may be made */
    REQUIRE_INT(0, chmod(folder.text, 0755));
    check_open_path(path, "", HF_OK, "");
    REQUIRE_INT(0, chmod(path, 0444));
    what[1] = "read-only";
    helper_join(helper_start(open_as_nobody, what));
    REQUIRE_INT(0, chmod(path, 0000));
    what[1] = "cannot open";
    helper_join(helper_start(open_as_nobody, what));
    /* The file may be, but no journal can be put beside it. */
    char url[120];
    snprintf(url, sizeof url, "sqlite://%s", path);
    REQUIRE_INT(0, chmod(path, 0666));
    REQUIRE_INT(0, chmod(folder.text, 0555));
    helper_join(helper_start(acquire_as_nobody, url));
    REQUIRE_INT(0, chmod(folder.text, 0755));
    remove_folder(&folder);
}

struct neighbour {
    char url[200];
    struct gate ready;
};

static void wait_as_nobody(void *arg)
{
    struct neighbour *it = arg;
    store_url = it->url;
    become_nobody();
    hf_client *client = open_client();
    gate_pass(&it->ready);
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}

/* Whoever may write to the database is woken by whoever else may. */
TEST(users_wake_each_other)
{
    const struct folder folder = open_folder_for_all();
    struct neighbour *it = shared_new(sizeof *it);
    char path[100];
    snprintf(it->url, sizeof it->url, "sqlite://%s/a.db", folder.text);
    snprintf(path, sizeof path, "%s/a.db", folder.text);
    REQUIRE_INT(0, chmod(folder.text, 01777));
    check_open(it->url, HF_OK, "");
    REQUIRE_INT(0, chmod(path, 0666));
    store_url = it->url;
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = endless_ttl_ms();
    hf_lock *lock = must_acquire(client, "x", &options);
    pid_t pid = helper_start(wait_as_nobody, it);
    while (raw_number(path, "SELECT count(*) FROM holdfast_locks_waiters") < 1)
        REQUIRE(test_now_ns() < test_deadline_ns());
    must_release(lock);
    helper_join(pid);
    hf_close(client);
    remove_folder(&folder);
}

/* --- a full disk --- */

static void work_on_a_small_disk(void *arg)
{
    const char *folder = arg;
    char path[100], filler[100];
    enter_namespaces(CLONE_NEWNS);
    REQUIRE_INT(0, mount("small", folder, "tmpfs", 0, "size=256k"));
    snprintf(path, sizeof path, "sqlite://%s/a.db", folder);
    snprintf(filler, sizeof filler, "%s/filler", folder);
    store_url = path;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "held", NULL), *none = NULL;
    hf_error err = { 0 };

    must_find(find_with(client, 0), HF_FINDING_RISK, "room", "KiB are free");
    FILE *file = fopen(filler, "we");
    REQUIRE(file != NULL);
    setvbuf(file, NULL, _IONBF, 0);
    while (fputc('x', file) != EOF)
        ;
    CHECK_INT(ENOSPC, errno);
    fclose(file);
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&none, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "full") != NULL);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(lock, &err), &err);
    CHECK_INT(0, unlink(filler));
    /* The keeper finishes the release. */
    check_becomes_free(client, "held");
    check_free(client, "x");
    hf_close(client);
}

TEST(a_full_disk)
{
    need_namespaces();
    struct folder folder = open_folder_for_all();
    helper_join(helper_start(work_on_a_small_disk, folder.text));
    rmdir(folder.text);
}

/* --- a file that somebody else has locked --- */

struct intruder {
    const char *path;
    struct gate locked, go;
};

static void lock_the_file(void *arg)
{
    struct intruder *it = arg;
    sqlite3 *db = NULL;
    REQUIRE_INT(SQLITE_OK, sqlite3_open(it->path, &db));
    REQUIRE_INT(SQLITE_OK, sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL));
    gate_pass(&it->locked);
    gate_await(&it->go, 1);
    REQUIRE_INT(SQLITE_OK, sqlite3_exec(db, "COMMIT", NULL, NULL, NULL));
    sqlite3_close(db);
}

static void check_intrusion(const char *label, const char *options)
{
    struct intruder *it = shared_new(sizeof *it);
    it->path = new_store(label, options);
    hf_client_options short_of_time = HF_CLIENT_OPTIONS_INIT;
    short_of_time.timeout_ms = 200;
    hf_client *client = NULL, *late = NULL;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    struct waiter waiter;
    REQUIRE_STATUS(HF_OK, hf_open(&client, store_url, &short_of_time, &err), &err);
    pid_t pid = helper_start(lock_the_file, it);
    gate_await(&it->locked, 1);
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "locked by another program") != NULL);
    if (!strstr(options, "wal")) /* there, readers are let in */
        CHECK_STATUS(HF_UNAVAILABLE, hf_open(&late, store_url, &short_of_time, &err), &err);
    /* A wait outlasts it. */
    waiter_start(&waiter, client, "x", NULL);
    CHECK(!gate_await_for(&waiter.ended, 1, 100));
    gate_pass(&it->go);
    waiter_finish(&waiter);
    helper_join(pid);
    hf_close(late);
    hf_close(client);
}

TEST(another_program_that_holds_the_file)
{
    check_intrusion("intruder", "synchronous=off");
}

TEST(another_program_that_holds_the_file_wal)
{
    check_intrusion("intruder-wal", "journal=wal");
}

/* --- tables --- */

TEST(tables_that_are_missing)
{
    const char *path = new_path("tables");
    raw_do(path, "CREATE TABLE stock (item TEXT)");
    check_open_path(path, "create=no", HF_INVALID, "holdfast-sqlite.sql");
    CHECK_INT(1, raw_number(path, "SELECT count(*) FROM sqlite_master"));
    check_open_path(path, "table=jobs", HF_OK, "");
    CHECK_INT(4, raw_number(path, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name LIKE 'jobs%%'"));
    check_open_path(path, "table=jobs&create=no", HF_OK, "");
    raw_do(path, "DROP TABLE jobs_done"); /* as it was made by version 0.1 */
    check_open_path(path, "table=jobs&create=no", HF_INVALID, "holdfast-sqlite.sql");
    check_open_path(path, "table=jobs", HF_OK, "");
}

TEST(tables_that_are_dropped_under_a_client_are_made_anew)
{
    for (size_t i = 0; i < STRATEGIES; i++) {
        char options[60];
        hf_options once = HF_OPTIONS_INIT;
        snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy_names[i]);
        const char *path = new_store("dropped", options);
        hf_client *client = open_client();
        must_release(must_acquire(client, "x", NULL));
        raw_do(path, "DROP TABLE holdfast_locks; DROP TABLE holdfast_locks_waiters");
        must_release(must_acquire(client, "x", NULL));
        raw_do(path, "DROP TABLE holdfast_locks_done");
        once.once_per_ms = 3600000;
        CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, "x", &once), NULL), NULL);
        hf_close(client);
    }
}

/* What version 0.1 made: it gets the column that is missing; or there is a sentence that says what helps. */
TEST(a_table_of_an_older_version)
{
    const char *path = new_store("older", "synchronous=off");
    raw_do(path, "ALTER TABLE holdfast_locks DROP COLUMN renewed");
    check_open_path(path, "create=no", HF_INVALID, "ALTER TABLE holdfast_locks ADD COLUMN renewed INTEGER");
    check_open_path(path, "", HF_OK, "");
    CHECK_INT(1, raw_number(path, "SELECT count(*) FROM pragma_table_info('holdfast_locks') WHERE name = 'renewed'"));
    raw_do(path, "ALTER TABLE holdfast_locks DROP COLUMN renewed");
    raw_do(path, "ALTER TABLE holdfast_locks ADD COLUMN renewed INTEGER");
    check_open_path(path, "create=no", HF_OK, "");
}

/* It was held for long before this boot, by version 0.1: whether the column was added before or after, and whoever had
 * the row before, it is over. */
TEST(a_row_of_an_older_version_is_over_with_its_boot)
{
    static const char *const renewed[] = { NULL, "NULL", "1" };
    for (size_t i = 0; i < 3 * STRATEGIES; i++) {
        char options[60];
        snprintf(options, sizeof options, "synchronous=off&strategy=%s", strategy_names[i / 3]);
        const char *path = new_store("dead", options);
        if (!renewed[i % 3])
            raw_do(path, "ALTER TABLE holdfast_locks DROP COLUMN renewed");
        raw_do(path, "INSERT INTO holdfast_locks (name, token, client, serial, boot, since, expires)"
                     " VALUES ('x', 1, 5, 5, 5, 2, 9000000000000000000)");
        if (renewed[i % 3])
            raw_do(path, "UPDATE holdfast_locks SET renewed = %s", renewed[i % 3]);
        hf_client *client = open_client();
        check_free(client, "x");
        hf_close(client);
    }
}

TEST(the_schema_for_others_is_the_same)
{
    const char *path = new_store("made-by-us", "synchronous=off");
    char ours[300], command[1500];
    snprintf(ours, sizeof ours, "%s", path);
    path = new_path("made-by-them");
    snprintf(command, sizeof command, "sqlite3 '%s' < '%s'", path, getenv("TEST_SCHEMA"));
    FILE *shell = popen(command, "r");
    REQUIRE(shell != NULL);
    CHECK_INT(0, pclose(shell));
    check_open_path(path, "create=no", HF_OK, "");
    CHECK_INT(0, raw_number(path,
                            "ATTACH '%s' AS ours; SELECT count(*) FROM (SELECT m.name, i.name, i.type, i.pk FROM"
                            " main.sqlite_master m, pragma_table_info(m.name, 'main') i EXCEPT SELECT m.name, i.name,"
                            " i.type, i.pk FROM ours.sqlite_master m, pragma_table_info(m.name, 'ours') i)",
                            ours));
    CHECK_INT(raw_number(ours, "SELECT count(*) FROM sqlite_master"),
              raw_number(path, "SELECT count(*) FROM sqlite_master"));
}

TEST(a_table_without_a_unique_index_is_refused)
{
    const char *path = new_path("no-index");
    raw_do(path, "CREATE TABLE mine (name TEXT, token INTEGER)");
    check_open_path(path, "table=mine", HF_INVALID, "unique index");
    raw_do(path, "CREATE UNIQUE INDEX several ON mine (name, token); CREATE UNIQUE INDEX some ON mine (name) WHERE 1");
    check_open_path(path, "table=mine", HF_INVALID, "unique index");
    raw_do(path, "CREATE TABLE loose (name TEXT COLLATE NOCASE PRIMARY KEY)");
    check_open_path(path, "table=loose", HF_INVALID, "capitals");
    /* One that is guarded, but has other columns. */
    raw_do(path, "CREATE TABLE other (name TEXT PRIMARY KEY)");
    char url[500];
    snprintf(url, sizeof url, "sqlite://%s?table=other", path);
    store_url = url;
    hf_client *client = open_client();
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&lock, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "column") != NULL);
    hf_close(client);
}

/* A guest: what was there stays as it was, in either journal mode. */
static void check_guest(const char *label, const char *mode)
{
    const char *path = new_path(label);
    char url[500];
    raw_do(path,
           "PRAGMA journal_mode = %s; PRAGMA user_version = 7; PRAGMA application_id = 8;"
           "CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER); INSERT INTO stock VALUES ('nails', 1000);"
           "CREATE TRIGGER only_more BEFORE UPDATE ON stock BEGIN SELECT RAISE(ABORT, 'less') WHERE NEW.count < "
           "OLD.count; END",
           mode);
    snprintf(url, sizeof url, "sqlite://%s", path);
    store_url = url;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    raw_do(path, "UPDATE stock SET count = count + 1"); /* a held lock locks nothing of the file */
    must_release(lock);
    hf_close(client);
    CHECK_INT(1001, raw_number(path, "SELECT count FROM stock"));
    CHECK_INT(7, raw_number(path, "PRAGMA user_version"));
    CHECK_INT(8, raw_number(path, "PRAGMA application_id"));
    CHECK_INT(1, raw_number(path, "SELECT journal_mode = '%s' FROM pragma_journal_mode", mode));
    CHECK_INT(0, raw_number(path, "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE '%%holdfast%%'"
                                  " AND tbl_name <> 'stock'"));
    check_intact(path);
}

TEST(an_application_s_database_stays_as_it_is)
{
    check_guest("guest-delete", "delete");
    check_guest("guest-wal", "wal");
}
