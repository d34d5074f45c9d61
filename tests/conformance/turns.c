/* SPDX-License-Identifier: MIT
 *
 * turns.c: see turns.h.
 */
#include "turns.h"

struct turns {
    hf_client *client;
    const char *name;
    uint32_t ttl_ms, rest_ms;
    pthread_t threads[2];
    struct gate stop, grants;
};

static void *take_turns(void *arg)
{
    struct turns *turns = arg;
    const hf_options options = stranger(turns->ttl_ms);
    while (gate_count(&turns->stop) == 0 && test_now_ns() < test_deadline_ns() - INT64_C(1000000000)) {
        hf_lock *lock = must_acquire(turns->client, turns->name, &options);
        gate_pass(&turns->grants);
        pause_ms(5);
        must_release(lock);
        pause_ms(turns->rest_ms);
    }
    return NULL;
}

struct turns *turns_start(hf_client *client, const char *name, uint32_t ttl_ms, uint32_t rest_ms)
{
    struct turns *turns = shared_new(sizeof *turns);
    turns->client = client;
    turns->name = name;
    turns->ttl_ms = ttl_ms;
    turns->rest_ms = rest_ms;
    for (size_t i = 0; i < 2; i++)
        REQUIRE_INT(0, pthread_create(&turns->threads[i], NULL, take_turns, turns));
    return turns;
}

uint32_t turns_stop(struct turns *turns)
{
    const uint32_t grants = gate_count(&turns->grants);
    gate_pass(&turns->stop);
    for (size_t i = 0; i < 2; i++)
        REQUIRE_INT(0, pthread_join(turns->threads[i], NULL));
    return grants;
}
