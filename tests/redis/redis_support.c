/* SPDX-License-Identifier: MIT
 *
 * redis_support.c: see redis_support.h.
 */
#include "redis_support.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* What the conformance suite's support expects of a main program. */
extern uint32_t run_tag;
extern uint64_t run_seed;
const char *store_url;
uint32_t store_caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES |
                      HF_CAP_INSPECT | HF_CAP_DURABLE_TOKEN | HF_CAP_BREAK;
uint32_t run_tag;
uint64_t run_seed;

__attribute__((constructor)) static void choose_seed(void)
{
    const char *seed = getenv("HOLDFAST_TEST_SEED");
    if (getrandom(&run_tag, sizeof run_tag, 0) != sizeof run_tag)
        run_tag = 1;
    run_seed = seed ? strtoull(seed, NULL, 10) : run_tag;
}

void use_url(const char *url)
{
    static char copy[400];
    snprintf(copy, sizeof copy, "%s", url);
    store_url = copy;
    store_handoff_ms = -1; /* these tests count who stands in the server's queue */
}

struct redis_server *serve(const char *arguments)
{
    struct redis_server *server = redis_server_start(NULL, arguments);
    use_url(server->url);
    return server;
}

hf_client *open_url(const char *format, ...)
{
    char url[400];
    hf_client *client = NULL;
    hf_error err = { 0 };
    va_list args;
    va_start(args, format);
    vsnprintf(url, sizeof url, format, args);
    va_end(args);
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.handoff_ms = -1;
    /* A URL with a short time-out may ask too much of a busy machine, once. */
    hf_status status = HF_UNAVAILABLE;
    for (int tries = 0; tries < 20 && status == HF_UNAVAILABLE; tries++)
        status = hf_open(&client, url, &options, &err);
    REQUIRE_STATUS(HF_OK, status, &err);
    return client;
}

void check_words(const hf_error *err, const char *words)
{
    if (!strstr(err->message, words))
        FAIL("the message has no \"%s\": %s", words, err->message);
}

void check_no_words(const hf_error *err, const char *words)
{
    if (strstr(err->message, words))
        FAIL("the message must not have \"%s\": %s", words, err->message);
}

hf_error refuse_url(hf_status expected, const char *words, const char *format, ...)
{
    char url[400];
    hf_client *client = NULL;
    hf_error err = { 0 };
    va_list args;
    va_start(args, format);
    vsnprintf(url, sizeof url, format, args);
    va_end(args);
    if (!CHECK_STATUS(expected, hf_open(&client, url, NULL, &err), &err))
        test_note("… of %s", url);
    CHECK(client == NULL);
    hf_close(client);
    if (words)
        check_words(&err, words);
    return err;
}

void refuse_lock(hf_client *client, const char *name, hf_status expected, const char *words)
{
    hf_options options = stranger(0);
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(expected, hf_try_acquire(&lock, client, name, &options, &err), &err);
    CHECK(lock == NULL);
    hf_release(lock, NULL);
    check_words(&err, words);
}

bool server_has_owner(struct redis_server *server, const char *name)
{
    return redis_server_number(server, "HEXISTS hf:{%s} o", name) == 1;
}

int64_t server_waiters(struct redis_server *server, const char *name)
{
    return redis_server_number(server, "ZCARD hf:{%s}:q", name);
}

bool server_has_keys(struct redis_server *server, const char *name)
{
    return redis_server_number(server, "EXISTS hf:{%s} hf:{%s}:q", name, name) > 0;
}

void await_queue(struct redis_server *server, const char *name, int64_t count)
{
    while (server_waiters(server, name) != count)
        await_a_moment();
}
