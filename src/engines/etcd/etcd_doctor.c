/* SPDX-License-Identifier: MIT
 *
 * etcd_doctor.c: looks at the cluster, its members and what the user may do, for whatever could lose a lock.
 *
 * Nothing is changed by it. Whether the user may write is asked by a transaction whose condition never holds: the
 * servers check the right to do what it would do.
 */
#include "etcd.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READS 5
/* etcd's own default for --quota-backend-bytes; versions before 3.6 do not tell theirs. */
#define DEFAULT_QUOTA (INT64_C(2) << 30)
#define FULL_PERCENT 80
/* So long a history does nobody any good. */
#define REVISIONS_MANY 1000000
/* Without a leader nothing is renewed: for the election-timeout, a second unless configured otherwise, and the
 * election, which may have to be repeated. */
#define ELECTION_MS 3000

/* What a server says of itself. */
struct server {
    bool answered;
    uint64_t cluster, leader;
    bool learner, full, corrupt;
    int64_t size, quota;
    char version[24];
    char trouble[160];
};

struct doctor {
    struct etcd_store *store;
    const struct hfi_examination *examination;
    hfi_time deadline_ns;
    bool has_quorum;
};

/* One call that asks for nothing in particular. HF_OK with `call->answer` NULL: refused. */
static hf_status ask(const struct doctor *doctor, struct etcd_call *call, const char *path,
                     const ProtobufCMessageDescriptor *type, hf_error *err)
{
    static const Etcd__Empty nothing = ETCD__EMPTY__INIT;
    struct etcd_question question = { .calls = call, .count = 1, .deadline_ns = doctor->deadline_ns };
    *call = (struct etcd_call){ .path = path, .request = &nothing.base, .type = type, .optional = true };
    return hfi_etcd_ask(doctor->store, &question, err);
}

static void answer_free(struct etcd_call *call)
{
    hfi_etcd_answers_free(&(struct etcd_question){ .calls = call, .count = 1 });
}

/* --- what a majority says: reads that the leader confirms --- */

static hf_status read_once(const struct doctor *doctor, struct etcd_call *call, int64_t revision, hfi_time deadline_ns,
                           hf_error *err)
{
    char key[HFI_ETCD_PREFIX_MAX + 2];
    Etcd__RangeRequest request = ETCD__RANGE_REQUEST__INIT;
    struct etcd_question question = { .calls = call, .count = 1, .deadline_ns = deadline_ns };
    *call = (struct etcd_call){ .path = "/etcdserverpb.KV/Range",
                                .request = &request.base,
                                .type = &etcd__range_response__descriptor,
                                .optional = revision != 0 };
    request.key.len = (size_t)snprintf(key, sizeof key, "%s/", doctor->store->config.prefix);
    request.key.data = (uint8_t *)key;
    request.revision = revision;
    request.limit = 1;
    request.keys_only = true;
    const hf_status status = hfi_etcd_ask(doctor->store, &question, err);
    call->request = NULL;
    return status;
}

static void judge_reads(const struct doctor *doctor, hfi_time slowest_ns)
{
    const uint32_t ttl_ms = doctor->examination->ttl_ms;
    const long long slowest_ms = slowest_ns / HFI_MS;
    if (slowest_ms > ttl_ms / 6)
        hfi_finding(doctor->examination, HF_FINDING_RISK, "latency",
                    "a renewal, which comes at a third of the time-to-live and is tried again, may come too late\n"
                    "the slowest of %d reads that the leader confirms took %lld ms, with %u ms to live (etcdctl "
                    "endpoint health)\nfaster disks and network for the cluster, or a longer --ttl",
                    READS, slowest_ms, ttl_ms);
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "latency",
                    "renewals have the time to be tried again\n"
                    "the slowest of %d reads that the leader confirms took %lld ms, with %u ms to live (etcdctl "
                    "endpoint health)",
                    READS, slowest_ms, ttl_ms);
}

