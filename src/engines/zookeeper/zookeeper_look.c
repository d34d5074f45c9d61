/* SPDX-License-Identifier: MIT
 *
 * zookeeper_look.c: who holds what, what is done, and taking away either.
 */
#include "zookeeper.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- one lock --- */

/* The contenders' data in order: the first holds the lock. */
struct line {
    struct zookeeper_call *list;
    struct zookeeper_call **gets;
    const char **texts; /* of those who wait */
};

static void free_line(struct line *line)
{
    for (size_t i = 0; line->gets && i < line->list->children.count; i++)
        hfi_zookeeper_call_free(line->gets[i]);
    hfi_zookeeper_call_free(line->list);
    hfi_free(line->gets);
    hfi_free(line->texts);
}

/* Nobody in line: it is free, or not even a lock. */
static int read_line(struct line *line, struct zookeeper_session *session, const char *directory, hfi_time deadline_ns)
{
    line->list = hfi_zookeeper_list(session, directory);
    int rc = hfi_zookeeper_answer(line->list, deadline_ns);
    if (rc != ZOK)
        return rc;
    hfi_zookeeper_line_up(&line->list->children);
    const size_t count = line->list->children.count;
    line->gets = hfi_alloc((count + 1) * sizeof(struct zookeeper_call *));
    line->texts = hfi_alloc((count + 1) * sizeof(const char *));
    for (size_t i = 0; line->gets && line->texts && i < count; i++) {
        char path[2 * HFI_ZOOKEEPER_PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", directory, line->list->children.names[i]);
        line->gets[i] = hfi_zookeeper_get(session, path, false);
        if (!line->gets[i])
            return ZSYSTEMERROR;
    }
    if (!line->gets || !line->texts)
        return ZSYSTEMERROR;
    hfi_zookeeper_await_calls(session->store, line->gets, count, deadline_ns);
    for (size_t i = 0; i < count; i++) {
        if (line->gets[i]->rc != ZOK && line->gets[i]->rc != ZNONODE)
            return line->gets[i]->rc;
    }
    return ZOK;
}

/* Splits "host pid note" in place. What another client has put there is all note. */
static void split(char *data, const char **host, int64_t *pid, const char **note)
{
    char *blank = strchr(data, ' '), *end = NULL;
    const long long number = blank ? strtoll(blank + 1, &end, 10) : 0;
    *host = "";
    *pid = 0;
    *note = data;
    if (number <= 0 || (*end && *end != ' '))
        return;
    *blank = 0;
    *host = data;
    *pid = number;
    *note = *end ? end + 1 : end;
}

/* "host pid note" as "host:pid note". */
static const char *as_waiter(char *data)
{
    char *blank = strchr(data, ' ');
    if (blank && blank[1] >= '0' && blank[1] <= '9')
        *blank = ':';
    return data;
}

static int show(struct line *line, const char *name, hf_inspect_fn each, void *arg)
{
    size_t first = 0, waiters = 0;
    const size_t count = line->list->children.count;
    while (first < count && line->gets[first]->rc != ZOK) /* gone meanwhile */
        first++;
    if (first == count)
        return 0;
    for (size_t i = first + 1; i < count; i++) {
        if (line->gets[i]->rc == ZOK)
            line->texts[waiters++] = as_waiter(line->gets[i]->text);
    }
    struct zookeeper_call *holder = line->gets[first];
    hf_info info = { .size = sizeof info,
                     .name = name,
                     .token = (uint64_t)holder->stat.czxid,
                     .held_ms = -1,      /* the servers know since when it waits, not since when it holds */
                     .remaining_ms = -1, /* nor do they tell how long its session has been silent */
                     .waiters = (int64_t)waiters,
                     .waiting = line->texts };
    split(holder->text, &info.host, &info.pid, &info.note);
    return each(&info, arg);
}

/* --- all of them --- */

static hf_status show_one(struct zookeeper_session *session, const char *name, hf_inspect_fn each, void *arg, int *stop,
                          hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = session->store;
    char directory[HFI_ZOOKEEPER_PATH_MAX];
    struct line line = { .list = NULL };
    hfi_zookeeper_directory(directory, &store->config, name);
    const int rc = read_line(&line, session, directory, deadline_ns);
    if (rc == ZOK) {
        pthread_mutex_unlock(&store->mutex);
        *stop = show(&line, name, each, arg);
        pthread_mutex_lock(&store->mutex);
    }
    free_line(&line);
    return rc == ZOK || rc == ZNONODE ? HF_OK : hfi_zookeeper_refusal(store, rc, "list a lock", err);
}

static hf_status show_named(struct zookeeper_session *session, const char *name, hf_inspect_fn each, void *arg,
                            hfi_time deadline_ns, hf_error *err)
{
    int stop = 0;
    /* Others' changes that were answered before this call began are to be seen. */
    struct zookeeper_call *sync = hfi_zookeeper_sync(session, session->store->config.prefix);
    hfi_zookeeper_await_calls(session->store, &sync, 1, deadline_ns);
    hfi_zookeeper_call_free(sync);
    return show_one(session, name, each, arg, &stop, deadline_ns, err);
}

static hf_status show_all(struct zookeeper_session *session, const char *prefix, hf_inspect_fn each, void *arg,
                          hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = session->store;
    /* Others' changes that were answered before this call began are to be seen. */
    struct zookeeper_call *calls[2] = { hfi_zookeeper_sync(session, store->config.prefix),
                                        hfi_zookeeper_list(session, store->config.prefix) };
    hfi_zookeeper_await_calls(store, calls, 2, deadline_ns);
    const int rc = calls[0] && calls[1] ? calls[1]->rc : ZSYSTEMERROR;
    hf_status status = rc == ZOK || rc == ZNONODE ? HF_OK : hfi_zookeeper_refusal(store, rc, "list the locks", err);
    int stop = 0;
    for (size_t i = 0; rc == ZOK && status == HF_OK && !stop && i < calls[1]->children.count; i++) {
        char name[HFI_NAME_MAX + 1];
        if (hfi_zookeeper_name_decode(name, calls[1]->children.names[i]) && strncmp(name, prefix, strlen(prefix)) == 0)
            status = show_one(session, name, each, arg, &stop, deadline_ns, err);
    }
    hfi_zookeeper_call_free(calls[0]);
    hfi_zookeeper_call_free(calls[1]);
    return status;
}

/* Nothing was changed, whatever got lost. */
static hf_status as_question(hf_status status, hf_error *err)
{
    if (status != HF_UNKNOWN)
        return status;
    if (err)
        err->status = HF_UNAVAILABLE;
    return HF_UNAVAILABLE;
}

typedef hf_status show_fn(struct zookeeper_session *session, const char *text, hf_inspect_fn each, void *arg,
                          hfi_time deadline_ns, hf_error *err);

static hf_status look(struct zookeeper_store *store, const char *text, show_fn *show_them, hf_inspect_fn each,
                      void *arg, hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_session *session;
    hfi_zookeeper_enter(store);
    hf_status status = hfi_zookeeper_session_borrow(store, 0, &session, deadline_ns, err);
    if (status == HF_OK) {
        status = show_them(session, text, each, arg, deadline_ns, err);
        status = as_question(status, err);
        hfi_zookeeper_session_give_back(session);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

hf_status hfi_zookeeper_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err)
{
    return look(memory, prefix, show_all, each, arg, deadline_ns, err);
}

hf_status hfi_zookeeper_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                    hf_error *err)
{
    return look(memory, name, show_named, each, arg, deadline_ns, err);
}

/* --- what is done --- */

/* All marks whose name starts with `prefix`, and what time it is: `gets` has a place for each child, and one more. */
static int read_marks(struct zookeeper_session *session, const struct zookeeper_children *names, const char *prefix,
                      struct zookeeper_call **gets, hfi_time deadline_ns)
{
    int rc = ZOK;
    for (size_t i = 0; rc == ZOK && i < names->count; i++) {
        char name[HFI_NAME_MAX + 1], path[HFI_ZOOKEEPER_PATH_MAX];
        if (!hfi_zookeeper_name_decode(name, names->names[i]) || strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        hfi_zookeeper_mark_path(path, &session->store->config, name);
        gets[i] = hfi_zookeeper_get(session, path, false);
        rc = gets[i] ? ZOK : ZSYSTEMERROR;
    }
    if (rc == ZOK && names->count > 0)
        gets[names->count] = hfi_zookeeper_ask_time(session);
    hfi_zookeeper_await_calls(session->store, gets, names->count + 1, deadline_ns);
    for (size_t i = 0; rc == ZOK && i < names->count; i++)
        rc = gets[i] && gets[i]->rc != ZNONODE ? gets[i]->rc : ZOK; /* it may have been taken back meanwhile */
    const struct zookeeper_call *time = gets[names->count];
    return rc == ZOK && names->count > 0 ? (time ? time->rc : ZSYSTEMERROR) : rc;
}

static int show_mark(const char *encoded, struct zookeeper_call *get, int64_t now_ms, hf_inspect_fn each, void *arg)
{
    char name[HFI_NAME_MAX + 1];
    struct zookeeper_mark mark;
    if (!get || get->rc != ZOK || !hfi_zookeeper_mark_read(&mark, get->text, &get->stat, now_ms))
        return 0;
    hfi_zookeeper_name_decode(name, encoded);
    hf_info info = { .size = sizeof info,
                     .name = name,
                     .token = mark.token,
                     .held_ms = mark.ago_ms,
                     .remaining_ms = mark.left_ms,
                     .waiters = -1 };
    split(mark.who, &info.host, &info.pid, &info.note);
    return each(&info, arg);
}

static hf_status show_marks(struct zookeeper_session *session, const char *prefix, hf_inspect_fn each, void *arg,
                            hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = session->store;
    char marks[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_marks(marks, &store->config);
    struct zookeeper_call *calls[2] = { hfi_zookeeper_sync(session, marks), hfi_zookeeper_list(session, marks) };
    hfi_zookeeper_await_calls(store, calls, 2, deadline_ns);
    int rc = calls[0] && calls[1] ? calls[1]->rc : ZSYSTEMERROR;
    const size_t count = rc == ZOK ? calls[1]->children.count : 0;
    struct zookeeper_call **gets = hfi_alloc((count + 1) * sizeof(struct zookeeper_call *));
    if (!gets)
        rc = ZSYSTEMERROR;
    else if (rc == ZOK)
        rc = read_marks(session, &calls[1]->children, prefix, gets, deadline_ns);
    const int64_t now_ms = rc == ZOK && gets[count] ? gets[count]->stat.mtime : 0;
    if (rc == ZOK) {
        pthread_mutex_unlock(&store->mutex);
        int stop = 0;
        for (size_t i = 0; !stop && i < count; i++)
            stop = show_mark(calls[1]->children.names[i], gets[i], now_ms, each, arg);
        pthread_mutex_lock(&store->mutex);
    }
    for (size_t i = 0; gets && i <= count; i++)
        hfi_zookeeper_call_free(gets[i]);
    hfi_free(gets);
    hfi_zookeeper_call_free(calls[0]);
    hfi_zookeeper_call_free(calls[1]);
    return rc == ZOK || rc == ZNONODE ? HF_OK : hfi_zookeeper_refusal(store, rc, "list what is done", err);
}

hf_status hfi_zookeeper_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg,
                                     hfi_time deadline_ns, hf_error *err)
{
    return look(memory, prefix, show_marks, each, arg, deadline_ns, err);
}

/* --- taking away --- */

/* With a word for its holder in the directory, if `told`; if the server refuses that, for whatever reason, without. */
static int delete_node(struct zookeeper_session *session, const char *directory, const char *node, bool told,
                       const char *by, hfi_time deadline_ns)
{
    char path[2 * HFI_ZOOKEEPER_PATH_MAX], data[HFI_ZOOKEEPER_DATA_MAX];
    int rc = ZNOTHING;
    snprintf(path, sizeof path, "%s/%s", directory, node);
    hfi_zookeeper_breaker_write(data, node, by);
    if (told) {
        struct zookeeper_call *both = hfi_zookeeper_mark_and_delete(session, directory, true, data, path);
        rc = hfi_zookeeper_answer(both, deadline_ns);
        hfi_zookeeper_call_free(both);
    }
    if (rc != ZOK && rc != ZNONODE && !hfi_zookeeper_is_lost(rc)) {
        struct zookeeper_call *removal = hfi_zookeeper_delete(session, path);
        rc = hfi_zookeeper_answer(removal, deadline_ns);
        hfi_zookeeper_call_free(removal);
    }
    return rc;
}

/* Whether the data of a directory is nobody else's: none, or who broke an earlier lock. */
static bool is_ours(const struct zookeeper_call *get)
{
    return get && get->rc == ZOK && (get->stat.dataLength == 0 || hfi_zookeeper_is_breaker(get->text));
}

/* Deletes the first one in line. If it has gone in the meantime, that is what was wanted: whoever comes after it holds
 * the lock rightly. */
static int delete_first(struct zookeeper_session *session, const char *directory, const char *by, hfi_time deadline_ns)
{
    struct zookeeper_call *calls[3] = { hfi_zookeeper_sync(session, directory), hfi_zookeeper_list(session, directory),
                                        hfi_zookeeper_get(session, directory, false) };
    hfi_zookeeper_await_calls(session->store, calls, 3, deadline_ns);
    int rc = calls[0] && calls[1] ? calls[1]->rc : ZSYSTEMERROR;
    if (rc == ZOK)
        hfi_zookeeper_line_up(&calls[1]->children);
    if (rc == ZOK && calls[1]->children.count > 0)
        rc = delete_node(session, directory, calls[1]->children.names[0], is_ours(calls[2]), by, deadline_ns);
    for (size_t i = 0; i < 3; i++)
        hfi_zookeeper_call_free(calls[i]);
    return rc == ZNONODE ? ZOK : rc;
}

/* Empties the mark that was read, and no other: if it has changed by the time that the request arrives, that was after
 * it was asked for. Not deleted: a node that is made anew starts with version 0, as the one that was read may have. */
static int empty_mark(struct zookeeper_session *session, const char *path, const char *by, hfi_time deadline_ns)
{
    (void)by;
    char marks[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_marks(marks, &session->store->config);
    struct zookeeper_call *calls[2] = { hfi_zookeeper_sync(session, marks), hfi_zookeeper_get(session, path, false) };
    hfi_zookeeper_await_calls(session->store, calls, 2, deadline_ns);
    int rc = calls[0] && calls[1] ? calls[1]->rc : ZSYSTEMERROR;
    if (rc == ZOK && calls[1]->text[0]) {
        struct zookeeper_call *removal = hfi_zookeeper_empty(session, path, calls[1]->stat.version);
        rc = hfi_zookeeper_answer(removal, deadline_ns);
        hfi_zookeeper_call_free(removal);
    }
    hfi_zookeeper_call_free(calls[0]);
    hfi_zookeeper_call_free(calls[1]);
    return rc == ZNONODE || rc == ZBADVERSION ? ZOK : rc;
}

typedef int remove_fn(struct zookeeper_session *session, const char *path, const char *by, hfi_time deadline_ns);

static hf_status take_away(struct zookeeper_store *store, remove_fn *remove_it, const char *what, const char *path,
                           const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_session *session;
    hfi_zookeeper_enter(store);
    hf_status status = hfi_zookeeper_session_borrow(store, 0, &session, deadline_ns, err);
    if (status == HF_OK) {
        const int rc = remove_it(session, path, by, deadline_ns);
        if (rc != ZOK)
            status = hfi_zookeeper_refusal(store, rc, what, err);
        hfi_zookeeper_session_give_back(session);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

hf_status hfi_zookeeper_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = memory;
    char directory[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_directory(directory, &store->config, name);
    return take_away(store, delete_first, "delete a node", directory, by, deadline_ns, err);
}

hf_status hfi_zookeeper_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    struct zookeeper_store *store = memory;
    char path[HFI_ZOOKEEPER_PATH_MAX];
    hfi_zookeeper_mark_path(path, &store->config, name);
    return take_away(store, empty_mark, "take back a mark", path, "", deadline_ns, err);
}
