/* SPDX-License-Identifier: MIT
 *
 * redis_doctor_server.c: what the settings and the state of one server mean for the locks on it.
 */
#include "redis_doctor.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Clocks that are so far apart will be set one day, and that is a jump. */
#define CLOCKS_MOST_MS 1000
/* A replica that is well is heard of every second. */
#define LAG_MOST 5
/* What a waiter's messages may take before its connection is cut; a message has less than 100 bytes. */
#define PUBSUB_LEAST 1000000

static bool is(const char *value, const char *expected)
{
    return value && strcmp(value, expected) == 0;
}

static bool is_group(const struct redis_patient *patient)
{
    return patient->store->config.kind == REDIS_SENTINEL || patient->store->config.kind == REDIS_CLUSTER;
}

/* What the server does not show. True: nothing can be said of it. */
static bool look_at_openness(const struct redis_patient *patient)
{
    const redisReply *setting = patient->settings[REDIS_TIMEOUT];
    if (patient->info->type != REDIS_REPLY_STRING) {
        hfi_redis_say(patient, HF_FINDING_NOTE, "server",
                      "it does not show us its state: whether it keeps its data, evicts keys or has replicas is not "
                      "known\n%.120s (INFO)\nask its administrator, or look as a user who may (+info +config|get)",
                      patient->info->type == REDIS_REPLY_ERROR ? patient->info->str : "no text");
        return true;
    }
    if (setting->type == REDIS_REPLY_ERROR)
        hfi_redis_say(patient, HF_FINDING_NOTE, "settings",
                      "it does not show us its settings, as servers do that somebody else runs: when it writes to "
                      "disk and whom it cuts off is not known\n%.120s (CONFIG GET)\n"
                      "look at them where it is rented, or as a user who may (+config|get)",
                      setting->str);
    return false;
}

static void look_at_version(const struct redis_patient *patient)
{
    char version[REDIS_VALUE_MAX], valkey[REDIS_VALUE_MAX];
    hfi_redis_info(patient, "redis_version", version);
    hfi_redis_info(patient, "valkey_version", valkey);
    if (!*version)
        hfi_redis_say(patient, HF_FINDING_NOTE, "version", "it does not say which it is\n(INFO server)");
    else if (strtol(version, NULL, 10) < 6)
        hfi_redis_say(patient, HF_FINDING_BROKEN, "version",
                      "it is too old, and some scripts will fail\nversion %.20s (INFO server)\n"
                      "run Redis 6 or newer, or Valkey",
                      version);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "version", "it is %s %.20s\n(INFO server)", *valkey ? "Valkey" : "Redis",
                      *valkey ? valkey : version);
}

/* Asked for a lock that nobody can have. A server says that it does not know a command before it says whose. */
static void look_at_module(const struct redis_patient *patient)
{
    struct redis_command command = { REDIS_ROOM(4) };
    redisReply *reply = NULL;
    const struct redis_config *config = &patient->store->config;
    char keys[2][HFI_REDIS_PREFIX_MAX + 8];
    if (!config->access.asks_modules)
        return;
    snprintf(keys[0], sizeof keys[0], "%s{}", config->prefix);
    snprintf(keys[1], sizeof keys[1], "%s{}", config->prefix);
    hfi_redis_add(&command, "HF.LOOK");
    hfi_redis_add(&command, "2");
    hfi_redis_add(&command, keys[0]);
    hfi_redis_add(&command, keys[1]);
    if (hfi_redis_patient_command(patient, &command, &reply, NULL) == HF_OK && hfi_redis_is_error(reply, "NOPERM"))
        hfi_redis_say(patient, HF_FINDING_NOTE, "module",
                      "it has Holdfast's module, and our user may not use it: scripts do the same, and cost more\n"
                      "%.120s (HF.LOOK)\nACL SETUSER with +hf.acquire +hf.release +hf.renew +hf.look +hf.guard",
                      reply->str);
    else if (reply && !hfi_redis_is_error(reply, "ERR unknown command"))
        hfi_redis_say(patient, HF_FINDING_OK, "module",
                      "it has Holdfast's module, and locks go by its commands\nit knows HF.LOOK");
    freeReplyObject(reply);
}

