/* SPDX-License-Identifier: MIT
 *
 * use_header.c: a program that uses everything in holdfast.h, which is all it includes at first, as C99, C11 and C++.
 * The header test compiles it; the install test links it with the installed library and runs it.
 */
#include <holdfast.h>

#include <stdio.h>

#if HF_VERSION_MAJOR != 0 || HF_VERSION_MINOR < 1 || HF_VERSION_PATCH < 0
#error "the version macros are not numbers that the preprocessor can compare"
#endif

static void when_lost(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)why;
    (void)arg;
}

static int count_lock(const hf_info *info, void *arg)
{
    int *count = (int *)arg;

    if (info->size >= sizeof(hf_info) && info->token > 0 && info->name[0] != '\0')
        (*count)++;
    return 0;
}

static void count_engine(const hf_engine_info *info, void *arg)
{
    int *count = (int *)arg;

    if (info->present && info->missing[0] == '\0' && (info->caps & HF_CAP_FAIR) != 0)
        (*count)++;
}

static void count_finding(const hf_finding *finding, void *arg)
{
    int *count = (int *)arg;

    if (finding->size >= sizeof(hf_finding) && finding->level <= HF_FINDING_BROKEN && finding->sentence[0] != '\0')
        (*count)++;
}

/* Fails by its line, which is all that a program of this size needs. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s (%s)\n", __LINE__, #condition, err.message);                                           \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int use_lock(hf_client *client)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { HF_OK, 0, "" };
    hf_lock *lock = NULL;
    hf_lock *second = NULL;
    int locks = 0;

    options.ttl_ms = 60000;
    options.owner = HF_OWNER_HANDLE;
    options.on_lost = when_lost;
    options.note = "header test";
    MUST(hf_acquire(&lock, client, "header", &options, &err) == HF_OK);
    MUST(hf_try_acquire(&second, client, "header", &options, &err) == HF_BUSY && second == NULL);
    MUST(hf_renew(lock, 0, &err) == HF_OK);
    MUST(hf_token(lock) > 0);
    MUST(hf_remaining_ms(lock) > 0);
    MUST(hf_lost_fd(lock) >= 0);
    MUST(hf_inspect(client, "header", count_lock, &locks, &err) == HF_OK && locks == 1);
    MUST(hf_inspect_one(client, "header", count_lock, &locks, &err) == HF_OK && locks == 2);
    MUST(hf_cancel(client, "header") == HF_OK);
    MUST(hf_break(client, "header", &err) == HF_OK);
    MUST(hf_guard(client, "header", hf_token(lock), &err) == HF_UNSUPPORTED);
    MUST(hf_release(lock, &err) == HF_LOST);
    options.once_per_ms = 3600000;
    MUST(hf_acquire(&lock, client, "header", &options, &err) == HF_OK);
    MUST(hf_release_done(lock, &err) == HF_OK);
    MUST(hf_try_acquire(&lock, client, "header", &options, &err) == HF_DONE);
    MUST(hf_inspect_done(client, NULL, count_lock, &locks, &err) == HF_OK && locks == 3);
    MUST(hf_forget_done(client, "header", &err) == HF_OK);
    MUST(hf_examine(client, 0, count_finding, &locks, &err) == HF_UNSUPPORTED && locks == 3);
    return 0;
}

static int use_operations(hf_client *client)
{
    hf_error err = { HF_OK, 0, "" };
    hf_event event;
    hf_op *op = NULL;
    int tag;

    MUST(hf_start_acquire(&op, client, "header", NULL, &tag, &err) == HF_OK);
    MUST(hf_op_wait(op, -1, &event, sizeof event) == 1);
    MUST(event.kind == HF_EVENT_ENDED && event.status == HF_OK && event.tag == &tag && event.op == op);
    hf_op_free(op);
    MUST(hf_start_release(&op, event.lock, NULL, &err) == HF_OK);
    MUST(hf_op_wait(op, 60000, &event, sizeof event) == 1 && event.status == HF_OK);
    hf_op_free(op);
    MUST(hf_start_try_acquire(&op, client, "header", NULL, NULL, &err) == HF_OK);
    hf_op_cancel(op);
    hf_op_free(op);
    MUST(hf_events_fd(client) >= 0);
    MUST(hf_events(client, &event, 1, sizeof event) == 0);
    MUST(hf_start_release_done(NULL, NULL, NULL, &err) == HF_OK);
    return 0;
}

int main(void)
{
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_error err = { HF_OK, 0, "" };
    hf_client *client = NULL;
    int engines = 0;
    int status;

    MUST(hf_open(&client, "mem:", &options, &err) == HF_OK);
    MUST((hf_capabilities(client) & HF_CAP_INSPECT) != 0);
    MUST(hf_url(client)[0] == 'm');
    hf_engines(count_engine, &engines);
    MUST(engines >= 1);
    status = use_lock(client);
    if (status == 0)
        status = use_operations(client);
    hf_close(client);
    if (status == 0)
        printf("holdfast %s: %s\n", hf_version(), hf_status_name(HF_OK));
    return status;
}
