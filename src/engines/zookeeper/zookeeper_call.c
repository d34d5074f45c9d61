/* SPDX-License-Identifier: MIT
 *
 * zookeeper_call.c: one question to the server and its answer. Nothing in here blocks but await_calls(), which ends at
 * its deadline; an answer that comes later finds its call abandoned, and frees it.
 */
#include "zookeeper.h"
#include <stdio.h>
#include <string.h>

hf_status hfi_zookeeper_no_memory(hf_error *err)
{
    return hfi_fail(err, HF_NOMEM, 0, "no memory to ask ZooKeeper");
}

/* The last three: what came was no answer to what was asked, and the library has hung up. It tells that to all who were
 * waiting, whose requests may have been done. */
bool hfi_zookeeper_is_lost(int rc)
{
    return rc == ZCONNECTIONLOSS || rc == ZOPERATIONTIMEOUT || rc == ZCLOSING || rc == ZINVALIDSTATE ||
           rc == ZSESSIONEXPIRED || rc == ZSESSIONMOVED || rc == ZRUNTIMEINCONSISTENCY || rc == ZDATAINCONSISTENCY ||
           rc == ZMARSHALLINGERROR;
}

hf_status hfi_zookeeper_refusal(const struct zookeeper_store *store, int rc, const char *what, hf_error *err)
{
    if (hfi_zookeeper_is_lost(rc))
        return hfi_fail(err, HF_UNKNOWN, rc, "ZooKeeper at %.80s was asked to %s and has not answered",
                        store->config.hosts, what);
    if (rc == ZNOAUTH)
        return hfi_fail(err, HF_DENIED, rc, "ZooKeeper does not allow this user to %s below %.100s", what,
                        store->config.prefix);
    if (rc == ZSYSTEMERROR)
        return hfi_zookeeper_no_memory(err);
    return hfi_fail(err, HF_INTERNAL, rc, "ZooKeeper cannot %s below %.100s: %.60s", what, store->config.prefix,
                    zerror(rc));
}

/* --- answers; called by the library --- */

static void release_call(struct zookeeper_call *call)
{
    *(call->prev ? &call->prev->next : &call->session->all_calls) = call->next;
    if (call->next)
        call->next->prev = call->prev;
    hfi_free(call->children.names);
    hfi_free(call);
}

static void finish(struct zookeeper_call *call, int rc)
{
    struct zookeeper_session *session = call->session;
    session->calls--;
    call->rc = rc;
    call->done = true;
    if (!hfi_zookeeper_is_lost(rc))
        hfi_zookeeper_session_answered(session, call->sent_ns, call->write);
    else if (rc == ZSESSIONEXPIRED && !session->dead)
        hfi_zookeeper_session_expire(session);
    pthread_cond_broadcast(&session->store->changed);
    if (call->for_keeper)
        hfi_zookeeper_call_keeper(session->store);
    if (call->abandoned)
        release_call(call);
}

static void keep_text(struct zookeeper_call *call, const char *text, int length)
{
    if (text && length >= 0)
        snprintf(call->text, sizeof call->text, "%.*s", length, text);
}

static void take_nothing(int rc, const void *data)
{
    finish((struct zookeeper_call *)data, rc);
}

static void take_path(int rc, const char *path, const void *data)
{
    struct zookeeper_call *call = (struct zookeeper_call *)data;
    if (rc == ZOK && path)
        keep_text(call, path, (int)strlen(path));
    finish(call, rc);
}

static void take_path_and_stat(int rc, const char *path, const struct Stat *stat, const void *data)
{
    struct zookeeper_call *call = (struct zookeeper_call *)data;
    if (rc == ZOK && stat)
        call->stat = *stat;
    take_path(rc, path, data);
}

static void take_stat(int rc, const struct Stat *stat, const void *data)
{
    struct zookeeper_call *call = (struct zookeeper_call *)data;
    if (rc == ZOK && stat)
        call->stat = *stat;
    finish(call, rc);
}

static void take_data(int rc, const char *value, int length, const struct Stat *stat, const void *data)
{
    struct zookeeper_call *call = (struct zookeeper_call *)data;
    if (rc == ZOK)
        keep_text(call, value, length);
    take_stat(rc, stat, data);
}

