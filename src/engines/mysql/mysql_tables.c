/* SPDX-License-Identifier: MIT
 *
 * mysql_tables.c: the tables: checked when a client is opened, and made if they are missing and the user may. That of
 * marks, which older installations do not have, may be missing until somebody asks for once. The same statements are in
 * sql/holdfast-mysql.sql. Tables that version 0.1 made get the columns that it did not know; it can go on using them.
 */
#include "mysql_engine.h"
#include <string.h>

#define OURS                                                                                                           \
    "TABLE_SCHEMA = {D} AND TABLE_NAME IN ({T}, CONCAT({T}, '_grants'), CONCAT({T}, '_waiters'),"                      \
    " CONCAT({T}, '_fences'))"
#define MARKS "TABLE_SCHEMA = {D} AND TABLE_NAME = CONCAT({T}, '_done')"
#define FIRST "TABLE_SCHEMA = {D} AND TABLE_NAME = {T}"

/* How many are there, and the first; which have no transactions; does a unique index on the name alone guard the first,
 * without which two rows of a name would be two locks; are names compared byte by byte; and how many of the columns are
 * there that rows need and version 0.1 did not know? */
static const char check[] =
    "SELECT (SELECT COUNT(*) FROM information_schema.TABLES WHERE " OURS "),"
    " (SELECT COUNT(*) FROM information_schema.TABLES WHERE " FIRST "),"
    " (SELECT COUNT(*) FROM information_schema.TABLES WHERE (" OURS " OR " MARKS ") AND ENGINE <> 'InnoDB'),"
    " (SELECT COUNT(*) FROM information_schema.STATISTICS s WHERE " FIRST " AND NON_UNIQUE = 0 AND COLUMN_NAME = 'name'"
    " AND SUB_PART IS NULL AND (SELECT COUNT(*) FROM information_schema.STATISTICS o WHERE " FIRST
    " AND o.INDEX_NAME = s.INDEX_NAME) = 1),"
    " (SELECT COUNT(*) FROM information_schema.COLUMNS WHERE " FIRST " AND COLUMN_NAME = 'name'"
    " AND DATA_TYPE = 'varbinary' AND CHARACTER_OCTET_LENGTH >= 255),"
    " (SELECT COUNT(*) FROM information_schema.COLUMNS WHERE " OURS " AND COLUMN_NAME IN ('request', 'undone'))";
enum { COLUMN_THERE, COLUMN_FIRST_THERE, COLUMN_OTHER_ENGINE, COLUMN_GUARDED, COLUMN_BINARY, COLUMN_NEWER };
#define TABLES 4 /* without which there are no locks */

/* Whoever else uses the table waits behind this while it waits for a long reader: not for long. */
static const char *const alter[] = {
    "SET lock_wait_timeout = 1",
    "ALTER TABLE {L} ADD COLUMN request BIGINT UNSIGNED NOT NULL DEFAULT 0",
    "ALTER TABLE {L} ADD COLUMN undone BLOB",
    "ALTER TABLE {G} ADD COLUMN undone BLOB",
    "SET lock_wait_timeout = 5",
};
#define NEWER_COLUMNS 3

static const char create_locks[] =
    "CREATE TABLE IF NOT EXISTS {L} (name VARBINARY(255) NOT NULL PRIMARY KEY, token BIGINT UNSIGNED NOT NULL DEFAULT "
    "0,"
    " owner VARBINARY(32), epoch BIGINT UNSIGNED NOT NULL DEFAULT 0, bell BIGINT UNSIGNED NOT NULL DEFAULT 0,"
    " since DATETIME(6), expires DATETIME(6), ttl INT UNSIGNED, host VARCHAR(64) CHARACTER SET utf8mb4,"
    " pid BIGINT UNSIGNED, note VARCHAR(120) CHARACTER SET utf8mb4, request BIGINT UNSIGNED NOT NULL DEFAULT 0,"
    " undone BLOB) ENGINE=InnoDB";