static void look_at_role(const struct redis_patient *patient)
{
    char role[REDIS_VALUE_MAX];
    hfi_redis_info(patient, "role", role);
    const bool sliced =
        hfi_redis_info_number(patient, "cluster_enabled") == 1 && patient->store->config.kind != REDIS_CLUSTER;
    if (!*role) {
        hfi_redis_say(patient, HF_FINDING_NOTE, "role", "it does not say whether it is a master\n(INFO replication)");
        return;
    }
    if (hfi_redis_info_number(patient, "loading"))
        hfi_redis_say(patient, HF_FINDING_BROKEN, "role",
                      "it is still loading its data and answers nobody\nloading is 1 (INFO persistence)\nwait");
    else if (!is(role, "master") && is(hfi_redis_setting(patient, REDIS_REPLICA_READ_ONLY), "no"))
        hfi_redis_say(patient, HF_FINDING_BROKEN, "role",
                      "it is a replica that can be written to: its locks exclude nobody at the master, and are gone "
                      "when it synchronizes anew\nrole is %.20s, replica-read-only no (INFO replication, CONFIG GET "
                      "replica-read-only)\nname the master in the URL; CONFIG SET replica-read-only yes",
                      role);
    else if (!is(role, "master"))
        hfi_redis_say(patient, HF_FINDING_BROKEN, "role",
                      "it is a replica, which grants no locks\nrole is %.20s (INFO replication)\n"
                      "name the master in the URL, or the Sentinels: redis+sentinel://HOST,HOST/MASTER",
                      role);
    else if (sliced)
        hfi_redis_say(patient, HF_FINDING_RISK, "role",
                      "it is part of a cluster: names whose slots another server has cannot be locked here\n"
                      "cluster_enabled is 1 (INFO cluster)\nsay so in the URL: redis+cluster://HOST,HOST");
    else
        hfi_redis_say(patient, HF_FINDING_OK, "role", "it is a master\nrole is master (INFO replication)");
    if (is(role, "master") && is(hfi_redis_setting(patient, REDIS_REPLICA_READ_ONLY), "no"))
        hfi_redis_say(patient, HF_FINDING_RISK, "replica-read-only",
                      "once it is a replica it will go on granting locks to whoever asks it, beside its master\n"
                      "replica-read-only is no (CONFIG GET replica-read-only)\nCONFIG SET replica-read-only yes");
}

/* --- what a restart forgets --- */

/* A server that cannot write to disk stops to take writes; after a snapshot that failed only if it is to make them. */
static void look_at_disk(const struct redis_patient *patient)
{
    char aof[REDIS_VALUE_MAX], rdb[REDIS_VALUE_MAX];
    hfi_redis_info(patient, "aof_last_write_status", aof);
    hfi_redis_info(patient, "rdb_last_bgsave_status", rdb);
    const char *save = hfi_redis_setting(patient, REDIS_SAVE);
    const bool stops = save && *save && is(hfi_redis_setting(patient, REDIS_STOP_WRITES), "yes");
    if (!is(aof, "err") && !(is(rdb, "err") && stops))
        return;
    hfi_redis_say(patient, HF_FINDING_BROKEN, "disk",
                  "it cannot write to its disk, and refuses to grant locks\n"
                  "aof_last_write_status is %.10s, rdb_last_bgsave_status %.10s (INFO persistence)\n"
                  "make room on the disk, or the folder writable (CONFIG GET dir); then BGSAVE",
                  aof, rdb);
}

static void look_at_persistence(const struct redis_patient *patient)
{
    const char *fsync = hfi_redis_setting(patient, REDIS_APPENDFSYNC);
    const char *save = hfi_redis_setting(patient, REDIS_SAVE);
    const bool aof = hfi_redis_info_number(patient, "aof_enabled") == 1;
    look_at_disk(patient);
    if (!aof)
        hfi_redis_say(patient, HF_FINDING_RISK, "persistence",
                      "a restart forgets %s, while their holders believe in them: others are granted the same locks\n"
                      "aof_enabled is 0, save is \"%.40s\" (INFO persistence, CONFIG GET save)\n"
                      "CONFIG SET appendonly yes, CONFIG SET appendfsync always, CONFIG REWRITE; or keep a server "
                      "that was restarted away from everybody for a time-to-live",
                      is(save, "") ? "every lock" : "all locks since the last snapshot", save ? save : "not shown");
    else if (patient->store->config.fsync)
        hfi_redis_say(patient, HF_FINDING_OK, "persistence",
                      "what is granted is on disk, as the URL says fsync=yes\naof_enabled is 1 (INFO persistence)");
    else if (!fsync)
        hfi_redis_say(patient, HF_FINDING_NOTE, "persistence",
                      "it keeps a log of what it does; how soon that is on disk is not known\n"
                      "aof_enabled is 1 (INFO persistence)\nappendfsync should be always, or the URL say fsync=yes");
    else if (!is(fsync, "always"))
        hfi_redis_say(patient, HF_FINDING_RISK, "persistence",
                      "a crash of its machine forgets the locks of the last %s, and others are granted them\n"
                      "appendfsync is %.10s (CONFIG GET appendfsync)\n"
                      "CONFIG SET appendfsync always, or fsync=yes in the URL (Redis 7.2 or newer)",
                      is(fsync, "no") ? "half minute" : "second", fsync);
    else if (is(hfi_redis_setting(patient, REDIS_NO_APPENDFSYNC_ON_REWRITE), "yes"))
        hfi_redis_say(patient, HF_FINDING_RISK, "persistence",
                      "while it rewrites its log nothing is made safe on disk, and a crash forgets those locks\n"
                      "no-appendfsync-on-rewrite is yes (CONFIG GET no-appendfsync-on-rewrite)\n"
                      "CONFIG SET no-appendfsync-on-rewrite no");
    else
        hfi_redis_say(patient, HF_FINDING_OK, "persistence",
                      "a lock is on disk before it is granted\n"
                      "aof_enabled is 1, appendfsync always (INFO persistence, CONFIG GET appendfsync)");
}

