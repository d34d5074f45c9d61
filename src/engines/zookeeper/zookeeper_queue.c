/* SPDX-License-Identifier: MIT
 *
 * zookeeper_queue.c: taking a place, looking, waiting and leaving. The lock is a directory, each contender an ephemeral
 * node with a number in it; the lowest number holds the lock, and everybody else watches the one before it.
 */
#include "zookeeper.h"
#include <stdio.h>
#include <string.h>

#define TRIES 4

/* One attempt, with the mutex. */
struct errand {
    struct zookeeper_store *store;
    struct zookeeper_lock *lock;
    const struct hfi_request *request;
    struct hfi_grant *grant;
    hf_error *err;
    struct zookeeper_call *list; /* the directory as it was right after our node was made */
    struct zookeeper_call *mark; /* and the mark, if it is asked for */
    int64_t now_ms;              /* when that was, by the clock of the servers; 0: not known */
    char directory[HFI_ZOOKEEPER_PATH_MAX];
};

static hf_status no_answer(const struct errand *errand, int rc, const char *what)
{
    return hfi_zookeeper_refusal(errand->store, rc, what, errand->err);
}

/* --- directories --- */

static int make_directory(struct zookeeper_session *session, const char *path, hfi_time deadline_ns)
{
    struct zookeeper_call *call = hfi_zookeeper_create(session, path, "", ZOO_CONTAINER);
    int rc = hfi_zookeeper_answer(call, deadline_ns);
    hfi_zookeeper_call_free(call);
    if (rc == ZUNIMPLEMENTED) { /* before 3.5: it stays when it is empty */
        call = hfi_zookeeper_create(session, path, "", ZOO_PERSISTENT);
        rc = hfi_zookeeper_answer(call, deadline_ns);
        hfi_zookeeper_call_free(call);
    }
    return rc == ZNODEEXISTS ? ZOK : rc;
}

/* The last one first: those above it are usually there. */
int hfi_zookeeper_make_directories(struct zookeeper_session *session, const char *directory, hfi_time deadline_ns)
{
    char path[HFI_ZOOKEEPER_PATH_MAX];
    int rc = make_directory(session, directory, deadline_ns);
    for (size_t i = 1; rc == ZNONODE && directory[i]; i++) {
        if (directory[i] != '/')
            continue;
        snprintf(path, sizeof path, "%.*s", (int)i, directory);
        const int above = make_directory(session, path, deadline_ns);
        if (above != ZOK)
            return above;
    }
    return rc == ZNONODE ? make_directory(session, directory, deadline_ns) : rc;
}

/* --- a place --- */

static void take_place(struct zookeeper_lock *lock, const char *node, int64_t czxid)
{
    snprintf(lock->node, sizeof lock->node, "%s", node);
    lock->czxid = czxid;
    lock->state = ZOOKEEPER_QUEUED;
    lock->behind_holder = lock->gone = false;
    lock->own_watched_ns = 0;
}

static void write_who(const struct errand *errand, char out[HFI_ZOOKEEPER_DATA_MAX])
{
    snprintf(out, HFI_ZOOKEEPER_DATA_MAX, "%s%s%.120s", errand->store->who, *errand->request->note ? " " : "",
             errand->request->note);
}

/* NULL: nobody asks for it, or no memory. */
static struct zookeeper_call *get_mark(const struct errand *errand)
{
    char path[HFI_ZOOKEEPER_PATH_MAX];
    if (!errand->request->once)
        return NULL;
    hfi_zookeeper_mark_path(path, &errand->store->config, errand->request->name);
    return hfi_zookeeper_get(errand->lock->session, path, false);
}

/* The node, the list and the mark go out together: the server answers in order, so our node is in the list, and a mark
 * that was left by whoever is not in it any more is there. */
