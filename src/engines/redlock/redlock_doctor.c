/* SPDX-License-Identifier: MIT
 *
 * redlock_doctor.c: what the masters are, and whether they are what Redlock needs: independent of each other.
 */
#include "engines/redis/redis_doctor.h"
#include "redlock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCKS_MOST_MS 1000

static const struct redis_address *address_of(const struct redis_patient *patient)
{
    return &patient->node->address;
}

/* Two votes that are one. True: they are. */
static bool are_one(const struct redis_patient *a, const struct redis_patient *b)
{
    char one[REDIS_VALUE_MAX], other[REDIS_VALUE_MAX];
    hfi_redis_info(a, "run_id", one);
    if (*one && strcmp(one, hfi_redis_info(b, "run_id", other)) == 0) {
        hfi_finding(a->examination, HF_FINDING_BROKEN, "masters",
                    "%.80s:%s and %.80s:%s are the same server, which has two votes: fewer machines than it seems "
                    "decide, and may grant a lock twice\nrun_id is %.40s on both (INFO server)\n"
                    "name each server once in the URL",
                    address_of(a)->host, address_of(a)->port, address_of(b)->host, address_of(b)->port, one);
        return true;
    }
    hfi_redis_info(a, "master_replid", one);
    if (*one && strcmp(one, hfi_redis_info(b, "master_replid", other)) == 0) {
        hfi_finding(a->examination, HF_FINDING_BROKEN, "masters",
                    "%.80s:%s and %.80s:%s replicate each other, and are not independent: a vote for one is a vote "
                    "for both\nmaster_replid is %.40s on both (INFO replication)\nREPLICAOF NO ONE on one of them",
                    address_of(a)->host, address_of(a)->port, address_of(b)->host, address_of(b)->port, one);
        return true;
    }
    return false;
}

/* The largest number of masters that one host has. */
static size_t most_on_one_host(const struct redlock_store *store)
{
    size_t most = 0;
    for (size_t i = 0; i < store->count; i++) {
        size_t same = 0;
        for (size_t j = 0; j < store->count; j++)
            same += strcmp(store->masters[i]->address.host, store->masters[j]->address.host) == 0;
        most = same > most ? same : most;
    }
    return most;
}

static void compare(const struct redlock_store *store, const struct redis_patient *patients, const bool *answered)
{
    const struct hfi_examination *examination = patients[0].examination;
    bool apart = true;
    int64_t first = INT64_MAX, last = INT64_MIN, unsure = 0;
    for (size_t i = 0; i < store->count; i++) {
        for (size_t j = 0; j < i && answered[i]; j++)
            apart = !(answered[j] && are_one(&patients[i], &patients[j])) && apart;
        if (!answered[i] || patients[i].time->type == REDIS_REPLY_ERROR)
            continue;
        first = patients[i].ahead_ms < first ? patients[i].ahead_ms : first;
        last = patients[i].ahead_ms > last ? patients[i].ahead_ms : last;
        unsure = patients[i].unsure_ms > unsure ? patients[i].unsure_ms : unsure;
    }
    const size_t together = most_on_one_host(store);
    if (together >= store->quorum)
        hfi_finding(examination, HF_FINDING_RISK, "masters",
                    "%zu of %zu are on one machine: when that fails no lock can be taken or renewed, and when it is "
                    "restarted a majority may have forgotten them\nthey have the same host in the URL\n"
                    "a machine of its own for each master",
                    together, store->count);
    else if (apart)
        hfi_finding(examination, HF_FINDING_OK, "masters",
                    "they are independent, as far as they tell\nrun_id and master_replid differ (INFO)");
    if (first <= last && last - first > CLOCKS_MOST_MS + 2 * unsure)
        hfi_finding(examination, HF_FINDING_RISK, "clocks",
                    "the masters' clocks differ: when one is set right, its votes end early, and a lock may be "
                    "granted twice\n%lld ms lie between the first and the last (TIME)\n"
                    "have NTP keep them, by small steps",
                    (long long)(last - first));
    else if (first <= last)
        hfi_finding(examination, HF_FINDING_OK, "clocks", "the masters' clocks agree\n%lld ms apart (TIME)",
                    (long long)(last - first));
}

/* All masters, one after the other: each gets its share of the time. */
hf_status hfi_redlock_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                              hf_error *err)
{
    struct redlock_store *store = memory;
    struct redis_patient *patients = hfi_alloc(store->count * sizeof *patients);
    bool answered[REDLOCK_MASTERS_MOST] = { false };
    size_t count = 0;
    if (!patients)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for what the masters say");
    for (size_t i = 0; i < store->count; i++) {
        const hfi_time now = hfi_redis_now_ns();
        hf_error trouble = { .message = "" };
        patients[i] = (struct redis_patient){ .store = &store->redis,
                                              .node = store->masters[i],
                                              .examination = examination,
                                              .deadline_ns = now + (deadline_ns - now) / (hfi_time)(store->count - i),
                                              .one_of_many = true };
        answered[i] = hfi_redis_patient_ask(&patients[i], &trouble) == HF_OK;
        count += answered[i];
        if (answered[i]) {
            hfi_redis_examine_server(&patients[i]);
            hfi_redis_examine_rights(&patients[i]);
            hfi_redis_examine_names(&patients[i]);
        } else {
            hfi_redis_say(&patients[i], HF_FINDING_RISK, "server",
                          "it does not answer, and its vote is missing\n%.200s\n"
                          "start it; one that comes back empty must stay away for a time-to-live first",
                          trouble.message);
            hfi_fail(err, HF_UNAVAILABLE, trouble.native, "%s", trouble.message);
        }
    }
    compare(store, patients, answered);
    for (size_t i = 0; i < store->count; i++)
        hfi_redis_patient_free(&patients[i]);
    hfi_free(patients);
    return count >= store->quorum ? HF_OK : HF_UNAVAILABLE;
}
