/* SPDX-License-Identifier: MIT
 *
 * consul_doctor.c: looks at the servers, the agent and what the token may do, for whatever could lose a lock.
 *
 * Nothing is changed by it. Whether the token may write is asked by a transaction whose condition never holds: the
 * servers check the right to do what it would do. Whether it may make sessions shows with the first lock only.
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define READS 5
/* What waits and what renews has a connection of its own each. */
#define CONNECTIONS_FEW 50
/* Until a new leader is elected, which waits for the old one's heartbeats first, and may be tried again. */
#define HEARTBEATS_OF_ELECTION 4
#define USUAL_HEARTBEAT_MS 5000 /* raft_multiplier 5, the default */
#define USUAL_LEAST_TTL_MS 10000
#define CLOCKS_APART_S 3

struct doctor {
    struct consul_store *store;
    const struct hfi_examination *examination;
    hfi_time deadline_ns;
    bool has_leader; /* without one, the servers answer nothing else either */
    size_t peers;    /* servers that vote; 0: not known */
};

/* *root is what was answered; NULL if that was a refusal, whose sentence is in `refusal`. */
static hf_status get(const struct doctor *doctor, const char *path, json_t **root, hf_error *refusal, hf_error *err)
{
    struct consul_exchange exchange = { 0 };
    const struct consul_request request = { .method = "GET", .path = path };
    *root = NULL;
    const hf_status status = hfi_consul_ask(doctor->store, &exchange, &request, doctor->deadline_ns, err);
    if (status == HF_UNKNOWN)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the agent did not answer in time");
    if (status != HF_OK)
        return status;
    /* The autopilot's answer has status 429 if it is not content. */
    if (exchange.reply->status == 200 || (exchange.reply->length && exchange.reply->body[0] == '{'))
        *root = json_loadb(exchange.reply->body, exchange.reply->length, JSON_DECODE_ANY, NULL);
    if (!*root)
        hfi_consul_refusal(doctor->store, exchange.reply, false, refusal);
    hfi_consul_end(doctor->store, &exchange);
    return HF_OK;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* --- the servers --- */

static hf_status look_at_leader(struct doctor *doctor, hf_error *err)
{
    struct consul_store *store = doctor->store;
    const struct hfi_examination *examination = doctor->examination;
    char key[HFI_CONSUL_KEY_MAX];
    hfi_time slowest_ns = 0;
    hf_error trouble = { .message = "" };
    hf_status status = HF_OK;
    (void)err;
    hfi_consul_session_key(key, store, "nobody");
    const hfi_time now = store->env->now_ns(), until = now + (doctor->deadline_ns - now) / 2;
    for (int i = 0; i < READS && status == HF_OK; i++) {
        struct consul_answer answer;
        const hfi_time begun = store->env->now_ns();
        status = hfi_consul_get_tree(store, key, &answer, until, &trouble);
        const hfi_time took = store->env->now_ns() - begun;
        slowest_ns = took > slowest_ns ? took : slowest_ns;
        if (status == HF_OK)
            hfi_consul_answer_free(&answer);
    }
    const long long slowest_ms = slowest_ns / HFI_MS;
    doctor->has_leader = status == HF_OK || status == HF_DENIED;
    if (status == HF_DENIED)
        hfi_finding(examination, HF_FINDING_BROKEN, "rights",
                    "this token may not read below the prefix: no lock is granted\n%s (consul acl token read -self)\n"
                    "key_prefix \"%s/\" { policy = \"write\" }",
                    trouble.message, store->config.prefix);
    else if (status != HF_OK)
        hfi_finding(examination, HF_FINDING_BROKEN, "leader",
                    "the servers do not agree on a leader, or cannot be reached: no lock is granted or renewed\n"
                    "%s (consul operator raft list-peers)\nstart the servers that are down",
                    trouble.message);
    else if (slowest_ms > examination->ttl_ms / 6)
        hfi_finding(examination, HF_FINDING_RISK, "latency",
                    "a renewal, which comes at a third of the time-to-live and is tried again, may come too late\n"
                    "the slowest of %d reads that the leader confirms took %lld ms, with %u ms to live\n"
                    "faster disks and network for the servers, or a longer --ttl",
                    READS, slowest_ms, examination->ttl_ms);
    else
        hfi_finding(examination, HF_FINDING_OK, "leader",
                    "there is a leader, and renewals have the time to be tried again\n"
                    "the slowest of %d reads that it confirms took %lld ms, with %u ms to live",
                    READS, slowest_ms, examination->ttl_ms);
    return HF_OK;
}

static hf_status look_at_peers(struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    json_t *root;
    hf_error refusal = { .message = "" };
    const hf_status status = get(doctor, "/v1/status/peers", &root, &refusal, err);
    if (status != HF_OK)
        return status;
    const size_t count = doctor->peers = json_array_size(root);
    json_decref(root);
    if (count == 0)
        hfi_finding(examination, HF_FINDING_NOTE, "servers",
                    "how many servers there are is not known\n%s (consul operator raft list-peers)",
                    *refusal.message ? refusal.message : "the agent names none");
    else if (count == 1)
        hfi_finding(examination, HF_FINDING_NOTE, "servers",
                    "the server is alone: while it is down no lock is granted or renewed, and if its disk is lost all "
                    "locks and tokens are\n1 server (consul operator raft list-peers)");
    else if (count % 2 == 0)
        hfi_finding(examination, count == 2 ? HF_FINDING_RISK : HF_FINDING_NOTE, "servers",
                    "%s\n%zu servers (consul operator raft list-peers)\nadd a server, or remove one: an odd number",
                    count == 2 ? "if either of two servers is down no lock is granted or renewed: that is twice as "
                                 "likely as with one"
                               : "an even number of servers survives no more failures than one server fewer would",
                    count);
    else
        hfi_finding(examination, HF_FINDING_OK, "servers",
                    "locks are granted and renewed while %zu of them are down\n"
                    "%zu servers (consul operator raft list-peers)",
                    (count - 1) / 2, count);
    return HF_OK;
}

static void judge_health(const struct doctor *doctor, const json_t *root)
{
    const json_t *servers = json_object_get(root, "Servers");
    const char *version = NULL;
    bool all = true, same = true;
    for (size_t i = 0; i < json_array_size(servers); i++) {
        const json_t *one = json_array_get(servers, i);
        same = same && (!version || strcmp(version, text_of(one, "Version")) == 0);
        version = text_of(one, "Version");
        if (json_is_true(json_object_get(one, "Healthy")))
            continue;
        all = false;
        hfi_finding(doctor->examination, HF_FINDING_RISK, "health",
                    "with one server less there may be no majority when the next one goes, and no lock be granted or "
                    "renewed\n%.60s is %.20s, last heard of %.20s ago (consul operator autopilot health)\n"
                    "start it, or remove it: consul operator raft remove-peer",
                    text_of(one, "Name"), text_of(one, "SerfStatus"), text_of(one, "LastContact"));
    }
    if (all)
        hfi_finding(doctor->examination, HF_FINDING_OK, "health",
                    "the servers are healthy\n%zu of %zu (consul operator autopilot health)", json_array_size(servers),
                    json_array_size(servers));
    if (!same)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "version",
                    "servers of different versions are meant to be together only during an upgrade\n"
                    "one has %.20s (consul members)\nfinish the upgrade",
                    version);
}