/* Whether the first revision can still be read. */
static hf_status look_at_history(const struct doctor *doctor, int64_t revision, hf_error *err)
{
    struct etcd_call call;
    const hf_status status = read_once(doctor, &call, 1, doctor->deadline_ns, err);
    if (status != HF_OK)
        return status;
    const bool compacted = !call.answer && strstr(call.stream.reason, "compacted");
    answer_free(&call);
    if (compacted)
        hfi_finding(doctor->examination, HF_FINDING_OK, "compaction",
                    "history is thrown away, so the database does not grow with each lock\n"
                    "revision %" PRId64 ", the first is gone (etcdctl get --rev=1 x)",
                    revision);
    else
        hfi_finding(doctor->examination, revision > REVISIONS_MANY ? HF_FINDING_RISK : HF_FINDING_NOTE, "compaction",
                    "each lock leaves its history: unless that is thrown away now and then the database grows until "
                    "the quota, and no lock is granted or renewed any more\n"
                    "revision %" PRId64 ", none was ever compacted (etcdctl get --rev=1 x)\n"
                    "--auto-compaction-retention=1h",
                    revision);
    return HF_OK;
}

static hf_status look_at_quorum(struct doctor *doctor, hf_error *err)
{
    struct etcd_store *store = doctor->store;
    hfi_time slowest_ns = 0;
    int64_t revision = 0;
    const hfi_time now = store->env->now_ns(), until = now + (doctor->deadline_ns - now) / 2;
    hf_error trouble = { .message = "" };
    hf_status status = HF_OK;
    for (int i = 0; i < READS && status == HF_OK; i++) {
        struct etcd_call call;
        const hfi_time begun = store->env->now_ns();
        status = read_once(doctor, &call, 0, until, &trouble);
        const hfi_time took = store->env->now_ns() - begun;
        slowest_ns = took > slowest_ns ? took : slowest_ns;
        if (status != HF_OK)
            break;
        const Etcd__RangeResponse *range = (const Etcd__RangeResponse *)call.answer;
        revision = range->header ? range->header->revision : 0;
        answer_free(&call);
    }
    doctor->has_quorum = status == HF_OK;
    if (status == HF_DENIED)
        hfi_finding(doctor->examination, HF_FINDING_BROKEN, "rights",
                    "this user may not read below the prefix: no lock is granted\n%s (etcdctl user get)\n"
                    "etcdctl role grant-permission ROLE --prefix=true readwrite %s/",
                    trouble.message, store->config.prefix);
    else if (status != HF_OK)
        hfi_finding(doctor->examination, HF_FINDING_BROKEN, "quorum",
                    "no majority of the members answers: no lock is granted or renewed\n%s (etcdctl endpoint health)\n"
                    "start the members that are down",
                    trouble.message);
    else
        judge_reads(doctor, slowest_ns);
    return status == HF_OK ? look_at_history(doctor, revision, err) : HF_OK;
}

/* --- each server of the URL --- */

static void take_status(struct server *server, const Etcd__StatusResponse *status)
{
    server->answered = true;
    server->cluster = status->header ? status->header->cluster_id : 0;
    server->leader = status->leader;
    server->learner = status->is_learner;
    server->size = status->db_size;
    server->quota = status->db_size_quota;
    snprintf(server->version, sizeof server->version, "%s", status->version);
    for (size_t i = 0; i < status->n_errors; i++) {
        server->full = server->full || strstr(status->errors[i], "NOSPACE");
        server->corrupt = server->corrupt || strstr(status->errors[i], "CORRUPT");
    }
}

/* One that stands still costs its share of the time. */
static void ask_server(const struct doctor *doctor, size_t index, size_t left, struct server *server)
{
    static const Etcd__Empty nothing = ETCD__EMPTY__INIT;
    const hfi_time now = doctor->store->env->now_ns();
    struct etcd_call call = { .path = "/etcdserverpb.Maintenance/Status",
                              .request = &nothing.base,
                              .type = &etcd__status_response__descriptor };
    struct etcd_question question = { .calls = &call,
                                      .count = 1,
                                      .deadline_ns = now + (doctor->deadline_ns - now) / (hfi_time)(left + 1) };
    hf_error trouble = { .message = "" };
    if (hfi_etcd_ask_server(doctor->store, index, &question, &trouble) == HF_OK) {
        take_status(server, (const Etcd__StatusResponse *)call.answer);
        hfi_etcd_answers_free(&question);
    }
    snprintf(server->trouble, sizeof server->trouble, "%.159s", trouble.message);
}

#define ENDPOINTS "etcdctl endpoint status"

