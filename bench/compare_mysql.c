/* SPDX-License-Identifier: MIT
 *
 * compare_mysql.c: what Holdfast adds to the statements of an uncontended lease, and what a hand-off costs.
 *
 *     compare_mysql URL [ROUNDS]    prints one object of JSON; mysql://root@HOST:PORT/DATABASE
 *
 * The raw side runs the engine's own two statements, prepared, with libmariadb's plain calls, in turns with Holdfast,
 * so that both see the same machine. A round trip is a statement that does nothing; round trips and hand-offs begin
 * after a rest, in which caches cool and processors slow down.
 */
#include "compare.h"
#include "engines/mysql/mysql_engine.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HANDOFFS 300
#define BATCH 100
#define REST_NS 1000000

static double now_us(void)
{
    return (double)now_ns() / 1e3;
}

/* --- plain libmariadb --- */

struct raw {
    MYSQL *client;
    MYSQL_STMT *take, *free, *nothing;
};

static const char owner[] = "00000000000000770000000000000077";

/* By the letters of the engine's table. */
static MYSQL_BIND value_of(char letter)
{
    static uint64_t ttl_ms = 30000, pid = 1;
    static const char *const texts[] = { ['n'] = "raw", ['o'] = owner, ['h'] = "host", ['k'] = "" };
    if (letter == 't' || letter == 'p')
        return (MYSQL_BIND){ .buffer_type = MYSQL_TYPE_LONGLONG, .buffer = letter == 't' ? &ttl_ms : &pid };
    return (MYSQL_BIND){ .buffer_type = strchr("no", letter) ? MYSQL_TYPE_BLOB : MYSQL_TYPE_STRING,
                         .buffer = (void *)texts[(int)letter],
                         .buffer_length = strlen(texts[(int)letter]) };
}

static MYSQL_STMT *prepare(MYSQL *client, const char *text)
{
    MYSQL_STMT *statement = mysql_stmt_init(client);
    if (!statement || mysql_stmt_prepare(statement, text, strlen(text)) != 0)
        die("%s", mysql_error(client));
    return statement;
}

/* As the engine does, the values are bound anew each time. */
static void run(MYSQL_STMT *statement, const char *letters)
{
    MYSQL_BIND binds[16];
    for (size_t i = 0; letters[i]; i++)
        binds[i] = value_of(letters[i]);
    if (*letters && mysql_stmt_bind_param(statement, binds) != 0)
        die("%s", mysql_stmt_error(statement));
    if (mysql_stmt_execute(statement) != 0)
        die("%s", mysql_stmt_error(statement));
}

static void open_raw(struct raw *raw, const struct mysql_config *config)
{
    raw->client = mysql_init(NULL);
    if (!mysql_real_connect(raw->client, config->host, config->user, config->password, config->database, config->port,
                            NULL, CLIENT_FOUND_ROWS) ||
        mysql_query(raw->client, "SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'") != 0)
        die("%s", mysql_error(raw->client));
    raw->take = prepare(raw->client, config->sql[SQL_TAKE]);
    raw->free = prepare(raw->client, config->sql[SQL_FREE]);
    raw->nothing = prepare(raw->client, "DO 1");
    run(prepare(raw->client, config->sql[SQL_ADD]), "n");
}

static double raw_pair_us(const struct raw *raw, const struct mysql_strategy *lease)
{
    const double start = now_us();
    run(raw->take, lease->sql[SQL_TAKE].parameters);
    if (mysql_stmt_affected_rows(raw->take) != 1)
        die("the raw side did not get its lock");
    run(raw->free, lease->sql[SQL_FREE].parameters);
    return now_us() - start;
}

static double round_trip_us(const struct raw *raw)
{
    const double start = now_us();
    run(raw->nothing, "");
    return now_us() - start;
}

/* --- Holdfast --- */

static double our_pair_us(hf_client *client)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    const double start = now_us();
    must(hf_acquire(&lock, client, "ours", NULL, &err), &err, "acquire");
    must(hf_release(lock, &err), &err, "release");
    return now_us() - start;
}