static int create_node(struct errand *errand, const char *prefix)
{
    struct zookeeper_lock *lock = errand->lock;
    char path[HFI_ZOOKEEPER_PATH_MAX], data[HFI_ZOOKEEPER_DATA_MAX];
    hfi_zookeeper_path(path, &errand->store->config, errand->request->name, prefix);
    write_who(errand, data);
    lock->state = ZOOKEEPER_UNSURE;
    struct zookeeper_call *calls[3] = { hfi_zookeeper_create(lock->session, path, data, ZOO_EPHEMERAL_SEQUENTIAL),
                                        hfi_zookeeper_list(lock->session, errand->directory), get_mark(errand) };
    hfi_zookeeper_await_calls(errand->store, calls, 3, errand->request->deadline_ns);
    const int rc = calls[0] ? calls[0]->rc : ZSYSTEMERROR;
    if (rc == ZOK) {
        take_place(lock, strrchr(calls[0]->text, '/') + 1, calls[0]->stat.czxid);
        errand->list = calls[1];
        errand->mark = calls[2];
        errand->now_ms = calls[0]->stat.ctime;
    } else {
        if (!hfi_zookeeper_is_lost(rc))
            lock->state = ZOOKEEPER_NEW;
        hfi_zookeeper_call_free(calls[1]);
        hfi_zookeeper_call_free(calls[2]);
    }
    hfi_zookeeper_call_free(calls[0]);
    return rc;
}

static hf_status line_up(struct errand *errand)
{
    char prefix[HFI_ZOOKEEPER_NODE_MAX];
    struct zookeeper_lock *lock = errand->lock;
    hfi_zookeeper_node_prefix(prefix, &errand->store->config, lock->owner, lock->incarnation);
    int rc = create_node(errand, prefix);
    /* An empty directory is swept away by the servers from time to time, perhaps once more. */
    for (unsigned tries = 0; rc == ZNONODE && tries < TRIES; tries++) {
        rc = hfi_zookeeper_make_directories(lock->session, errand->directory, errand->request->deadline_ns);
        if (rc != ZOK)
            return no_answer(errand, rc, "make the lock's directory");
        rc = create_node(errand, prefix);
    }
    return rc == ZOK ? HF_OK : no_answer(errand, rc, "create a node");
}

static const char *find_name(const struct zookeeper_children *children, const char *prefix)
{
    for (size_t i = 0; i < children->count; i++) {
        if (strncmp(children->names[i], prefix, strlen(prefix)) == 0)
            return children->names[i];
    }
    return NULL;
}

/* An answer was lost: the node is there or it is not, and which of both is certain once the server has caught up with
 * the leader, who takes nothing any more that we sent over an earlier connection. One of that name is ours, and of this
 * session: another session has another name. */
static int find_node(const struct errand *errand)
{
    struct zookeeper_lock *lock = errand->lock;
    struct zookeeper_call **calls = lock->search;
    char prefix[HFI_ZOOKEEPER_NODE_MAX];
    if (!calls[0] && !calls[1]) {
        calls[0] = hfi_zookeeper_sync(lock->session, errand->directory);
        calls[1] = hfi_zookeeper_list(lock->session, errand->directory);
    }
    hfi_zookeeper_await_calls(errand->store, calls, 2, errand->request->deadline_ns);
    if (calls[0] && calls[1] && !(calls[0]->done && calls[1]->done))
        return ZOPERATIONTIMEOUT;
    int rc = calls[0] && calls[1] ? calls[0]->rc : ZSYSTEMERROR;
    if (rc == ZOK || rc == ZNONODE)
        rc = calls[1] ? calls[1]->rc : ZSYSTEMERROR;
    hfi_zookeeper_node_prefix(prefix, &errand->store->config, lock->owner, lock->incarnation);
    const char *found = rc == ZOK ? find_name(&calls[1]->children, prefix) : NULL;
    if (found)
        take_place(lock, found, 0);
    else if (rc == ZOK || rc == ZNONODE)
        lock->state = ZOOKEEPER_NEW;
    for (size_t i = 0; i < 2; i++) {
        hfi_zookeeper_call_free(calls[i]);
        calls[i] = NULL;
    }
    return rc == ZNONODE ? ZOK : rc;
}

/* --- whose turn it is --- */

