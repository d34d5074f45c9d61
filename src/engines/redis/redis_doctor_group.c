/* SPDX-License-Identifier: MIT
 *
 * redis_doctor_group.c: Sentinels and clusters: who decides that another server takes the place of one, and how long
 * that takes beside what a lock lasts.
 */
#include "redis_doctor.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What comes behind the time after which a server counts as dead: the vote, the promotion, and that clients hear it. */
#define FAILOVER_MS 2000
#define SLOTS 16384

/* A lock is renewed each third of its time: what is left at the worst must outlast the failover. */
static bool outlasts(const struct hfi_examination *examination, long long down_ms)
{
    return down_ms + FAILOVER_MS < (long long)examination->ttl_ms * 2 / 3;
}

/* --- Sentinels --- */

struct council {
    size_t asked, silent, ignorant, split;
    char who[300]; /* the last that did not answer, or says something else, and what */
    bool shown;    /* one has told: */
    long long quorum, others, replicas, down_ms;
};

/* A number in SENTINEL MASTER's list of names and values. */
static long long field(const redisReply *reply, const char *name)
{
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        if (reply->element[i]->type == REDIS_REPLY_STRING && reply->element[i + 1]->type == REDIS_REPLY_STRING &&
            strcmp(reply->element[i]->str, name) == 0)
            return strtoll(reply->element[i + 1]->str, NULL, 10);
    }
    return -1;
}

static const char *text(const redisReply *reply, const char *name)
{
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        if (reply->element[i]->type == REDIS_REPLY_STRING && reply->element[i + 1]->type == REDIS_REPLY_STRING &&
            strcmp(reply->element[i]->str, name) == 0)
            return reply->element[i + 1]->str;
    }
    return "";
}

static void take_view(struct council *council, const struct redis_patient *master, const struct redis_address *who,
                      const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        council->ignorant++;
        snprintf(council->who, sizeof council->who, "%.100s:%s says: %.120s", who->host, who->port, reply->str);
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY)
        return;
    const char *ip = text(reply, "ip"), *port = text(reply, "port");
    if (strcmp(ip, master->node->address.host) != 0 || strcmp(port, master->node->address.port) != 0) {
        council->split++;
        snprintf(council->who, sizeof council->who, "%.100s:%s names %.60s:%.8s", who->host, who->port, ip, port);
    }
    council->shown = true;
    council->quorum = field(reply, "quorum");
    council->others = field(reply, "num-other-sentinels");
    council->replicas = field(reply, "num-slaves");
    council->down_ms = field(reply, "down-after-milliseconds");
}

static void ask_council(struct council *council, const struct redis_patient *master)
{
    const struct redis_config *config = &master->store->config;
    for (size_t i = 0; i < config->address_count; i++) {
        struct redis_connection *connection = NULL;
        struct redis_command command = { REDIS_ROOM(3) };
        redisReply *reply = NULL;
        hf_error trouble = { .message = "it did not answer" };
        const hfi_time now = hfi_redis_now_ns();
        const hfi_time until = now + (master->deadline_ns - now) / (hfi_time)(config->address_count - i + 1);
        hfi_redis_add(&command, "SENTINEL");
        hfi_redis_add(&command, "MASTER");
        hfi_redis_add(&command, config->master);
        council->asked++;
        hf_status status = hfi_redis_connect(&connection, &config->addresses[i], &config->sentinel, until, &trouble);
        if (status == HF_OK)
            status = hfi_redis_send(connection, &command, 1, until, NULL);
        if (status == HF_OK)
            status = hfi_redis_receive(connection, &reply, until, NULL);
        if (status == HF_OK && reply) {
            take_view(council, master, &config->addresses[i], reply);
        } else {
            council->silent++;
            snprintf(council->who, sizeof council->who, "%.100s:%s: %.160s", config->addresses[i].host,
                     config->addresses[i].port, trouble.message);
        }
        freeReplyObject(reply);
        hfi_redis_disconnect(connection);
    }
}

static void say_how_many(const struct council *council, const struct redis_patient *master)
{
    const struct hfi_examination *examination = master->examination;
    const long long all = council->others + 1;
    if (council->quorum > all)
        hfi_finding(examination, HF_FINDING_BROKEN, "quorum",
                    "there will never be a failover: more Sentinels must agree than there are\n"
                    "the quorum is %lld, and there are %lld (SENTINEL MASTER)\nSENTINEL SET %.60s quorum %lld",
                    council->quorum, all, master->store->config.master, all / 2 + 1);
    else if (all < 3)
        hfi_finding(examination, HF_FINDING_RISK, "quorum",
                    "when one Sentinel is gone the others have no majority, and nobody takes a dead master's place\n"
                    "there are %lld (SENTINEL MASTER)\nrun three Sentinels or more, each on a machine of its own",
                    all);
    else if (council->quorum < 2)
        hfi_finding(examination, HF_FINDING_RISK, "quorum",
                    "one Sentinel that does not see the master is enough for a failover, which can forget locks\n"
                    "the quorum is %lld of %lld (SENTINEL MASTER)\nSENTINEL SET %.60s quorum %lld, on each",
                    council->quorum, all, master->store->config.master, all / 2 + 1);
    else
        hfi_finding(examination, HF_FINDING_OK, "quorum",
                    "a majority decides\nthe quorum is %lld of %lld (SENTINEL MASTER)", council->quorum, all);
    if ((long long)master->store->config.address_count < all && master->store->config.address_count < 2)
        hfi_finding(examination, HF_FINDING_RISK, "sentinels",
                    "when the one that the URL names is gone, nobody tells where the master is\n"
                    "the URL names %zu of %lld\nname all: redis+sentinel://HOST,HOST,HOST/MASTER",
                    master->store->config.address_count, all);
}

