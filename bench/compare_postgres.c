/* SPDX-License-Identifier: MIT
 *
 * compare_postgres.c: what Holdfast adds to the statements of an uncontended lease, and what a hand-off costs.
 *
 *     compare_postgres URL [ROUNDS]           prints one object of JSON; the URL has a host, 127.0.0.1, and a port
 *     compare_postgres --bare URL [ROUNDS]    pairs of all strategies beside the server's own lock functions
 *
 * The raw side sends the text of the engine's own statements with libpq, in the same pipelines, in turns with Holdfast,
 * so that both see the same machine. As a hand-off begins after a rest, in which caches cool and processors slow down,
 * so does all that it is compared with:
 *
 *     sync        an exchange without any statement, the least that a server answers
 *     round trip  SELECT 1, prepared: a statement that does nothing
 *     acquire     the statement that takes a lease
 *     notify      from sending a prepared pg_notify() to the return of poll() in another thread, which listens: the
 *                 least that news takes from one client to another
 *     told        the same with one statement that also updates a row: the least that any lock in a table can do
 *
 * On the loopback a round trip is next to nothing beside what a server does for a commit; so all of it is measured a
 * second time as if the server were half a millisecond away.
 */
#include "compare_store.h"
#include "engines/postgres/postgres_sql.h"
#include "relay.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDOFFS 300
#define BATCH 50
#define ONE_WAY_NS 500000
#define FAR_HANDOFFS 60
#define TURN 20

/* --- plain libpq --- */

struct raw {
    PGconn *pq;
    const struct postgres_strategy *lease;
    const char *values[128]; /* by letter */
};

static void with_tables(char *out, size_t size, const char *text)
{
    size_t used = 0;
    while (*text && used + 40 < size) {
        if (text[0] == '{' && text[2] == '}') {
            const char *suffix = text[1] == 'L' ? "" : text[1] == 'W' ? "_waiters" : "_grants";
            used += (size_t)snprintf(out + used, size - used, "holdfast_locks%s", suffix);
            text += 3;
        } else {
            out[used++] = *text++;
        }
    }
    out[used] = 0;
}

static void prepare(const struct raw *raw, enum postgres_statement statement)
{
    char text[4000], name[16];
    Oid types[9];
    const char *letters = raw->lease->sql[statement].parameters;
    for (size_t i = 0; letters[i]; i++)
        types[i] = strchr("nhk", letters[i]) ? 25 : strchr("tpb", letters[i]) ? 23 : 20;
    with_tables(text, sizeof text, raw->lease->sql[statement].text);
    snprintf(name, sizeof name, "raw%d", (int)statement);
    PGresult *result = PQprepare(raw->pq, name, text, (int)strlen(letters), types);
    demand(PQresultStatus(result) == PGRES_COMMAND_OK, PQerrorMessage(raw->pq));
    PQclear(result);
}

static void run(const struct raw *raw, const unsigned char *sequence)
{
    size_t count = 0;
    for (; sequence[count] != POSTGRES_END; count++) {
        const char *letters = raw->lease->sql[sequence[count]].parameters;
        const char *values[9];
        char name[16];
        for (size_t i = 0; letters[i]; i++)
            values[i] = raw->values[(int)letters[i]];
        snprintf(name, sizeof name, "raw%d", (int)sequence[count]);
        demand(PQsendQueryPrepared(raw->pq, name, (int)strlen(letters), values, NULL, NULL, 0) == 1, "cannot send");
    }
    demand(PQpipelineSync(raw->pq) == 1, "cannot send");
    for (size_t i = 0; i < count; i++) {
        PGresult *result = PQgetResult(raw->pq);
        demand(PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK,
               PQerrorMessage(raw->pq));
        PQclear(result);
        demand(PQgetResult(raw->pq) == NULL, "an answer too many");
    }
    PGresult *end = PQgetResult(raw->pq);
    demand(PQresultStatus(end) == PGRES_PIPELINE_SYNC, "no end of the pipeline");
    PQclear(end);
}