/* --- memory --- */

static void look_at_memory(const struct redis_patient *patient)
{
    char policy[REDIS_VALUE_MAX];
    hfi_redis_info(patient, "maxmemory_policy", policy);
    const long long most = hfi_redis_info_number(patient, "maxmemory");
    const long long used = hfi_redis_info_number(patient, "used_memory");
    const long long evicted = hfi_redis_info_number(patient, "evicted_keys");
    if (!*policy)
        hfi_redis_say(patient, HF_FINDING_NOTE, "eviction",
                      "it does not say whether it throws keys away when memory is short\n(INFO memory)\n"
                      "maxmemory-policy should be noeviction");
    else if (!is(policy, "noeviction"))
        hfi_redis_say(patient, most ? HF_FINDING_RISK : HF_FINDING_NOTE, "eviction",
                      "when memory is short it throws away keys, and locks are among them%s\n"
                      "maxmemory-policy is %.30s, maxmemory %lld, evicted_keys %lld (INFO memory, INFO stats)\n"
                      "CONFIG SET maxmemory-policy noeviction, or a server of their own for locks",
                      most ? ": others are then granted what is held" : "; so far there is no limit", policy, most,
                      evicted);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "eviction",
                      "it never throws a lock away\nmaxmemory-policy is noeviction (INFO memory)");
    if (most && used >= most && is(policy, "noeviction"))
        hfi_redis_say(
            patient, HF_FINDING_BROKEN, "memory",
            "its memory is full, and it refuses to grant locks\n"
            "used_memory is %lld of maxmemory %lld (INFO memory)\nCONFIG SET maxmemory to more, or delete keys",
            used, most);
    else if (most && used / 9 >= most / 10)
        hfi_redis_say(
            patient, HF_FINDING_RISK, "memory",
            "its memory is nearly full; then %s\n"
            "used_memory is %lld of maxmemory %lld (INFO memory)\nCONFIG SET maxmemory to more, or delete keys",
            is(policy, "noeviction") ? "it refuses to grant locks" : "keys are thrown away", used, most);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "memory",
                      "there is room\nused_memory is %lld, maxmemory %lld (INFO memory)", used, most);
}

/* --- replicas --- */

struct replicas {
    int online, attached;
    long worst_lag;
};

static struct replicas count_replicas(const struct redis_patient *patient)
{
    struct replicas replicas = { 0 };
    char field[24], value[REDIS_VALUE_MAX];
    const long long most = hfi_redis_info_number(patient, "connected_slaves");
    for (long long i = 0; i < most && i < 1000; i++) {
        snprintf(field, sizeof field, "slave%lld", i);
        const char *lag = strstr(hfi_redis_info(patient, field, value), ",lag=");
        const long seconds = lag ? strtol(lag + 5, NULL, 10) : 0;
        replicas.attached++;
        replicas.online += strstr(value, "state=online") != NULL;
        replicas.worst_lag = seconds > replicas.worst_lag ? seconds : replicas.worst_lag;
    }
    return replicas;
}

