/* SPDX-License-Identifier: MIT
 *
 * consul_done.c: that the work of a lock is done, for once_per_ms. The mark is the key P/.done/NAME/mark, below no
 * lock's name, which has no dot at its beginning. Consul has nothing that ends by itself after a given time: the mark
 * says until when it counts, stays where it is then, and is overwritten by the next.
 *
 * The time is that of the agents: each answer has a date, in whole seconds. The mark's end is counted from the answer
 * of an exchange that was begun after its time was, rounded up; and compared with the date of the answer that shows it.
 */
#include "consul.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a mark's value says, "done until token host pid note". */
struct mark {
    int64_t done_s, until_s; /* by the agent's clock */
    uint64_t token;
    char host[65];
    long long pid;
    char note[128];
};

void hfi_consul_done_key(char out[HFI_CONSUL_KEY_MAX], const struct consul_store *store, const char *name)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    hfi_name_encode(encoded, name);
    snprintf(out, HFI_CONSUL_KEY_MAX, "%s/.done/%s/mark", store->config.prefix, encoded);
}

/* False: it is none of ours, or its time is over. */
static bool read_mark(struct mark *mark, const struct consul_answer *answer, size_t i)
{
    char text[HFI_CONSUL_VALUE_MAX];
    int used = 0;
    *mark = (struct mark){ .token = 0 };
    hfi_consul_text(text, answer, i);
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNu64 " %64s %lld %n", &mark->done_s, &mark->until_s, &mark->token,
               mark->host, &mark->pid, &used) < 5)
        return false;
    snprintf(mark->note, sizeof mark->note, "%s", used ? text + used : "");
    return mark->until_s > answer->date_s;
}

/* Of a number of seconds that may be anything. */
static int64_t milliseconds(int64_t from_s, int64_t to_s)
{
    const int64_t most = INT64_MAX / 2000;
    if (from_s < 0 || to_s > most)
        return -1;
    return to_s > from_s ? (to_s - from_s) * 1000 : 0;
}

static int64_t ago_ms(const struct mark *mark, const struct consul_answer *answer)
{
    return answer->date_s ? milliseconds(mark->done_s, answer->date_s) : -1;
}

static int64_t left_ms(const struct mark *mark, const struct consul_answer *answer)
{
    return answer->date_s ? milliseconds(answer->date_s, mark->until_s) : -1;
}

/* --- asking --- */

void hfi_consul_add_done(struct consul_work *work)
{
    if (work->request->once)
        hfi_consul_add(work, "get-tree", work->done);
}

void hfi_consul_note_done(struct consul_work *work)
{
    struct consul_lock *lock = work->lock;
    const struct consul_answer *answer = &work->answer;
    struct consul_entry entry;
    struct mark mark;
    lock->done = false;
    for (size_t i = 0; i < hfi_consul_entries(answer) && work->request->once && !lock->done; i++) {
        if (!hfi_consul_entry(answer, i, &entry) || strcmp(entry.key, work->done) != 0 || !read_mark(&mark, answer, i))
            continue;
        lock->done = true;
        lock->done_ago_ms = ago_ms(&mark, answer);
        lock->done_left_ms = left_ms(&mark, answer);
        snprintf(lock->busy, sizeof lock->busy, "%s:%lld%s%.70s", mark.host, mark.pid, *mark.note ? " " : "",
                 mark.note);
    }
}

/* --- leaving it --- */

hf_status hfi_consul_describe_done(struct consul_work *work, char out[HFI_CONSUL_VALUE_MAX])
{
    struct consul_store *store = work->store;
    const struct hfi_request *request = work->request;
    const hf_status status = hfi_consul_get_tree(store, work->done, &work->answer, request->deadline_ns, work->err);
    if (status != HF_OK)
        return status;
    const int64_t now = work->answer.date_s;
    hfi_consul_answer_free(&work->answer);
    if (!now)
        return hfi_fail(work->err, HF_UNAVAILABLE, 0, "the agent does not say what time it is");
    /* Its clock has less than a second more than it says. */
    const int64_t until = now + 1 + (int64_t)((request->done_ms + 999) / 1000);
    snprintf(out, HFI_CONSUL_VALUE_MAX, "%" PRId64 " %" PRId64 " %" PRIu64 " %s %d %s", now, until, work->lock->token,
             store->host, store->pid, request->note);
    return HF_OK;
}

/* --- for people --- */

/* The name of the lock whose mark this is; false if it is none. */
static bool name_of(char name[HFI_NAME_MAX + 1], const struct consul_store *store, const char *key)
{
    char encoded[HFI_NAME_ENCODED_MAX];
    const size_t before = strlen(store->config.prefix) + strlen("/.done/"), behind = strlen("/mark");
    const size_t length = strlen(key);
    if (length <= before + behind || strcmp(key + length - behind, "/mark") != 0 ||
        length - before - behind >= sizeof encoded)
        return false;
    snprintf(encoded, sizeof encoded, "%.*s", (int)(length - before - behind), key + before);
    return hfi_name_decode(name, HFI_NAME_MAX + 1, encoded);
}

hf_status hfi_consul_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err)
{
    struct consul_store *store = memory;
    char start[HFI_CONSUL_KEY_MAX], encoded[HFI_NAME_ENCODED_MAX];
    struct consul_answer answer;
    hfi_name_encode(encoded, prefix);
    snprintf(start, sizeof start, "%s/.done/%s", store->config.prefix, encoded);
    const hf_status status = hfi_consul_get_tree(store, start, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    int stop = 0;
    for (size_t i = 0; i < hfi_consul_entries(&answer) && !stop; i++) {
        char name[HFI_NAME_MAX + 1];
        struct consul_entry entry;
        struct mark mark;
        if (!hfi_consul_entry(&answer, i, &entry) || !name_of(name, store, entry.key) || !read_mark(&mark, &answer, i))
            continue;
        const hf_info info = { .size = sizeof info,
                               .name = name,
                               .host = mark.host,
                               .pid = mark.pid,
                               .token = mark.token,
                               .held_ms = ago_ms(&mark, &answer),
                               .remaining_ms = left_ms(&mark, &answer),
                               .waiters = -1,
                               .note = mark.note };
        stop = each(&info, arg);
    }
    hfi_consul_answer_free(&answer);
    return HF_OK;
}

/* Only the mark that was seen: a request that comes late must not take back what was done since. */
hf_status hfi_consul_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct consul_store *store = memory;
    char key[HFI_CONSUL_KEY_MAX];
    struct consul_answer answer;
    struct consul_entry entry;
    hfi_consul_done_key(key, store, name);
    hf_status status = hfi_consul_get_tree(store, key, &answer, deadline_ns, err);
    if (status != HF_OK)
        return status;
    const uint64_t index = hfi_consul_entry(&answer, 0, &entry) ? entry.modified : 0;
    hfi_consul_answer_free(&answer);
    if (!index)
        return HF_OK;
    const struct consul_operation remove = { .verb = "delete-cas", .key = key, .index = index };
    status = hfi_consul_txn(store, &remove, 1, &answer, deadline_ns, err);
    if (status == HF_OK)
        hfi_consul_answer_free(&answer);
    return status;
}
