/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_others.c: nodes that others made, in every style; users, passwords and rights; breaking; what can be
 * wrong with a URL.
 */
#include "late_relay.h"
#include "who.h"
#include "zookeeper_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- foreigners */

static const char *const styles[] = { "_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-lock-",
                                      "_c_6f5a7c2e0d0e4f0a-lock-",
                                      "6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b__lock__",
                                      "6f5a7c2e0d0e4f0a9a5b0c1d2e3f4a5b__rlock__",
                                      "_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-__WRIT__",
                                      "_c_6f5a7c2e-0d0e-4f0a-9a5b-0c1d2e3f4a5b-__READ__",
                                      "x-72057594037927936-" };

TEST_LIMIT(every_style_of_node_is_respected, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        struct waiter waiter;
        REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "192.0.2.1", "/holdfast/x/%s", styles[i]));
        char held[300];
        snprintf(held, sizeof held, "%.299s", raw->text);
        const int64_t czxid = raw->stat.czxid;
        check_refused(client, "x", HF_BUSY, "192.0.2.1");
        waiter_start(&waiter, client, "x", NULL);
        await_contenders(raw, "x", 2);
        CHECK_INT(0, gate_count(&waiter.ended));
        REQUIRE_INT(ZOK, raw_delete(raw, "%s", held));
        waiter_join(&waiter, HF_OK);
        CHECK(waiter.token > (uint64_t)czxid);
        must_release(waiter.lock);
    }
    hf_close(client);
    raw_close(raw);
}

TEST_LIMIT(nodes_without_a_number_are_nobody, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client();
    must_release(must_acquire(client, "x", NULL));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/x/leases"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/x/0-config"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/a%%2fb"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast/job-123456789"));
    check_free(client, "x");
    hf_lock *lock = must_acquire(client, "x", NULL);
    check_busy(client, "x");
    must_release(lock);
    hf_close(client);
    raw_close(raw);
}

static int note_token(const hf_info *info, void *arg)
{
    uint64_t *token = arg;
    *token = info->token;
    CHECK_STR("", info->host);
    CHECK_INT(0, info->pid);
    CHECK_STR("192.0.2.1", info->note);
    CHECK_INT(1, info->waiters);
    CHECK(info->waiting != NULL && strstr(info->waiting[0], ":") != NULL);
    return 0;
}

TEST_LIMIT(a_foreign_holder_is_shown_and_broken, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client();
    uint64_t token = 0;
    struct waiter waiter;
    must_release(must_acquire(client, "x", NULL));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "192.0.2.1", "/holdfast/x/%s", styles[0]));
    const int64_t czxid = raw->stat.czxid;
    waiter_start(&waiter, client, "x", NULL);
    await_contenders(raw, "x", 2);
    CHECK_STATUS(HF_OK, hf_inspect(client, "x", note_token, &token, NULL), NULL);
    CHECK_INT(czxid, token);
    CHECK_STATUS(HF_OK, hf_break(client, "x", NULL), NULL);
    waiter_finish(&waiter);
    hf_close(client);
    raw_close(raw);
}

TEST_LIMIT(the_style_of_kazoo_and_the_place_in_the_tree, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    char url[200];
    snprintf(url, sizeof url, "%s/teams/blue?style=kazoo", server->url);
    use_url(url);
    hf_client *client = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.note = "the note";
    hf_lock *lock = must_acquire(client, "a/b", &options);
    REQUIRE_INT(ZOK, raw_list(raw, "/teams/blue/a%%2Fb"));
    REQUIRE_INT(1, raw->count);
    CHECK(strstr(raw->text, "__lock__0000000000 ") != NULL);
    CHECK_INT(32 + 8 + 10 + 1, strlen(raw->text));
    REQUIRE_INT(ZOK, raw_get(raw, "/teams/blue/a%%2Fb/%.*s", (int)strlen(raw->text) - 1, raw->text));
    CHECK(strstr(raw->text, " the note") != NULL);
    must_release(lock);
    hf_close(client);
    raw_close(raw);
}

/* ------------------------------------------------------------------------------------------------- whose turn it is */

