/* SPDX-License-Identifier: MIT
 *
 * test_redis_tls.c: rediss:// trusts only whom it should. The conformance suite runs over TLS too.
 */
#include "redis_support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define NAME "the-lock"

static const char *certificates(void)
{
    const char *folder = getenv("TEST_CERTIFICATES");
    REQUIRE(folder != NULL);
    return folder;
}

static struct redis_server *serve_tls(const char *arguments)
{
    return redis_server_start_tls(NULL, arguments);
}

static void check_works(hf_client *client)
{
    must_release(must_acquire(client, NAME, NULL));
    hf_close(client);
}

TEST(a_known_authority_is_trusted)
{
    struct redis_server *server = serve_tls("");
    check_works(open_url("%s", server->tls_url));
    check_works(open_url("rediss://127.0.0.1:%d?cafile=%s/ca.pem", server->tls_port, certificates()));
    check_works(open_url("rediss://[::1]:%d?cafile=%s/ca.pem", server->tls_port, certificates()));
}

TEST(an_unknown_authority_is_refused)
{
    struct redis_server *server = serve_tls("");
    refuse_url(HF_DENIED, "certificate", "rediss://localhost:%d", server->tls_port);
    refuse_url(HF_DENIED, "certificate", "rediss://localhost:%d?cafile=%s/other-ca.pem", server->tls_port,
               certificates());
}

TEST(a_certificate_for_another_host_is_refused)
{
    char arguments[600];
    snprintf(arguments, sizeof arguments, "--tls-cert-file %s/stranger.pem --tls-key-file %s/stranger.key",
             certificates(), certificates());
    struct redis_server *server = serve_tls(arguments);
    refuse_url(HF_DENIED, "localhost", "%s", server->tls_url);
    refuse_url(HF_DENIED, "127.0.0.1", "rediss://127.0.0.1:%d?cafile=%s/ca.pem", server->tls_port, certificates());
    check_works(open_url("%s&verify=no", server->tls_url));
}

TEST(verification_can_be_switched_off)
{
    struct redis_server *server = serve_tls("");
    check_works(open_url("rediss://localhost:%d?verify=no", server->tls_port));
    refuse_url(HF_DENIED, "certificate", "rediss://localhost:%d?verify=yes", server->tls_port);
}

TEST(a_server_may_want_the_clients_certificate)
{
    struct redis_server *server = serve_tls("--tls-auth-clients yes");
    hf_client *client = NULL;
    hf_error err = { 0 };
    /* With TLS 1.3 the refusal comes after the handshake, as a broken connection. */
    const hf_status status = hf_open(&client, server->tls_url, NULL, &err);
    CHECK(status == HF_DENIED || status == HF_UNAVAILABLE);
    CHECK(client == NULL);
    check_works(open_url("%s&cert=%s/client.pem&key=%s/client.key", server->tls_url, certificates(), certificates()));
}

TEST(files_that_cannot_be_read_are_named)
{
    struct redis_server *server = serve_tls("");
    refuse_url(HF_INVALID, "/nowhere/ca.pem", "rediss://localhost:%d?cafile=/nowhere/ca.pem", server->tls_port);
    refuse_url(HF_INVALID, "/nowhere/c.pem", "%s&cert=/nowhere/c.pem", server->tls_url);
    refuse_url(HF_INVALID, "/nowhere/k.pem", "%s&cert=%s/client.pem&key=/nowhere/k.pem", server->tls_url,
               certificates());
    refuse_url(HF_INVALID, "server.key", "%s&cert=%s/client.pem&key=%s/server.key", server->tls_url, certificates(),
               certificates());
}

TEST(tls_and_plain_ports_are_not_mixed_up)
{
    struct redis_server *server = serve_tls("");
    refuse_url(HF_UNAVAILABLE, "TLS", "rediss://localhost:%d?connect_timeout=300&cafile=%s/ca.pem", server->port,
               certificates());
    refuse_url(HF_UNAVAILABLE, NULL, "redis://localhost:%d?connect_timeout=300", server->tls_port);
}

/* A handshake that nobody answers must end with the connect limit, not with the test's. */
TEST(a_silent_handshake_ends_in_time)
{
    struct redis_server *server = serve_tls("");
    redis_server_pause(server);
    refuse_url(HF_UNAVAILABLE, "TLS", "%s&connect_timeout=100", server->tls_url);
    redis_server_continue(server);
}

TEST(a_held_lock_is_renewed_and_handed_over_through_tls)
{
    struct redis_server *server = serve_tls("");
    struct waiter waiter;
    struct loss loss = { 0 };
    use_url(server->tls_url);
    hf_client *client = open_client();
    hf_options options = with_ttl(short_ttl_ms());
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, client, NAME, NULL);
    await_queue(server, NAME, 1);
    CHECK(!gate_await_for(&loss.told, 1, 2 * short_ttl_ms()));
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
}

struct severed {
    struct redis_server *server;
    struct gate holds, paused;
};

static void write_when_severed(void *memory)
{
    struct severed *severed = memory;
    hf_lock *other = NULL;
    signal(SIGPIPE, SIG_DFL);
    hf_client *client = open_url("%s&connect_timeout=1000", severed->server->tls_url);
    must_acquire(client, NAME, NULL);
    gate_pass(&severed->holds);
    gate_await(&severed->paused, 1);
    CHECK(shut_connections(severed->server->tls_port, SHUT_WR) > 0);
    CHECK(hf_try_acquire(&other, client, "another", NULL, NULL) != HF_OK);
}

/* A server that stands still says nothing when a connection is severed, so that it is written to, which would end the
 * program by a signal. */
TEST(a_severed_connection_raises_no_signal)
{
    struct severed *severed = shared_new(sizeof *severed);
    severed->server = serve_tls("");
    const pid_t helper = helper_start(write_when_severed, severed);
    gate_await(&severed->holds, 1);
    redis_server_pause(severed->server);
    gate_pass(&severed->paused);
    helper_join(helper);
    redis_server_continue(severed->server);
}
