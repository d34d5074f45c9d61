/* SPDX-License-Identifier: MIT
 *
 * test_consul_trouble.c: what can be wrong with a URL, a server, a token or a certificate has a status and a sentence,
 * which never shows the token; and what the options of the URL do.
 */
#include "consul_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MASTER "0fb0ca55-0000-4000-8000-5e5a3e5e5a3e"
#define ACLS ", \"acl\": {\"enabled\": true, \"default_policy\": \"deny\", \"tokens\": {\"master\": \"" MASTER "\"}}"

TEST(urls_that_make_no_sense)
{
    static const char *const urls[] = { "consul:x",
                                        "consul://h:0",
                                        "consul://h:70000",
                                        "consul://h:x",
                                        "consul://[::1",
                                        "consul://[::1]x",
                                        "consul://h/a//b",
                                        "consul://h/..",
                                        "consul://h/a/",
                                        "consul://h/%0a",
                                        "consul://h/%zz",
                                        "consul://h?x",
                                        "consul://h?x=y",
                                        "consul://h?tls=maybe",
                                        "consul://h?lock_delay=61s",
                                        "consul://h?lock_delay=-1",
                                        "consul://h?lock_delay=5m",
                                        "consul://h?cafile=/nowhere",
                                        "consuls://h?cafile=/nowhere",
                                        "consuls://h?cert=/nowhere" };
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++)
        check_open(urls[i], HF_INVALID, "");
    check_open("consul://me:open-sesame@h/", HF_INVALID, "token_file");
    check_open("consul://h?token_file=/nowhere/at/all", HF_UNAVAILABLE, "/nowhere/at/all");
}

TEST(nobody_is_there)
{
    check_open("consul://127.0.0.1:1", HF_UNAVAILABLE, "cannot connect to 127.0.0.1:1");
    check_open("consul://127.0.0.1:1,127.0.0.1:2", HF_UNAVAILABLE, "cannot connect");
    check_open("consul://no-such-host.invalid", HF_UNAVAILABLE, "cannot find host");
}

TEST_LIMIT(hosts_that_are_not_there_are_passed_over, 30)
{
    struct consul_server *server = start_store("");
    char url[100];
    snprintf(url, sizeof url, "consul://127.0.0.1:1,127.0.0.1:%d,127.0.0.1:2/some/where", server->port);
    use_url(url);
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "a/b", NULL);
    CHECK_INT(1, consul_server_keys(server, "some/where/a%252Fb/.lock"));
    must_release(lock);
    hf_close(client);
    CHECK_INT(0, consul_server_keys(server, "some/where/"));
}

/* --- options --- */

/* Sessions of a server with its usual settings last ten seconds at least: a lock is then safe for as long as it was
 * meant to be, and only comes free later when its holder dies. */
