/* SPDX-License-Identifier: MIT
 *
 * sqlite_done.c: what is done once per some time: a row for each name, written in the transaction that frees the lock
 * and read in the one that takes it. It must outlast a reboot, so it is counted by the machine's wall clock (wall.c).
 */
#include "sqlite.h"
#include <stdio.h>

static int read_done(sqlite3_stmt *row, void *arg)
{
    struct sqlite_done *done = arg;
    const char *host = (const char *)sqlite3_column_text(row, 0), *note = (const char *)sqlite3_column_text(row, 2);
    const int64_t now_ms = hfi_wall_ms(), done_ms = sqlite3_column_int64(row, 3);
    snprintf(done->who, sizeof done->who, "%.64s:%lld%s%.80s", host ? host : "",
             (long long)sqlite3_column_int64(row, 1), note && *note ? " " : "", note ? note : "");
    done->left_ms = hfi_wall_done_left_ms(now_ms, done_ms, sqlite3_column_int64(row, 4));
    done->ago_ms = done->left_ms && now_ms > done_ms ? now_ms - done_ms : 0;
    done->owner.client = (uint64_t)sqlite3_column_int64(row, 5);
    done->owner.serial = (uint64_t)sqlite3_column_int64(row, 6);
    return 0;
}

int hfi_sqlite_find_done(struct sqlite_store *store, const struct sqlite_values *values, struct sqlite_done *done)
{
    *done = (struct sqlite_done){ .left_ms = 0 };
    return hfi_sqlite_run(store, LITE_DONE, values, read_done, done);
}

int hfi_sqlite_record_done(struct sqlite_store *store, const struct sqlite_values *values, uint64_t for_ms)
{
    struct sqlite_values record = *values;
    record.now_ns = hfi_wall_ms();
    record.end_ns = (int64_t)for_ms;
    return hfi_sqlite_run(store, LITE_RECORD_DONE, &record, NULL, NULL);
}

static int forget(struct sqlite_store *store, void *arg)
{
    const int code = hfi_sqlite_run(store, LITE_FORGET_DONE, arg, NULL, NULL);
    return code == SQLITE_OK ? hfi_sqlite_check_file(store) : code;
}

hf_status hfi_sqlite_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct sqlite_values values = { .name = name };
    return hfi_sqlite_ask(memory, LITE_KIND_WRITE, forget, &values, deadline_ns, err);
}