static hf_status look_at_health(struct doctor *doctor, hf_error *err)
{
    json_t *root;
    hf_error refusal = { .message = "" };
    const hf_status status = get(doctor, "/v1/operator/autopilot/health", &root, &refusal, err);
    if (status != HF_OK)
        return status;
    if (json_is_array(json_object_get(root, "Servers")))
        judge_health(doctor, root);
    else
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "health",
                    "which servers are down is not known\n%s (consul operator autopilot health)\n"
                    "operator = \"read\", to see it",
                    *refusal.message ? refusal.message : "the leader has not looked yet");
    json_decref(root);
    return HF_OK;
}

/* --- the agent --- */

static void judge_leaving(const struct doctor *doctor, const json_t *debug)
{
    if (!json_is_true(json_object_get(debug, "LeaveOnTerm")))
        hfi_finding(doctor->examination, HF_FINDING_OK, "leaving",
                    "an agent that is stopped keeps its node, and with it the sessions\n"
                    "leave_on_terminate is false (/v1/agent/self)");
    else
        hfi_finding(doctor->examination, doctor->store->config.lock_delay_ms ? HF_FINDING_NOTE : HF_FINDING_RISK,
                    "leaving",
                    "when this agent is stopped its node leaves, and all sessions that were made by way of it end at "
                    "once: others are granted the locks before their holders can stop%s\n"
                    "leave_on_terminate is true (/v1/agent/self)\n"
                    "leave_on_terminate = false, or lock_delay=15s in the URL",
                    doctor->store->config.lock_delay_ms ? ", but for the lock-delay" : "");
}