static void say_how_long(const struct council *council, const struct redis_patient *master)
{
    const struct hfi_examination *examination = master->examination;
    if (!outlasts(examination, council->down_ms))
        hfi_finding(examination, HF_FINDING_RISK, "failover",
                    "locks are lost before another master takes the place of a dead one\n"
                    "down-after-milliseconds is %lld, and a lock of %" PRIu32 " ms may have a third less when the "
                    "master dies (SENTINEL MASTER)\n"
                    "SENTINEL SET %.60s down-after-milliseconds %" PRIu32 " or less, on each; or a longer time-to-live",
                    council->down_ms, examination->ttl_ms, master->store->config.master, examination->ttl_ms / 6);
    else
        hfi_finding(examination, HF_FINDING_OK, "failover",
                    "a lock outlasts it\ndown-after-milliseconds is %lld, the time-to-live %" PRIu32
                    " ms (SENTINEL MASTER)",
                    council->down_ms, examination->ttl_ms);
}

void hfi_redis_examine_sentinels(const struct redis_patient *master)
{
    const struct hfi_examination *examination = master->examination;
    struct council council = { .asked = 0 };
    ask_council(&council, master);
    if (council.split)
        hfi_finding(examination, HF_FINDING_BROKEN, "sentinels",
                    "they do not agree on who the master is: two may grant the same lock\n"
                    "%.200s, another %.60s:%s (SENTINEL MASTER)\nfind out which is right (SENTINEL CKQUORUM); a "
                    "failover may be under way",
                    council.who, master->node->address.host, master->node->address.port);
    else if (council.silent || council.ignorant)
        hfi_finding(examination, !council.silent && !council.shown ? HF_FINDING_NOTE : HF_FINDING_RISK, "sentinels",
                    "not all that the URL names can tell of the master: when the others are gone, nobody does\n"
                    "%zu of %zu did not; %.250s\nstart it, mend the URL, or give us +sentinel|master",
                    council.silent + council.ignorant, council.asked, council.who);
    else
        hfi_finding(examination, HF_FINDING_OK, "sentinels",
                    "they agree on who the master is\nall of %zu name %.60s:%s (SENTINEL MASTER)", council.asked,
                    master->node->address.host, master->node->address.port);
    if (!council.shown)
        return;
    say_how_many(&council, master);
    say_how_long(&council, master);
}

/* --- clusters --- */

static void look_at_slots(const struct redis_patient *patient)
{
    struct redis_command command = { REDIS_ROOM(2) };
    redisReply *reply = NULL;
    struct redis_patient cluster = *patient; /* whose INFO is that of CLUSTER INFO */
    char state[REDIS_VALUE_MAX];
    hfi_redis_add(&command, "CLUSTER");
    hfi_redis_add(&command, "INFO");
    if (hfi_redis_patient_command(patient, &command, &reply, NULL) != HF_OK)
        return;
    cluster.info = reply;
    hfi_redis_info(&cluster, "cluster_state", state);
    const long long ok = hfi_redis_info_number(&cluster, "cluster_slots_ok");
    const long long size = hfi_redis_info_number(&cluster, "cluster_size");
    if (reply->type == REDIS_REPLY_ERROR)
        hfi_finding(patient->examination, HF_FINDING_NOTE, "slots",
                    "the cluster does not show us its state\n%.150s (CLUSTER INFO)\n+cluster|info for our user",
                    reply->str);
    else if (strcmp(state, "ok") != 0 || ok < SLOTS)
        hfi_finding(patient->examination, HF_FINDING_BROKEN, "slots",
                    "%s\ncluster_state is %.10s, cluster_slots_ok %lld of %d (CLUSTER INFO)\n"
                    "redis-cli --cluster fix HOST:PORT, or start the servers that are down",
                    strcmp(state, "ok") ? "the cluster is down, and grants no locks"
                                        : "nobody has some of the slots, and grants the locks in them",
                    state, ok, SLOTS);
    else
        hfi_finding(patient->examination, HF_FINDING_OK, "slots", "every name has a server\n%lld of %d (CLUSTER INFO)",
                    ok, SLOTS);
    if (reply->type != REDIS_REPLY_ERROR && size < 3)
        hfi_finding(patient->examination, HF_FINDING_RISK, "masters",
                    "too few masters are left to agree, when one dies, that a replica takes its place\n"
                    "cluster_size is %lld (CLUSTER INFO)\nthree masters or more, each on a machine of its own",
                    size);
    freeReplyObject(reply);
}

void hfi_redis_examine_cluster(const struct redis_patient *patient)
{
    const long long down_ms = hfi_redis_setting_number(patient, REDIS_NODE_TIMEOUT, -1);
    look_at_slots(patient);
    if (down_ms >= 0 && !outlasts(patient->examination, down_ms))
        hfi_finding(patient->examination, HF_FINDING_RISK, "failover",
                    "locks are lost before a replica takes the place of a dead master\n"
                    "cluster-node-timeout is %lld, and a lock of %" PRIu32 " ms may have a third less when the master "
                    "dies (CONFIG GET cluster-node-timeout)\n"
                    "CONFIG SET cluster-node-timeout %" PRIu32 " or less, on each; or a longer time-to-live",
                    down_ms, patient->examination->ttl_ms, patient->examination->ttl_ms / 6);
    else if (down_ms >= 0)
        hfi_finding(patient->examination, HF_FINDING_OK, "failover",
                    "a lock outlasts it\ncluster-node-timeout is %lld, the time-to-live %" PRIu32
                    " ms (CONFIG GET cluster-node-timeout)",
                    down_ms, patient->examination->ttl_ms);
}