TEST_LIMIT(a_server_with_a_longer_least_time, 30)
{
    struct consul_server *server = start_store(", \"session_ttl_min\": \"10s\"");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(500);
    char answer[2000];
    options.renew = HF_RENEW_OFF;
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "x", &options);
    CHECK(hf_remaining_ms(lock) > 0 && hf_remaining_ms(lock) <= 500);
    consul_server_do(server, "GET", "/v1/session/list", "", answer, sizeof answer);
    CHECK(strstr(answer, "\"TTL\":\"10000ms\"") != NULL);
    hf_lock *next = must_acquire(other, "x", NULL); /* released when its time was over */
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(next);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_lock_delay_keeps_others_away, 30)
{
    struct consul_server *server = start_store("");
    char url[100];
    snprintf(url, sizeof url, "%s?lock_delay=2s", server->url);
    use_url(url);
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL), *none = NULL;
    hf_error err = { 0 };
    struct waiter waiter;
    waiter_start(&waiter, other, "x", NULL);
    await_waiters(other, "x", 1);
    const int64_t destroyed_ns = test_now_ns();
    consul_server_destroy_sessions(server);
    const hf_status status = hf_try_acquire(&none, other, "x", NULL, &err);
    CHECK_STATUS(HF_BUSY, status, &err);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.ended_ns - destroyed_ns >= 1900000000LL);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(waiter.lock);
    /* A release is no failure: nobody waits after it. */
    must_release(must_acquire(client, "x", NULL));
    check_free(other, "x");
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_key_of_others_is_left_alone, 30)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client();
    hf_lock *none = NULL;
    hf_error err = { 0 };
    consul_server_do(server, "PUT", "/v1/kv/holdfast/x/.lock", "mine", NULL, 0);
    CHECK_STATUS(HF_DENIED, hf_try_acquire(&none, client, "x", NULL, &err), &err);
    CHECK(strstr(err.message, "holdfast/x/.lock") != NULL);
    CHECK_STATUS(HF_DENIED, hf_acquire(&none, client, "x", NULL, &err), &err);
    /* As a semaphore marks it; a number with more bits than most have. */
    consul_server_do(server, "PUT", "/v1/kv/holdfast/y/.lock?flags=16210313421097356768", "{}", NULL, 0);
    CHECK_STATUS(HF_DENIED, hf_try_acquire(&none, client, "y", NULL, &err), &err);
    /* A lock that somebody has left behind unlocked is free. */
    consul_server_do(server, "PUT", "/v1/kv/holdfast/z/.lock?flags=3304740253564472344", "", NULL, 0);
    check_free(client, "z");
    hf_close(client);
    CHECK_INT(1, consul_server_keys(server, "holdfast/x/"));
    CHECK_INT(1, consul_server_keys(server, "holdfast/y/"));
    CHECK_INT(0, consul_server_keys(server, "holdfast/z/"));
}

TEST_LIMIT(a_datacenter_that_nobody_knows, 30)
{
    struct consul_server *server = start_store("");
    check_open_at(HF_UNAVAILABLE, "datacenter", "%s?datacenter=atlantis", server->url);
    check_open_at(HF_OK, "", "%s?datacenter=dc1", server->url);
}

/* --- tokens --- */

#define RULES(keys)                                                                                                    \
    "session_prefix \\\"\\\" { policy = \\\"write\\\" } key_prefix \\\"holdfast/\\\" { policy = \\\"" keys "\\\" }"

/* Copies the text that follows `field` in an answer. */
static void read_field(char out[60], const char *answer, const char *field)
{
    const char *value = strstr(answer, field);
    REQUIRE(value != NULL);
    snprintf(out, 60, "%.36s", value + strlen(field));
}

/* A policy with these rules, made or, if it has an id, changed. */
static void write_policy(struct consul_server *server, const char *name, const char *rules, char id[60])
{
    char body[1000], path[100], answer[2000];
    snprintf(path, sizeof path, "/v1/acl/policy%s%s", *id ? "/" : "", id);
    snprintf(body, sizeof body, "{\"Name\": \"%s\", \"Rules\": \"%s\"}", name, rules);
    consul_server_do(server, "PUT", path, body, answer, sizeof answer);
    read_field(id, answer, "\"ID\":\"");
}

/* A token with these rules. */
static void make_token(struct consul_server *server, const char *name, const char *rules, char token[60], char id[60])
{
    char body[1000], answer[2000];
    *id = 0;
    write_policy(server, name, rules, id);
    snprintf(body, sizeof body, "{\"Policies\": [{\"Name\": \"%s\"}]}", name);
    consul_server_do(server, "PUT", "/v1/acl/token", body, answer, sizeof answer);
    read_field(token, answer, "\"SecretID\":\"");
}

