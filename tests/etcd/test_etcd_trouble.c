/* SPDX-License-Identifier: MIT
 *
 * test_etcd_trouble.c: what can be wrong with a URL, a user, a certificate or a server has a status and a sentence,
 * which never holds a password.
 */
#include "etcd_support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

TEST(urls_that_make_no_sense)
{
    check_open("etcd:here", HF_INVALID, "an etcd URL is");
    check_open("etcd://h:port", HF_INVALID, "the port");
    check_open("etcd://h:99999", HF_INVALID, "the port");
    check_open("etcd://[::1", HF_INVALID, "ends with ]");
    check_open("etcd://[::1]x", HF_INVALID, "no port");
    check_open("etcd://h/%00", HF_INVALID, "hexadecimal");
    check_open("etcd://h/////", HF_INVALID, "prefix");
    check_open("etcd://h/p?colour=blue", HF_INVALID, "colour");
    check_open("etcd://h/p?tls=perhaps", HF_INVALID, "yes or no");
    check_open("etcd://h/p?timeout=0", HF_INVALID, "timeout");
    check_open("etcd://h/p?timeout", HF_INVALID, "name=value");
    check_open("etcd://h/p?cafile=/x", HF_INVALID, "etcds://");
    check_open("etcds://h/p?cafile=/nonexistent", HF_INVALID, "/nonexistent");
    check_open("etcds://h/p?cert=/nonexistent", HF_INVALID, "/nonexistent");
    check_open("etcd://:open-sesame@h", HF_INVALID, "user name");
    check_open("etcd://u:open?sesame@h", HF_INVALID, "%3F");
    check_open("etcd://u:open-sesame%zz@h", HF_INVALID, "hexadecimal");
}

TEST(servers_that_are_not_there)
{
    check_open("etcd://u:open-sesame@127.0.0.1:1", HF_UNAVAILABLE, "127.0.0.1:1");
    check_open("etcd://no-such-host.invalid", HF_UNAVAILABLE, "no-such-host.invalid");
}

/* The next of the URL is asked. */
TEST_LIMIT(a_host_of_several_may_be_missing, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(1, QUICK);
    snprintf(url, sizeof url, "etcd://127.0.0.1:1,no-such-host.invalid,%s", cluster->hosts);
    check_works(url);
}

/* --- users --- */

static void add_users(struct etcd_cluster *cluster)
{
    etcd_ctl(cluster, "user add root:keeper");
    etcd_ctl(cluster, "user grant-role root root");
    etcd_ctl(cluster, "user add guest:open-sesame");
    etcd_ctl(cluster, "user add stranger:open-sesame");
    etcd_ctl(cluster, "role add locker");
    etcd_ctl(cluster, "role grant-permission locker --prefix=true readwrite holdfast/");
    etcd_ctl(cluster, "user grant-role guest locker");
}

TEST_LIMIT(users_and_passwords, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK " --bcrypt-cost 4");
    add_users(cluster);
    etcd_ctl(cluster, "auth enable");
    check_open(cluster->url, HF_DENIED, "wants a user");
    check_open_at(HF_DENIED, "user name or password", "etcd://guest:sesame-street@%s", cluster->hosts);
    check_open_at(HF_DENIED, "user name or password", "etcd://nobody:open-sesame@%s", cluster->hosts);
    check_open_at(HF_DENIED, "right to read and write", "etcd://stranger:open-sesame@%s", cluster->hosts);
    check_open_at(HF_DENIED, "right to read and write", "etcd://guest:open-sesame@%s/elsewhere", cluster->hosts);
    check_open_at(HF_OK, "", "etcd://guest:open-sesame@%s", cluster->hosts);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "open-sesame", 1));
    check_open_at(HF_OK, "", "etcd://guest@%s", cluster->hosts);
}

