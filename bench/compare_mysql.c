/* SPDX-License-Identifier: MIT
 *
 * compare_mysql.c: what Holdfast adds to the statements of an uncontended lease, and what a hand-off costs.
 *
 *     compare_mysql URL [ROUNDS]           prints one object of JSON; mysql://root@HOST:PORT/DATABASE
 *     compare_mysql --bare URL [ROUNDS]    pairs of all strategies beside the server's own lock functions
 *
 * The raw side runs the engine's own two statements, prepared, with libmariadb's plain calls, in turns with Holdfast,
 * so that both see the same machine. A round trip is a statement that does nothing; round trips and hand-offs begin
 * after a rest, in which caches cool and processors slow down.
 */
#include "compare_store.h"
#include "engines/mysql/mysql_engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDOFFS 300
#define BATCH 100

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
    if (strchr("tpr", letter)) /* the number of a request: as large as the process's */
        return (MYSQL_BIND){ .buffer_type = MYSQL_TYPE_LONGLONG, .buffer = letter == 't' ? &ttl_ms : &pid };
    return (MYSQL_BIND){ .buffer_type = strchr("no", letter) ? MYSQL_TYPE_BLOB : MYSQL_TYPE_STRING,
                         .buffer = (void *)texts[(int)letter],
                         .buffer_length = strlen(texts[(int)letter]) };
}

static MYSQL_STMT *prepare(MYSQL *client, const char *text)
{
    MYSQL_STMT *statement = mysql_stmt_init(client);
    demand(statement && mysql_stmt_prepare(statement, text, strlen(text)) == 0, mysql_error(client));
    return statement;
}

/* As the engine does, the values are bound anew each time. */
static void run(MYSQL_STMT *statement, const char *letters)
{
    MYSQL_BIND binds[16];
    for (size_t i = 0; letters[i]; i++)
        binds[i] = value_of(letters[i]);
    demand(!*letters || mysql_stmt_bind_param(statement, binds) == 0, mysql_stmt_error(statement));
    demand(mysql_stmt_execute(statement) == 0, mysql_stmt_error(statement));
}

static void open_raw(struct raw *raw, const struct mysql_config *config)
{
    raw->client = mysql_init(NULL);
    demand(mysql_real_connect(raw->client, config->host, config->user, config->password, config->database, config->port,
                              NULL, CLIENT_FOUND_ROWS) &&
               mysql_query(raw->client, "SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'") == 0,
           mysql_error(raw->client));
    raw->take = prepare(raw->client, config->sql[SQL_TAKE]);
    raw->free = prepare(raw->client, config->sql[SQL_FREE]);
    raw->nothing = prepare(raw->client, "DO 1");
    run(prepare(raw->client, config->sql[SQL_ADD]), "n");
}

static double raw_pair_us(const struct raw *raw, const struct mysql_strategy *lease)
{
    const double start = now_us();
    run(raw->take, lease->sql[SQL_TAKE].parameters);
    demand(mysql_stmt_affected_rows(raw->take) == 1, "the raw side did not get its lock");
    run(raw->free, lease->sql[SQL_FREE].parameters);
    return now_us() - start;
}

static double round_trip_us(const struct raw *raw)
{
    const double start = now_us();
    run(raw->nothing, "");
    return now_us() - start;
}

/* --- beside bare locks --- */

static const char *const bare_names[] = { "bare_lock", "bare_sequence", "bare_memory", "bare_row" };
/* What a lock without tokens would do; one that draws them from MariaDB's sequence; one that writes down who has it
 * where nothing is kept; one synced commit. */
static const char *const bare_statements[][2] = {
    { "SELECT GET_LOCK('bare', 0)", "SELECT RELEASE_LOCK('bare')" },
    { "SELECT GET_LOCK('bare', 0), NEXTVAL(bare_sequence)", "SELECT RELEASE_LOCK('bare')" },
    { "REPLACE INTO bare_memory (name, note) SELECT 'x', 'y' FROM DUAL WHERE GET_LOCK('bare', 0)",
      "SELECT RELEASE_LOCK('bare')" },
    { "INSERT INTO bare_row VALUES (1, 1) ON DUPLICATE KEY UPDATE token = token + 1", "SELECT 1" },
};
#define BARE (sizeof bare_names / sizeof bare_names[0])

