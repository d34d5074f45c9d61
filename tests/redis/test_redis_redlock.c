/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock.c: redlock: on three, five and seven masters that are well: what it sends, and who excludes
 * whom.
 */
#include "redlock_support.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------------------------------------------------- URLs */

TEST(an_odd_number_of_masters_and_no_options_of_others)
{
    struct redis_group *group = redis_masters_start(3, NULL);
    int ports[3];
    for (int i = 0; i < 3; i++)
        ports[i] = group->server[i]->port;
    refuse_url(HF_INVALID, "odd number", "redlock://127.0.0.1:%d", ports[0]);
    refuse_url(HF_INVALID, "odd number", "redlock://127.0.0.1:%d,127.0.0.1:%d", ports[0], ports[1]);
    refuse_url(HF_INVALID, "odd number", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:1", ports[0],
               ports[1], ports[2]);
    refuse_url(HF_INVALID, "twice", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", ports[0], ports[1], ports[0]);
    refuse_url(HF_INVALID, "replicas", "%s?replicas=1", group->url);
    refuse_url(HF_INVALID, "fsync", "%s?fsync=yes", group->url);
    refuse_url(HF_INVALID, "plain", "%s?dialect=native", group->url);
    refuse_url(HF_INVALID, "plain", "%s?dialect=redisson", group->url);
    refuse_url(HF_INVALID, "plain", "%s?dialect=tair", group->url);
    hf_close(open_url("%s?dialect=plain", group->url));
}

TEST(opening_needs_a_majority)
{
    struct redis_group *group = start_masters(3, NULL);
    redis_server_kill(group->server[0]);
    hf_close(open_client());
    redis_server_kill(group->server[2]);
    refuse_url(HF_UNAVAILABLE, "1 of 3", "%s", group->url);
}

/* Of this process, to that port; those of the test itself last for hours. */
static int connections_that_notice_silence(int port)
{
    int count = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in peer = { .sin_family = AF_UNSPEC };
        socklen_t size = sizeof peer, option_size = sizeof(int);
        int most_ms = 0;
        if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sin_family == AF_INET &&
            ntohs(peer.sin_port) == port && getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, &option_size) == 0)
            count += most_ms > 0 && most_ms <= 15000;
    }
    return count;
}

/* A network can forget a connection without a word, and no other is made while there is one. */
TEST(connections_to_masters_do_not_outlast_a_network_that_swallows_everything)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    must_release(must_acquire(client, NAME, NULL));
    for (int i = 0; i < 3; i++)
        CHECK(connections_that_notice_silence(group->server[i]->port) > 0);
    hf_close(client);
}

TEST(a_prefix_and_a_database)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_url("%s/2?prefix=my:", group->url);
    hf_lock *lock = must_acquire(client, NAME, NULL);
    int there = 0;
    for (int i = 0; i < 3; i++) {
        redis_server_do(group->server[i], "SELECT 2");
        there += (int)redis_server_number(group->server[i], "EXISTS my:%s", NAME);
    }
    CHECK(there >= 2);
    must_release(lock);
    hf_close(client);
}

static void work_on(int count)
{
    struct redis_group *group = start_masters(count, NULL);
    hf_client *client = open_client(), *other = open_client();
    uint64_t last = 0;
    teach_masters(group, client);
    for (int i = 0; i < 5; i++) {
        hf_lock *lock = acquire_on_all(group, client, NULL, NULL);
        CHECK(hf_token(lock) > last);
        last = hf_token(lock);
        check_busy(other, NAME);
        must_release(lock);
        check_free(other, NAME);
    }
    await_clean(group);
    hf_close(other);
    hf_close(client);
}

TEST(three_masters)
{
    work_on(3);
}

TEST(five_masters)
{
    work_on(5);
}

TEST(seven_masters)
{
    work_on(7);
}

/* --------------------------------------------------------------------------------------------------------- commands */

static int64_t write_backs(struct redis_group *group, hf_client *client)
{
    enum { PAIRS = 10 };
    int64_t before[5];
    note_sent(group, before);
    for (int i = 0; i < PAIRS; i++) {
        must_release(must_acquire(client, NAME, NULL));
        await_clean(group); /* whoever is slow must not hinder the next pair */
    }
    return write_backs_since(group, before, PAIRS);
}

TEST(a_pair_that_nobody_disturbs_is_two_commands_to_each_master)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_client();
    teach_masters(group, client);
    while (write_backs(group, client) != 0)
        await_a_moment();
    hf_close(client);
}