/* A token lives in the server's memory, and only for a while. */
TEST_LIMIT(a_token_that_was_forgotten_is_got_again, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(1, "--bcrypt-cost 4 --auth-token-ttl 1");
    add_users(cluster);
    snprintf(url, sizeof url, "etcd://guest:open-sesame@%s", cluster->hosts);
    store_url = url;
    hf_client *client = open_client(); /* before there is anything to log in to */
    must_release(must_acquire(client, "x", NULL));
    etcd_ctl(cluster, "auth enable");
    hf_lock *lock = must_acquire(client, "x", NULL);
    etcd_server_kill(&cluster->servers[0]);
    etcd_server_restart(&cluster->servers[0]);
    etcd_cluster_await(cluster);
    must_release(lock);
    struct waiter waiter;
    lock = must_acquire(client, "x", NULL);
    waiter_start(&waiter, client, "x", NULL);
    await_waiters(client, "x", 1);
    CHECK(!gate_await_for(&waiter.ended, 1, 2500)); /* two lives of a token */
    /* A watch that is to be made anew with what the server has forgotten. */
    etcd_server_kill(&cluster->servers[0]);
    etcd_server_restart(&cluster->servers[0]);
    etcd_cluster_await(cluster);
    await_watches(&cluster->servers[0], 2); /* the waiter's, and the holder's of its own key */
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
}

static int64_t started(const struct etcd_server *server, const char *call)
{
    return etcd_server_figure(server, "grpc_server_started_total", call);
}

/* What is to be watched anew after the log-in is too old must not wait until somebody asks something. */
TEST_LIMIT(who_listens_logs_in_again, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(1, QUICK " --bcrypt-cost 4 --auth-token-ttl 1");
    const struct etcd_server *server = &cluster->servers[0];
    add_users(cluster);
    etcd_ctl(cluster, "auth enable");
    snprintf(url, sizeof url, "etcd://guest:open-sesame@%s", cluster->hosts);
    store_url = url;
    hf_client *holder = open_client(), *other = open_client(), *renewer = open_client();
    hf_options endless = HF_OPTIONS_INIT, renewed = HF_OPTIONS_INIT;
    endless.ttl_ms = endless_ttl_ms();
    renewed.ttl_ms = 10000; /* asked for again after three lives of a token */
    hf_lock *lock = must_acquire(holder, "x", &endless);
    struct waiter waiter;
    waiter_start(&waiter, other, "x", &endless);
    await_waiters(holder, "x", 1);
    hf_lock *kept = must_acquire(renewer, "y", &renewed);
    await_watches(server, 3); /* the waiter's, and the holders' of their own keys */
    const int64_t logins = started(server, "\"Authenticate\"");
    while (started(server, "\"Authenticate\"") == logins) /* the renewal, which has found its token too old */
        REQUIRE(!gate_await_for(&waiter.ended, 1, 20));
    must_release(kept);
    hf_close(renewer);
    const int64_t before = started(server, "\"Txn\"");
    CHECK(shut_connections(server->port, SHUT_RDWR) >= 2);
    /* The waiter asks once, since something was changed while it heard nothing. */
    while (started(server, "\"Txn\"") == before ||
           etcd_server_figure(server, "etcd_debugging_mvcc_watcher_total", "") < 2)
        REQUIRE(!gate_await_for(&waiter.ended, 1, 20));
    /* And then no more: one that hears nothing asks at least every two seconds. */
    int64_t asked;
    do {
        asked = started(server, "\"Txn\"");
        REQUIRE(!gate_await_for(&waiter.ended, 1, 2100));
    } while (started(server, "\"Txn\"") != asked);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(holder);
    hf_close(other);
}

/* --- certificates --- */

static void check_tls(const struct etcd_cluster *cluster, const char *scheme, const char *host, const char *options,
                      hf_status status, const char *words)
{
    char url[1500];
    const char *folder = getenv("TEST_CERTIFICATES");
    REQUIRE(folder != NULL);
    int used = snprintf(url, sizeof url, "%s://%s:%d?", scheme, host, cluster->servers[0].port);
    for (; *options && used < 1200; options++) { /* '@' is the folder */
        if (*options == '@')
            used += snprintf(url + used, sizeof url - (size_t)used, "%s", folder);
        else
            url[used++] = *options;
    }
    url[used] = 0;
    check_open(url, status, words);
}