/* One exchange with a prepared statement that has no parameters, or with none at all. */
static double round_trip_us(const struct raw *raw, const char *statement)
{
    const double start = now_us();
    demand((!statement || PQsendQueryPrepared(raw->pq, statement, 0, NULL, NULL, NULL, 0) == 1) &&
               PQpipelineSync(raw->pq) == 1,
           "cannot send");
    if (statement) {
        PQclear(PQgetResult(raw->pq));
        demand(PQgetResult(raw->pq) == NULL, "an answer too many");
    }
    PGresult *end = PQgetResult(raw->pq);
    demand(PQresultStatus(end) == PGRES_PIPELINE_SYNC, "no end of the pipeline");
    PQclear(end);
    return now_us() - start;
}

/* The URL without the option that is Holdfast's. */
static void without_strategy(char *out, size_t size, const char *url)
{
    const char *option = strstr(url, "strategy=");
    const size_t length = option ? strcspn(option, "&") : 0;
    snprintf(out, size, "%.*s%s", option ? (int)(option - url - 1) : (int)strlen(url), url,
             option ? option + length : "");
}

static PGconn *connect_raw(const char *url)
{
    char plain[500];
    without_strategy(plain, sizeof plain, url);
    PGconn *pq = PQconnectdb(plain);
    demand(PQstatus(pq) == CONNECTION_OK, PQerrorMessage(pq));
    return pq;
}

static void open_raw(struct raw *raw, const char *url)
{
    raw->pq = connect_raw(url);
    raw->lease = hfi_postgres_strategy("lease");
    raw->values['n'] = "raw";
    raw->values['c'] = raw->values['s'] = "77";
    raw->values['t'] = "30000";
    raw->values['h'] = "host";
    raw->values['p'] = "1";
    raw->values['k'] = "";
    raw->values['r'] = "1";
    PQclear(PQprepare(raw->pq, "nothing", "SELECT 1", 0, NULL));
    PQclear(PQprepare(raw->pq, "notify", "SELECT pg_notify('raw', '')", 0, NULL));
    PQclear(PQprepare(raw->pq, "told",
                      "UPDATE holdfast_locks SET serial = serial + 1 WHERE name = 'raw' RETURNING pg_notify('raw', '')",
                      0, NULL));
    prepare(raw, POSTGRES_TAKE);
    prepare(raw, POSTGRES_FREE);
    prepare(raw, POSTGRES_FINISH);
    demand(PQenterPipelineMode(raw->pq) == 1, "no pipeline mode");
}

/* --- pairs --- */

static double raw_pair_us(const struct raw *raw)
{
    const double start = now_us();
    run(raw, raw->lease->attempt);
    run(raw, raw->lease->release);
    return now_us() - start;
}

/* --- hand-off --- */

enum measure { HANDOFF, SYNC, ROUND_TRIP, ACQUIRE, NOTIFY, TOLD, MEASURES };

static const char *const measure_names[MEASURES] = { "handoff", "sync", "round_trip", "acquire", "notify", "told" };

struct handoff {
    double us[MEASURES]; /* medians */
};

struct push {
    PGconn *pq;
    double heard_us;
};

static void *listen_in_thread(void *arg)
{
    struct push *push = arg;
    PGnotify *news = NULL;
    struct pollfd one = { .fd = PQsocket(push->pq), .events = POLLIN };
    while (!news) {
        demand(poll(&one, 1, -1) == 1 && PQconsumeInput(push->pq) == 1, "nothing to hear");
        news = PQnotifies(push->pq);
    }
    push->heard_us = now_us();
    PQfreemem(news);
    return NULL;
}

static double raw_news_us(const struct raw *raw, struct push *push, const char *statement)
{
    pthread_t thread;
    demand(pthread_create(&thread, NULL, listen_in_thread, push) == 0, "no thread");
    rest();
    const double start = now_us();
    round_trip_us(raw, statement);
    pthread_join(thread, NULL);
    return push->heard_us - start;
}

static double raw_acquire_us(const struct raw *raw)
{
    const double start = now_us();
    run(raw, raw->lease->attempt);
    const double taken = now_us();
    run(raw, raw->lease->release);
    return taken - start;
}

struct times {
    double us[MEASURES][HANDOFFS];
    size_t count;
};

/* A notification wakes all sessions of the database that listen to anything. So of our waiter and the raw one only one
 * is there at a time. */