/* Of a node that was found again. */
static int read_czxid(const struct errand *errand)
{
    struct zookeeper_lock *lock = errand->lock;
    char path[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_path(path, &errand->store->config, errand->request->name, lock->node);
    struct zookeeper_call *call = hfi_zookeeper_get(lock->session, path, false);
    int rc = hfi_zookeeper_answer(call, errand->request->deadline_ns);
    if (rc == ZOK && call->stat.ephemeralOwner != zoo_client_id(lock->session->zh)->client_id)
        rc = ZNONODE;
    if (rc == ZOK)
        lock->czxid = call->stat.czxid;
    hfi_zookeeper_call_free(call);
    return rc;
}

/* How long it is ours is what the session says, and not when we began to ask: on a slow way that was long ago. */
static void count_from_now(const struct errand *errand)
{
    struct hfi_grant *grant = errand->grant;
    const uint32_t ttl_ms = errand->request->ttl_ms;
    grant->counted_from_ns = errand->store->env->now_ns();
    grant->valid_ms = hfi_zookeeper_session_valid_ms(errand->lock->session, grant->counted_from_ns, ttl_ms);
    if (grant->valid_ms == 0) /* which would mean all of it */
        grant->valid_ms = 1;
}

static hf_status give(const struct errand *errand)
{
    struct zookeeper_lock *lock = errand->lock;
    const uint32_t ttl_ms = errand->request->ttl_ms, most_ms = (uint32_t)lock->session->timeout_ms;
    struct hfi_grant *grant = errand->grant;
    const int rc = lock->czxid ? ZOK : read_czxid(errand);
    if (rc != ZOK)
        return rc == ZNONODE ? HF_LOST : no_answer(errand, rc, "read a node");
    count_from_now(errand);
    if (grant->valid_ms < (ttl_ms < most_ms ? ttl_ms : most_ms) / 4) { /* nothing was heard of this session for long */
        const hf_status status = hfi_zookeeper_session_prove(lock->session, errand->request->deadline_ns, errand->err);
        if (status != HF_OK)
            return status;
        count_from_now(errand);
    }
    lock->state = ZOOKEEPER_HELD;
    lock->told = false;
    grant->token = (uint64_t)lock->czxid;
    return HF_OK;
}

/* "host pid note" as we write it, or whatever another client has put there. */
static void say_holder(struct hfi_grant *grant, const char *data)
{
    const size_t host = strcspn(data, " ");
    const char *pid = data[host] ? data + host + 1 : "";
    const size_t digits = strspn(pid, "0123456789");
    if (host && digits && (pid[digits] == 0 || pid[digits] == ' '))
        snprintf(grant->holder, sizeof grant->holder, "%.*s:%s", (int)host, data, pid);
    else
        snprintf(grant->holder, sizeof grant->holder, "%.150s", data);
}

/* Watches the one before us at `path`; and in the same exchange our own node, if the other's end is to tell us that it
 * is our turn. *call: the answer of the former; its rc. */
static int watch(const struct errand *errand, const char *path, bool behind_holder, struct zookeeper_call **call)
{
    struct zookeeper_lock *lock = errand->lock;
    struct zookeeper_session *session = lock->session;
    const hfi_time introduced = session->introduced_ns;
    const bool own = behind_holder && lock->own_watched_ns != introduced;
    char own_path[HFI_ZOOKEEPER_PATH_MAX];
    hfi_free(lock->watched);
    lock->watched = hfi_strdup(path);
    lock->behind_holder = lock->news = false;
    if (!lock->watched)
        return ZSYSTEMERROR;
    hfi_zookeeper_path(own_path, &errand->store->config, errand->request->name, lock->node);
    struct zookeeper_call *calls[2] = { own ? hfi_zookeeper_get(session, own_path, true) : NULL, NULL };
    calls[1] = *call = hfi_zookeeper_get(session, path, true);
    hfi_zookeeper_await_calls(errand->store, calls, 2, errand->request->deadline_ns);
    const int own_rc = calls[0] ? calls[0]->rc : ZSYSTEMERROR;
    hfi_zookeeper_call_free(calls[0]);
    if (own && own_rc == ZOK)
        lock->own_watched_ns = introduced;
    lock->gone = lock->gone || (own && own_rc == ZNONODE);
    /* Without the other watch the end of the holder only says that it is worth looking again. */
    lock->behind_holder = behind_holder && *call && (*call)->rc == ZOK && lock->own_watched_ns == introduced;
    return *call ? (*call)->rc : ZSYSTEMERROR;
}

/* Watches the one before us, or, if we are not going to wait, tells who holds the lock. ZNONODE: it has just gone. */
static int look_at(const struct errand *errand, const struct zookeeper_children *line, size_t place)
{
    const struct hfi_request *request = errand->request;
    const char *name = request->queue ? line->names[place - 1] : line->names[0];
    struct zookeeper_call *call = NULL;
    const size_t room = strlen(errand->directory) + strlen(name) + 2;
    char *path = hfi_alloc(room); /* another client's node may have a name of any length */
    if (!path)
        return ZSYSTEMERROR;
    snprintf(path, room, "%s/%s", errand->directory, name);
    int rc;
    if (request->queue) {
        rc = watch(errand, path, place == 1 && !hfi_zookeeper_may_be_replaced(name), &call);
    } else {
        call = hfi_zookeeper_get(errand->lock->session, path, false);
        rc = hfi_zookeeper_answer(call, request->deadline_ns);
    }
    if (rc == ZOK && (place == 1 || !request->queue))
        say_holder(errand->grant, call->text);
    hfi_zookeeper_call_free(call);
    hfi_free(path);
    return rc;
}

/* Tells of the mark, if its time is not over by the clock of the servers. HF_OK: the work is not done. */
static hf_status read_mark(const struct errand *errand, struct zookeeper_call *call, int64_t now_ms)
{
    struct zookeeper_mark mark;
    struct hfi_grant *grant = errand->grant;
    const hfi_time deadline = errand->request->deadline_ns;
    int rc = hfi_zookeeper_answer(call, deadline);
    errand->lock->marked = rc == ZOK;
    if (rc == ZOK && !call->text[0]) /* forgotten */
        return HF_OK;
    if (rc == ZOK && !now_ms) { /* our node was made long ago */
        struct zookeeper_call *time = hfi_zookeeper_ask_time(errand->lock->session);
        rc = hfi_zookeeper_answer(time, deadline);
        now_ms = rc == ZOK ? time->stat.mtime : 0;
        hfi_zookeeper_call_free(time);
    }
    if (rc != ZOK) /* taken back, perhaps with the directory */
        return rc == ZNONODE ? HF_OK : no_answer(errand, rc, "read a mark");
    if (!hfi_zookeeper_mark_read(&mark, call->text, &call->stat, now_ms))
        return HF_OK;
    say_holder(grant, mark.who);
    grant->holder_left_ms = mark.left_ms;
    grant->done_ago_ms = mark.ago_ms;
    return HF_DONE;
}

/* The directory and, if it is asked for, the mark, in one exchange. HF_OK: *list has been answered. HF_LOST: our node
 * is gone. HF_DONE: there is a mark. */
static hf_status look_around(struct errand *errand, struct zookeeper_call **list)
{
    struct zookeeper_lock *lock = errand->lock;
    const int64_t now_ms = errand->now_ms;
    *list = errand->list ? errand->list : hfi_zookeeper_list(lock->session, errand->directory);
    struct zookeeper_call *mark = errand->mark ? errand->mark : get_mark(errand);
    errand->list = errand->mark = NULL;
    errand->now_ms = 0;
    const int rc = hfi_zookeeper_answer(*list, errand->request->deadline_ns);
    hf_status status = HF_OK;
    if (rc != ZOK)
        status = rc == ZNONODE ? HF_LOST : no_answer(errand, rc, "list the nodes");
    else if (errand->request->once)
        status = read_mark(errand, mark, now_ms);
    hfi_zookeeper_call_free(mark);
    return status;
}

/* HF_OK: it is ours. HF_BUSY: not yet; `again`: look again. HF_LOST: our node is gone. HF_DONE: there is a mark. */
static hf_status look_once(struct errand *errand, bool *again)
{
    struct zookeeper_lock *lock = errand->lock;
    struct zookeeper_call *call;
    hf_status status = look_around(errand, &call);
    if (status != HF_OK) {
        hfi_zookeeper_call_free(call);
        return status;
    }
    hfi_zookeeper_line_up(&call->children);
    size_t place = 0;
    while (place < call->children.count && strcmp(call->children.names[place], lock->node) != 0)
        place++;
    status = HF_LOST;
    if (place < call->children.count && place > 0) {
        const int rc = look_at(errand, &call->children, place);
        *again = rc == ZNONODE;
        status = rc == ZOK || *again ? HF_BUSY : no_answer(errand, rc, "watch a node");
        if (lock->gone)
            status = HF_LOST;
    } else if (place == 0 && call->children.count > 0) {
        status = give(errand);
    }
    hfi_zookeeper_call_free(call);
    return status;
}

static void lose_place(struct zookeeper_lock *lock)
{
    lock->state = ZOOKEEPER_NEW;
    lock->node[0] = 0;
    lock->incarnation++;
    lock->gone = lock->leaves = false;
}

/* With the mark that the work is done, if it is: nobody can come after us before it is there, and it is not left if
 * our node is gone. */
static struct zookeeper_call *send_removal(const struct errand *errand)
{
    const struct hfi_request *request = errand->request;
    const struct zookeeper_lock *lock = errand->lock;
    char path[HFI_ZOOKEEPER_PATH_MAX], mark[HFI_ZOOKEEPER_PATH_MAX];
    char who[HFI_ZOOKEEPER_DATA_MAX], data[HFI_ZOOKEEPER_MARK_MAX];
    hfi_zookeeper_path(path, &errand->store->config, request->name, lock->node);
    if (!request->done_ms)
        return hfi_zookeeper_delete(lock->session, path);
    write_who(errand, who);
    hfi_zookeeper_mark_write(data, request->done_ms, (uint64_t)lock->czxid, who);
    hfi_zookeeper_mark_path(mark, &errand->store->config, request->name);
    return hfi_zookeeper_mark_and_delete(lock->session, mark, lock->marked, data, path);
}

/* The mark was not left, and so nothing was done: `reason` says that there is one, or none, or no directory for it. */
static int make_way_for_mark(const struct errand *errand, int reason)
{
    struct zookeeper_lock *lock = errand->lock;
    char marks[HFI_ZOOKEEPER_PATH_MAX];
    const bool no_directory = reason == ZNONODE && !lock->marked;
    lock->marked = reason == ZNODEEXISTS;
    hfi_zookeeper_marks(marks, &errand->store->config);
    return no_directory ? hfi_zookeeper_make_directories(lock->session, marks, errand->request->deadline_ns) : ZOK;
}

static int delete_node(const struct errand *errand)
{
    struct zookeeper_lock *lock = errand->lock;
    bool again = true;
    int rc = ZOK;
    lock->leaves = true;
    for (unsigned tries = 0; again && rc == ZOK && tries < TRIES; tries++) {
        if (!lock->removal)
            lock->removal = send_removal(errand);
        rc = hfi_zookeeper_answer(lock->removal, errand->request->deadline_ns);
        if (lock->removal && !lock->removal->done)
            return rc;
        const int reason = lock->removal && lock->removal->result_count ? lock->removal->results[0].err : ZOK;
        again = reason == ZNONODE || reason == ZNODEEXISTS;
        hfi_zookeeper_call_free(lock->removal);
        lock->removal = NULL;
        if (again)
            rc = make_way_for_mark(errand, reason);
    }
    if (again) /* marks come and go too fast, or their directory cannot be made: our node is there as before */
        return rc == ZOK || rc == ZNONODE ? ZOPERATIONTIMEOUT : rc;
    if (rc == ZOK || rc == ZNONODE)
        lose_place(lock);
    return rc;
}

/* The deadline came before it was known who is first. Our place is kept, and there is nothing to be undone but that. */
static bool is_only_late(const struct errand *errand, hf_status status)
{
    const struct zookeeper_lock *lock = errand->lock;
    return status == HF_UNKNOWN && errand->request->queue && lock->state == ZOOKEEPER_QUEUED &&
           lock->session->connected;
}

static hf_status ask(struct errand *errand)
{
    struct zookeeper_lock *lock = errand->lock;
    hf_status status = HF_BUSY;
    bool again = true;
    const int removed = lock->leaves ? delete_node(errand) : ZOK;
    if (removed != ZOK && removed != ZNONODE)
        return no_answer(errand, removed, "delete a node");
    for (unsigned tries = 0; again && tries < TRIES; tries++) {
        if (lock->state == ZOOKEEPER_UNSURE) {
            const int rc = find_node(errand);
            if (rc != ZOK)
                return no_answer(errand, rc, "find a node again");
        }
        if (lock->state == ZOOKEEPER_NEW) {
            status = line_up(errand);
            if (status != HF_OK)
                return status;
        }
        if (lock->state == ZOOKEEPER_NEXT_UP && errand->request->once)
            lock->state = ZOOKEEPER_QUEUED; /* whoever has gone may have left a mark: look */
        again = false;
        if (lock->gone)
            status = HF_LOST;
        else
            status = lock->state == ZOOKEEPER_QUEUED ? look_once(errand, &again) : give(errand);
        if (is_only_late(errand, status)) {
            lock->news = true; /* look again before sleeping */
            status = HF_BUSY;
        }
        if (status == HF_LOST) { /* somebody removed our node: at the end of the line again */
            lose_place(lock);
            again = true;
            status = HF_BUSY;
        }
    }
    /* So busy a place that those before us went while they were looked at. */
    lock->news = lock->news || again;
    const bool leaves = status == HF_DONE || (status == HF_BUSY && !errand->request->queue);
    if (!leaves || lock->state == ZOOKEEPER_NEW)
        return status;
    const int rc = delete_node(errand);
    /* That it is done is certain; a node that may still be there is left to the release. */
    return rc == ZOK || rc == ZNONODE || status == HF_DONE ? status : no_answer(errand, rc, "delete a node");
}

static hf_status join_and_ask(struct errand *errand)
{
    const struct hfi_request *request = errand->request;
    const hf_status status =
        hfi_zookeeper_session_join(errand->store, errand->lock, request->ttl_ms, request->deadline_ns, errand->err);
    return status == HF_OK ? ask(errand) : status;
}

/* Only a node that is or may be there is something that was changed; a directory is not. */
static hf_status name_trouble(const struct zookeeper_lock *lock, hf_status status, hf_error *err)
{
    if (status != HF_UNAVAILABLE && status != HF_UNKNOWN)
        return status;
    const hf_status name = lock->state == ZOOKEEPER_NEW ? HF_UNAVAILABLE : HF_UNKNOWN;
    if (err)
        err->status = name;
    return name;
}

hf_status hfi_zookeeper_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                                struct hfi_grant *grant, hf_error *err)
{
    struct zookeeper_store *store = memory;
    struct zookeeper_lock *lock = lock_memory;
    struct errand errand = { .store = store, .lock = lock, .request = request, .grant = grant, .err = err };
    hfi_zookeeper_directory(errand.directory, &store->config, request->name);
    hfi_zookeeper_enter(store);
    lock->owner = request->owner;
    lock->name = request->name;
    hf_status status = join_and_ask(&errand);
    /* An answer that has not come though there was time for it was lost with its connection: the server has died, or
     * hangs, and others may do. What was begun is found again there, since the session is the same. */
    for (unsigned tries = 1; status == HF_UNKNOWN && tries < TRIES && store->env->now_ns() < request->deadline_ns;
         tries++)
        status = join_and_ask(&errand);
    status = name_trouble(lock, status, err);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

/* --- waiting --- */

hf_status hfi_zookeeper_wait(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct zookeeper_store *store = memory;
    struct zookeeper_lock *lock = lock_memory;
    (void)err;
    pthread_mutex_lock(&store->mutex);
    bool news = true;
    if (lock->session && lock->state == ZOOKEEPER_QUEUED) {
        struct zookeeper_session *session = lock->session;
        session->waiting++;
        news = hfi_zookeeper_await_news(store, lock, request->waker, request->deadline_ns);
        session->waiting--;
    }
    lock->news = false;
    pthread_mutex_unlock(&store->mutex);
    return news ? HF_OK : HF_TIMEOUT;
}

/* --- leaving --- */

static hf_status undo(const struct errand *errand)
{
    struct zookeeper_lock *lock = errand->lock;
    const hfi_time deadline = errand->request->deadline_ns;
    const hf_status status =
        hfi_zookeeper_session_join(errand->store, lock, errand->request->ttl_ms, deadline, errand->err);
    if (status != HF_OK)
        return status;
    int rc = lock->state == ZOOKEEPER_UNSURE ? find_node(errand) : ZOK;
    if (rc != ZOK)
        return no_answer(errand, rc, "find a node again");
    if (lock->state == ZOOKEEPER_NEW)
        return HF_OK; /* it was never made */
    rc = delete_node(errand);
    if (rc == ZNONODE)
        return hfi_fail(errand->err, HF_LOST, rc, "ZooKeeper no longer has its node");
    return rc == ZOK ? HF_OK : no_answer(errand, rc, errand->request->done_ms ? "leave a mark" : "delete a node");
}

hf_status hfi_zookeeper_release(void *memory, void *lock_memory, const struct hfi_request *request, hf_error *err)
{
    struct zookeeper_store *store = memory;
    struct zookeeper_lock *lock = lock_memory;
    struct errand errand = { .store = store, .lock = lock, .request = request, .err = err };
    hfi_zookeeper_directory(errand.directory, &store->config, request->name);
    pthread_mutex_lock(&store->mutex);
    hfi_free(lock->watched); /* a release that is not finished when the client is closed may be the last we see of it */
    lock->watched = NULL;
    hf_status status = HF_OK;
    if (lock->session && lock->session->dead)
        status = hfi_fail(err, HF_LOST, ZSESSIONEXPIRED, "its session has expired");
    else if (lock->state != ZOOKEEPER_NEW)
        status = undo(&errand);
    if (status == HF_OK || status == HF_LOST) /* else it is asked again: the node would stay as long as the session */
        hfi_zookeeper_session_leave(lock);
    pthread_mutex_unlock(&store->mutex);
    return status;
}