static void look_at_replicas(const struct redis_patient *patient)
{
    const int wanted = patient->store->config.replicas;
    const struct replicas replicas = count_replicas(patient);
    static const char shown[] = "INFO replication";
    if (wanted > replicas.online)
        hfi_redis_say(patient, HF_FINDING_BROKEN, "replicas",
                      "every grant waits for %d of them, and there are too few: nobody gets a lock\n"
                      "%d of %d replicas are online (%s)\nattach more (REPLICAOF), or lower replicas= in the URL",
                      wanted, replicas.online, replicas.attached, shown);
    else if (replicas.online < replicas.attached || replicas.worst_lag > LAG_MOST)
        hfi_redis_say(patient, HF_FINDING_RISK, "replicas",
                      "one of them is behind: should it become the master, it does not know of the last locks\n"
                      "%d of %d replicas are online, the worst was heard of %ld s ago (%s)\n"
                      "look at its log and at the network between the two",
                      replicas.online, replicas.attached, replicas.worst_lag, shown);
    else if (replicas.online > wanted && patient->store->config.kind != REDIS_REDLOCK)
        hfi_redis_say(patient, HF_FINDING_RISK, "replicas",
                      "a lock is granted before every replica has it: %s\n"
                      "%d replicas are online, the URL says replicas=%d (%s)\nreplicas=%d in the URL",
                      is_group(patient) ? "a failover can forget it, and others are granted it"
                                        : "should one of them be made the master, others are granted it",
                      replicas.online, wanted, shown, replicas.online);
    else if (replicas.online && patient->store->config.kind == REDIS_REDLOCK)
        hfi_redis_say(patient, HF_FINDING_NOTE, "replicas",
                      "it has replicas, which Redlock does not need: one that takes its place would vote again for a "
                      "lock that it has not got\n%d replicas are online (%s)\n"
                      "see to it that none is made a master sooner than a time-to-live after its own has died",
                      replicas.online, shown);
    else if (!replicas.online && is_group(patient))
        hfi_redis_say(patient, HF_FINDING_RISK, "replicas",
                      "it has none: when it dies nobody takes its place, and its locks cannot be granted or renewed\n"
                      "connected_slaves is 0 (%s)\nattach a replica (REPLICAOF)",
                      shown);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "replicas", "%s\n%d replicas are online, the URL says replicas=%d (%s)",
                      wanted ? "a lock is on all of them before it is granted"
                             : "it has none, so that no failover can forget a lock",
                      replicas.online, wanted, shown);
}

/* A master that is cut off from its replicas and goes on granting locks, beside the one that has taken its place. */
static void look_at_isolation(const struct redis_patient *patient)
{
    const long long least = hfi_redis_setting_number(patient, REDIS_MIN_REPLICAS, -1);
    const long long lag = hfi_redis_setting_number(patient, REDIS_MIN_REPLICAS_LAG, 0);
    const struct replicas replicas = count_replicas(patient);
    if (least < 0 || (least == 0 && !is_group(patient)))
        return;
    if (least > replicas.online)
        hfi_redis_say(patient, HF_FINDING_BROKEN, "min-replicas-to-write",
                      "it has fewer replicas than it wants for a write, and refuses to grant locks\n"
                      "min-replicas-to-write is %lld, and %d are online (CONFIG GET min-replicas-to-write, INFO "
                      "replication)\nattach a replica, or CONFIG SET min-replicas-to-write 0",
                      least, replicas.online);
    else if (least == 0)
        hfi_redis_say(patient, HF_FINDING_RISK, "min-replicas-to-write",
                      "cut off from the others, it goes on granting locks beside the master that takes its place\n"
                      "min-replicas-to-write is 0 (CONFIG GET min-replicas-to-write)\n"
                      "CONFIG SET min-replicas-to-write 1, on each server");
    else if (lag * 1000 > (long long)patient->examination->ttl_ms)
        hfi_redis_say(patient, HF_FINDING_RISK, "min-replicas-max-lag",
                      "cut off from the others, it goes on granting locks for longer than one lasts\n"
                      "min-replicas-max-lag is %lld s, the time-to-live %" PRIu32 " ms (CONFIG GET "
                      "min-replicas-max-lag)\nCONFIG SET min-replicas-max-lag to less",
                      lag, patient->examination->ttl_ms);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "min-replicas-to-write",
                      "cut off from its replicas it stops to grant locks\nmin-replicas-to-write is %lld, "
                      "min-replicas-max-lag %lld s (CONFIG GET min-replicas*)",
                      least, lag);
}

/* --- connections --- */