static const char create_grants[] =
    "CREATE TABLE IF NOT EXISTS {G} (name VARBINARY(255) NOT NULL PRIMARY KEY, token BIGINT UNSIGNED NOT NULL DEFAULT "
    "0,"
    " owner VARBINARY(32), epoch BIGINT UNSIGNED NOT NULL DEFAULT 0, bell BIGINT UNSIGNED NOT NULL DEFAULT 0,"
    " claim DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00', lockname VARBINARY(64), connection BIGINT UNSIGNED,"
    " since DATETIME(6), host VARCHAR(64) CHARACTER SET utf8mb4, pid BIGINT UNSIGNED,"
    " note VARCHAR(120) CHARACTER SET utf8mb4, undone BLOB) ENGINE=InnoDB";
static const char create_waiters[] =
    "CREATE TABLE IF NOT EXISTS {W} (connection BIGINT UNSIGNED NOT NULL PRIMARY KEY, name VARBINARY(255) NOT NULL,"
    " owner VARBINARY(32) NOT NULL, since DATETIME(6) NOT NULL, host VARCHAR(64) CHARACTER SET utf8mb4, pid BIGINT "
    "UNSIGNED,"
    " note VARCHAR(120) CHARACTER SET utf8mb4, KEY (name)) ENGINE=InnoDB";
static const char create_fences[] =
    "CREATE TABLE IF NOT EXISTS {F} (resource VARBINARY(255) NOT NULL PRIMARY KEY, token BIGINT UNSIGNED NOT NULL)"
    " ENGINE=InnoDB";
static const char create_marks[] =
    "CREATE TABLE IF NOT EXISTS {N} (name VARBINARY(255) NOT NULL PRIMARY KEY, token BIGINT UNSIGNED NOT NULL,"
    " since DATETIME(6) NOT NULL, expires DATETIME(6) NOT NULL, host VARCHAR(64) CHARACTER SET utf8mb4,"
    " pid BIGINT UNSIGNED, note VARCHAR(120) CHARACTER SET utf8mb4) ENGINE=InnoDB";
static const char *const create[] = { create_locks, create_grants, create_waiters, create_fences, create_marks };

/* For programs that write in transactions of their own. Who may not create it can do without it. */
static const char create_guard[] =
    "CREATE PROCEDURE IF NOT EXISTS {P} (IN guarded VARBINARY(255), IN shown BIGINT UNSIGNED) MODIFIES SQL DATA"
    " BEGIN DECLARE highest BIGINT UNSIGNED; DECLARE sentence VARCHAR(128) CHARACTER SET utf8mb4;"
    " INSERT INTO {F} (resource, token) VALUES (guarded, shown)"
    " ON DUPLICATE KEY UPDATE token = GREATEST(token, shown);"
    " SELECT token INTO highest FROM {F} WHERE resource = guarded FOR UPDATE;"
    " IF highest > shown THEN SET sentence = CONCAT('token ', shown, ' is too old: ', highest, ' was shown before');"
    " SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = sentence; END IF; END";

static hf_status say(struct mysql_store *store, struct mysql_connection *connection, const char *template,
                     struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    char *text = hfi_mysql_expand(&store->config, template);
    if (!text)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    const hf_status status = hfi_mysql_say(store, connection, text, answer, deadline_ns, err);
    hfi_free(text);
    return status;
}

static hf_status make(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                      hf_error *err)
{
    hf_status status = HF_OK;
    for (size_t i = 0; i < sizeof create / sizeof create[0] && status == HF_OK; i++)
        status = say(store, connection, create[i], NULL, deadline_ns, err);
    if (status == HF_OK)
        say(store, connection, create_guard, NULL, deadline_ns, NULL);
    return status == HF_OK && connection->broken ? hfi_fail(err, HF_UNAVAILABLE, 0, "the connection broke") : status;
}