TEST(many_locks_are_renewed_by_one_command_to_each_master)
{
    enum { LOCKS = 40 };
    int64_t before[3];
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    hf_lock *locks[LOCKS];
    const hf_options options = stranger(test_ms(6000)); /* renewed after two seconds */
    teach_masters(group, client);
    for (int i = 0; i < LOCKS; i++)
        locks[i] = must_acquire(client, numbered_name("one", (unsigned)i).text, &options);
    note_sent(group, before);
    await_renewal(locks[LOCKS - 1]);
    const int64_t sent = redis_server_sent(group->server[0]) - before[0];
    test_note("%d commands to renew %d locks", (int)sent, LOCKS);
    CHECK(sent >= 1);
    CHECK(sent <= LOCKS / 4);
    for (int i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    hf_close(client);
}

/* However many locks it holds: connections are for asking, not for holding. */
TEST(a_holder_of_many_locks_needs_few_connections)
{
    enum { LOCKS = 40, CONNECTIONS_MOST = 8 };
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_client();
    hf_lock *locks[LOCKS];
    for (int i = 0; i < LOCKS; i++)
        locks[i] = must_acquire(client, numbered_name("one", (unsigned)i).text, NULL);
    for (int i = 0; i < 5; i++) {
        redisReply *reply = redis_server_command(group->server[i], "INFO clients");
        const char *count = strstr(reply->str, "connected_clients:");
        REQUIRE(count != NULL);
        CHECK(strtol(count + strlen("connected_clients:"), NULL, 10) <= CONNECTIONS_MOST);
        freeReplyObject(reply);
    }
    for (int i = 0; i < LOCKS; i++)
        must_release(locks[i]);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------ who excludes whom */

TEST(the_order_in_the_url_does_not_matter)
{
    struct redis_group *group = start_masters(3, NULL);
    char url[400];
    struct waiter waiter;
    reverse_url(url, sizeof url, group);
    hf_client *forwards = open_client(), *backwards = open_url("%s", url);
    const hf_options options = stranger(endless_ttl_ms());
    for (int i = 0; i < 6; i++) { /* each lines up on a master of its own, and is called there by the other */
        hf_client *holder = i % 2 ? forwards : backwards;
        hf_client *other = i % 2 ? backwards : forwards;
        hf_lock *lock = must_acquire(holder, NAME, &options);
        check_busy(other, NAME);
        waiter_start(&waiter, other, NAME, &options);
        await_line(group->server[i % 2 ? 2 : 0], 1);
        const uint64_t token = hf_token(lock);
        must_release(lock);
        waiter_join(&waiter, HF_OK);
        CHECK(waiter.token > token);
        must_release(waiter.lock);
    }
    await_clean(group);
    hf_close(backwards);
    hf_close(forwards);
}

/* What other Redlock clients write: SET NX PX with a value of their own. */
static bool foreign_take(struct redis_group *group, int count)
{
    int taken = 0;
    for (int i = 0; i < count; i++) {
        redisReply *reply = redis_server_command(group->server[i], "SET %s a-stranger NX PX 60000", NAME);
        taken += reply->type == REDIS_REPLY_STATUS;
        freeReplyObject(reply);
    }
    return taken > group->count / 2;
}

TEST(a_majority_of_another_client_is_respected)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_client();
    char value[40];
    for (int count = 5; count >= 3; count--) {
        CHECK(foreign_take(group, count));
        check_busy(client, NAME);
        for (int i = 0; i < count; i++) {
            redis_server_text(group->server[i], value, sizeof value, "GET %s", NAME);
            CHECK_STR("a-stranger", value);
            redis_server_do(group->server[i], "DEL %s", NAME);
        }
        CHECK_INT(0, votes(group)); /* nothing of ours on those that were free */
    }
    check_free(client, NAME);
    hf_close(client);
}

TEST(a_minority_of_another_client_is_no_lock_and_stays)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_client();
    char value[40];
    CHECK(!foreign_take(group, 2));
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK(!foreign_take(group, 5)); /* and it cannot make it a majority */
    must_release(lock);
    await_votes(group, 2);
    for (int i = 0; i < 2; i++) {
        redis_server_text(group->server[i], value, sizeof value, "GET %s", NAME);
        CHECK_STR("a-stranger", value);
    }
    hf_close(client);
}

