/* SPDX-License-Identifier: MIT
 *
 * test_redis_url.c: URLs and their options on a real server: who logs in and how, which database and prefix, which
 * way, how long; and that a password is never shown.
 */
#include "redis_support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "the-lock"

static void check_works(hf_client *client)
{
    must_release(must_acquire(client, NAME, NULL));
}

static void check_hides(hf_client *client, const char *password)
{
    if (strstr(hf_url(client), password))
        FAIL("hf_url() shows the password: %s", hf_url(client));
}

/* -------------------------------------------------------------------------------------------------------- passwords */

TEST(a_user_logs_in_by_acl)
{
    struct redis_server *server = serve("");
    redis_server_do(server, "ACL SETUSER alice on >s3cret&@x ~* &* +@all");
    hf_client *client = open_url("redis://alice:s3cret%%26%%40x@127.0.0.1:%d", server->port);
    check_works(client);
    check_hides(client, "s3cret");
    hf_close(client);
}

TEST(a_password_needs_no_user)
{
    struct redis_server *server = serve("");
    redis_server_do(server, "CONFIG SET requirepass s3cret");
    hf_client *client = open_url("redis://:s3cret@127.0.0.1:%d", server->port);
    check_works(client);
    check_hides(client, "s3cret");
    hf_close(client);
}

TEST(a_wrong_or_missing_password_is_refused_and_not_shown)
{
    struct redis_server *server = serve("");
    redis_server_do(server, "ACL SETUSER alice on >s3cret ~* &* +@all");
    redis_server_do(server, "CONFIG SET requirepass oth3r");
    hf_error err = refuse_url(HF_DENIED, "password", "redis://alice:wr0ng@127.0.0.1:%d", server->port);
    check_no_words(&err, "wr0ng");
    err = refuse_url(HF_DENIED, "password", "redis://:wr0ng@127.0.0.1:%d", server->port);
    check_no_words(&err, "wr0ng");
    refuse_url(HF_DENIED, "HOLDFAST_PASSWORD", "%s", server->url);
}

TEST(a_password_for_a_server_without_one_is_refused)
{
    struct redis_server *server = serve("");
    const hf_error err = refuse_url(HF_DENIED, "password", "redis://:s3cret@127.0.0.1:%d", server->port);
    check_no_words(&err, "s3cret");
}

/* The environment is a default: what the URL says comes first. */
TEST(the_environment_may_give_the_password)
{
    struct redis_server *server = serve("");
    redis_server_do(server, "ACL SETUSER alice on >s3cret ~* &* +@all");
    redis_server_do(server, "CONFIG SET requirepass oth3r");
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "oth3r", 1));
    hf_client *client = open_url("%s", server->url);
    check_works(client);
    check_hides(client, "oth3r");
    hf_close(client);
    hf_close(open_url("redis://alice:s3cret@127.0.0.1:%d", server->port));
    refuse_url(HF_DENIED, "password", "redis://alice@127.0.0.1:%d", server->port);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "s3cret", 1));
    hf_close(open_url("redis://alice@127.0.0.1:%d", server->port));
}

TEST(a_file_may_give_the_password)
{
    struct redis_server *server = serve("");
    char path[300];
    snprintf(path, sizeof path, "%s/password", server->directory);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    REQUIRE_INT(7, write(fd, "s3cret\n", 7));
    close(fd);
    redis_server_do(server, "CONFIG SET requirepass s3cret");
    hf_client *client = open_url("%s?password_file=%s", server->url, path);
    check_works(client);
    check_hides(client, "s3cret");
    hf_close(client);
    REQUIRE_INT(0, unlink(path));
    refuse_url(HF_UNAVAILABLE, path, "%s?password_file=%s", server->url, path);
}