static void check_try(const char *url, hf_status expected, const char *token)
{
    hf_client *client = NULL;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    setenv("CONSUL_HTTP_TOKEN", token, 1);
    hf_status status = hf_open(&client, url, NULL, &err);
    if (status == HF_OK)
        status = hf_try_acquire(&lock, client, "x", NULL, &err);
    CHECK_STATUS(expected, status, &err);
    if (status != HF_OK) {
        CHECK_INT(expected, err.status);
        CHECK(strstr(err.message, token) == NULL);
        CHECK(strstr(err.message, "ACL token") != NULL);
    }
    if (client)
        CHECK(strstr(hf_url(client), token) == NULL);
    hf_release(lock, NULL);
    hf_close(client);
}

/* … and says nothing of what it could not do besides. */
static void check_breaks_without_telling(const char *url, const char *holders, const char *token)
{
    hf_client *holder = NULL, *admin = NULL;
    hf_error err = { 0 };
    setenv("CONSUL_HTTP_TOKEN", holders, 1);
    REQUIRE_STATUS(HF_OK, hf_open(&holder, url, NULL, NULL), NULL);
    setenv("CONSUL_HTTP_TOKEN", token, 1);
    REQUIRE_STATUS(HF_OK, hf_open(&admin, url, NULL, NULL), NULL);
    hf_lock *lock = must_acquire(holder, "x", NULL);
    CHECK_STATUS(HF_OK, hf_break(admin, "x", &err), &err);
    CHECK_STR("", err.message);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(holder);
    hf_close(admin);
}

TEST_LIMIT(tokens_that_may_and_tokens_that_may_not, 40)
{
    struct consul_server *server = consul_server_start(ACLS);
    char good[60], readable[60], sessionless[60], breaker[60], id[60];
    make_token(server, "good", RULES("write"), good, id);
    make_token(server, "readable", RULES("read"), readable, id);
    make_token(server, "sessionless", "key_prefix \\\"holdfast/\\\" { policy = \\\"write\\\" }", sessionless, id);
    make_token(server, "breaker", RULES("read") " key_prefix \\\"holdfast/x/\\\" { policy = \\\"write\\\" }", breaker,
               id);
    check_breaks_without_telling(server->url, good, breaker);
    check_try(server->url, HF_OK, good);
    check_try(server->url, HF_DENIED, readable);
    check_try(server->url, HF_DENIED, sessionless);
    check_try(server->url, HF_DENIED, "11111111-2222-4333-8444-555555555555");
    /* From a file too, which comes before the environment. */
    char path[260], url[400];
    snprintf(path, sizeof path, "%s/token", server->directory);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    fprintf(file, "%s\n", good);
    REQUIRE_INT(0, fclose(file));
    snprintf(url, sizeof url, "%s?token_file=%s", server->url, path);
    check_try(url, HF_OK, "22222222-2222-4333-8444-555555555555");
}

/* Rights that are taken away from a holder: what it cannot give back is asked for again until it can. */
TEST_LIMIT(a_release_that_is_refused_is_made_again, 40)
{
    struct consul_server *server = consul_server_start(ACLS);
    char token[60], id[60];
    make_token(server, "changing", RULES("write"), token, id);
    setenv("CONSUL_HTTP_TOKEN", token, 1);
    use_url(server->url);
    hf_client *client = open_client(), *other = NULL;
    setenv("CONSUL_HTTP_TOKEN", MASTER, 1);
    REQUIRE_STATUS(HF_OK, hf_open(&other, server->url, NULL, NULL), NULL);
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *kept = must_acquire(client, "y", &options); /* keeps their session alive */
    hf_lock *lock = must_acquire(client, "x", &options);
    write_policy(server, "changing", RULES("read"), id);
    CHECK_STATUS(HF_DENIED, hf_release(lock, NULL), NULL);
    check_busy(other, "x");
    write_policy(server, "changing", RULES("write"), id);
    check_becomes_free(other, "x");
    must_release(kept);
    /* Where no other lock needs the session it goes with that. */
    options.ttl_ms = test_ms(2000);
    lock = must_acquire(client, "x", &options);
    write_policy(server, "changing", RULES("read"), id);
    CHECK_STATUS(HF_DENIED, hf_release(lock, NULL), NULL);
    check_becomes_free(other, "x");
    hf_close(client);
    hf_close(other);
}