struct heir {
    hf_client *client;
    double got_us;
    hf_lock *lock;
};

static void *wait_in_thread(void *arg)
{
    struct heir *heir = arg;
    hf_error err = { 0 };
    must(hf_acquire(&heir->lock, heir->client, "handoff", NULL, &err), &err, "wait");
    heir->got_us = now_us();
    return NULL;
}

/* Until somebody waits in the server's queue. */
static void await_waiter(MYSQL *client)
{
    for (int tries = 0; tries < 100000; tries++) {
        if (mysql_query(client, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'") != 0)
            die("%s", mysql_error(client));
        MYSQL_RES *result = mysql_store_result(client);
        const bool waits = strcmp(mysql_fetch_row(result)[0], "1") == 0;
        mysql_free_result(result);
        if (waits)
            return;
    }
    die("nobody waits");
}

static double handoff_us(const struct raw *raw, hf_client *holder, hf_client *other)
{
    const struct timespec rest = { .tv_nsec = REST_NS };
    struct heir heir = { .client = other };
    hf_lock *lock = NULL;
    pthread_t thread;
    hf_error err = { 0 };
    must(hf_acquire(&lock, holder, "handoff", NULL, &err), &err, "acquire");
    if (pthread_create(&thread, NULL, wait_in_thread, &heir) != 0)
        die("no thread");
    await_waiter(raw->client);
    nanosleep(&rest, NULL);
    const double start = now_us();
    must(hf_release(lock, &err), &err, "release");
    pthread_join(thread, NULL);
    must(hf_release(heir.lock, &err), &err, "release");
    return heir.got_us - start;
}

int main(int argc, char **argv)
{
    const size_t rounds = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2000;
    double *ours = calloc(rounds, sizeof *ours), *theirs = calloc(rounds, sizeof *theirs), trips[HANDOFFS],
           handoffs[HANDOFFS];
    const struct timespec rest = { .tv_nsec = REST_NS };
    struct mysql_config config = { .port = 0 };
    struct raw raw;
    hf_client *client = NULL, *other = NULL;
    hf_error err = { 0 };
    if (argc < 2 || strncmp(argv[1], "mysql:", 6) != 0 || !ours || !theirs || rounds == 0)
        die("usage: compare_mysql mysql://USER@HOST:PORT/DATABASE [ROUNDS]");
    must(hfi_mysql_config_read(&config, &(struct hfi_url){ "mysql", argv[1] + 6 }, &err), &err, "read the URL");
    must(hf_open(&client, argv[1], NULL, &err), &err, "open");
    must(hf_open(&other, argv[1], NULL, &err), &err, "open");
    open_raw(&raw, &config);
    /* In batches by turns, so that both find caches and processors as warm, and share what else the machine does. */
    for (size_t i = 0; i < rounds; i += BATCH) {
        const size_t end = i + BATCH < rounds ? i + BATCH : rounds;
        for (size_t j = i; j < end; j++)
            ours[j] = our_pair_us(client);
        for (size_t j = i; j < end; j++)
            theirs[j] = raw_pair_us(&raw, config.strategy);
    }
    for (size_t i = 0; i < HANDOFFS; i++) {
        handoffs[i] = handoff_us(&raw, client, other);
        nanosleep(&rest, NULL);
        trips[i] = round_trip_us(&raw);
    }
    const double mine = median(ours, rounds), raw_pair = median(theirs, rounds), trip = median(trips, HANDOFFS),
                 handoff = median(handoffs, HANDOFFS);
    printf("{\"pair_us\": %.1f, \"raw_pair_us\": %.1f, \"ratio\": %.3f, \"round_trip_us\": %.1f, \"handoff_us\": %.1f, "
           "\"handoff_in_raw_pairs\": %.2f, \"handoff_in_round_trips\": %.2f}\n",
           mine, raw_pair, mine / raw_pair, trip, handoff, handoff / raw_pair, handoff / trip);
    hf_close(client);
    hf_close(other);
    hfi_mysql_config_free(&config);
    mysql_close(raw.client);
    free(ours);
    free(theirs);
    return 0;
}