static void judge_times(const struct doctor *doctor, const json_t *debug)
{
    const struct hfi_examination *examination = doctor->examination;
    const uint32_t least = hfi_consul_read_duration_ms(text_of(debug, "SessionTTLMin"));
    const uint32_t least_ms = least ? least : USUAL_LEAST_TTL_MS;
    const uint32_t heartbeat = hfi_consul_read_duration_ms(text_of(debug, "ConsulRaftHeartbeatTimeout"));
    const uint32_t election_ms = (heartbeat ? heartbeat : USUAL_HEARTBEAT_MS) * HEARTBEATS_OF_ELECTION;
    if (doctor->peers > 1 && examination->ttl_ms < election_ms)
        hfi_finding(examination, HF_FINDING_RISK, "time-to-live",
                    "while a new leader is elected nothing is renewed: a lock with so short a time may be lost by it\n"
                    "%u ms; an election may take %u ms (ConsulRaftHeartbeatTimeout in /v1/agent/self)\n"
                    "a longer --ttl, or a smaller performance.raft_multiplier",
                    examination->ttl_ms, election_ms);
    else
        hfi_finding(examination, HF_FINDING_OK, "time-to-live", "a lock outlives an election of a new leader\n%u ms",
                    examination->ttl_ms);
    if (examination->ttl_ms < least_ms)
        hfi_finding(examination, HF_FINDING_NOTE, "sessions",
                    "a session lasts longer than such a lock: whose holder is killed is free only after %u to %u "
                    "ms\nsession_ttl_min is %u ms (/v1/agent/self)\na smaller session_ttl_min on all servers",
                    least_ms, 2 * least_ms, least_ms);
}

static void judge_agent(const struct doctor *doctor, const json_t *debug)
{
    const struct hfi_examination *examination = doctor->examination;
    const long long most = json_integer_value(json_object_get(debug, "HTTPMaxConnsPerClient"));
    if (json_is_true(json_object_get(debug, "DevMode")))
        hfi_finding(examination, HF_FINDING_RISK, "disk",
                    "the agent keeps its data in memory: a restart forgets all locks, and tokens begin anew\n"
                    "it was started with -dev (/v1/agent/self)\nconsul agent -server -data-dir=...");
    if (most > 0 && most < CONNECTIONS_FEW)
        hfi_finding(examination, HF_FINDING_RISK, "connections",
                    "the agent refuses what comes on more connections from one machine: renewals too, so locks are "
                    "lost; each thread that waits has one\n"
                    "http_max_conns_per_client is %lld (/v1/agent/self)\nlimits { http_max_conns_per_client = 200 }",
                    most);
    else
        hfi_finding(examination, HF_FINDING_OK, "connections",
                    "each thread that waits needs one\nhttp_max_conns_per_client is %lld (/v1/agent/self)", most);
    if (json_is_false(json_object_get(debug, "ACLsEnabled")))
        hfi_finding(examination, HF_FINDING_NOTE, "strangers",
                    "whoever reaches the agent can take a lock from its holder\n"
                    "ACLs are not enabled (/v1/agent/self)\nacl { enabled = true, default_policy = \"deny\" }");
    judge_leaving(doctor, debug);
    judge_times(doctor, debug);
}