static void judge_server(const struct doctor *doctor, size_t index, const struct server *server)
{
    const struct hfi_examination *examination = doctor->examination;
    const char *where = doctor->store->nodes[index].authority;
    const int64_t quota = server->quota ? server->quota : DEFAULT_QUOTA;
    if (!server->answered)
        hfi_finding(examination, HF_FINDING_RISK, "server",
                    "with one server less there may be no majority when the next one goes, and no lock be granted or "
                    "renewed\n%s: %s (" ENDPOINTS ")\nstart it, or take it out of the URL",
                    where, server->trouble);
    else if (server->corrupt)
        hfi_finding(examination, HF_FINDING_BROKEN, "server",
                    "a member has other data than the others: what it says of locks may be wrong, and the cluster "
                    "refuses requests\n%s: alarm CORRUPT (etcdctl alarm list)\n"
                    "replace the member that is wrong, etcdctl alarm disarm",
                    where);
    else if (server->full)
        hfi_finding(examination, HF_FINDING_BROKEN, "space",
                    "the database is full: no lock is granted until there is room\n%s: alarm NOSPACE, %" PRId64
                    " bytes (etcdctl alarm list)\netcdctl compact, etcdctl defrag, etcdctl alarm disarm; "
                    "--auto-compaction-retention",
                    where, server->size);
    else if (server->leader == 0)
        hfi_finding(examination, HF_FINDING_RISK, "server",
                    "this server is cut off from the others, or there is no leader: it serves nobody\n%s: no leader "
                    "(" ENDPOINTS ")\nsee why it does not reach the others",
                    where);
    else if (server->size > quota / 100 * FULL_PERCENT)
        hfi_finding(examination, HF_FINDING_RISK, "space",
                    "when the database is full no lock is granted\n%s: %" PRId64 " of %" PRId64 " bytes%s (" ENDPOINTS
                    ")\netcdctl compact, etcdctl defrag, or a larger --quota-backend-bytes",
                    where, server->size, quota, server->quota ? "" : ", unless its quota was set");
    else
        hfi_finding(examination, HF_FINDING_OK, "server",
                    "it is up, has a leader and room\n%s: %s, %" PRId64 " of %" PRId64 " bytes%s (" ENDPOINTS ")",
                    where, server->version, server->size, quota, server->quota ? "" : ", unless its quota was set");
    if (server->learner)
        hfi_finding(examination, HF_FINDING_NOTE, "server",
                    "a learner takes no requests: a client that comes to it has to go on to the next\n%s: a learner "
                    "(etcdctl member list)\netcdctl member promote",
                    where);
}

/* Of those that answered: are they one cluster, and of one version? */
static void compare_servers(const struct doctor *doctor, const struct server *servers, size_t count)
{
    const struct etcd_node *nodes = doctor->store->nodes;
    size_t first = 0, other = 0, newer = 0;
    while (first < count && !servers[first].answered)
        first++;
    for (size_t i = first + 1; i < count; i++) {
        if (servers[i].answered && servers[i].cluster != servers[first].cluster)
            other = i;
        if (servers[i].answered && strcmp(servers[i].version, servers[first].version) != 0)
            newer = i;
    }
    if (other)
        hfi_finding(doctor->examination, HF_FINDING_BROKEN, "cluster",
                    "the URL names servers of different clusters: a lock has a holder in each of them\n"
                    "%s is of cluster %" PRIx64 ", %s of %" PRIx64 " (" ENDPOINTS " --write-out=json)\n"
                    "name the servers of one cluster",
                    nodes[first].authority, servers[first].cluster, nodes[other].authority, servers[other].cluster);
    if (newer)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "version",
                    "members of different versions are meant to be together only during an upgrade\n"
                    "%s has %s, %s has %s (" ENDPOINTS ")\nfinish the upgrade",
                    nodes[first].authority, servers[first].version, nodes[newer].authority, servers[newer].version);
}

static hf_status look_at_servers(struct doctor *doctor, hf_error *err)
{
    const size_t count = doctor->store->config.address_count;
    struct server *servers = hfi_alloc(count * sizeof *servers);
    if (!servers)
        return hfi_fail(err, HF_NOMEM, 0, "no memory to ask all servers");
    for (size_t i = 0; i < count; i++)
        ask_server(doctor, i, count - i, &servers[i]);
    for (size_t i = 0; i < count; i++)
        judge_server(doctor, i, &servers[i]);
    compare_servers(doctor, servers, count);
    hfi_free(servers);
    return HF_OK;
}

