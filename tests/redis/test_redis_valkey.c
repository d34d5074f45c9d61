/* SPDX-License-Identifier: MIT
 *
 * test_redis_valkey.c: what Valkey has and the system's Redis may lack. The conformance suite runs on Valkey too.
 */
#include "redis_support.h"

#include <stdlib.h>

#define NAME "the-lock"

static struct redis_server *serve_valkey(const char *arguments)
{
    const char *binary = getenv("TEST_VALKEY");
    REQUIRE(binary != NULL && *binary != '\0');
    struct redis_server *server = redis_server_start(binary, arguments);
    use_url(server->url);
    return server;
}

TEST(a_lock_is_on_the_disk_when_it_is_granted)
{
    struct redis_server *server = serve_valkey("--appendonly yes --appendfsync everysec");
    hf_client *client = open_url("%s?fsync=yes&replica_timeout=5000", server->url);
    hf_options options = with_ttl(endless_ttl_ms());
    hf_lock *lock = must_acquire(client, NAME, &options);
    CHECK(redis_server_calls(server, "waitaof") > 0);
    redis_server_restart(server, true, "");
    CHECK(server_has_owner(server, NAME));
    hf_release(lock, NULL);
    hf_close(client);
}

TEST(a_server_without_a_log_on_disk_is_named)
{
    struct redis_server *server = serve_valkey("--appendonly no");
    hf_client *client = open_url("%s?fsync=yes", server->url);
    refuse_lock(client, NAME, HF_UNSUPPORTED, "appendonly");
    CHECK(!server_has_owner(server, NAME));
    hf_close(client);
}

TEST(disk_and_replica_can_both_be_asked_for)
{
    struct redis_server *server = serve_valkey("--appendonly yes --appendfsync always");
    struct redis_server *replica = redis_server_start_replica(server);
    hf_client *client = open_url("%s?fsync=yes&replica_timeout=300&replicas=1", server->url);
    redis_server_do(replica, "CONFIG SET appendonly no"); /* it has the lock, but not on its disk */
    refuse_lock(client, NAME, HF_UNAVAILABLE, "replicas");
    CHECK(!server_has_owner(server, NAME));
    hf_close(client);
}

TEST(a_restart_and_a_flush_are_survived_as_on_redis)
{
    struct redis_server *server = serve_valkey("--appendonly yes --appendfsync always");
    struct loss loss = { 0 };
    hf_client *client = open_client();
    hf_options options = with_ttl(test_ms(3000));
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    redis_server_restart(server, true, "");
    CHECK(!gate_await_for(&loss.told, 1, options.ttl_ms / 2));
    CHECK(hf_remaining_ms(lock) > 0);
    redis_server_do(server, "FLUSHALL");
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}