static void measure_ours(struct times *times, const struct raw *raw, hf_client *client, const char *url)
{
    hf_client *other = NULL;
    hf_error err = { 0 };
    demand(hf_open(&other, url, NULL, &err) == HF_OK, err.message);
    for (size_t i = times->count; i < times->count + TURN; i++) {
        times->us[HANDOFF][i] = our_handoff_us(client, other);
        rest();
        times->us[SYNC][i] = round_trip_us(raw, NULL);
        rest();
        times->us[ROUND_TRIP][i] = round_trip_us(raw, "nothing");
        rest();
        times->us[ACQUIRE][i] = raw_acquire_us(raw);
    }
    hf_close(other);
}

static void measure_raw(struct times *times, const struct raw *raw, const char *url)
{
    struct push push = { .pq = connect_raw(url) };
    PQclear(PQexec(push.pq, "LISTEN raw"));
    for (size_t i = times->count; i < times->count + TURN; i++) {
        times->us[NOTIFY][i] = raw_news_us(raw, &push, "notify");
        times->us[TOLD][i] = raw_news_us(raw, &push, "told"); /* of the row that an acquire has made */
    }
    PQfinish(push.pq);
}

static struct handoff measure_handoffs(const char *url, size_t count)
{
    static struct times times;
    struct raw raw = { .pq = NULL };
    struct handoff handoff;
    hf_client *client = NULL;
    hf_error err = { 0 };
    demand(hf_open(&client, url, NULL, &err) == HF_OK, err.message);
    open_raw(&raw, url);
    for (times.count = 0; times.count + TURN <= count; times.count += TURN) {
        measure_ours(&times, &raw, client, url);
        measure_raw(&times, &raw, url);
    }
    for (size_t i = 0; i < MEASURES; i++)
        handoff.us[i] = median(times.us[i], times.count);
    hf_close(client);
    PQfinish(raw.pq);
    return handoff;
}

/* The same server, seen through a relay. */
static struct handoff measure_far(const char *url)
{
    static const char host[] = "127.0.0.1:";
    char far[500], *rest_of_url = NULL;
    struct relay relay;
    const char *at = strstr(url, host);
    demand(at != NULL, "the URL has no 127.0.0.1:PORT");
    const size_t before = at ? (size_t)(at - url) + strlen(host) : 0;
    const int port = (int)strtol(url + before, &rest_of_url, 10);
    relay_start(&relay, &port, 1, ONE_WAY_NS);
    snprintf(far, sizeof far, "%.*s%d%s", (int)before, url, relay.port[0], rest_of_url);
    const struct handoff handoff = measure_handoffs(far, FAR_HANDOFFS);
    relay_stop(&relay);
    return handoff;
}

/* In batches by turns, so that both find caches and processors as warm, and share what else the machine does; what it
 * does in one batch and not in the other is taken off by the median of all. */
static void measure_pairs(const char *url, size_t batches, double *ours, double *theirs, double *ratio)
{
    double *mine = calloc(batches, sizeof *mine), *raws = calloc(batches, sizeof *raws),
           *ratios = calloc(batches, sizeof *ratios);
    struct raw raw = { .pq = NULL };
    hf_client *client = NULL;
    hf_error err = { 0 };
    demand(mine && raws && ratios && batches > 0, "no memory");
    demand(hf_open(&client, url, NULL, &err) == HF_OK, err.message);
    open_raw(&raw, url);
    for (size_t i = 0; i < batches; i++) {
        double times[BATCH];
        for (size_t j = 0; j < BATCH; j++)
            times[j] = our_pair_us(client);
        mine[i] = median(times, BATCH);
        for (size_t j = 0; j < BATCH; j++)
            times[j] = raw_pair_us(&raw);
        raws[i] = median(times, BATCH);
        ratios[i] = mine[i] / raws[i];
    }
    *ours = median(mine, batches);
    *theirs = median(raws, batches);
    *ratio = median(ratios, batches);
    hf_close(client);
    PQfinish(raw.pq);
    free(mine);
    free(raws);
    free(ratios);
}

/* --- beside bare locks --- */