/* Every way in which a URL can be wrong or lead nowhere, and it has a password. */
TEST(no_message_about_a_bad_url_shows_its_password)
{
    static const char *const urls[] = {
        "redis://alice:s3cret@127.0.0.1:notaport",
        "redis://alice:s3cret@127.0.0.1:0",
        "redis://alice:s3cret@[::1",
        "redis://alice:s3cret@[::1]x",
        "redis://alice:s3cret@127.0.0.1/notadb",
        "redis://alice:s3cret@127.0.0.1?nonsense=1",
        "redis://alice:s3cret@127.0.0.1:1",
        "redis://alice:s3cret@no-such-host.invalid:1",
        "rediss://alice:s3cret@127.0.0.1:1",
        "redis+unix://alice:s3cret@/nowhere/at/all",
        "redis+unix://alice:s3cret@host/nowhere",
        "redis://alice:s3cret%zz@127.0.0.1",
        "redis://alice:s3cret/more@127.0.0.1",
        "redis://alice:12/s3cret@127.0.0.1",
        "redis://alice:s3cret?more@127.0.0.1",
        "redis:alice:s3cret@127.0.0.1",
        "redis+nonsense://alice:s3cret@127.0.0.1",
        "redis://:s3cret#more@127.0.0.1:1",
    };
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        hf_client *client = NULL;
        hf_error err = { 0 };
        if (hf_open(&client, urls[i], NULL, &err) == HF_OK)
            FAIL("%s was opened", urls[i]);
        hf_close(client);
        check_no_words(&err, "s3cret");
    }
}

/* ---------------------------------------------------------------------------------------------- databases, prefixes */

TEST(the_database_is_the_urls)
{
    struct redis_server *server = serve("");
    hf_client *by_path = open_url("%s/3", server->url);
    hf_client *by_option = open_url("%s?db=3", server->url);
    hf_client *other = open_url("%s", server->url);
    hf_lock *lock = must_acquire(by_path, NAME, NULL);
    check_busy(by_option, NAME);
    check_free(other, NAME);
    redis_server_do(server, "SELECT 3");
    CHECK(server_has_owner(server, NAME));
    must_release(lock);
    hf_close(by_path);
    hf_close(by_option);
    hf_close(other);
}

/* Waiters listen to a channel, and channels know no databases. */
TEST(a_lock_is_handed_over_in_another_database)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    hf_client *client = open_url("%s/3", server->url);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    redis_server_do(server, "SELECT 3");
    waiter_start(&waiter, client, NAME, NULL);
    await_queue(server, NAME, 1);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
}

TEST(a_database_that_is_not_there_is_refused)
{
    struct redis_server *server = serve("--databases 4");
    refuse_url(HF_INVALID, "DB index", "%s/99", server->url);
}

TEST(prefixes_keep_locks_apart)
{
    struct redis_server *server = serve("");
    hf_client *plain = open_url("%s", server->url);
    hf_client *prefixed = open_url("%s?prefix=shop%%3A%%2A", server->url);
    hf_lock *lock = must_acquire(prefixed, NAME, NULL);
    check_free(plain, NAME);
    CHECK_INT(1, redis_server_number(server, "HEXISTS shop:*{%s} o", NAME));
    must_release(lock);
    hf_close(plain);
    hf_close(prefixed);
}

/* ------------------------------------------------------------------------------------------------------------- ways */

TEST(ipv6_and_unix_sockets_lead_to_the_same_server)
{
    struct redis_server *server = serve("");
    hf_client *four = open_url("%s", server->url);
    hf_client *six = open_url("%s", server->url6);
    hf_client *by_file = open_url("%s", server->unix_url);
    hf_client *by_name = open_url("redis://localhost:%d", server->port);
    hf_lock *lock = must_acquire(six, NAME, NULL);
    check_busy(four, NAME);
    check_busy(by_file, NAME);
    check_busy(by_name, NAME);
    must_release(lock);
    hf_close(four);
    hf_close(six);
    hf_close(by_file);
    hf_close(by_name);
}

