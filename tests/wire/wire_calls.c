/* SPDX-License-Identifier: MIT
 *
 * wire_calls.c: whole calls of a client on a scripted server; see wire.h.
 */
#include "wire.h"

hf_options wire_options(uint32_t wait_ms)
{
    hf_options options = HF_OPTIONS_INIT;
    options.wait_ms = wait_ms;
    options.ttl_ms = 20000;
    options.renew = HF_RENEW_OFF;
    return options;
}

/* What a call said, which may take `most_ms`. */
static void check_call(hf_status status, const hf_error *err, int64_t start_ns, uint32_t most_ms)
{
    CHECK((test_now_ns() - start_ns) / 1000000 < most_ms + WIRE_SLACK_MS);
    if (status != HF_OK)
        wire_check_words(status, err);
}

void wire_refuse(const char *url, hf_status expected, uint32_t timeout_ms, const char *script)
{
    struct wire wire;
    hf_error err = { 0 };
    wire_serve(&wire, "%s", script);
    const int64_t start_ns = test_now_ns();
    CHECK_STATUS(expected, wire_open_url(&wire, url, timeout_ms, &err), &err);
    check_call(expected, &err, start_ns, timeout_ms);
    wire_end(&wire);
}

static hf_status ask(hf_lock **lock, const struct wire *wire, uint32_t wait_ms, hf_error *err)
{
    const hf_options options = wire_options(wait_ms);
    return wait_ms ? hf_acquire(lock, wire->client, "job", &options, err)
                   : hf_try_acquire(lock, wire->client, "job", &options, err);
}

hf_lock *wire_hold(struct wire *wire, const char *url, uint32_t wait_ms, uint32_t timeout_ms, const char *script)
{
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(wire, "%s", script);
    REQUIRE_STATUS(HF_OK, wire_open_url(wire, url, timeout_ms, &err), &err);
    REQUIRE_STATUS(HF_OK, ask(&lock, wire, wait_ms, &err), &err);
    return lock;
}

void wire_release(struct wire *wire, hf_lock *lock, hf_status expected)
{
    hf_error err = { 0 };
    const int64_t start_ns = test_now_ns();
    CHECK_STATUS(expected, hf_release(lock, &err), &err);
    check_call(expected, &err, start_ns, wire->timeout_ms);
    wire_end(wire);
}

void wire_miss(const char *url, hf_status expected, uint32_t wait_ms, uint32_t timeout_ms, const char *script)
{
    struct wire wire;
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    wire_serve(&wire, "%s", script);
    REQUIRE_STATUS(HF_OK, wire_open_url(&wire, url, timeout_ms, &err), &err);
    const int64_t start_ns = test_now_ns();
    CHECK_STATUS(expected, ask(&lock, &wire, wait_ms, &err), &err);
    CHECK(expected != HF_TIMEOUT || (test_now_ns() - start_ns) / 1000000 >= wait_ms);
    check_call(expected, &err, start_ns, wait_ms ? wait_ms : timeout_ms);
    CHECK(lock == NULL);
    wire_end(&wire);
}