static hf_status look_at_agent(struct doctor *doctor, hf_error *err)
{
    json_t *root;
    hf_error refusal = { .message = "" };
    const hf_status status = get(doctor, "/v1/agent/self", &root, &refusal, err);
    if (status != HF_OK)
        return status;
    const json_t *debug = json_object_get(root, "DebugConfig");
    if (debug)
        judge_agent(doctor, debug);
    else
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "agent",
                    "its settings are not known: leave_on_terminate, session_ttl_min, raft_multiplier, limits\n"
                    "%s (/v1/agent/self)\nagent_prefix \"\" { policy = \"read\" }, to see them",
                    refusal.message);
    json_decref(root);
    if (doctor->store->config.lock_delay_ms == 0)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "lock-delay",
                    "if somebody destroys a session or removes its node, others are granted the locks before their "
                    "holders can stop: fence with the token\nlock_delay is 0s (URL)\n"
                    "lock_delay=15s in the URL of all clients");
    return HF_OK;
}

/* --- rights, and the clock --- */

/* No entry has the index 1: that is of the cluster's own making. */
static hf_status look_at_rights(struct doctor *doctor, hf_error *err)
{
    struct consul_store *store = doctor->store;
    char key[HFI_CONSUL_KEY_MAX];
    struct consul_answer answer;
    hf_error trouble = { .message = "" };
    snprintf(key, sizeof key, "%s/.examination", store->config.prefix);
    const struct consul_operation never[] = { { .verb = "check-index", .key = key, .index = 1 },
                                              { .verb = "set", .key = key, .value = "" } };
    (void)err;
    const hf_status status = hfi_consul_txn(store, never, 2, &answer, doctor->deadline_ns, &trouble);
    if (status == HF_OK)
        hfi_consul_answer_free(&answer);
    if (status == HF_DENIED)
        hfi_finding(doctor->examination, HF_FINDING_BROKEN, "rights",
                    "this token may not write below the prefix: no lock is granted\n%s (consul acl token read -self)\n"
                    "key_prefix \"%s/\" { policy = \"write\" }",
                    trouble.message, store->config.prefix);
    else if (status == HF_OK)
        hfi_finding(doctor->examination, HF_FINDING_OK, "rights",
                    "this token may read and write the keys that locks need; whether it may make sessions shows with "
                    "the first lock\nbelow %s/ (consul acl token read -self)",
                    store->config.prefix);
    return HF_OK; /* that there is no leader was told */
}

/* It says whole seconds. */
static hf_status look_at_clock(struct doctor *doctor, hf_error *err)
{
    struct consul_store *store = doctor->store;
    (void)err;
    pthread_mutex_lock(&store->mutex);
    const int64_t agent_s = store->clock_s ? store->clock_s + (store->env->now_ns() - store->clock_ns) / HFI_SECOND : 0;
    pthread_mutex_unlock(&store->mutex);
    const int64_t apart_s = agent_s - (int64_t)time(NULL);
    if (agent_s && (apart_s > CLOCKS_APART_S || apart_s < -CLOCKS_APART_S))
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "clock",
                    "locks do not depend on it; work that is done once counts as done by the agent's clock, and so for "
                    "longer or shorter\nthe agent's is %" PRId64 " s %s that of this machine (Date of any answer)\n"
                    "synchronise the clocks",
                    apart_s < 0 ? -apart_s : apart_s, apart_s < 0 ? "behind" : "ahead of");
    else if (agent_s)
        hfi_finding(doctor->examination, HF_FINDING_OK, "clock",
                    "the agent's clock agrees with that of this machine\nwithin %d s (Date of any answer)",
                    CLOCKS_APART_S);
    return HF_OK;
}

hf_status hfi_consul_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                             hf_error *err)
{
    static const struct {
        hf_status (*look)(struct doctor *doctor, hf_error *err);
        bool needs_leader;
    } looks[] = { { look_at_leader, false }, { look_at_peers, true },  { look_at_health, true },
                  { look_at_agent, false },  { look_at_rights, true }, { look_at_clock, false } };
    struct doctor doctor = { .store = memory, .examination = examination, .deadline_ns = deadline_ns };
    hf_status status = HF_OK;
    for (size_t i = 0; i < sizeof looks / sizeof looks[0] && status == HF_OK; i++)
        status = looks[i].needs_leader && !doctor.has_leader ? HF_OK : looks[i].look(&doctor, err);
    return status;
}
