/* SPDX-License-Identifier: MIT
 *
 * redis_once.c: what is done once in a while. A release may leave a record that the work of its lock is done, which
 * whoever asks for it once per some time is answered with. It is one key for each lock, in its slot, as the guard's:
 *
 *   hf:{NAME}:d   string   "token owner s us ends host pid note": who did it; when, in seconds and microseconds; and
 *                          until when it counts, in milliseconds since 1970
 *
 * It ends by the server's expiry. The scripts that look for it and leave it are those of acquire and release with some
 * lines around them, see redis_lua.h; who does not ask for it gets the scripts without.
 */
#include "redis.h"
#include "redis_lua.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void hfi_redis_done_key(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *name)
{
    const struct redis_dialect *dialect = store->config.dialect;
    redis_keys keys;
    dialect->keys(keys, store, name, (struct hfi_owner){ 0, 0 });
    if (dialect == &hfi_redis_native)
        snprintf(out, HFI_REDIS_KEY_MAX, "%.*s:d", HFI_REDIS_KEY_MAX - 3, keys[0]);
    else
        hfi_redis_companion(out, keys[0], "d");
}

bool hfi_redis_done_name(char out[HFI_REDIS_KEY_MAX], const struct redis_store *store, const char *key)
{
    const size_t length = strlen(key);
    char lock[HFI_REDIS_KEY_MAX];
    if (store->config.dialect != &hfi_redis_native)
        return hfi_redis_companion_of(out, store, key, "d");
    if (length < 3 || length >= sizeof lock || strcmp(key + length - 2, ":d") != 0)
        return false;
    snprintf(lock, sizeof lock, "%.*s", (int)length - 2, key);
    return store->config.dialect->name_of(out, store, lock);
}

static int64_t at_least_0(int64_t number)
{
    return number > 0 ? number : 0;
}

bool hfi_redis_read_done(struct redis_done *out, const char *record, int64_t now_us)
{
    int64_t seconds, microseconds, ends_ms;
    int used = 0;
    if (sscanf(record, "%" SCNu64 " %*s %10" SCNd64 " %6" SCNd64 " %15" SCNd64 " %64s %lld%n", &out->token, &seconds,
               &microseconds, &ends_ms, out->host, &out->pid, &used) != 6)
        return false;
    out->ago_ms = at_least_0((now_us - seconds * 1000000 - microseconds) / 1000);
    out->left_ms = at_least_0(ends_ms - now_us / 1000);
    out->note = record[used] == ' ' ? record + used + 1 : "";
    return true;
}

bool hfi_redis_take_done(const redisReply *reply, const char *name, struct hfi_grant *grant, hf_status *status,
                         hf_error *err)
{
    struct redis_done done;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || reply->element[0]->type != REDIS_REPLY_INTEGER ||
        reply->element[0]->integer != -2 || reply->element[1]->type != REDIS_REPLY_INTEGER ||
        reply->element[2]->type != REDIS_REPLY_STRING)
        return false;
    if (!hfi_redis_read_done(&done, reply->element[2]->str, reply->element[1]->integer)) {
        *status = hfi_fail(err, HF_DENIED, 0, "another program uses the key that says whether %.100s is done", name);
        return true;
    }
    snprintf(grant->holder, sizeof grant->holder, "%s:%lld%s%s", done.host, done.pid, *done.note ? " " : "", done.note);
    grant->holder_left_ms = done.left_ms;
    grant->done_ago_ms = done.ago_ms;
    *status = HF_DONE;
    return true;
}

int hfi_redis_show_done(const struct redis_done *done, const char *name, hf_inspect_fn each, void *arg)
{
    const hf_info one = { .size = sizeof one,
                          .name = name,
                          .host = done->host,
                          .pid = done->pid,
                          .token = done->token,
                          .held_ms = done->ago_ms,
                          .remaining_ms = done->left_ms,
                          .waiters = -1,
                          .note = done->note };
    return each(&one, arg);
}

/* As a break: "" asks for what is there, that answer has it forgotten and nothing else. By PEXPIRE, which renewals need
 * as well: there is no right more to ask for. */
const char hfi_redis_forget_script[] =
    "local record = redis.call('get', KEYS[1])\n"
    "if not record then return 0 end\n" ONLY_WHOM_WAS_SEEN("record") "return redis.call('pexpire', KEYS[1], 0)\n";

static hf_status ask_to_forget(struct redis_store *store, const char *key, const char *seen, redisReply **reply,
                               hfi_time deadline_ns, hf_error *err)
{
    struct redis_command command = { REDIS_ROOM(5) };
    bool confirmed;
    hfi_redis_add_script(&command, &store->scripts[REDIS_FORGET_DONE]);
    hfi_redis_add(&command, "1");
    hfi_redis_add(&command, key);
    hfi_redis_add(&command, seen);
    struct redis_question question = { .key = key, .commands = &command, .count = 1, .deadline_ns = deadline_ns };
    if (!*seen)
        return hfi_redis_only_read(hfi_redis_ask(store, &question, reply, err), err);
    const hf_status status = hfi_redis_ask_confirmed(store, &question, reply, &confirmed, err);
    return status == HF_OK && !confirmed && (*reply)->type == REDIS_REPLY_INTEGER ? HF_UNKNOWN : status;
}

/* Only the record that was seen: a request that was given up and arrives late must not take back what was done
 * since. */
hf_status hfi_redis_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct redis_store *store = memory;
    char key[HFI_REDIS_KEY_MAX];
    redisReply *seen = NULL, *reply = NULL;
    if (hfi_redis_check_name(store, name, err) != HF_OK)
        return HF_INVALID;
    hfi_redis_done_key(key, store, name);
    hf_status status = ask_to_forget(store, key, "", &seen, deadline_ns, err);
    const bool there = status == HF_OK && seen->type == REDIS_REPLY_STRING;
    if (there)
        status = ask_to_forget(store, key, seen->str, &reply, deadline_ns, err);
    const redisReply *last = there ? reply : seen;
    if (status == HF_OK && last->type != REDIS_REPLY_INTEGER)
        status = hfi_redis_refusal(last, key, err);
    freeReplyObject(seen);
    freeReplyObject(reply);
    return status;
}