static void look_at_messages(const struct redis_patient *patient)
{
    const char *limits = hfi_redis_setting(patient, REDIS_OUTPUT_LIMITS);
    const char *pubsub = limits ? strstr(limits, "pubsub ") : NULL;
    char *rest;
    if (!pubsub)
        return;
    const long long hard = strtoll(pubsub + 7, &rest, 10), soft = strtoll(rest, NULL, 10);
    if ((hard && hard < PUBSUB_LEAST) || (soft && soft < PUBSUB_LEAST))
        hfi_redis_say(patient, HF_FINDING_RISK, "buffers",
                      "a client that many wait in is cut off before it has read its messages: turns come late\n"
                      "client-output-buffer-limit is %.60s (CONFIG GET client-output-buffer-limit)\n"
                      "CONFIG SET client-output-buffer-limit \"pubsub 33554432 8388608 60\"",
                      pubsub);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "buffers",
                      "waiters are not cut off in a crowd\nclient-output-buffer-limit is %.60s (CONFIG GET "
                      "client-output-buffer-limit)",
                      pubsub);
}

static void look_at_idling(const struct redis_patient *patient)
{
    const long long timeout = hfi_redis_setting_number(patient, REDIS_TIMEOUT, -1);
    const long long keepalive = hfi_redis_setting_number(patient, REDIS_KEEPALIVE, -1);
    if (timeout > 0 && timeout * 1000 <= (long long)patient->examination->ttl_ms / 3)
        hfi_redis_say(patient, HF_FINDING_RISK, "timeout",
                      "it closes our connection between one renewal and the next: each needs a new one, and comes "
                      "late when the server is short of room\n"
                      "timeout is %lld s, the time-to-live %" PRIu32 " ms (CONFIG GET timeout)\nCONFIG SET timeout 0",
                      timeout, patient->examination->ttl_ms);
    else if (timeout >= 0)
        hfi_redis_say(patient, HF_FINDING_OK, "timeout",
                      "a connection stands from one renewal to the next\ntimeout is %lld s (CONFIG GET timeout)",
                      timeout);
    if (keepalive == 0)
        hfi_redis_say(patient, HF_FINDING_RISK, "tcp-keepalive",
                      "it never notices that a waiting machine has gone without a word: a lock that is handed to it "
                      "stands still for %d ms each time\ntcp-keepalive is 0 (CONFIG GET tcp-keepalive)\n"
                      "CONFIG SET tcp-keepalive 60",
                      HFI_REDIS_CLAIM_MS);
    else if (keepalive > 0)
        hfi_redis_say(patient, HF_FINDING_OK, "tcp-keepalive",
                      "machines that are gone are noticed\ntcp-keepalive is %lld s (CONFIG GET tcp-keepalive)",
                      keepalive);
}

static void look_at_room(const struct redis_patient *patient)
{
    const long long most = hfi_redis_setting_number(patient, REDIS_MAXCLIENTS, 0);
    const long long now = hfi_redis_info_number(patient, "connected_clients");
    if (most == 0)
        return;
    if (now * 10 >= most * 9)
        hfi_redis_say(patient, HF_FINDING_RISK, "connections",
                      "it will soon refuse new ones: who needs one to renew then loses its lock\n"
                      "%lld of %lld are taken (INFO clients, CONFIG GET maxclients)\nCONFIG SET maxclients to more",
                      now, most);
    else
        hfi_redis_say(patient, HF_FINDING_OK, "connections",
                      "there is room for more\n%lld of %lld are taken (INFO clients, CONFIG GET maxclients)", now,
                      most);
}

static void look_at_clock(const struct redis_patient *patient)
{
    const long long off = patient->ahead_ms < 0 ? -patient->ahead_ms : patient->ahead_ms;
    if (patient->time->type == REDIS_REPLY_ERROR)
        return; /* a right that is missing: said there */
    if (off > CLOCKS_MOST_MS + patient->unsure_ms)
        hfi_redis_say(patient, HF_FINDING_RISK, "clock",
                      "its clock and ours differ: when its own is set right, locks end too early, or as much too late\n"
                      "it is %lld ms %s ours (TIME)\nhave NTP keep both clocks, by small steps",
                      off, patient->ahead_ms < 0 ? "behind" : "ahead of");
    else
        hfi_redis_say(patient, HF_FINDING_OK, "clock",
                      "it agrees with ours\n%lld ms apart, give or take %" PRId64 " (TIME)", off, patient->unsure_ms);
}

void hfi_redis_examine_server(const struct redis_patient *patient)
{
    look_at_clock(patient);
    look_at_module(patient);
    if (look_at_openness(patient))
        return;
    look_at_version(patient);
    look_at_role(patient);
    look_at_persistence(patient);
    look_at_memory(patient);
    look_at_replicas(patient);
    look_at_isolation(patient);
    look_at_messages(patient);
    look_at_idling(patient);
    look_at_room(patient);
}