/* Whoever waits asks the usher first; but where that has it for a stranger, who may have it nowhere else any more, the
 * others as well. */
TEST(a_minority_of_another_client_that_the_usher_is_part_of_keeps_nobody_waiting)
{
    struct redis_group *group = start_masters(5, NULL);
    struct waiter waiter;
    hf_client *client = open_client();
    CHECK(foreign_take(group, 3));
    waiter_start(&waiter, client, NAME, NULL);
    await_line(group->server[0], 1);
    redis_server_do(group->server[2], "DEL %s", NAME);
    waiter_join(&waiter, HF_OK);
    must_release(waiter.lock);
    hf_close(client);
}

/* Nobody calls those who wait for a stranger: they ask now and then. */
TEST(a_waiter_outwaits_another_client)
{
    struct redis_group *group = start_masters(3, NULL);
    struct waiter waiter;
    hf_client *client = open_client();
    CHECK(foreign_take(group, 3));
    waiter_start(&waiter, client, NAME, NULL);
    await_line(group->server[0], 1);
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "DEL %s", NAME);
    waiter_join(&waiter, HF_OK);
    CHECK(!foreign_take(group, 3));
    must_release(waiter.lock);
    hf_close(client);
}

TEST(a_name_that_is_the_key_of_another_locks_token_is_refused)
{
    struct redis_group *group = start_masters(3, "");
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, "x", NULL);
    refuse_lock(client, "hf:{x}:t", HF_INVALID, "another lock");
    refuse_lock(client, "hf:{x}:w", HF_INVALID, "another lock");
    CHECK_STATUS(HF_INVALID, hf_break(client, "hf:{x}:t", &err), &err);
    int complete = 0;
    for (int i = 0; i < group->count; i++) { /* a majority is enough: one that was slow to let us in has nothing */
        const int64_t keys = redis_server_number(group->server[i], "DBSIZE");
        complete += keys == 2;
        CHECK(keys == 2 || keys == 0);
    }
    CHECK(complete >= 2);
    must_release(lock);
    hf_close(client);
}

struct slow {
    struct redis_server *master;
    atomic_int continued;
};

static void *continue_soon(void *arg)
{
    struct slow *slow = arg;
    pause_ms(test_ms(100));
    atomic_store(&slow->continued, 1);
    redis_server_continue(slow->master);
    return NULL;
}

/* Three of five have it, and one of them is slow when it is released: without its word there is no majority. */
TEST(a_release_waits_for_a_slow_master_that_it_needs)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_client();
    const hf_options options = stranger(endless_ttl_ms());
    pthread_t thread;
    teach_masters(group, client);
    strike(group, 3, KILLED);
    strike(group, 4, KILLED);
    hf_lock *lock = acquire_on_all(group, client, &options, NULL);
    heal(group, 3, KILLED);
    heal(group, 4, KILLED);
    strike(group, 0, PAUSED);
    const int64_t until_ns = test_now_ns() + test_ms(600) * 1000000LL;
    while (test_now_ns() < until_ns) /* … which is known of it: it has not answered for a while */
        must_release(must_acquire(client, "another", &options));
    struct slow slow = { .master = group->server[0] };
    REQUIRE(pthread_create(&thread, NULL, continue_soon, &slow) == 0);
    must_release(lock);
    REQUIRE(pthread_join(thread, NULL) == 0);
    hf_close(client);
}

/* To close a connection on which an answer arrives resets it, and the master throws away what it has not read: a vote
 * that would be in the way of others for its time-to-live. */
TEST(a_client_that_is_closed_waits_until_slow_masters_have_let_go)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_url("%s?timeout=%d", group->url, test_ms(10000));
    const hf_options options = stranger(endless_ttl_ms());
    struct slow slow = { .master = group->server[0] };
    pthread_t thread;
    teach_masters(group, client);
    hf_lock *lock = acquire_on_all(group, client, &options, NULL);
    strike(group, 0, PAUSED);
    const int64_t until_ns = test_now_ns() + test_ms(600) * 1000000LL;
    while (test_now_ns() < until_ns) /* it is known to be slow */
        must_release(must_acquire(client, "another", &options));
    must_release(lock);
    REQUIRE(pthread_create(&thread, NULL, continue_soon, &slow) == 0);
    hf_close(client);
    CHECK_INT(1, atomic_load(&slow.continued));
    REQUIRE(pthread_join(thread, NULL) == 0);
    await_clean(group);
}