static const char *const bare_names[] = { "bare_lock", "bare_sequence", "bare_row" };
/* What a lock without tokens would do; one that draws them from a sequence; one synced commit. */
static const char *const bare_statements[][2] = {
    { "SELECT pg_try_advisory_lock(42)", "SELECT pg_advisory_unlock(42)" },
    { "SELECT pg_try_advisory_lock(42), nextval('bare_sequence')", "SELECT pg_advisory_unlock(42)" },
    { "INSERT INTO bare VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET token = bare.token + 1", "SELECT 1" },
};
#define BARE (sizeof bare_names / sizeof bare_names[0])

struct bare {
    PGconn *pq;
    const char *const *statements;
};

static double bare_pair_us(void *arg)
{
    const struct bare *bare = arg;
    const double start = now_us();
    for (size_t i = 0; i < 2; i++) {
        PGresult *result = PQexecPrepared(bare->pq, i ? "give" : "take", 0, NULL, NULL, NULL, 0);
        demand(PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK,
               PQerrorMessage(bare->pq));
        PQclear(result);
    }
    return now_us() - start;
}

static void open_bare(struct bare *bare, const char *url, const char *const *statements)
{
    bare->pq = connect_raw(url);
    bare->statements = statements;
    for (size_t i = 0; i < 2; i++)
        PQclear(PQprepare(bare->pq, i ? "give" : "take", statements[i], 0, NULL));
}

static void compare_with_bare(const char *url, size_t rounds)
{
    static const char *const strategies[] = { "advisory", "lease", "version", "insert", "for-update" };
    enum { OURS = sizeof strategies / sizeof strategies[0] };
    struct side sides[BARE + OURS];
    struct bare bares[BARE];
    PGconn *pq = connect_raw(url);
    PQclear(PQexec(pq, "CREATE SEQUENCE IF NOT EXISTS bare_sequence"));
    PQclear(PQexec(pq, "CREATE TABLE IF NOT EXISTS bare (id int PRIMARY KEY, token bigint)"));
    PQfinish(pq);
    for (size_t i = 0; i < BARE; i++) {
        open_bare(&bares[i], url, bare_statements[i]);
        sides[i] = (struct side){ bare_names[i], bare_pair_us, &bares[i] };
    }
    for (size_t i = 0; i < OURS; i++) {
        char plain[500], ours[600];
        hf_client *client = NULL;
        hf_error err = { 0 };
        without_strategy(plain, sizeof plain, url);
        snprintf(ours, sizeof ours, "%s%cstrategy=%s&table=bare_%zu", plain, strchr(plain, '?') ? '&' : '?',
                 strategies[i], i);
        demand(hf_open(&client, ours, NULL, &err) == HF_OK, err.message);
        sides[BARE + i] = (struct side){ strategies[i], our_side_us, client };
    }
    compare_sides(sides, BARE + OURS, rounds);
    for (size_t i = 0; i < BARE; i++)
        PQfinish(bares[i].pq);
    for (size_t i = 0; i < OURS; i++)
        hf_close(sides[BARE + i].arg);
}

static void show(const char *prefix, const struct handoff *handoff)
{
    for (size_t i = 0; i < MEASURES; i++)
        printf(", \"%s%s_us\": %.1f", prefix, measure_names[i], handoff->us[i]);
    for (size_t i = HANDOFF + 1; i < MEASURES; i++)
        printf(", \"%shandoff_over_%s\": %.2f", prefix, measure_names[i], handoff->us[HANDOFF] / handoff->us[i]);
}

int main(int argc, char **argv)
{
    double ours, theirs, ratio;
    const bool bare = argc > 2 && strcmp(argv[1], "--bare") == 0;
    demand(argc >= 2, "usage: compare_postgres [--bare] URL [ROUNDS]");
    if (bare) {
        compare_with_bare(argv[2], argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 2000);
        return 0;
    }
    const size_t rounds = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 4000;
    measure_pairs(argv[1], rounds / BATCH, &ours, &theirs, &ratio);
    const struct handoff near = measure_handoffs(argv[1], HANDOFFS), far = measure_far(argv[1]);
    printf("{\"pair_us\": %.1f, \"raw_pair_us\": %.1f, \"ratio\": %.3f", ours, theirs, ratio);
    show("", &near);
    show("far_", &far);
    printf("}\n");
    return 0;
}
