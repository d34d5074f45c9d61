/* SPDX-License-Identifier: MIT
 *
 * compare_sqlite.c: what Holdfast adds to the statements of an uncontended lease, and what a hand-off costs.
 *
 *     compare_sqlite PATH [OPTIONS] [ROUNDS]    prints one object of JSON; OPTIONS as in a URL, such as journal=wal
 *
 * The raw side runs the text of the engine's own statements, on a connection of its own to the same file, in turns with
 * Holdfast, so that both see the same machine.
 */
#include "compare_store.h"
#include "engines/sqlite/sqlite.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HANDOFFS 300
#define BATCH 50

/* --- plain SQLite --- */

struct raw {
    sqlite3 *db;
    sqlite3_stmt *take, *free;
};

static sqlite3_stmt *prepare(sqlite3 *db, const char *text)
{
    char expanded[4000];
    size_t used = 0;
    sqlite3_stmt *statement = NULL;
    while (*text && used + 40 < sizeof expanded) {
        if (text[0] == '{' && text[2] == '}') {
            used += (size_t)snprintf(expanded + used, sizeof expanded - used, "holdfast_locks%s",
                                     text[1] == 'L' ? "" : "_waiters");
            text += 3;
        } else {
            expanded[used++] = *text++;
        }
    }
    expanded[used] = 0;
    demand(sqlite3_prepare_v3(db, expanded, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL) == SQLITE_OK,
           sqlite3_errmsg(db));
    return statement;
}

static void open_raw(struct raw *raw, const char *path, const char *options)
{
    const struct sqlite_strategy *lease = hfi_sqlite_strategy("lease");
    const char *synchronous = strstr(options, "synchronous=");
    char pragma[60];
    demand(sqlite3_open_v2(path, &raw->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) == SQLITE_OK, "open");
    sqlite3_busy_timeout(raw->db, 5000);
    if (synchronous) {
        snprintf(pragma, sizeof pragma, "PRAGMA %.*s", (int)strcspn(synchronous, "&"), synchronous);
        demand(sqlite3_exec(raw->db, pragma, NULL, NULL, NULL) == SQLITE_OK, sqlite3_errmsg(raw->db));
    }
    raw->take = prepare(raw->db, lease->sql[LITE_TAKE]);
    raw->free = prepare(raw->db, lease->sql[LITE_FREE_ALONE]);
}

static void run(const struct raw *raw, sqlite3_stmt *statement, int rows)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    const int64_t now_ns = now.tv_sec * HFI_SECOND + now.tv_nsec;
    const int64_t numbers[] = { 0, 0, 77, 77, now_ns, now_ns + 30 * HFI_SECOND, 1, 0, 0, 1 };
    const int count = sqlite3_bind_parameter_count(statement);
    for (int i = 1; i <= count; i++) {
        if (i == 1 || i == 8 || i == 10)
            sqlite3_bind_text(statement, i, "raw", -1, SQLITE_STATIC);
        else
            sqlite3_bind_int64(statement, i, numbers[i]);
    }
    for (; rows > 0; rows--)
        demand(sqlite3_step(statement) == SQLITE_ROW, sqlite3_errmsg(raw->db));
    demand(sqlite3_step(statement) == SQLITE_DONE, sqlite3_errmsg(raw->db));
    sqlite3_reset(statement);
}

/* --- pairs --- */

static double raw_pair_us(const struct raw *raw)
{
    const double start = now_us();
    run(raw, raw->take, 1);
    run(raw, raw->free, 0);
    return now_us() - start;
}

/* --- hand-off --- */

int main(int argc, char **argv)
{
    demand(argc >= 2, "usage: compare_sqlite PATH [OPTIONS] [ROUNDS]");
    const char *options = argc > 2 ? argv[2] : "";
    const size_t rounds = argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 2000;
    double *ours = calloc(rounds, sizeof *ours), *theirs = calloc(rounds, sizeof *theirs), handoffs[HANDOFFS];
    char url[4096];
    struct raw raw = { .db = NULL };
    hf_client *client = NULL, *other = NULL;
    hf_error err = { 0 };
    snprintf(url, sizeof url, "sqlite://%s?%s", argv[1], options);
    demand(ours && theirs && rounds > 0, "no memory");
    demand(hf_open(&client, url, NULL, &err) == HF_OK && hf_open(&other, url, NULL, &err) == HF_OK, err.message);
    open_raw(&raw, argv[1], options);
    /* In batches by turns, so that both find caches and processors as warm, and share what else the machine does. */
    for (size_t i = 0; i < rounds; i += BATCH) {
        const size_t end = i + BATCH < rounds ? i + BATCH : rounds;
        for (size_t j = i; j < end; j++)
            ours[j] = our_pair_us(client);
        for (size_t j = i; j < end; j++)
            theirs[j] = raw_pair_us(&raw);
    }
    for (size_t i = 0; i < HANDOFFS; i++)
        handoffs[i] = our_handoff_us(client, other);
    const double mine = median(ours, rounds), raw_pair = median(theirs, rounds), handoff = median(handoffs, HANDOFFS);
    printf("{\"pair_us\": %.1f, \"raw_pair_us\": %.1f, \"ratio\": %.3f, \"handoff_us\": %.1f, "
           "\"handoff_in_raw_pairs\": %.2f}\n",
           mine, raw_pair, mine / raw_pair, handoff, handoff / raw_pair);
    sqlite3_finalize(raw.take);
    sqlite3_finalize(raw.free);
    sqlite3_close(raw.db);
    hf_close(client);
    hf_close(other);
    free(ours);
    free(theirs);
    return 0;
}
