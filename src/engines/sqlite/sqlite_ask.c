/* SPDX-License-Identifier: MIT
 *
 * sqlite_ask.c: statements, transactions, and how long a file that somebody else has locked is waited for.
 *
 * A transaction begins as IMMEDIATE: one that reads first and writes then is refused if another has written in between,
 * however long it is ready to wait. What a statement returns is true only once its transaction has ended well.
 */
#include "sqlite.h"
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Between two looks whether the file is still locked. The kernel could tell, but SQLite does not ask it to. */
#define PAUSE_FIRST (HFI_MS / 10)
#define PAUSE_MOST (5 * HFI_MS)
#define TRIES_MOST 5

void hfi_sqlite_values(const struct sqlite_store *store, struct sqlite_values *values,
                       const struct hfi_request *request)
{
    *values = (struct sqlite_values){ .name = request->name,
                                      .client = (int64_t)request->owner.client,
                                      .serial = (int64_t)request->owner.serial,
                                      .boot = store->boot,
                                      .host = store->host,
                                      .pid = store->pid,
                                      .note = request->note };
}

hfi_time hfi_sqlite_now(const struct sqlite_store *store)
{
    return store->env->now_ns() - store->ahead_ns;
}

void hfi_sqlite_set_end(const struct sqlite_store *store, struct sqlite_values *values, uint32_t ttl_ms)
{
    values->now_ns = hfi_sqlite_now(store);
    values->end_ns = values->now_ns + ttl_ms * HFI_MS;
}

int hfi_sqlite_be_patient(void *memory, int count)
{
    const struct sqlite_store *store = memory;
    const hfi_time left = store->connection.deadline_ns - store->env->now_ns();
    if (left <= 0 || hfi_sqlite_is_called_off())
        return 0;
    hfi_time pause = PAUSE_FIRST << (count < 8 ? count : 8);
    pause = pause < PAUSE_MOST ? pause : PAUSE_MOST;
    pause = pause / 2 + (hfi_time)(store->env->random() % (uint64_t)(pause / 2 + 1));
    const struct timespec time = { .tv_nsec = pause < left ? pause : left };
    ppoll(NULL, 0, &time, NULL);
    return 1;
}

/* --- statements --- */

static sqlite3_stmt *prepare(struct sqlite_store *store, enum sqlite_statement statement, int *code)
{
    struct sqlite_connection *connection = &store->connection;
    *code = SQLITE_OK;
    if (!connection->prepared[statement])
        *code = sqlite3_prepare_v3(connection->db, store->config.sql[statement], -1, SQLITE_PREPARE_PERSISTENT,
                                   &connection->prepared[statement], NULL);
    return connection->prepared[statement];
}

/* As many as the statement has: they are numbered by how many need them. */
static int bind(sqlite3_stmt *statement, const struct sqlite_values *values)
{
    const int count = values ? sqlite3_bind_parameter_count(statement) : 0;
    int code = SQLITE_OK;
    for (int i = 1; i <= count && code == SQLITE_OK; i++) {
        switch (i) {
        case 1:
            code = sqlite3_bind_text(statement, i, values->name, -1, SQLITE_STATIC);
            break;
        case 8:
            code = sqlite3_bind_text(statement, i, values->host, -1, SQLITE_STATIC);
            break;
        case 10:
            code = sqlite3_bind_text(statement, i, values->note, -1, SQLITE_STATIC);
            break;
        default: {
            const int64_t numbers[] = { 0,
                                        0,
                                        values->client,
                                        values->serial,
                                        values->now_ns,
                                        values->end_ns,
                                        values->boot,
                                        values->number,
                                        0,
                                        values->pid };
            code = sqlite3_bind_int64(statement, i, numbers[i]);
        }
        }
    }
    return code;
}

static int step(sqlite3_stmt *statement, sqlite_each each, void *arg)
{
    while (sqlite3_step(statement) == SQLITE_ROW) {
        if (each && each(statement, arg) != 0)
            break;
    }
    return sqlite3_reset(statement); /* says what went wrong, and ends the transaction of a statement cut short */
}

int hfi_sqlite_run(struct sqlite_store *store, enum sqlite_statement statement, const struct sqlite_values *values,
                   sqlite_each each, void *arg)
{
    int code;
    sqlite3_stmt *prepared = prepare(store, statement, &code);
    if (code == SQLITE_OK)
        code = bind(prepared, values);
    return code == SQLITE_OK ? step(prepared, each, arg) : code;
}

int hfi_sqlite_say(struct sqlite_store *store, const char *text, sqlite_each each, void *arg)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(store->connection.db, text, -1, &statement, NULL);
    if (code == SQLITE_OK)
        code = step(statement, each, arg);
    sqlite3_finalize(statement);
    return code;
}

static bool is_same(const struct sqlite_companion *known, const struct stat *now)
{
    return now->st_ino == known->inode && now->st_dev == known->device;
}