TEST_LIMIT(certificates, 60)
{
    const struct etcd_cluster *cluster = etcd_cluster_start(1, "tls " QUICK);
    const char *const mine = "cafile=@/ca.pem&cert=@/client.pem&key=@/client.key";
    check_tls(cluster, "etcds", "127.0.0.1", mine, HF_OK, "");
    check_tls(cluster, "etcds", "localhost", mine, HF_OK, "");
    check_tls(cluster, "etcd", "127.0.0.1", "tls=yes&cafile=@/ca.pem&cert=@/client.pem&key=@/client.key", HF_OK, "");
    check_tls(cluster, "etcds", "127.0.0.1", "cafile=@/other-ca.pem&cert=@/client.pem&key=@/client.key", HF_DENIED,
              "not to be trusted");
    check_tls(cluster, "etcds", "127.0.0.1", "verify=no&cert=@/client.pem&key=@/client.key", HF_OK, "");
    check_tls(cluster, "etcds", "127.0.0.2", mine, HF_UNAVAILABLE, "127.0.0.2");
    check_tls(cluster, "etcds", "127.0.0.1", "cafile=@/ca.pem", HF_UNAVAILABLE, ""); /* it wants ours too */
    check_tls(cluster, "etcd", "127.0.0.1", "timeout=1000", HF_UNAVAILABLE, "");
    const struct etcd_cluster *plain = etcd_cluster_start(1, QUICK);
    check_tls(plain, "etcds", "127.0.0.1", mine, HF_UNAVAILABLE, "no TLS");
}

struct severed {
    struct etcd_cluster *cluster;
    struct gate holds, paused;
};

static void write_when_severed(void *memory)
{
    struct severed *severed = memory;
    char url[1500];
    const char *folder = getenv("TEST_CERTIFICATES");
    hf_lock *none = NULL;
    signal(SIGPIPE, SIG_DFL);
    snprintf(url, sizeof url, "%s?cafile=%s/ca.pem&cert=%s/client.pem&key=%s/client.key&timeout=2000",
             severed->cluster->url, folder, folder, folder);
    store_url = url;
    hf_client *client = open_client();
    must_acquire(client, "x", NULL);
    gate_pass(&severed->holds);
    gate_await(&severed->paused, 1);
    CHECK(shut_connections(severed->cluster->servers[0].port, SHUT_WR) > 0);
    CHECK(hf_try_acquire(&none, client, "y", NULL, NULL) != HF_OK);
}

/* A server that stands still says nothing when a connection is severed, so that it is written to, which would end the
 * program by a signal. */
TEST_LIMIT(a_severed_connection_raises_no_signal, 60)
{
    struct severed *severed = shared_new(sizeof *severed);
    severed->cluster = etcd_cluster_start(1, "tls " QUICK);
    const struct etcd_server *server = &severed->cluster->servers[0];
    const pid_t helper = helper_start(write_when_severed, severed);
    gate_await(&severed->holds, 1);
    etcd_server_pause(server);
    gate_pass(&severed->paused);
    helper_join(helper);
    etcd_server_continue(server);
}

/* --- a server that is full --- */

TEST_LIMIT(a_full_server_takes_no_locks_but_gives_them_back, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK " --quota-backend-bytes 200000");
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL), *broken = must_acquire(client, "broken", NULL), *none = NULL;
    hf_error err = { 0 };
    char alarms[500] = "";
    for (unsigned i = 0; i < 2000 && !strstr(alarms, "NOSPACE"); i++) {
        if (hf_try_acquire(&none, client, numbered_name("more", i).text, NULL, NULL) == HF_OK)
            hf_release(none, NULL); /* of each revision something stays */
        else
            etcd_ctl_read(cluster, alarms, sizeof alarms, "alarm list");
    }
    CHECK(strstr(alarms, "NOSPACE") != NULL);
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&none, client, "y", NULL, &err), &err);
    CHECK(strstr(err.message, "full") != NULL);
    hf_error none_such = { 0 };
    CHECK_STATUS(HF_OK, hf_break(client, "broken", &none_such),
                 &none_such); /* though there is no room to say who did */
    CHECK_STR("", none_such.message);
    CHECK_INT(0, etcd_ctl_keys(cluster, "holdfast/broken/"));
    CHECK_STATUS(HF_LOST, hf_release(broken, NULL), NULL);
    must_release(lock);
    hf_close(client);
}

static void fill(void *arg, uint32_t index)
{
    hf_client *client = arg;
    hf_lock *lock = NULL;
    char name[40];
    for (unsigned i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "more-%u-%u", (unsigned)index, i);
        if (hf_try_acquire(&lock, client, name, NULL, NULL) != HF_OK)
            return;
        hf_release(lock, NULL);
    }
}