/* --- the members --- */

/* How many voters are where the one with this number is: "http://HOST:PORT" is compared up to the port. */
static size_t at_the_same_place(const Etcd__MemberListResponse *list, size_t index)
{
    const Etcd__Member *one = list->members[index];
    const char *url = one->n_peer_urls ? one->peer_urls[0] : "", *colon = strrchr(url, ':');
    size_t same = 0;
    for (size_t i = 0; colon && i < list->n_members; i++) {
        const Etcd__Member *other = list->members[i];
        same += !other->is_learner && other->n_peer_urls &&
                strncmp(other->peer_urls[0], url, (size_t)(colon - url) + 1) == 0;
    }
    return same;
}

static void judge_voters(const struct doctor *doctor, size_t voters, size_t learners)
{
    const struct hfi_examination *examination = doctor->examination;
    const size_t spare = voters ? (voters - 1) / 2 : 0;
    if (voters == 1)
        hfi_finding(examination, HF_FINDING_NOTE, "members",
                    "the server is alone: while it is down no lock is granted or renewed, and if its disk is lost all "
                    "locks and tokens are\n1 voting member (etcdctl member list)");
    else if (voters % 2 == 0)
        hfi_finding(examination, voters == 2 ? HF_FINDING_RISK : HF_FINDING_NOTE, "members",
                    "%s\n%zu voting members (etcdctl member list)\netcdctl member add, or remove: an odd number",
                    voters == 2 ? "if either of two members is down no lock is granted or renewed: that is twice as "
                                  "likely as with one"
                                : "an even number of members survives no more failures than one member fewer would",
                    voters);
    else
        hfi_finding(examination, HF_FINDING_OK, "members",
                    "locks are granted and renewed while %zu of the members are down\n"
                    "%zu voting members (etcdctl member list)",
                    spare, voters);
    if (learners)
        hfi_finding(examination, HF_FINDING_NOTE, "learners",
                    "a learner does not vote, so it is of no help when a member fails\n%zu (etcdctl member list)\n"
                    "etcdctl member promote",
                    learners);
    if (doctor->store->config.address_count < spare + 1)
        hfi_finding(examination, HF_FINDING_NOTE, "URL",
                    "if the servers that it names are down locks are lost, though the others serve; unless a name "
                    "stands for several\nthe URL names %zu, and there are %zu voting members (etcdctl member list)\n"
                    "name all of them",
                    doctor->store->config.address_count, voters);
}

static hf_status look_at_members(struct doctor *doctor, hf_error *err)
{
    struct etcd_call call;
    const hf_status status =
        ask(doctor, &call, "/etcdserverpb.Cluster/MemberList", &etcd__member_list_response__descriptor, err);
    if (status != HF_OK)
        return doctor->has_quorum ? status : HF_OK;
    const Etcd__MemberListResponse *list = (const Etcd__MemberListResponse *)call.answer;
    size_t voters = 0, learners = 0, together = 0, there = 0;
    for (size_t i = 0; list && i < list->n_members; i++) {
        const size_t same = at_the_same_place(list, i);
        voters += !list->members[i]->is_learner;
        learners += list->members[i]->is_learner;
        if (same > together) {
            together = same;
            there = i;
        }
    }
    if (!list)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "members",
                    "how many members there are is not known\nthe server says: %s (etcdctl member list)",
                    call.stream.reason);
    else
        judge_voters(doctor, voters, learners);
    if (list && voters > 1 && together > (voters - 1) / 2)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "machines",
                    "if these members are on one machine, all locks go with it\n"
                    "%zu of %zu members are at the address of %s (etcdctl member list)\n"
                    "a machine for each member",
                    together, voters, list->members[there]->peer_urls[0]);
    answer_free(&call);
    return HF_OK;
}

/* --- rights --- */

