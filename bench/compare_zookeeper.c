/* SPDX-License-Identifier: MIT
 *
 * compare_zookeeper.c: what Holdfast adds to the requests of an uncontended lock, and what a hand-off costs.
 *
 *     compare_zookeeper URL [ROUNDS]    prints one object of JSON
 *
 * The raw side makes the same requests with the client library, in turns with Holdfast, so that both see the same
 * machine: create and list together, then delete. `steps` is how the recipes of other clients do it: create, and when
 * that is answered list. A hand-off on the raw side is a delete, the watch that it fires and the list that follows.
 */
#include "compare_store.h"
#include <holdfast.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zookeeper/zookeeper.h>

#define HANDOFFS 200
#define BATCH 50
#define DIRECTORY "/holdfast/raw"

/* --- the library alone --- */

struct raw {
    zhandle_t *zh;
    bool connected;
    int pending; /* answers that are still to come */
    bool fired;  /* the watch */
    char node[200];
};

static void hear(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    struct raw *raw = context;
    (void)zh;
    (void)path;
    raw->connected = state == ZOO_CONNECTED_STATE;
    raw->fired = raw->fired || type == ZOO_DELETED_EVENT;
}

static void say_nothing(const char *message)
{
    (void)message;
}

static void turn(struct raw *raw)
{
    struct pollfd socket = { .fd = -1 };
    struct timeval time = { 0 };
    int interest = 0;
    demand(zookeeper_interest(raw->zh, &socket.fd, &interest, &time) == ZOK, "no server");
    socket.events = (short)((interest & ZOOKEEPER_READ ? POLLIN : 0) | (interest & ZOOKEEPER_WRITE ? POLLOUT : 0));
    if (poll(&socket, 1, 1000) > 0)
        zookeeper_process(raw->zh, (socket.revents & ~POLLOUT ? ZOOKEEPER_READ : 0) |
                                       (socket.revents & POLLOUT ? ZOOKEEPER_WRITE : 0));
}

static void await(struct raw *raw)
{
    while (raw->pending > 0)
        turn(raw);
}

static void take_nothing(int rc, const void *data)
{
    struct raw *raw = (struct raw *)data;
    demand(rc == ZOK || rc == ZNODEEXISTS, zerror(rc));
    raw->pending--;
}

static void take_path(int rc, const char *path, const struct Stat *stat, const void *data)
{
    struct raw *raw = (struct raw *)data;
    (void)stat;
    if (path)
        snprintf(raw->node, sizeof raw->node, "%s", path);
    take_nothing(rc, data);
}

static void take_list(int rc, const struct String_vector *list, const void *data)
{
    (void)list;
    take_nothing(rc, data);
}

static void take_data(int rc, const char *value, int length, const struct Stat *stat, const void *data)
{
    (void)value;
    (void)length;
    (void)stat;
    take_nothing(rc, data);
}

static void take_stat(int rc, const struct Stat *stat, const void *data)
{
    (void)stat;
    take_nothing(rc, data);
}

static void create(struct raw *raw)
{
    raw->pending++;
    demand(zoo_acreate2(raw->zh, DIRECTORY "/_c_01234567-89ab-cdef-0123-456789abcdef-lock-", "host 1", 6,
                        &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, take_path, raw) == ZOK,
           "cannot create");
}

static void list(struct raw *raw)
{
    raw->pending++;
    demand(zoo_aget_children(raw->zh, DIRECTORY, 0, take_list, raw) == ZOK, "cannot list");
}

static void remove_node(struct raw *raw)
{
    raw->pending++;
    demand(zoo_adelete(raw->zh, raw->node, -1, take_nothing, raw) == ZOK, "cannot delete");
}