/* The waiter lines up behind all others, or believes that it holds the lock. */
static void check_waits_among(struct raw *raw, struct waiter *waiter, const char *name, int count)
{
    while (contenders(raw, name) != count && gate_count(&waiter->ended) == 0)
        await_a_moment();
    CHECK_INT(0, gate_count(&waiter->ended));
    CHECK_INT(count, contenders(raw, name));
}

/* Somebody deletes the waiter's node, and then the holder's: the lock is that of whoever came after the waiter. */
TEST_LIMIT(a_waiter_whose_node_is_deleted_lines_up_again, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client();
    struct waiter waiter;
    char holder[300], other[300], own[300];
    must_release(must_acquire(client, "x", NULL));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "", "/holdfast/x/a-lock-"));
    snprintf(holder, sizeof holder, "%.299s", raw->text);
    waiter_start(&waiter, client, "x", NULL);
    await_contenders(raw, "x", 2);
    await_watch(server);
    snprintf(own, sizeof own, "%.*s", (int)strcspn(strstr(raw->text, "_c_"), " "), strstr(raw->text, "_c_"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "", "/holdfast/x/b-lock-"));
    snprintf(other, sizeof other, "%.299s", raw->text);
    REQUIRE_INT(ZOK, raw_delete(raw, "/holdfast/x/%s", own));
    REQUIRE_INT(ZOK, raw_delete(raw, "%s", holder));
    check_waits_among(raw, &waiter, "x", 2);
    REQUIRE_INT(ZOK, raw_delete(raw, "%s", other));
    waiter_finish(&waiter);
    hf_close(client);
    raw_close(raw);
}

/* Curator, since 5.5: who holds the write lock takes the read lock too, with a node of the same number, and gives the
 * write lock back. */
TEST_LIMIT(a_write_lock_that_becomes_a_read_lock_is_still_before_us, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client();
    struct waiter waiter;
    char writer[300], reader[300];
    must_release(must_acquire(client, "x", NULL));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL_SEQUENTIAL, "", "/holdfast/x/%s", styles[4]));
    snprintf(writer, sizeof writer, "%.299s", raw->text);
    waiter_start(&waiter, client, "x", NULL);
    await_contenders(raw, "x", 2);
    await_watch(server);
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_EPHEMERAL, "", "/holdfast/x/_c_0-__READ__%s", writer + strlen(writer) - 10));
    snprintf(reader, sizeof reader, "%.299s", raw->text);
    REQUIRE_INT(ZOK, raw_delete(raw, "%s", writer));
    while (zookeeper_server_number(server, "zk_watch_count") < 1 && gate_count(&waiter.ended) == 0)
        pause_ms(2);
    CHECK_INT(0, gate_count(&waiter.ended));
    check_refused(client, "x", HF_BUSY, "");
    REQUIRE_INT(ZOK, raw_delete(raw, "%s", reader));
    waiter_finish(&waiter);
    hf_close(client);
    raw_close(raw);
}

/* A holder that watches its node, since it has waited, is told at once that its lock was broken. The next renewal is
 * after the end of the test. */
static void wait_and_be_broken(struct zookeeper_server *server, hf_client *client, hf_client *other, struct loss *loss)
{
    hf_options options = with_ttl(300000);
    struct waiter waiter;
    record_loss(&options, loss);
    hf_lock *lock = must_acquire(other, "x", NULL);
    waiter_start(&waiter, client, "x", &options);
    await_waiters(other, "x", 1);
    await_watch(server);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    REQUIRE_STATUS(HF_OK, hf_break(other, "x", NULL), NULL);
    gate_await(&loss->told, 1);
    CHECK(hf_remaining_ms(waiter.lock) <= 0);
    CHECK_STATUS(HF_LOST, hf_release(waiter.lock, NULL), NULL);
}

/* One transaction may delete all nodes, the holder's first: its successor then believes, if only for a moment. */
TEST_LIMIT(a_holder_that_has_waited_is_told_at_once_that_its_node_is_gone, 30)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client(), *other = open_client();
    struct loss loss = { 0 };
    wait_and_be_broken(server, client, other, &loss);
    check_free(other, "x");
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

/* A lock that is gone, and what the next renewal says of it. */
static bool is_said(hf_lock *lock, const char *words)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), NULL);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    return strstr(err.message, words) != NULL;
}