/* It may have done what it says that there is no room for, if that was what filled it. The client's lease lives on. */
TEST_LIMIT(a_server_keeps_nothing_of_what_has_filled_it, 60)
{
    for (int i = 0; i < 5; i++) { /* it does so one time in three */
        struct etcd_cluster *cluster = start_store(1, QUICK " --quota-backend-bytes 200000");
        hf_client *client = open_client();
        run_threads(8, fill, client);
        await_keys(cluster, 0);
        hf_close(client);
        etcd_cluster_stop(cluster);
    }
}

/* --- a server that takes few operations in one transaction --- */

#define MANY 40

TEST_LIMIT(many_locks_are_kept_by_a_server_that_takes_few_operations, 60)
{
    start_store(1, QUICK " --max-txn-ops=3");
    hf_client *client = open_client(), *other = open_client();
    hf_lock *locks[MANY];
    struct loss loss = { 0 };
    struct waiter waiter;
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 2000;
    record_loss(&options, &loss);
    for (unsigned i = 0; i < MANY; i++)
        locks[i] = must_acquire(client, numbered_name("x", i).text, &options);
    CHECK(!gate_await_for(&loss.told, 1, 3 * options.ttl_ms));
    waiter_start(&waiter, other, numbered_name("x", 0).text, NULL);
    await_waiters(other, numbered_name("x", 0).text, 1);
    for (unsigned i = 0; i < MANY; i++)
        must_release(locks[i]);
    waiter_join(&waiter, HF_OK);
    CHECK_STATUS(HF_OK, hf_break(client, numbered_name("x", 0).text, NULL), NULL);
    CHECK_STATUS(HF_LOST, hf_release(waiter.lock, NULL), NULL);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_server_that_takes_too_few_operations_is_named, 60)
{
    start_store(1, QUICK " --max-txn-ops=1");
    hf_client *client = open_client();
    hf_lock *none = NULL;
    hf_error err = { 0 };
    CHECK_STATUS(HF_INVALID, hf_acquire(&none, client, "x", NULL, &err), &err);
    check_error(&err, HF_INVALID, "max-txn-ops");
    hf_close(client);
}

/* Rights that are taken away from a holder: what it cannot give back is asked for again until it can. */
TEST_LIMIT(a_release_that_is_refused_is_made_again, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(1, QUICK " --bcrypt-cost 4");
    add_users(cluster);
    etcd_ctl(cluster, "auth enable");
    snprintf(cluster->ctl, sizeof cluster->ctl, "--user root:keeper");
    snprintf(url, sizeof url, "etcd://guest:open-sesame@%s", cluster->hosts);
    use_url(url);
    hf_client *client = open_client();
    hf_lock *kept = must_acquire(client, "kept", NULL), *lock = must_acquire(client, "x", NULL); /* of one lease */
    etcd_ctl(cluster, "role revoke-permission locker --prefix=true holdfast/");
    hf_error err = { 0 };
    CHECK_STATUS(HF_DENIED, hf_release(lock, &err), &err);
    CHECK_INT(1, etcd_ctl_keys(cluster, "holdfast/x/"));
    etcd_ctl(cluster, "role grant-permission locker --prefix=true readwrite holdfast/");
    await_keys(cluster, 1);
    must_release(kept);
    hf_close(client);
}

/* What else is kept in the store, such as who broke which lock, is none of its business. */
TEST_LIMIT(a_user_with_the_rights_to_one_lock_keeps_it, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(1, QUICK " --bcrypt-cost 4");
    add_users(cluster);
    etcd_ctl(cluster, "role revoke-permission locker --prefix=true holdfast/");
    etcd_ctl(cluster, "role grant-permission locker readwrite holdfast/");
    etcd_ctl(cluster, "role grant-permission locker --prefix=true readwrite holdfast/job/");
    etcd_ctl(cluster, "role grant-permission locker --prefix=true readwrite holdfast/.undone/job/");
    etcd_ctl(cluster, "auth enable");
    snprintf(url, sizeof url, "etcd://guest:open-sesame@%s", cluster->hosts);
    use_url(url);
    hf_client *client = open_client();
    struct loss loss = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    options.ttl_ms = 2000;
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, "job", &options);
    CHECK(!gate_await_for(&loss.told, 1, 2 * options.ttl_ms));
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_OK, hf_break(client, "job", &err), &err); /* though it may not say who did */
    CHECK_STR("", err.message);
    gate_await(&loss.told, 1);
    CHECK(strstr(loss.why, "the store no longer has it") != NULL);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    hf_close(client);
}