static void note(struct sqlite_companion *known, const struct stat *now)
{
    known->there = true;
    known->inode = now->st_ino;
    known->device = now->st_dev;
    known->changed = now->st_mtim;
}

/* While a connection is open SQLite itself removes neither the log nor its index. */
static bool is_another(struct sqlite_companion *known)
{
    struct stat now;
    const bool there = stat(known->path, &now) == 0;
    if (known->there)
        return !there || !is_same(known, &now);
    if (there)
        note(known, &now);
    return false;
}

/* No file has come or gone since all was well. That is one look instead of three. A change that is younger than a
 * second may be followed by another at what the folder's clock calls the same time: it is not remembered. */
static bool is_quiet(struct sqlite_companion *folder)
{
    struct stat found;
    struct timespec now;
    if (stat(folder->path, &found) != 0)
        return false;
    if (folder->there && is_same(folder, &found) && found.st_mtim.tv_sec == folder->changed.tv_sec &&
        found.st_mtim.tv_nsec == folder->changed.tv_nsec)
        return true;
    clock_gettime(CLOCK_REALTIME, &now);
    note(folder, &found);
    folder->there = now.tv_sec - found.st_mtim.tv_sec > 1;
    return false;
}

int hfi_sqlite_check_file(struct sqlite_store *store)
{
    struct sqlite_connection *connection = &store->connection;
    int moved = 0;
    /* Without a log, files come and go with each transaction. */
    if (connection->wal.there && is_quiet(&connection->folder))
        return SQLITE_OK;
    sqlite3_file_control(connection->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    moved = moved || is_another(&connection->wal) || (connection->wal.there && is_another(&connection->shm));
    if (!moved)
        return SQLITE_OK;
    /* Closing it must not write what is in it over what others have written. */
    sqlite3_db_config(connection->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    return SQLITE_READONLY_DBMOVED;
}

/* --- whole exchanges --- */

/* What fails leaves its transaction open: to undo it would take away SQLite's words on what went wrong. */
static int run_once(struct sqlite_store *store, enum sqlite_kind kind, sqlite_work work, void *arg)
{
    int code = SQLITE_OK;
    if (kind == LITE_KIND_TRANSACTION)
        code = hfi_sqlite_run(store, LITE_BEGIN, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = work(store, arg);
    return code == SQLITE_OK && kind == LITE_KIND_TRANSACTION ? hfi_sqlite_run(store, LITE_COMMIT, NULL, NULL, NULL)
                                                              : code;
}

static void undo(struct sqlite_store *store)
{
    if (store->connection.db && !sqlite3_get_autocommit(store->connection.db))
        hfi_sqlite_run(store, LITE_ROLLBACK, NULL, NULL, NULL);
}

static bool is_missing_table(const struct sqlite_store *store, int code)
{
    return code == SQLITE_ERROR && strncmp(sqlite3_errmsg(store->connection.db), "no such table", 13) == 0;
}

/* After a refusal. HF_OK: ask again. Anything else: that is the answer. */
static hf_status judge(struct sqlite_store *store, enum sqlite_kind kind, int code, unsigned tries, hf_error *err)
{
    const bool in_time = store->env->now_ns() < store->connection.deadline_ns;
    if ((code & 0xff) == SQLITE_BUSY && hfi_sqlite_is_called_off() && in_time)
        return HF_OK;
    if (code == SQLITE_READONLY_DBMOVED) {
        hfi_sqlite_disconnect(&store->connection);
        store->env->recheck(store->env->core, 0); /* what we hold was in the other file */
        if (tries < TRIES_MOST)
            return HF_OK;
        return hfi_fail(err, HF_UNAVAILABLE, 0, "%.150s is being replaced again and again", store->config.path);
    }
    const hf_status status = hfi_sqlite_refusal(store, code, kind, err);
    if ((code & 0xff) == SQLITE_IOERR) /* whatever is wrong with it: the next one starts anew */
        hfi_sqlite_disconnect(&store->connection);
    return status;
}

hf_status hfi_sqlite_ask(struct sqlite_store *store, enum sqlite_kind kind, sqlite_work work, void *arg,
                         hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_OK;
    bool prepared = false;
    for (unsigned tries = 0; status == HF_OK; tries++) {
        status = hfi_sqlite_borrow(store, deadline_ns, err);
        if (status != HF_OK)
            break;
        const int code = run_once(store, kind, work, arg);
        const bool no_table = is_missing_table(store, code) && !prepared;
        if (code != SQLITE_OK && !no_table)
            status = judge(store, kind, code, tries, err);
        undo(store);
        hfi_sqlite_give_back(store);
        if (code == SQLITE_OK)
            break;
        if (no_table)
            status = hfi_sqlite_prepare_tables(store, deadline_ns, err);
        prepared = prepared || no_table;
    }
    return status;
}