static hf_lock *acquire_and_break(hf_client *client, hf_client *other)
{
    const hf_options options = with_ttl(300000);
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, "x", &options);
    CHECK_STATUS(HF_OK, hf_break(other, "x", &err), &err);
    return lock;
}

/* Of a holder that watches its node, since it has waited. */
static bool is_told_by_watch(struct zookeeper_server *server, hf_client *client, hf_client *other)
{
    struct loss loss = { 0 };
    wait_and_be_broken(server, client, other, &loss);
    if (strcmp(loss.why, "its node was deleted") == 0)
        return false;
    check_we_broke_it(loss.why);
    return true;
}

/* With a server that takes more than 100 ms to say it, the loss is told without: then once more. */
TEST_LIMIT(a_holder_is_told_who_breaks_its_lock, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *client = open_client(), *other = open_client();
    bool by_renewal = false, by_watch = false;
    for (int i = 0; i < 5 && !by_renewal; i++)
        by_renewal = is_said(acquire_and_break(client, other), "it was broken by ");
    for (int i = 0; i < 5 && !by_watch; i++)
        by_watch = is_told_by_watch(server, client, other);
    CHECK(by_renewal && by_watch);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(nobody_is_named_who_did_not_break_the_lock, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client(), *other = open_client();
    const hf_options options = with_ttl(300000);
    char node[300];
    is_said(acquire_and_break(client, other), "");
    hf_lock *lock = must_acquire(client, "x", &options);
    REQUIRE_INT(1, contenders(raw, "x"));
    snprintf(node, sizeof node, "%.*s", (int)strcspn(raw->text, " "), raw->text);
    REQUIRE_INT(ZOK, raw_delete(raw, "/holdfast/x/%s", node));
    CHECK(is_said(lock, "the store no longer has it"));
    /* A directory in which somebody keeps something is left as it is. */
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_CONTAINER, "ours since 2019", "/holdfast/kept"));
    lock = must_acquire(client, "kept", &options);
    CHECK_STATUS(HF_OK, hf_break(other, "kept", NULL), NULL);
    REQUIRE_INT(ZOK, raw_get(raw, "/holdfast/kept"));
    CHECK_STR("ours since 2019", raw->text);
    CHECK(is_said(lock, "the store no longer has it"));
    /* Who may not say it may break the lock all the same. */
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ALL & ~ZOO_PERM_WRITE, "/holdfast/x"));
    CHECK(is_said(acquire_and_break(client, other), "the store no longer has it"));
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

/* The quota of the locks is used up, and the server enforces it. */
TEST_LIMIT(a_lock_is_broken_though_there_is_no_room_to_say_by_whom, 60)
{
    struct zookeeper_server *server = serve("-Dzookeeper.enforceQuota=true");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client(), *other = open_client();
    const hf_options options = with_ttl(300000);
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, "x", &options);
    must_release(must_acquire(other, "y", NULL)); /* what breaking needs of the other client is there */
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/zookeeper/quota/holdfast"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "count=0,bytes=0", "/zookeeper/quota/holdfast/zookeeper_stats"));
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "count=-1,bytes=-1=;byteHardLimit=1;countHardLimit=-1",
                                "/zookeeper/quota/holdfast/zookeeper_limits"));
    CHECK(raw_create(raw, ZOO_EPHEMERAL, "more", "/holdfast/x/more") != ZOK); /* it is enforced */
    CHECK_STATUS(HF_OK, hf_break(other, "x", &err), &err);
    CHECK(is_said(lock, "the store no longer has it"));
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