static void open_raw(struct raw *raw, const char *url)
{
    char hosts[300];
    snprintf(hosts, sizeof hosts, "%.*s", (int)strcspn(strstr(url, "://") + 3, "/?"), strstr(url, "://") + 3);
    raw->zh = zookeeper_init2(hosts, hear, 30000, NULL, raw, ZOO_NO_LOG_CLIENTENV, say_nothing);
    demand(raw->zh != NULL, "no handle");
    while (!raw->connected)
        turn(raw);
    raw->pending = 1;
    zoo_acreate2(raw->zh, DIRECTORY, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, take_path, raw);
    await(raw);
}

static double raw_pair_us(struct raw *raw, bool in_steps)
{
    const double start = now_us();
    create(raw);
    if (in_steps)
        await(raw);
    list(raw);
    await(raw);
    remove_node(raw);
    await(raw);
    return now_us() - start;
}

static double round_trip_us(struct raw *raw)
{
    const double start = now_us();
    raw->pending++;
    demand(zoo_aexists(raw->zh, "/", 0, take_stat, raw) == ZOK, "cannot ask");
    await(raw);
    return now_us() - start;
}

static double raw_handoff_us(struct raw *holder, struct raw *next)
{
    create(holder);
    await(holder);
    create(next);
    await(next);
    next->pending++;
    next->fired = false;
    demand(zoo_aget(next->zh, holder->node, 1, take_data, next) == ZOK, "cannot watch");
    await(next);
    rest();
    const double start = now_us();
    remove_node(holder);
    while (!next->fired)
        turn(next);
    list(next);
    await(next);
    const double end = now_us();
    await(holder);
    remove_node(next);
    await(next);
    return end - start;
}

/* --- Holdfast --- */

int main(int argc, char **argv)
{
    demand(argc >= 2, "usage: compare_zookeeper URL [ROUNDS]");
    const size_t rounds = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 1000;
    double *ours = calloc(3 * rounds, sizeof *ours), *theirs = ours + rounds, *steps = theirs + rounds;
    double handoffs[HANDOFFS], raw_handoffs[HANDOFFS], trips[HANDOFFS];
    struct raw raw = { .zh = NULL }, second = { .zh = NULL };
    hf_client *client = NULL, *other = NULL;
    hf_error err = { 0 };
    demand(ours && rounds > 0, "no memory");
    demand(hf_open(&client, argv[1], NULL, &err) == HF_OK && hf_open(&other, argv[1], NULL, &err) == HF_OK,
           err.message);
    our_pair_us(client); /* makes the directory above */
    open_raw(&raw, argv[1]);
    open_raw(&second, argv[1]);
    /* In batches by turns, so that both find caches and processors as warm, and share what else the machine does. */
    for (size_t i = 0; i < rounds; i += BATCH) {
        const size_t end = i + BATCH < rounds ? i + BATCH : rounds;
        for (size_t j = i; j < end; j++)
            ours[j] = our_pair_us(client);
        for (size_t j = i; j < end; j++)
            theirs[j] = raw_pair_us(&raw, false);
        for (size_t j = i; j < end; j++)
            steps[j] = raw_pair_us(&raw, true);
    }
    for (size_t i = 0; i < HANDOFFS; i++) {
        handoffs[i] = our_handoff_us(client, other);
        raw_handoffs[i] = raw_handoff_us(&raw, &second);
        trips[i] = round_trip_us(&raw);
    }
    const double mine = median(ours, rounds), raw_pair = median(theirs, rounds), raw_steps = median(steps, rounds),
                 handoff = median(handoffs, HANDOFFS), raw_handoff = median(raw_handoffs, HANDOFFS);
    printf("{\"pair_us\": %.1f, \"raw_pair_us\": %.1f, \"ratio\": %.3f, \"steps_pair_us\": %.1f, \"handoff_us\": %.1f, "
           "\"raw_handoff_us\": %.1f, \"handoff_ratio\": %.3f, \"round_trip_us\": %.1f}\n",
           mine, raw_pair, mine / raw_pair, raw_steps, handoff, raw_handoff, handoff / raw_handoff,
           median(trips, HANDOFFS));
    hf_close(client);
    hf_close(other);
    zookeeper_close(raw.zh);
    zookeeper_close(second.zh);
    free(ours);
    return 0;
}