/* A line for each entry: "31 world anyone". */
static void take_acl(int rc, struct ACL_vector *acl, struct Stat *stat, const void *data)
{
    struct zookeeper_call *call = (struct zookeeper_call *)data;
    size_t used = 0;
    for (int32_t i = 0; rc == ZOK && acl && i < acl->count && used < sizeof call->text; i++)
        used += (size_t)snprintf(call->text + used, sizeof call->text - used, "%d %s %s\n", (int)acl->data[i].perms,
                                 acl->data[i].id.scheme, acl->data[i].id.id);
    take_stat(rc, stat, data);
}

/* The library's list is gone when this returns. */
static bool copy_children(struct zookeeper_children *out, const struct String_vector *list)
{
    size_t room = ((size_t)list->count + 1) * sizeof *out->names;
    char *text;
    for (int32_t i = 0; i < list->count; i++)
        room += strlen(list->data[i]) + 1;
    out->names = hfi_alloc(room);
    if (!out->names)
        return false;
    text = (char *)(out->names + list->count + 1);
    for (int32_t i = 0; i < list->count; i++) {
        out->names[i] = text;
        text = stpcpy(text, list->data[i]) + 1;
    }
    out->count = (size_t)list->count;
    return true;
}

static void take_children(int rc, const struct String_vector *list, const void *data)
{
    struct zookeeper_call *call = (struct zookeeper_call *)data;
    if (rc == ZOK && list && !copy_children(&call->children, list))
        rc = ZSYSTEMERROR;
    finish(call, rc);
}

/* --- questions --- */

static struct zookeeper_call *begin(struct zookeeper_session *session, bool write, size_t results)
{
    struct zookeeper_call *call = hfi_alloc(sizeof *call + results * sizeof call->results[0]);
    if (!call)
        return NULL;
    call->session = session;
    call->next = session->all_calls;
    if (call->next)
        call->next->prev = call;
    session->all_calls = call;
    call->result_count = results;
    call->write = write;
    call->sent_ns = session->store->env->now_ns();
    hfi_fd_begin();
    return call;
}

static struct zookeeper_call *sent(struct zookeeper_call *call, int rc)
{
    hfi_fd_end(-1);
    if (rc == ZOK) {
        hfi_zookeeper_session_sent(call->session, call->sent_ns);
    } else { /* it was not sent, and nobody will call back */
        call->rc = rc;
        call->done = true;
    }
    return call;
}

static const struct ACL_vector *acl_of(const struct zookeeper_session *session)
{
    return session->store->config.creator_only ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
}

struct zookeeper_call *hfi_zookeeper_create(struct zookeeper_session *session, const char *path, const char *data,
                                            int mode)
{
    struct zookeeper_call *call = begin(session, true, 0);
    if (!call)
        return NULL;
    return sent(call, zoo_acreate2(session->zh, path, data, (int)strlen(data), acl_of(session), mode,
                                   take_path_and_stat, call));
}

struct zookeeper_call *hfi_zookeeper_delete(struct zookeeper_session *session, const char *path)
{
    struct zookeeper_call *call = begin(session, true, 0);
    return call ? sent(call, zoo_adelete(session->zh, path, -1, take_nothing, call)) : NULL;
}

struct zookeeper_call *hfi_zookeeper_list(struct zookeeper_session *session, const char *path)
{
    struct zookeeper_call *call = begin(session, false, 0);
    return call ? sent(call, zoo_aget_children(session->zh, path, 0, take_children, call)) : NULL;
}

struct zookeeper_call *hfi_zookeeper_get(struct zookeeper_session *session, const char *path, bool watch)
{
    struct zookeeper_call *call = begin(session, false, 0);
    return call ? sent(call, zoo_aget(session->zh, path, watch, take_data, call)) : NULL;
}

struct zookeeper_call *hfi_zookeeper_get_acl(struct zookeeper_session *session, const char *path)
{
    struct zookeeper_call *call = begin(session, false, 0);
    return call ? sent(call, zoo_aget_acl(session->zh, path, take_acl, call)) : NULL;
}