struct bare {
    MYSQL *client;
    MYSQL_STMT *statements[2];
};

static MYSQL *connect_bare(const struct mysql_config *config)
{
    MYSQL *client = mysql_init(NULL);
    demand(mysql_real_connect(client, config->host, config->user, config->password, config->database, config->port,
                              NULL, 0) != NULL,
           mysql_error(client));
    return client;
}

static double bare_pair_us(void *arg)
{
    const struct bare *bare = arg;
    const double start = now_us();
    for (size_t i = 0; i < 2; i++) {
        demand(mysql_stmt_execute(bare->statements[i]) == 0, mysql_stmt_error(bare->statements[i]));
        demand(mysql_stmt_store_result(bare->statements[i]) == 0, mysql_stmt_error(bare->statements[i]));
        mysql_stmt_free_result(bare->statements[i]);
    }
    return now_us() - start;
}

static void make_bare_tables(const struct mysql_config *config)
{
    static const char *const texts[] = {
        "CREATE SEQUENCE IF NOT EXISTS bare_sequence",
        ("CREATE TABLE IF NOT EXISTS bare_memory (name VARBINARY(255) NOT NULL UNIQUE, note VARCHAR(120),"
         " token BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE=MEMORY"),
        "CREATE TABLE IF NOT EXISTS bare_row (id INT PRIMARY KEY, token BIGINT) ENGINE=InnoDB",
    };
    MYSQL *client = connect_bare(config);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        demand(mysql_query(client, texts[i]) == 0, mysql_error(client));
    mysql_close(client);
}

static void compare_with_bare(const char *url, size_t rounds)
{
    static const char *const strategies[] = { "get-lock", "lease", "version", "insert", "for-update" };
    enum { OURS = sizeof strategies / sizeof strategies[0] };
    struct mysql_config config = { .port = 0 };
    struct side sides[BARE + OURS];
    struct bare bares[BARE];
    hf_error err = { 0 };
    demand(hfi_mysql_config_read(&config, &(struct hfi_url){ "mysql", url + 6 }, &err) == HF_OK, err.message);
    make_bare_tables(&config);
    for (size_t i = 0; i < BARE; i++) {
        bares[i].client = connect_bare(&config);
        for (size_t j = 0; j < 2; j++)
            bares[i].statements[j] = prepare(bares[i].client, bare_statements[i][j]);
        sides[i] = (struct side){ bare_names[i], bare_pair_us, &bares[i] };
    }
    for (size_t i = 0; i < OURS; i++) {
        char ours[600];
        hf_client *client = NULL;
        snprintf(ours, sizeof ours, "mysql://%s@%s:%u/%s?strategy=%s&table=bare_%zu", config.user, config.host,
                 config.port, config.database, strategies[i], i);
        demand(hf_open(&client, ours, NULL, &err) == HF_OK, err.message);
        sides[BARE + i] = (struct side){ strategies[i], our_side_us, client };
    }
    compare_sides(sides, BARE + OURS, rounds);
    for (size_t i = 0; i < OURS; i++)
        hf_close(sides[BARE + i].arg);
    for (size_t i = 0; i < BARE; i++)
        mysql_close(bares[i].client);
    hfi_mysql_config_free(&config);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--bare") == 0) {
        compare_with_bare(argv[2], argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 2000);
        return 0;
    }
    const size_t rounds = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 2000;
    double *ours = calloc(rounds, sizeof *ours), *theirs = calloc(rounds, sizeof *theirs), trips[HANDOFFS],
           handoffs[HANDOFFS];
    struct mysql_config config = { .port = 0 };
    struct raw raw;
    hf_client *client = NULL, *other = NULL;
    hf_error err = { 0 };
    demand(argc >= 2 && strncmp(argv[1], "mysql:", 6) == 0 && ours && theirs && rounds > 0,
           "usage: compare_mysql [--bare] mysql://USER@HOST:PORT/DATABASE [ROUNDS]");
    demand(hfi_mysql_config_read(&config, &(struct hfi_url){ "mysql", argv[1] + 6 }, &err) == HF_OK, err.message);
    demand(hf_open(&client, argv[1], NULL, &err) == HF_OK && hf_open(&other, argv[1], NULL, &err) == HF_OK,
           err.message);
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
        handoffs[i] = our_handoff_us(client, other);
        rest();
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
