/* SPDX-License-Identifier: MIT
 *
 * test_sqlite_doctor.c: what hf_examine() says of files that are set up well, and of some that are set up badly.
 */
#include "findings.h"
#include "sqlite_support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(a_good_file_has_nothing_wrong)
{
    for (size_t s = 0; s < STRATEGIES; s++) {
        char options[60];
        snprintf(options, sizeof options, "strategy=%s&journal=%s", strategy_names[s], s ? "wal" : "delete");
        new_store("good", options);
        hf_client *client = open_client();
        must_find_no_risk(find_with(client, 0));
        must_find(find_with(client, 0), s ? HF_FINDING_OK : HF_FINDING_NOTE, "journal", s ? "wal" : "delete");
        must_find(find_with(client, 0), HF_FINDING_OK, "writers", "nobody");
        hf_close(client);
    }
}

TEST(a_journal_that_is_not_written_is_found)
{
    new_store("off", "synchronous=off");
    hf_client *client = open_client();
    must_find(find_with(client, 0), HF_FINDING_RISK, "disk", "synchronous is OFF");
    hf_close(client);
}

static void check_mode(hf_client *client, const char *path, mode_t mode, const char *words)
{
    struct stat before;
    REQUIRE_INT(0, stat(path, &before));
    REQUIRE_INT(0, chmod(path, mode));
    must_find(find_with(client, 0), HF_FINDING_RISK, "permissions", words);
    REQUIRE_INT(0, chmod(path, before.st_mode & 07777));
    must_find_no_risk(find_with(client, 0));
}

TEST(files_that_others_may_change_are_found)
{
    char folder[300], other[500];
    snprintf(folder, sizeof folder, "%s/doctor-XXXXXX", getenv("TEST_DIRECTORY"));
    REQUIRE(mkdtemp(folder) != NULL);
    REQUIRE_INT(0, setenv("TEST_DIRECTORY", folder, 1));
    const char *path = new_store("open", "");
    hf_client *client = open_client();
    check_mode(client, path, 0666, "can take a lock from its holder");
    check_mode(client, folder, 0777, "put another file in its place");
    snprintf(other, sizeof other, "%s.other", path);
    REQUIRE_INT(0, link(path, other));
    must_find(find_with(client, 0), HF_FINDING_RISK, "file", "has 2 names");
    REQUIRE_INT(0, unlink(other));
    must_find_no_risk(find_with(client, 0));
    hf_close(client);
    REQUIRE_INT(0, unlink(path));
    REQUIRE_INT(0, rmdir(folder));
}

/* For as long as somebody's transaction lasts, in both kinds of journal. */
TEST(a_writer_that_does_not_end_is_found)
{
    static const char *const journals[] = { "journal=delete", "journal=wal" };
    for (size_t i = 0; i < 2; i++) {
        sqlite3 *db = NULL;
        char words[40];
        const char *path = new_store("busy", journals[i]);
        hf_client *client = open_client();
        REQUIRE_INT(SQLITE_OK, sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL));
        REQUIRE_INT(SQLITE_OK, sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL));
        snprintf(words, sizeof words, "process %d", (int)getpid());
        must_find(find_with(client, 0), HF_FINDING_RISK, "writers", words);
        REQUIRE_INT(SQLITE_OK, sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL));
        must_find(find_with(client, 0), HF_FINDING_OK, "writers", "nobody");
        sqlite3_close(db);
        hf_close(client);
    }
}

TEST(tables_that_cannot_keep_locks_are_found)
{
    const char *path = new_store("tables", "");
    hf_client *client = open_client();
    raw_do(path, "ALTER TABLE holdfast_locks RENAME TO kept; CREATE TABLE holdfast_locks AS SELECT * FROM kept");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "no unique index");
    raw_do(path, "DROP TABLE holdfast_locks; ALTER TABLE kept RENAME TO holdfast_locks");
    must_find_no_risk(find_with(client, 0));
    raw_do(path, "DROP TABLE holdfast_locks_waiters");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "is missing");
    CHECK_INT(0, raw_number(path, "SELECT count(*) FROM sqlite_master WHERE name = 'holdfast_locks_waiters'"));
    hf_close(client);
}

/* Where the rows of a table are, something else is written. */
TEST(a_damaged_file_is_found)
{
    static const char nonsense[4096] = "nonsense";
    const char *path = new_store("damaged", "journal=delete");
    hf_close(open_client());
    const int64_t page = raw_number(path, "SELECT rootpage FROM sqlite_master WHERE name = 'holdfast_locks_done'");
    const int64_t size = raw_number(path, "PRAGMA page_size");
    REQUIRE(page > 1 && size <= (int64_t)sizeof nonsense);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    REQUIRE_INT(size, pwrite(fd, nonsense, (size_t)size, (page - 1) * size));
    close(fd);
    hf_client *client = open_client();
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "damage", "");
    hf_close(client);
}

TEST(a_file_that_is_gone_is_found)
{
    const char *path = new_store("gone", "");
    hf_client *client = open_client();
    REQUIRE_INT(0, unlink(path));
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "file", "it is gone");
    CHECK(access(path, F_OK) != 0);
    hf_close(client);
}