TEST(an_unix_socket_has_databases_and_passwords_too)
{
    struct redis_server *server = serve("");
    redis_server_do(server, "ACL SETUSER alice on >s3cret ~* &* +@all");
    hf_client *client = open_url("redis+unix://alice:s3cret@%s?db=2", server->unix_url + strlen("redis+unix://"));
    check_works(client);
    check_hides(client, "s3cret");
    redis_server_do(server, "SELECT 2");
    CHECK(server_has_keys(server, NAME));
    hf_close(client);
}

TEST(a_server_that_is_not_there_is_named)
{
    struct redis_server *server = serve("");
    redis_server_kill(server);
    char where[64];
    snprintf(where, sizeof where, "127.0.0.1:%d", server->port);
    refuse_url(HF_UNAVAILABLE, where, "%s", server->url);
    refuse_url(HF_UNAVAILABLE, "/nowhere/at/all", "redis+unix:///nowhere/at/all");
    refuse_url(HF_UNAVAILABLE, "no-such-host.invalid", "redis://no-such-host.invalid");
}

/* ------------------------------------------------------------------------------------------------------ time limits */

static hf_client *open_patiently(const char *url, hf_status expected)
{
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_error err = { 0 };
    options.timeout_ms = 600000; /* longer than the test may take: only the URL's own limit can end it */
    REQUIRE_STATUS(expected, hf_open(&client, url, &options, &err), &err);
    return client;
}

TEST(connecting_takes_no_longer_than_the_url_allows)
{
    struct redis_server *server = serve("");
    char url[100];
    snprintf(url, sizeof url, "%s?connect_timeout=100", server->url);
    redis_server_pause(server); /* the kernel still accepts for it */
    open_patiently(url, HF_UNAVAILABLE);
    redis_server_continue(server);
}

TEST(a_command_takes_no_longer_than_the_url_allows)
{
    struct redis_server *server = serve("");
    char url[100];
    snprintf(url, sizeof url, "%s?timeout=100", server->url);
    hf_client *client = open_patiently(url, HF_OK);
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    redis_server_pause(server);
    const hf_status status = hf_try_acquire(&lock, client, NAME, &options, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    CHECK(lock == NULL);
    redis_server_continue(server);
    /* The server may have done it after all; it is undone in the background. */
    hf_client *other = open_client();
    check_becomes_free(other, NAME);
    hf_close(other);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------ bad options */

TEST(what_makes_no_sense_in_a_url_is_refused)
{
    refuse_url(HF_INVALID, "port", "redis://127.0.0.1:0");
    refuse_url(HF_INVALID, "port", "redis://127.0.0.1:65536");
    refuse_url(HF_INVALID, "port", "redis://127.0.0.1:");
    refuse_url(HF_INVALID, "]", "redis://[::1");
    refuse_url(HF_INVALID, "database", "redis://127.0.0.1/x");
    refuse_url(HF_INVALID, "nonsense", "redis://127.0.0.1?nonsense=1");
    refuse_url(HF_INVALID, "name=value", "redis://127.0.0.1?db");
    refuse_url(HF_INVALID, "db", "redis://127.0.0.1?db=-1");
    refuse_url(HF_INVALID, "replicas", "redis://127.0.0.1?replicas=many");
    refuse_url(HF_INVALID, "timeout", "redis://127.0.0.1?timeout=0");
    refuse_url(HF_INVALID, "verify", "rediss://127.0.0.1?verify=perhaps");
    refuse_url(HF_INVALID, "fsync", "redis://127.0.0.1?fsync=perhaps");
    refuse_url(HF_INVALID, "rediss://", "redis://127.0.0.1?cafile=/x");
    refuse_url(HF_INVALID, "hexadecimal", "redis://127.0.0.1?prefix=%%z");
    refuse_url(HF_INVALID, "prefix", "redis://127.0.0.1?prefix=%065d", 0);
    refuse_url(HF_INVALID, "PATH", "redis+unix://");
    refuse_url(HF_INVALID, "redis://HOST", "redis:127.0.0.1");
}