/* A server that falls silent when it is asked who did it. */
TEST_LIMIT(a_loss_is_told_though_nobody_says_by_whom, 60)
{
    struct zookeeper_server *server = serve("");
    struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
    hf_client *other = open_client();
    hf_client *client = NULL;
    hf_client_options patient = HF_CLIENT_OPTIONS_INIT;
    hf_options options = with_ttl(300000);
    struct waiter waiter;
    struct loss loss = { 0 };
    char url[60];
    patient.timeout_ms = 60000; /* a silent connection is given up after half of that */
    snprintf(url, sizeof url, "zookeeper://127.0.0.1:%d", late_relay_port(relay));
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, &patient, NULL), NULL);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(other, "x", NULL);
    waiter_start(&waiter, client, "x", &options);
    await_waiters(other, "x", 1);
    await_watch(server);
    must_release(lock);
    waiter_join(&waiter, HF_OK);
    late_relay_catch(relay, "/holdfast/x", 1);
    const int64_t broken_ns = test_now_ns();
    REQUIRE_STATUS(HF_OK, hf_break(other, "x", NULL), NULL);
    gate_await(&loss.told, 1);
    CHECK_STR("its node was deleted", loss.why);
    CHECK(atomic_load(&loss.told_ns) - broken_ns < test_ms(5000) * 1000000LL);
    late_relay_await(relay);
    late_relay_deliver_if_open(relay);
    CHECK_STATUS(HF_LOST, hf_release(waiter.lock, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

/* ----------------------------------------------------------------------------------------------------------- rights */

TEST_LIMIT(nodes_of_a_user_are_for_that_user, 60)
{
    struct zookeeper_server *server = serve("");
    char blue[200], red[200];
    snprintf(blue, sizeof blue, "zookeeper://blue:open-sesame@127.0.0.1:%d/team", server->port);
    snprintf(red, sizeof red, "zookeeper://red:sesame-too@127.0.0.1:%d/team", server->port);
    use_url(blue);
    hf_client *client = open_client(), *stranger = NULL, *nobody = NULL;
    CHECK(strstr(hf_url(client), "sesame") == NULL && strstr(hf_url(client), "blue@") != NULL);
    hf_lock *lock = must_acquire(client, "x", NULL);
    check_busy(client, "x");
    REQUIRE_STATUS(HF_OK, hf_open(&stranger, red, NULL, NULL), NULL);
    check_refused(stranger, "x", HF_DENIED, "create a node");
    hf_error err = { 0 };
    CHECK_STATUS(HF_DENIED, hf_break(stranger, "x", &err), &err);
    CHECK_STATUS(HF_DENIED, hf_inspect(stranger, NULL, note_token, NULL, &err), &err);
    snprintf(red, sizeof red, "%s/team", server->url);
    REQUIRE_STATUS(HF_OK, hf_open(&nobody, red, NULL, NULL), NULL);
    check_refused(nobody, "y", HF_DENIED, "make the lock's directory");
    must_release(lock);
    hf_close(client);
    hf_close(stranger);
    hf_close(nobody);
}

TEST_LIMIT(a_password_comes_from_a_file_or_the_environment, 60)
{
    struct zookeeper_server *server = serve("");
    char url[400], path[260];
    snprintf(path, sizeof path, "%s/password", server->directory);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    fprintf(file, "open-sesame\n");
    REQUIRE_INT(0, fclose(file));
    snprintf(url, sizeof url, "zookeeper://blue:open-sesame@127.0.0.1:%d/team", server->port);
    check_works(url);
    snprintf(url, sizeof url, "zookeeper://blue@127.0.0.1:%d/team?password_file=%s", server->port, path);
    check_works(url);
    snprintf(url, sizeof url, "zookeeper://blue@127.0.0.1:%d/team", server->port);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "open-sesame", 1));
    check_works(url);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "sesame-too", 1));
    hf_client *client = open_client();
    check_refused(client, "x", HF_DENIED, "create a node");
    hf_close(client);
}

/* Rights that are taken away from a holder: what it cannot give back is asked for again until it can. */
TEST_LIMIT(a_release_that_is_refused_is_made_again, 60)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    hf_error err = { 0 };
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ALL & ~ZOO_PERM_DELETE, "/holdfast/x"));
    CHECK_STATUS(HF_DENIED, hf_release(lock, &err), &err);
    CHECK_STATUS(HF_DENIED, err.status, NULL);
    CHECK_INT(1, contenders(raw, "x"));
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ALL, "/holdfast/x"));
    check_becomes_free(other, "x");
    /* One that only looked must not be left in the line either. */
    lock = must_acquire(client, "x", NULL);
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ALL & ~ZOO_PERM_DELETE, "/holdfast/x"));
    check_refused(other, "x", HF_DENIED, "delete a node");
    CHECK_INT(2, contenders(raw, "x"));
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_ALL, "/holdfast/x"));
    await_contenders(raw, "x", 1);
    must_release(lock);
    hf_close(client);
    hf_close(other);
    raw_close(raw);
}