/* --- TLS --- */

static void tls_settings(char *out, size_t size, const char *certificate, const char *more)
{
    const char *folder = getenv("TEST_CERTIFICATES");
    snprintf(out, size, ", \"ca_file\": \"%s/ca.pem\", \"cert_file\": \"%s/%s.pem\", \"key_file\": \"%s/%s.key\"%s",
             folder, folder, certificate, folder, certificate, more);
}

TEST_LIMIT(certificates_that_are_trusted_and_others, 40)
{
    const char *folder = getenv("TEST_CERTIFICATES");
    char settings[900], url[900];
    tls_settings(settings, sizeof settings, "server", "");
    struct consul_server *server = consul_server_start(settings);
    check_open_at(HF_OK, "", "%s?cafile=%s/ca.pem", server->tls_url, folder);
    check_open_at(HF_OK, "", "consul://127.0.0.1:%d?tls=yes&cafile=%s/ca.pem", server->tls_port, folder);
    check_open(server->tls_url, HF_DENIED, "not to be trusted");
    check_open_at(HF_OK, "", "%s?verify=no", server->tls_url);
    check_open_at(HF_DENIED, "not to be trusted", "%s?cafile=%s/other-ca.pem", server->tls_url, folder);
    check_open_at(HF_UNAVAILABLE, "no TLS with", "consuls://127.0.0.1:%d?cafile=%s/ca.pem", server->port, folder);
    consul_server_stop(server);

    tls_settings(settings, sizeof settings, "stranger", ", \"verify_incoming_https\": true");
    server = consul_server_start(settings);
    snprintf(url, sizeof url, "%s?cafile=%s/ca.pem&cert=%s/client.pem&key=%s/client.key", server->tls_url, folder,
             folder, folder);
    check_open(url, HF_DENIED, "not to be trusted"); /* for another host */
    snprintf(url + strlen(url), sizeof url - strlen(url), "&verify=no");
    check_open(url, HF_OK, "");
    check_open_at(HF_UNAVAILABLE, "", "%s?verify=no", server->tls_url); /* without a certificate of our own */
}

/* As docs/FENCING.md has it: 200 if the transaction was done. */
static int write_guarded(struct consul_server *server, uint64_t token)
{
    char body[400], answer[4000];
    snprintf(body, sizeof body,
             "[{\"KV\": {\"Verb\": \"check-index\", \"Key\": \"holdfast/x/.lock\", \"Index\": %llu}},"
             "{\"KV\": {\"Verb\": \"set\", \"Key\": \"stock/7\", \"Value\": \"NDA=\"}}]",
             (unsigned long long)token);
    return consul_server_ask(server, "PUT", "/v1/txn", body, answer, sizeof answer);
}

TEST_LIMIT(the_index_of_the_key_is_the_token_after_every_renewal, 30)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(2000);
    struct waiter waiter;
    options.renew = HF_RENEW_OFF;
    hf_lock *lock = must_acquire(client, "x", &options);
    const uint64_t token = hf_token(lock);
    const uint32_t times[] = { 0, 60000, 1000, 120000 };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        REQUIRE_STATUS(HF_OK, hf_renew(lock, times[i], NULL), NULL);
        CHECK_INT(token, hf_token(lock));
        CHECK_INT(200, write_guarded(server, token));
    }
    check_busy(other, "x");
    waiter_start(&waiter, other, "x", &options);
    await_waiters(client, "x", 1);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(409, write_guarded(server, token));
    REQUIRE_STATUS(HF_OK, hf_renew(waiter.lock, 60000, NULL), NULL);
    CHECK_INT(200, write_guarded(server, waiter.token));
    must_release(waiter.lock);
    CHECK_INT(409, write_guarded(server, waiter.token));
    hf_close(client);
    hf_close(other);
}
