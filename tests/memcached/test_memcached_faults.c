/* SPDX-License-Identifier: MIT
 *
 * test_memcached_faults.c: what can be wrong with a URL or a server has a status and a sentence; and what becomes of
 * locks when the server forgets, stops, is full or is started again.
 */
#include "engine_support.h"
#include "memcached_server.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "the-lock"
#define KEY "holdfast:" NAME

static struct memcached_server *start_store(const char *arguments)
{
    struct memcached_server *server = memcached_server_start(arguments);
    use_url(server->url);
    return server;
}

static bool has(struct memcached_server *server, const char *key)
{
    char text[400], answer[1000];
    snprintf(text, sizeof text, "mg %s v", key);
    memcached_server_ask(server, text, answer, sizeof answer);
    return strncmp(answer, "EN", 2) != 0;
}

/* More than fits into a megabyte, of each size that our records may have. */
static void fill(struct memcached_server *server)
{
    enum { COUNT = 12000, SIZE = 500 };
    char *text = malloc((size_t)COUNT * SIZE), answer[1000], value[400];
    REQUIRE(text != NULL);
    for (int size = 40; size <= 280; size += 40) {
        size_t used = 0;
        memset(value, 'x', (size_t)size);
        value[size] = 0;
        for (int i = 0; i < COUNT; i++)
            used += (size_t)snprintf(text + used, SIZE, "set fill%d.%d 0 0 %d noreply\r\n%s\r\n", size, i, size, value);
        snprintf(text + used, SIZE, "mn");
        memcached_server_ask(server, text, answer, sizeof answer);
    }
    free(text);
}

TEST(urls_that_make_no_sense)
{
    static const char *const urls[] = { "memcached:x",       "memcached://h:0",    "memcached://h:70000",
                                        "memcached://h:x",   "memcached://[::1",   "memcached://[::1]x",
                                        "memcached://h/a",   "memcached://h?a=b",  "memcached://h,i",
                                        "memcached://h%zz",  "memcached+unix://h", "memcached+unix:///a?b=c",
                                        "memcached://h%20x", "memcached+unix:x",   "memcached+unix:" };
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++)
        check_open(urls[i], HF_INVALID, "");
    check_open("memcached://me:open-sesame@h", HF_INVALID, "SCHEME://HOST:PORT");
    check_open("memcached://127.0.0.1:1", HF_UNAVAILABLE, "cannot connect to 127.0.0.1:1");
    check_open("memcached+unix:///nowhere/at/all", HF_UNAVAILABLE, "cannot connect to /nowhere/at/all");
}

TEST(servers_that_cannot_do_it_are_refused)
{
    struct memcached_server *server = memcached_server_start("-C");
    check_open(server->url, HF_UNSUPPORTED, "without -C");
    memcached_server_stop(server);
}

/* As long as nobody has taken it meanwhile. */
TEST_LIMIT(a_holder_is_told_who_breaks_its_lock, 30)
{
    start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(test_ms(2000));
    struct loss loss = { 0 };
    hf_error err = { 0 };
    hf_lock *released = must_acquire(client, "released", NULL);
    record_loss(&options, &loss);
    hf_lock *renewed = must_acquire(client, "renewed", &options);
    CHECK_STATUS(HF_OK, hf_break(other, "released", &err), &err);
    CHECK_STATUS(HF_OK, hf_break(other, "renewed", &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(released, &err), &err);
    CHECK(strstr(err.message, "it was broken by") != NULL);
    gate_await(&loss.told, 1);
    CHECK(strstr(loss.why, "it was broken by") != NULL);
    CHECK_STATUS(HF_LOST, hf_release(renewed, NULL), NULL);
    check_free(client, "released");
    check_free(client, "renewed");
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(an_evicted_lock_is_known_as_lost_at_its_next_renewal, 60)
{
    struct memcached_server *server = start_store("-m 2");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(test_ms(3000));
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    while (has(server, KEY)) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        fill(server);
    }
    hf_lock *next = must_acquire(other, NAME, NULL); /* there are two holders, until … */
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, NAME);
    must_release(next);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_full_server_takes_no_locks_and_gives_them_back, 60)
{
    struct memcached_server *server = start_store("-M -m 2");
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_options options = stranger(60000);
    hf_lock *lock = must_acquire(client, NAME, &options), *none = NULL;
    hf_lock *broken = must_acquire(client, "broken", &options);
    fill(server);
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&none, client, "another", &options, &err), &err);
    CHECK(strstr(err.message, "out of memory") != NULL);
    CHECK_STATUS(HF_UNAVAILABLE, hf_renew(lock, 0, &err), &err);
    check_busy(client, NAME);
    CHECK(has(server, KEY));
    must_release(lock);
    CHECK(!has(server, KEY));
    CHECK_STATUS(HF_OK, hf_break(client, "broken", &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(broken, &err), &err);
    hf_close(client);
}

/* Another second by its clock, so that the two runs can be told apart. */
static void start_anew(struct memcached_server *server)
{
    while (memcached_server_statistic(server, "uptime") < 4) /* 2 at its start */
        pause_ms(50);
    memcached_server_kill(server);
    memcached_server_restart(server);
}

TEST_LIMIT(a_restart_loses_locks_and_tokens_go_on, 60)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(test_ms(1500));
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    for (int i = 0; i < 20; i++) /* of the second run of the server there are fewer */
        must_release(must_acquire(client, NAME, NULL));
    hf_lock *lock = must_acquire(client, NAME, &options);
    const uint64_t token = hf_token(lock);
    start_anew(server);
    hf_lock *next = must_acquire(other, NAME, NULL);
    CHECK(hf_token(next) > token);
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    must_release(next);
    hf_close(client);
    hf_close(other);
}