/* ---------------------------------------------------------------------------------------------------------- trouble */

TEST(urls_that_make_no_sense)
{
    check_open("zookeeper:here", HF_INVALID, "zookeeper://HOST");
    check_open("zookeeper://h:0", HF_INVALID, "port");
    check_open("zookeeper://u:open-sesame:9x9", HF_INVALID, "port");
    check_open("zookeeper://[::1", HF_INVALID, "]");
    check_open("zookeeper://[::1]2181", HF_INVALID, "no port");
    check_open("zookeeper://h/a//b", HF_INVALID, "path");
    check_open("zookeeper://h/../b", HF_INVALID, "path");
    check_open("zookeeper://h/zookeeper/x", HF_INVALID, "path");
    check_open("zookeeper://h/a%01", HF_INVALID, "path");
    check_open("zookeeper://h/a%zz", HF_INVALID, "hexadecimal");
    check_open("zookeeper://h?style=cubist", HF_INVALID, "curator or kazoo");
    check_open("zookeeper://h?acl=creator", HF_INVALID, "user");
    check_open("zookeeper://h?auth=sasl", HF_INVALID, "digest");
    check_open("zookeeper://h?session_timeout=soon", HF_INVALID, "session_timeout");
    check_open("zookeeper://h?colour=blue", HF_INVALID, "colour");
    check_open("zookeeper://h?style", HF_INVALID, "name=value");
    check_open("zookeeper://u:open?sesame@h/d", HF_INVALID, "%3F");
    check_open("zookeeper://u@h?password_file=/nonexistent", HF_UNAVAILABLE, "/nonexistent");
}

TEST_LIMIT(servers_that_are_not_there, 60)
{
    check_open("zookeeper://u:open-sesame@127.0.0.1:1", HF_UNAVAILABLE, "127.0.0.1:1");
    check_open("zookeeper://127.0.0.1:1,127.0.0.1:2,[::1]:3", HF_UNAVAILABLE, "127.0.0.1:1");
    check_open("zookeeper://no-such-host.invalid", HF_UNAVAILABLE, "no-such-host.invalid");
}

TEST_LIMIT(one_server_of_several_is_enough_to_open, 60)
{
    struct zookeeper_server *server = serve("");
    for (int i = 0; i < 5; i++) {
        check_open_at(HF_OK, "", "zookeeper://127.0.0.1:1,no-such-host.invalid,127.0.0.1:%d,127.0.0.1:2", server->port);
    }
}

TEST_LIMIT(a_session_of_a_fixed_length_serves_all_locks, 60)
{
    struct zookeeper_server *server = serve("");
    char url[200];
    snprintf(url, sizeof url, "%s?session_timeout=3000", server->url);
    use_url(url);
    hf_client *client = open_client();
    const hf_options brief = with_ttl(1000), lengthy = with_ttl(60000);
    const int64_t before = zookeeper_server_number(server, "zk_num_alive_connections");
    hf_lock *one = must_acquire(client, "one", &brief), *two = must_acquire(client, "two", &lengthy);
    CHECK_INT(before, zookeeper_server_number(server, "zk_num_alive_connections"));
    CHECK(hf_remaining_ms(one) <= 1000);
    CHECK(hf_remaining_ms(two) <= 3000); /* what the session is certain to live */
    must_release(one);
    must_release(two);
    hf_close(client);
}

TEST_LIMIT(many_times_to_live_share_a_few_sessions, 60)
{
    struct zookeeper_server *server = serve("");
    hf_client *client = open_client();
    hf_lock *locks[40];
    for (unsigned i = 0; i < 40; i++) {
        const hf_options options = with_ttl(1000 + 500 * i);
        locks[i] = must_acquire(client, numbered_name("x", i).text, &options);
        CHECK(hf_remaining_ms(locks[i]) <= options.ttl_ms);
    }
    CHECK(zookeeper_server_number(server, "zk_num_alive_connections") <= 10);
    for (unsigned i = 0; i < 40; i++) {
        CHECK(hf_remaining_ms(locks[i]) > 0);
        must_release(locks[i]);
    }
    hf_close(client);
}
