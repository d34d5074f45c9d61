/* SPDX-License-Identifier: MIT
 *
 * sqlite_connect.c: a client's connection, whose turn it is to use it, and what happens to it when the process forks.
 *
 * SQLite notes for each file, per process, which of the kernel's locks the process has. A forked child would inherit
 * the notes but not the locks, and its own connections to the same file would then read and write unprotected. So
 * nothing of SQLite may be open, and no thread inside of it, while the process forks: the one that wants to fork waits
 * until all have given their connection back, and closes them. They are opened again by their next use.
 *
 * Never open and close a database's file here in any other way: the kernel drops all locks that a process has on a file
 * as soon as it closes one descriptor of it.
 */
#include "sqlite.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t quiet; /* no connection is in use any more */
    unsigned in_use;
    atomic_uint forks; /* threads that want to fork */
    struct sqlite_store *stores;
} process = { .mutex = PTHREAD_MUTEX_INITIALIZER, .quiet = PTHREAD_COND_INITIALIZER };

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* --- fork --- */

bool hfi_sqlite_is_called_off(void)
{
    return atomic_load(&process.forks) > 0;
}

static void before_fork(void)
{
    pthread_mutex_lock(&process.mutex);
    atomic_fetch_add(&process.forks, 1);
    while (process.in_use > 0)
        pthread_cond_wait(&process.quiet, &process.mutex);
    for (struct sqlite_store *store = process.stores; store; store = store->next) {
        if (store->connection.db) /* or the last one to close would tidy up, which takes a while */
            sqlite3_db_config(store->connection.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        hfi_sqlite_disconnect(&store->connection);
    }
}

static void after_fork_in_parent(void)
{
    atomic_fetch_sub(&process.forks, 1);
    for (struct sqlite_store *store = process.stores; store; store = store->next)
        pthread_cond_broadcast(&store->turn);
    pthread_mutex_unlock(&process.mutex);
}

/* The parent's clients are not this process's. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&process.mutex, NULL);
    pthread_cond_init(&process.quiet, NULL);
    atomic_store(&process.forks, 0);
    process.in_use = 0;
    process.stores = NULL;
}

static void install(void)
{
    /* The library's own handlers first, so that they run after ours before a fork: who has a connection may then still
     * open descriptors, and never waits for the thread that waits for it. */
    hfi_fd_begin();
    hfi_fd_end(-1);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void hfi_sqlite_join_process(struct sqlite_store *store)
{
    pthread_once(&once, install);
    pthread_cond_init(&store->turn, NULL);
    pthread_mutex_lock(&process.mutex);
    store->next = process.stores;
    process.stores = store;
    pthread_mutex_unlock(&process.mutex);
}

/* --- the connection --- */

void hfi_sqlite_disconnect(struct sqlite_connection *connection)
{
    for (size_t i = 0; i < LITE_STATEMENTS; i++) {
        sqlite3_finalize(connection->prepared[i]);
        connection->prepared[i] = NULL;
    }
    sqlite3_close(connection->db);
    connection->db = NULL;
}

/* "PRAGMA name = word", of the words that sqlite_url.c knows. */
static int set_pragma(struct sqlite_store *store, const char *name, const char *word)
{
    char text[64];
    if (!*word)
        return SQLITE_OK;
    snprintf(text, sizeof text, "PRAGMA %s = %s", name, word);
    return hfi_sqlite_say(store, text, NULL, NULL);
}

static void name_companion(struct sqlite_companion *companion, const struct sqlite_config *config, const char *suffix)
{
    companion->there = false;
    snprintf(companion->path, sizeof companion->path, "%s%s", config->path, suffix);
}

static int connect(struct sqlite_store *store)
{
    const struct sqlite_config *config = &store->config;
    sqlite3 **db = &store->connection.db;
    name_companion(&store->connection.wal, config, "-wal");
    name_companion(&store->connection.shm, config, "-shm");
    name_companion(&store->connection.folder, config, "");
    strrchr(store->connection.folder.path, '/')[1] = 0;
    const int flags = SQLITE_OPEN_READWRITE | (config->create ? SQLITE_OPEN_CREATE : 0) | SQLITE_OPEN_NOMUTEX |
                      SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;
    int code = sqlite3_open_v2(config->path, db, flags, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_busy_handler(*db, hfi_sqlite_be_patient, store);
    if (code == SQLITE_OK)
        code = set_pragma(store, "journal_mode", config->journal);
    if (code == SQLITE_OK)
        code = set_pragma(store, "synchronous", config->synchronous);
    return code == SQLITE_OK && sqlite3_db_readonly(*db, "main") == 1 ? SQLITE_READONLY : code;
}

/* --- whose turn it is --- */

/* False: it did not come in time. With the mutex. */
static bool await_turn(struct sqlite_store *store, hfi_time deadline_ns)
{
    bool in_time = true;
    store->queue++;
    do {
        struct timespec until;
        const hfi_time left = deadline_ns - store->env->now_ns();
        clock_gettime(CLOCK_MONOTONIC, &until);
        const hfi_time at = until.tv_sec * HFI_SECOND + until.tv_nsec + left;
        until = (struct timespec){ .tv_sec = at / HFI_SECOND, .tv_nsec = at % HFI_SECOND };
        in_time = left > 0;
        if (in_time)
            pthread_cond_clockwait(&store->turn, &process.mutex, CLOCK_MONOTONIC, &until);
    } while (in_time && (store->in_use || hfi_sqlite_is_called_off()));
    store->queue--;
    if (!in_time) /* the call that woke us may have been for another */
        pthread_cond_signal(&store->turn);
    return in_time;
}

static bool take_turn(struct sqlite_store *store, hfi_time deadline_ns)
{
    pthread_mutex_lock(&process.mutex);
    /* Who comes while others wait lines up behind them: the keeper must not wait for ever for busy threads. */
    bool mine = !store->in_use && store->queue == 0 && !hfi_sqlite_is_called_off();
    if (!mine)
        mine = await_turn(store, deadline_ns);
    if (mine) {
        store->in_use = true;
        process.in_use++;
    }
    pthread_mutex_unlock(&process.mutex);
    return mine;
}

hf_status hfi_sqlite_borrow(struct sqlite_store *store, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_OK;
    bool again = true;
    while (again) {
        if (!take_turn(store, deadline_ns))
            return hfi_fail(err, HF_UNAVAILABLE, 0, "other threads of this client were using %.150s until the deadline",
                            store->config.path);
        store->connection.deadline_ns = deadline_ns;
        const int code = store->connection.db ? SQLITE_OK : connect(store);
        if (code == SQLITE_OK)
            return HF_OK;
        again = hfi_sqlite_is_called_off() && store->env->now_ns() < deadline_ns;
        status = hfi_sqlite_refusal(store, code, LITE_KIND_READ, err);
        hfi_sqlite_disconnect(&store->connection);
        hfi_sqlite_give_back(store);
    }
    return status;
}

void hfi_sqlite_give_back(struct sqlite_store *store)
{
    pthread_mutex_lock(&process.mutex);
    store->in_use = false;
    if (--process.in_use == 0 && hfi_sqlite_is_called_off())
        pthread_cond_broadcast(&process.quiet);
    if (store->queue > 0)
        pthread_cond_signal(&store->turn);
    pthread_mutex_unlock(&process.mutex);
}

void hfi_sqlite_leave_process(struct sqlite_store *store)
{
    /* Closing may take a while, and nobody else should wait for it but those who want to fork. */
    if (take_turn(store, store->env->now_ns() + store->env->timeout_ns)) {
        if (store->connection.db)
            hfi_sqlite_check_file(store);
        hfi_sqlite_disconnect(&store->connection);
        hfi_sqlite_give_back(store);
    }
    pthread_mutex_lock(&process.mutex);
    struct sqlite_store **link = &process.stores;
    while (*link != store)
        link = &(*link)->next;
    *link = store->next;
    pthread_mutex_unlock(&process.mutex);
    pthread_cond_destroy(&store->turn);
}