struct zookeeper_call *hfi_zookeeper_sync(struct zookeeper_session *session, const char *path)
{
    struct zookeeper_call *call = begin(session, false, 0);
    return call ? sent(call, zoo_async(session->zh, path, take_path, call)) : NULL;
}

struct zookeeper_call *hfi_zookeeper_check(struct zookeeper_session *session, const char *const *paths, size_t count)
{
    zoo_op_t operations[HFI_ZOOKEEPER_BATCH];
    struct zookeeper_call *call = begin(session, true, count);
    if (!call)
        return NULL;
    for (size_t i = 0; i < count; i++)
        zoo_check_op_init(&operations[i], paths[i], -1);
    return sent(call, zoo_amulti(session->zh, (int)count, operations, call->results, take_nothing, call));
}

/* The mark first: a server that shows a transaction in steps must not show its end before. */
struct zookeeper_call *hfi_zookeeper_mark_and_delete(struct zookeeper_session *session, const char *mark, bool exists,
                                                     const char *data, const char *path)
{
    zoo_op_t operations[2];
    struct zookeeper_call *call = begin(session, true, 2);
    if (!call)
        return NULL;
    const int length = (int)strlen(data);
    if (exists)
        zoo_set_op_init(&operations[0], mark, data, length, -1, &call->stat);
    else
        zoo_create_op_init(&operations[0], mark, data, length, acl_of(session), ZOO_PERSISTENT, NULL, 0);
    zoo_delete_op_init(&operations[1], path, -1);
    return sent(call, zoo_amulti(session->zh, 2, operations, call->results, take_nothing, call));
}

struct zookeeper_call *hfi_zookeeper_empty(struct zookeeper_session *session, const char *path, int32_t version)
{
    struct zookeeper_call *call = begin(session, true, 0);
    return call ? sent(call, zoo_aset(session->zh, path, "", 0, version, take_stat, call)) : NULL;
}

struct zookeeper_call *hfi_zookeeper_ask_time(struct zookeeper_session *session)
{
    char marks[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_marks(marks, &session->store->config);
    return hfi_zookeeper_empty(session, marks, -1);
}

struct zookeeper_call *hfi_zookeeper_ask_breaker(const struct zookeeper_lock *lock)
{
    char directory[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_directory(directory, &lock->session->store->config, lock->name);
    return hfi_zookeeper_get(lock->session, directory, false);
}

const char *hfi_zookeeper_breaker_of(const struct zookeeper_call *call, const struct zookeeper_lock *lock)
{
    return call && call->done && call->rc == ZOK ? hfi_zookeeper_breaker_read(call->text, lock->node) : NULL;
}

void hfi_zookeeper_beat(struct zookeeper_session *session)
{
    static const char *const root[] = { "/" };
    struct zookeeper_call *call;
    if (session->waiting > 0) {
        call = hfi_zookeeper_check(session, root, 1);
    } else {
        call = begin(session, false, 0);
        if (call)
            sent(call, zoo_aexists(session->zh, root[0], 0, take_stat, call));
    }
    hfi_zookeeper_call_free(call);
}

/* --- waiting for answers --- */

void hfi_zookeeper_call_free(struct zookeeper_call *call)
{
    if (!call)
        return;
    if (call->done)
        release_call(call);
    else
        call->abandoned = true;
}

struct several {
    struct zookeeper_call **calls;
    size_t count;
};

static bool all_done(const void *arg)
{
    const struct several *several = arg;
    for (size_t i = 0; i < several->count; i++) {
        if (several->calls[i] && !several->calls[i]->done)
            return false;
    }
    return true;
}

void hfi_zookeeper_await_calls(struct zookeeper_store *store, struct zookeeper_call **calls, size_t count,
                               hfi_time deadline_ns)
{
    const struct several several = { calls, count };
    hfi_zookeeper_await(store, all_done, &several, deadline_ns);
    for (size_t i = 0; i < count; i++) {
        if (calls[i] && !calls[i]->done)
            calls[i]->rc = ZOPERATIONTIMEOUT;
    }
}

int hfi_zookeeper_answer(struct zookeeper_call *call, hfi_time deadline_ns)
{
    if (!call)
        return ZSYSTEMERROR;
    hfi_zookeeper_await_calls(call->session->store, &call, 1, deadline_ns);
    return call->rc;
}