/* Of tables that are there. Somebody else may be at it as well. */
static hf_status add_columns(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                             hf_error *err)
{
    hf_status status = HF_OK;
    for (size_t i = 0; i < sizeof alter / sizeof alter[0] && status == HF_OK; i++) {
        hf_error trouble = { .native = 0 };
        status = say(store, connection, alter[i], NULL, deadline_ns, &trouble);
        if (status != HF_OK && hfi_mysql_is_there_already((unsigned)trouble.native))
            status = HF_OK;
        else if (status != HF_OK && err)
            *err = trouble;
    }
    return status;
}

static hf_status refuse_old(const struct mysql_config *config, const char *why, hf_error *err)
{
    char script[HFI_DATA_FILE_MAX];
    hfi_data_file(script, "holdfast-mysql.sql");
    return hfi_fail(
        err, HF_INVALID, 0,
        "the table %.50s was made by an older version%s; have its owner run %s, which adds the columns that "
        "are missing",
        config->table, why, script);
}

static hf_status refuse_missing(const struct mysql_config *config, const char *why, hf_error *err)
{
    char script[HFI_DATA_FILE_MAX];
    hfi_data_file(script, "holdfast-mysql.sql");
    return hfi_fail(err, HF_INVALID, 0, "the table %.50s or one of its companions is missing%s; have its owner run %s",
                    config->table, why, script);
}

/* What must not be, however it came to be. */
static hf_status judge(const struct mysql_config *config, const struct mysql_row *row, hf_error *err)
{
    const bool first = hfi_mysql_number(row, COLUMN_FIRST_THERE) > 0;
    if (hfi_mysql_number(row, COLUMN_OTHER_ENGINE) > 0)
        return hfi_fail(err, HF_INVALID, 0, "the table %.50s or one of its companions is not kept by InnoDB",
                        config->table);
    if (first && hfi_mysql_number(row, COLUMN_GUARDED) == 0)
        return hfi_fail(err, HF_INVALID, 0,
                        "the table %.50s has no unique index on its column name; without one it cannot hold locks",
                        config->table);
    if (first && hfi_mysql_number(row, COLUMN_BINARY) == 0)
        return hfi_fail(err, HF_INVALID, 0, "the column name of the table %.50s is not VARBINARY(255)", config->table);
    return HF_OK;
}

hf_status hfi_mysql_look_at_tables(struct mysql_store *store, struct mysql_connection *connection,
                                   struct mysql_tables *found, hfi_time deadline_ns, hf_error *err)
{
    const struct mysql_config *config = &store->config;
    struct mysql_answer answer = { .found = false };
    const hf_status status = say(store, connection, check, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    found->there = hfi_mysql_number(&answer.row, COLUMN_THERE) >= TABLES;
    found->newer = config->strategy->bound || hfi_mysql_number(&answer.row, COLUMN_NEWER) >= NEWER_COLUMNS;
    found->usable = judge(config, &answer.row, &found->why) == HF_OK;
    return HF_OK;
}

hf_status hfi_mysql_prepare_tables(struct mysql_store *store, struct mysql_connection *connection, bool wanted,
                                   hfi_time deadline_ns, hf_error *err)
{
    const struct mysql_config *config = &store->config;
    struct mysql_answer answer = { .found = false };
    hf_status status = say(store, connection, check, &answer, deadline_ns, err);
    if (status == HF_OK)
        status = judge(config, &answer.row, err);
    if (status != HF_OK)
        return status;
    if (wanted || hfi_mysql_number(&answer.row, COLUMN_THERE) < TABLES) {
        if (!config->create)
            return refuse_missing(config, "", err);
        status = make(store, connection, deadline_ns, err);
        if (status == HF_DENIED)
            return refuse_missing(config, " and this user may not create it", err);
        if (status == HF_OK)
            status = say(store, connection, check, &answer, deadline_ns, err);
    }
    if (status != HF_OK || config->strategy->bound || hfi_mysql_number(&answer.row, COLUMN_NEWER) >= NEWER_COLUMNS)
        return status;
    if (!config->create)
        return refuse_old(config, "", err);
    status = add_columns(store, connection, deadline_ns, err);
    return status == HF_DENIED ? refuse_old(config, " and this user may not alter it", err) : status;
}
