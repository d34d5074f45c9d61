/* SPDX-License-Identifier: MIT
 *
 * sqlite_queue.c: who is served next. Whoever finds the lock free while others wait, mostly the one who frees it, hands
 * it to the first of them in the same transaction, for a short claim time, and then tells that client. The first in
 * line watches the holder meanwhile, which may die between the two.
 *
 * Who is dead is known by its FIFO, which nobody reads any more. One that dies after it was served is looked after by
 * the second in line, which is told to ask when the claim is over.
 */
#include "sqlite.h"
#include <stdio.h>

static int read_row(sqlite3_stmt *found, void *arg)
{
    struct sqlite_row *row = arg;
    row->there = sqlite3_column_int(found, 0);
    row->mine = sqlite3_column_int(found, 1);
    row->free = sqlite3_column_int(found, 2);
    row->waited = sqlite3_column_int(found, 3);
    row->token = sqlite3_column_int64(found, 4);
    row->pid = sqlite3_column_int64(found, 5);
    row->end_ns = sqlite3_column_int64(found, 6);
    row->owner.client = (uint64_t)sqlite3_column_int64(found, 7);
    row->owner.serial = (uint64_t)sqlite3_column_int64(found, 8);
    const unsigned char *host = sqlite3_column_text(found, 9);
    snprintf(row->host, sizeof row->host, "%s", host ? (const char *)host : "");
    return 0;
}

int hfi_sqlite_look(struct sqlite_store *store, const struct sqlite_values *values, struct sqlite_row *row)
{
    *row = (struct sqlite_row){ .there = false };
    return hfi_sqlite_run(store, LITE_LOOK, values, read_row, row);
}

struct search {
    const struct sqlite_store *store;
    struct sqlite_heirs *heirs;
    int64_t place; /* of the first; or of the last one, if all are dead */
};

static int consider(sqlite3_stmt *row, void *arg)
{
    struct search *search = arg;
    const struct hfi_owner owner = { (uint64_t)sqlite3_column_int64(row, 1), (uint64_t)sqlite3_column_int64(row, 2) };
    if (search->heirs->first.serial == 0)
        search->place = sqlite3_column_int64(row, 0);
    if (!hfi_sqlite_is_alive(search->store, owner.client))
        return 0;
    if (search->heirs->first.serial == 0)
        search->heirs->first = owner;
    else
        search->heirs->second = owner;
    return search->heirs->second.serial != 0;
}

int hfi_sqlite_serve(struct sqlite_store *store, struct sqlite_values *values, struct sqlite_heirs *heirs)
{
    struct search search = { .store = store, .heirs = heirs };
    struct sqlite_values gift = *values;
    int code = hfi_sqlite_run(store, LITE_QUEUE, values, consider, &search);
    gift.now_ns = hfi_sqlite_now(store);
    gift.end_ns = gift.now_ns + HFI_SQLITE_CLAIM;
    gift.number = search.place;
    if (code == SQLITE_OK && heirs->first.serial && store->config.strategy->count)
        code = hfi_sqlite_run(store, LITE_KEEP, &gift, NULL, NULL);
    if (code == SQLITE_OK && heirs->first.serial && store->config.strategy->count)
        code = hfi_sqlite_run(store, LITE_COUNT, &gift, NULL, NULL);
    if (code == SQLITE_OK && heirs->first.serial)
        code = hfi_sqlite_run(store, LITE_GIVE, &gift, NULL, NULL);
    if (code == SQLITE_OK && search.place)
        code = hfi_sqlite_run(store, LITE_STRIKE, &gift, NULL, NULL);
    return code;
}

void hfi_sqlite_tell_heirs(const struct sqlite_store *store, const struct sqlite_heirs *heirs)
{
    hfi_sqlite_tell(store, heirs->first, LITE_SAYS_SERVED, "");
    hfi_sqlite_tell(store, heirs->second, LITE_SAYS_SECOND, "");
}