static unsigned long long number_of_record(struct memcached_server *server)
{
    char answer[100];
    unsigned long long number = 0;
    memcached_server_ask(server, "mg " KEY " c", answer, sizeof answer);
    REQUIRE_INT(1, sscanf(answer, "HD c%llu", &number));
    return number;
}

/* The server counts from 1 again: the next holder's record has the very number that ours had. */
TEST_LIMIT(a_release_after_a_restart_frees_nobody_elses_lock, 60)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(60000);
    hf_lock *lock = must_acquire(client, NAME, &options);
    const unsigned long long number = number_of_record(server);
    start_anew(server);
    hf_lock *next = must_acquire(other, NAME, &options);
    REQUIRE_INT((int64_t)number, (int64_t)number_of_record(server));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    CHECK(has(server, KEY));
    check_busy(client, NAME);
    must_release(next);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(flush_all_loses_locks, 30)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client();
    char answer[100];
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, NAME, NULL);
    while (has(server, KEY)) { /* what was set in the same second may stay */
        memcached_server_ask(server, "flush_all", answer, sizeof answer);
        pause_ms(50);
    }
    CHECK_STATUS(HF_LOST, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    hf_close(client);
}

/* A server that stands still serves those who asked meanwhile before its clock goes on; and yet keeps what it gives for
 * as long as the holder believes. */
TEST_LIMIT(a_server_that_stood_still_does_not_end_a_lock_early, 60)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    struct waiter waiter;
    char answer[1000];
    long left_s = 0;
    hf_options options = stranger(20000);
    options.renew = HF_RENEW_OFF;
    must_release(must_acquire(client, "before", NULL));
    must_release(must_acquire(other, "before", NULL));
    memcached_server_pause(server);
    pause_ms(2500);
    waiter_start(&waiter, client, NAME, &options);
    pause_ms(100);
    memcached_server_continue(server);
    waiter_join(&waiter, HF_OK);
    pause_ms(1500); /* its clock is right again */
    memcached_server_ask(server, "mg " KEY " t", answer, sizeof answer);
    REQUIRE(sscanf(answer, "HD t%ld", &left_s) == 1);
    CHECK(left_s * 1000 >= hf_remaining_ms(waiter.lock));
    must_release(waiter.lock);
    hf_close(client);
    hf_close(other);
}

TEST_LIMIT(a_server_that_stops_for_too_long_costs_the_lock_in_time, 60)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(test_ms(1000));
    struct loss loss = { 0 };
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    memcached_server_pause(server);
    gate_await(&loss.told, 1);
    memcached_server_continue(server);
    hf_lock *next = must_acquire(other, NAME, NULL);
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, NAME);
    must_release(next);
    hf_close(client);
    hf_close(other);
}

static int count_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1000; fd++)
        count += fcntl(fd, F_GETFD) != -1;
    return count;
}

/* Each of those who ask at the same time has one; but not for ever. */
TEST_LIMIT(connections_of_a_crowd_are_not_kept, 60)
{
    enum { CROWD = 100 };
    struct memcached_server *server = start_store("");
    hf_client *client = open_client();
    struct waiter waiters[CROWD];
    char names[CROWD][20];
    const hf_options options = stranger(20000);
    const int before = count_descriptors();
    memcached_server_pause(server);
    for (int i = 0; i < CROWD; i++) {
        snprintf(names[i], sizeof names[i], "of %d", i);
        waiter_start(&waiters[i], client, names[i], &options);
    }
    while (count_descriptors() < before + CROWD - 1) /* one was there */
        pause_ms(10);
    memcached_server_continue(server);
    for (int i = 0; i < CROWD; i++) {
        waiter_join(&waiters[i], HF_OK);
        must_release(waiters[i].lock);
    }
    while (memcached_server_statistic(server, "curr_connections") >= CROWD)
        pause_ms(10);
    hf_close(client);
}

static uint64_t hash_of(const char *name)
{
    uint64_t sum = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++)
        sum = (sum ^ (unsigned char)*name) * 0x100000001b3u;
    return sum;
}

TEST(long_names_are_told_apart_and_a_collision_is_refused)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client();
    char one[256], two[256], whole[300], key[300], text[700], answer[200];
    hf_options options = stranger(20000);
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    memset(one, 'x', 255);
    one[255] = 0;
    memcpy(two, one, 256);
    two[254] = 'y';
    snprintf(whole, sizeof whole, "holdfast:%s", one);
    hf_lock *first = must_acquire(client, one, &options), *second = must_acquire(client, two, &options);
    must_release(second);
    snprintf(key, sizeof key, "%.200s%%-%016llx", whole, (unsigned long long)hash_of(one));
    CHECK(has(server, key));
    snprintf(text, sizeof text, "set %s 0 60 303\r\nheld\t%016x\t%016x\t%s\tsomebody", key, 1u, 1u, two);
    memcached_server_ask(server, text, answer, sizeof answer);
    CHECK(strncmp(answer, "STORED", 6) == 0);
    CHECK_STATUS(HF_UNSUPPORTED, hf_try_acquire(&lock, client, one, &options, &err), &err);
    CHECK_STATUS(HF_LOST, hf_release(first, NULL), NULL);
    hf_close(client);
}

TEST(what_others_have_put_there_is_not_taken)
{
    struct memcached_server *server = start_store("");
    hf_client *client = open_client();
    char answer[100];
    memcached_server_ask(server, "set " KEY " 0 60 5\r\nhello", answer, sizeof answer);
    check_busy(client, NAME);
    hf_close(client);
}