/* A version below 0: there is none. */
static hf_status try_to_write(const struct doctor *doctor, hf_error *err)
{
    char key[HFI_ETCD_PREFIX_MAX + 20];
    Etcd__TxnRequest request = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare = ETCD__COMPARE__INIT, *compares[] = { &compare };
    Etcd__RequestOp operation = ETCD__REQUEST_OP__INIT, *operations[] = { &operation };
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    struct etcd_call call = { .path = "/etcdserverpb.KV/Txn",
                              .request = &request.base,
                              .type = &etcd__txn_response__descriptor };
    struct etcd_question question = { .calls = &call, .count = 1, .deadline_ns = doctor->deadline_ns };
    compare.key.len = (size_t)snprintf(key, sizeof key, "%s/.examination", doctor->store->config.prefix);
    compare.key.data = (uint8_t *)key;
    compare.target = ETCD__COMPARE__TARGET__CREATE;
    compare.target_union_case = ETCD__COMPARE__TARGET_UNION_CREATE_REVISION;
    compare.create_revision = -1;
    put.key = compare.key;
    operation.request_case = ETCD__REQUEST_OP__REQUEST_PUT;
    operation.put = &put;
    request.compare = compares;
    request.n_compare = 1;
    request.success = operations;
    request.n_success = 1;
    const hf_status status = hfi_etcd_ask(doctor->store, &question, err);
    if (status == HF_OK)
        hfi_etcd_answers_free(&question);
    return question.full ? HF_OK : status; /* that was told of */
}

static hf_status look_at_rights(struct doctor *doctor, hf_error *err)
{
    const struct hfi_examination *examination = doctor->examination;
    const struct etcd_config *config = &doctor->store->config;
    struct etcd_call call;
    hf_error trouble = { .message = "" };
    if (!doctor->has_quorum)
        return HF_OK;
    const hf_status written = try_to_write(doctor, &trouble);
    if (written == HF_DENIED)
        hfi_finding(examination, HF_FINDING_BROKEN, "rights",
                    "this user may not write below the prefix: no lock is granted\n%s (etcdctl user get)\n"
                    "etcdctl role grant-permission ROLE --prefix=true readwrite %s/",
                    trouble.message, config->prefix);
    else if (written == HF_OK)
        hfi_finding(examination, HF_FINDING_OK, "rights",
                    "this user may read and write what locks need\nthe keys below %s/ (etcdctl user get)",
                    config->prefix);
    const hf_status status =
        ask(doctor, &call, "/etcdserverpb.Auth/AuthStatus", &etcd__auth_status_response__descriptor, err);
    if (status != HF_OK)
        return status;
    const Etcd__AuthStatusResponse *answer = (const Etcd__AuthStatusResponse *)call.answer;
    if (answer && !answer->enabled && !config->cert_file)
        hfi_finding(examination, HF_FINDING_NOTE, "strangers",
                    "whoever reaches the servers can take a lock from its holder\n"
                    "authentication is not enabled (etcdctl auth status)\netcdctl auth enable, or --client-cert-auth");
    answer_free(&call);
    return HF_OK;
}

static hf_status look_at_times(struct doctor *doctor, hf_error *err)
{
    (void)err;
    if (doctor->examination->ttl_ms < ELECTION_MS && doctor->store->config.address_count > 1)
        hfi_finding(doctor->examination, HF_FINDING_RISK, "time-to-live",
                    "while a new leader is elected nothing is renewed: a lock with so short a time may be lost by it\n"
                    "%u ms; an election takes one or two seconds with the default --election-timeout\n"
                    "a --ttl of 5s or more",
                    doctor->examination->ttl_ms);
    else
        hfi_finding(doctor->examination, HF_FINDING_OK, "time-to-live",
                    "a lock outlives an election of a new leader\n%u ms", doctor->examination->ttl_ms);
    return HF_OK;
}

hf_status hfi_etcd_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns, hf_error *err)
{
    static hf_status (*const looks[])(struct doctor * doctor, hf_error * err) = { look_at_quorum, look_at_servers,
                                                                                  look_at_members, look_at_rights,
                                                                                  look_at_times };
    struct doctor doctor = { .store = memory, .examination = examination, .deadline_ns = deadline_ns };
    hf_status status = HF_OK;
    for (size_t i = 0; i < sizeof looks / sizeof looks[0] && status == HF_OK; i++)
        status = looks[i](&doctor, err);
    return status;
}
