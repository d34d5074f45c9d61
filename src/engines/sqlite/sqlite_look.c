/* SPDX-License-Identifier: MIT
 *
 * sqlite_look.c: who holds what, what is done, forced release, and the fence of a resource.
 */
#include "sqlite.h"
#include <stdio.h>

/* --- inspect --- */

struct shown {
    char name[HFI_NAME_MAX + 1], host[65], note[128];
    int64_t pid, waiters;
    uint64_t token;
    hfi_time since_ns, end_ns; /* what is done: as in struct sqlite_values */
};

struct list {
    enum sqlite_statement inspect;
    struct sqlite_values values;
    struct shown *items;
    size_t count, room;
    bool too_small; /* and there was no memory for a larger one */
};

static bool grow(struct list *list)
{
    const size_t more = list->room ? 2 * list->room : 16;
    struct shown *larger = hfi_alloc(more * sizeof *larger);
    if (!larger)
        return false;
    for (size_t i = 0; i < list->count; i++)
        larger[i] = list->items[i];
    hfi_free(list->items);
    list->items = larger;
    list->room = more;
    return true;
}

static void copy_text(char *out, size_t size, sqlite3_stmt *row, int column)
{
    const unsigned char *text = sqlite3_column_text(row, column);
    snprintf(out, size, "%s", text ? (const char *)text : "");
}

static int collect(sqlite3_stmt *row, void *arg)
{
    struct list *list = arg;
    if (list->count == list->room && !grow(list)) {
        list->too_small = true;
        return 1;
    }
    struct shown *one = &list->items[list->count++];
    copy_text(one->name, sizeof one->name, row, 0);
    copy_text(one->host, sizeof one->host, row, 1);
    one->pid = sqlite3_column_int64(row, 2);
    one->token = (uint64_t)sqlite3_column_int64(row, 3);
    one->since_ns = sqlite3_column_int64(row, 4);
    one->end_ns = sqlite3_column_int64(row, 5);
    one->waiters = sqlite3_column_int64(row, 6);
    copy_text(one->note, sizeof one->note, row, 7);
    return 0;
}

static int list_all(struct sqlite_store *store, void *arg)
{
    struct list *list = arg;
    list->count = 0;
    list->values.now_ns = hfi_sqlite_now(store);
    const int code = hfi_sqlite_run(store, list->inspect, &list->values, collect, list);
    return code == SQLITE_OK ? hfi_sqlite_check_file(store) : code;
}

static int show(const struct shown *one, hfi_time now_ns, hf_inspect_fn each, void *arg)
{
    const hf_info info = { .size = sizeof info,
                           .name = one->name,
                           .host = one->host,
                           .pid = one->pid,
                           .token = one->token,
                           .held_ms = (now_ns - one->since_ns) / HFI_MS,
                           .remaining_ms = one->end_ns ? (one->end_ns - now_ns) / HFI_MS : -1,
                           .waiters = one->waiters,
                           .note = one->note };
    return each(&info, arg);
}

static int show_done(const struct shown *one, hfi_time now_ms, hf_inspect_fn each, void *arg)
{
    const int64_t left_ms = hfi_wall_done_left_ms(now_ms, one->since_ns, one->end_ns);
    if (left_ms <= 0)
        return 0;
    const hf_info info = { .size = sizeof info,
                           .name = one->name,
                           .host = one->host,
                           .pid = one->pid,
                           .token = one->token,
                           .held_ms = now_ms > one->since_ns ? now_ms - one->since_ns : 0,
                           .remaining_ms = left_ms,
                           .waiters = one->waiters,
                           .note = one->note };
    return each(&info, arg);
}

static hf_status look(struct sqlite_store *store, enum sqlite_statement inspect, const char *text, hf_inspect_fn each,
                      void *arg, hfi_time deadline_ns, hf_error *err)
{
    struct list list = { .inspect = inspect, .values = { .name = text, .boot = store->boot } };
    hf_status status = hfi_sqlite_ask(store, LITE_KIND_READ, list_all, &list, deadline_ns, err);
    if (status == HF_OK && list.too_small)
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a list of locks");
    /* The caller's function may ask the same store. */
    for (size_t i = 0, stop = 0; status == HF_OK && i < list.count && !stop; i++)
        stop = (inspect == LITE_INSPECT_DONE ? show_done(&list.items[i], hfi_wall_ms(), each, arg)
                                             : show(&list.items[i], list.values.now_ns, each, arg)) != 0;
    hfi_free(list.items);
    return status;
}

hf_status hfi_sqlite_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                             hf_error *err)
{
    return look(memory, LITE_INSPECT, prefix, each, arg, deadline_ns, err);
}

hf_status hfi_sqlite_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err)
{
    return look(memory, LITE_INSPECT_ONE, name, each, arg, deadline_ns, err);
}

hf_status hfi_sqlite_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err)
{
    return look(memory, LITE_INSPECT_DONE, prefix, each, arg, deadline_ns, err);
}

/* --- break --- */

struct breaking {
    struct sqlite_values values;
    struct sqlite_row row;
    struct sqlite_heirs heirs;
};

static int evict(struct sqlite_store *store, void *arg)
{
    struct breaking *it = arg;
    it->heirs = (struct sqlite_heirs){ .first = { .serial = 0 } };
    it->values.now_ns = hfi_sqlite_now(store);
    int code = hfi_sqlite_look(store, &it->values, &it->row);
    if (code == SQLITE_OK && store->config.strategy->count)
        code = hfi_sqlite_run(store, LITE_KEEP, &it->values, NULL, NULL);
    if (code == SQLITE_OK)
        code = hfi_sqlite_run(store, LITE_EVICT, &it->values, NULL, NULL);
    if (code == SQLITE_OK && it->row.waited)
        code = hfi_sqlite_serve(store, &it->values, &it->heirs);
    return code == SQLITE_OK ? hfi_sqlite_check_file(store) : code;
}

hf_status hfi_sqlite_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    const struct sqlite_store *store = memory;
    struct breaking it = { .values = { .name = name, .boot = store->boot } };
    const hf_status status = hfi_sqlite_ask(memory, LITE_KIND_TRANSACTION, evict, &it, deadline_ns, err);
    if (status != HF_OK)
        return status;
    if (!it.row.free)
        hfi_sqlite_tell(store, it.row.owner, LITE_SAYS_BROKEN, by);
    hfi_sqlite_tell_heirs(store, &it.heirs);
    return HF_OK;
}

/* --- guard --- */

struct guarding {
    struct sqlite_values values;
    bool refused;
};

static int show_token(struct sqlite_store *store, void *arg)
{
    struct guarding *it = arg;
    const int code = hfi_sqlite_run(store, LITE_GUARD, &it->values, NULL, NULL);
    it->refused = code == SQLITE_CONSTRAINT_TRIGGER;
    return code == SQLITE_OK || it->refused ? hfi_sqlite_check_file(store) : code;
}

hf_status hfi_sqlite_guard(void *memory, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err)
{
    struct guarding it = { .values = { .name = resource, .number = (int64_t)token } };
    if (token > INT64_MAX)
        return hfi_fail(err, HF_INVALID, 0, "SQLite has no numbers as large as this token");
    const hf_status status = hfi_sqlite_ask(memory, LITE_KIND_WRITE, show_token, &it, deadline_ns, err);
    if (status == HF_OK && it.refused)
        return hfi_fail(err, HF_LOST, 0, "a larger token than %llu was shown for %.100s before",
                        (unsigned long long)token, resource);
    return status;
}
