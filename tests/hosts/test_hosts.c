/* SPDX-License-Identifier: MIT
 *
 * test_hosts.c: a store that is known by a name, and a resolver that hangs, fails or says something else than before.
 * `test_hosts URL [SUBSTRING…]`: the server that URL names at 127.0.0.1 is called HOST here.
 */
#include "conformance.h"
#include "hosts.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

#define HOST "store.test"
#define THERE "127.0.0.1"
#define NOBODY "127.0.0.3"
#define SWALLOWS "127.0.0.2"
#define NO_ADDRESS "255.255.255.255" /* the system refuses to connect to it at once */
#define MS 1000000LL
/* What is done in time is done long before a resolver gives up. */
#define SOON_MS 6000

extern uint32_t run_tag;
extern uint64_t run_seed;

const char *store_url;
uint32_t store_caps;
uint32_t run_tag;
uint64_t run_seed;

static char named_url[1000];
static int port;

/* URL with the name in place of the address. */
static bool name_url(const char *url)
{
    const char *place = strstr(url, THERE ":");
    if (!place)
        return false;
    port = (int)strtol(place + strlen(THERE ":"), NULL, 10);
    snprintf(named_url, sizeof named_url, "%.*s" HOST "%s", (int)(place - url), url, place + strlen(THERE));
    return true;
}

static hf_status try_open(hf_client **out, uint32_t timeout_ms, hf_error *err)
{
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    return hf_open(out, named_url, &options, err);
}

static hf_client *open_named(void)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, try_open(&client, test_ms(3000), &err), &err);
    return client;
}

static void check_since(int64_t start_ns, uint32_t most_ms)
{
    const int64_t took_ms = (test_now_ns() - start_ns) / MS;
    test_check(took_ms <= most_ms, __FILE__, __LINE__, "it took %lld ms, more than %u", (long long)took_ms, most_ms);
}

/* ------------------------------------------------------------------------------------------- a resolver that hangs */

TEST_LIMIT(opening_ends_in_time_while_the_resolver_hangs, 40)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hosts_hang(HOST);
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, try_open(&client, 1000, &err), &err);
    check_since(start, test_ms(4000));
    CHECK(strstr(err.message, HOST) != NULL);
}

TEST_LIMIT(what_a_name_led_to_is_used_while_the_resolver_hangs, 40)
{
    const struct name name = unique_name("the-lock");
    hosts_answer(HOST, THERE);
    hf_client *first = open_named();
    hosts_hang(HOST);
    for (int i = 0; i < 3; i++) {
        const int64_t start = test_now_ns();
        hf_client *next = open_named();
        must_release(must_acquire(next, name.text, NULL));
        hf_close(next);
        check_since(start, test_ms(SOON_MS));
    }
    CHECK_INT(1, hosts_hanging()); /* however many ask for it */
    hf_close(first);
}

TEST(what_a_name_led_to_is_used_while_the_resolver_fails)
{
    const struct name name = unique_name("the-lock");
    hosts_answer(HOST, THERE);
    hf_client *first = open_named();
    hosts_fail(HOST);
    hf_client *next = open_named();
    must_release(must_acquire(next, name.text, NULL));
    hf_close(next);
    hf_close(first);
}

TEST(a_name_that_leads_elsewhere_is_noticed_by_the_next_connection)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hosts_answer(HOST, THERE);
    hf_close(open_named());
    hosts_answer(HOST, NOBODY);
    CHECK_STATUS(HF_UNAVAILABLE, try_open(&client, 1000, &err), &err);
    hosts_answer(HOST, THERE);
    hf_close(open_named());
}

/* The look-up takes longer than our patience, and what was known is tried first. */
TEST_LIMIT(a_name_that_leads_elsewhere_is_waited_for_where_nobody_is_any_more, 40)
{
    const struct name name = unique_name("the-lock");
    hosts_answer(HOST, HOSTS_FORMER);
    hf_close(open_named());
    hosts_move();
    hosts_answer_late(HOST, THERE);
    hf_client *client = open_named();
    must_release(must_acquire(client, name.text, NULL));
    hf_close(client);
}

/* As a server that is restarted, while the resolver has no answer at all. */
TEST_LIMIT(what_a_name_led_to_is_tried_again_while_the_resolver_hangs, 40)
{
    hosts_answer(HOST, HOSTS_FORMER);
    hf_close(open_named());
    hosts_refuse(3);
    hosts_hang(HOST);
    hf_close(open_named());
}

TEST_LIMIT(waits_end_in_time_while_the_resolver_hangs, 40)
{
    const struct name name = unique_name("the-lock");
    struct waiter waiters[4];
    hosts_answer(HOST, THERE);
    hf_client *holder = open_named(), *client = open_named();
    hf_options options = HF_OPTIONS_INIT, waiting = HF_OPTIONS_INIT;
    options.ttl_ms = endless_ttl_ms();
    waiting.owner = HF_OWNER_HANDLE;
    waiting.wait_ms = 200;
    hf_lock *lock = must_acquire(holder, name.text, &options);
    hosts_hang(HOST);
    const int64_t start = test_now_ns();
    for (int i = 0; i < 4; i++)
        waiter_start(&waiters[i], client, name.text, &waiting);
    for (int i = 0; i < 4; i++) { /* with HF_TIMEOUT, unless this machine is too slow for an answer */
        pthread_join(waiters[i].thread, NULL);
        CHECK(waiters[i].status != HF_OK);
    }
    check_since(start, test_ms(SOON_MS));
    must_release(lock);
    hf_close(client);
    hf_close(holder);
    check_since(start, test_ms(SOON_MS));
}

TEST_LIMIT(a_lock_is_renewed_while_the_resolver_hangs, 40)
{
    const struct name name = unique_name("the-lock");
    struct loss loss = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hosts_answer(HOST, THERE);
    hf_client *client = open_named();
    options.ttl_ms = test_ms(4000);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, name.text, &options);
    hosts_hang(HOST);
    CHECK(shut_connections(port, SHUT_RDWR) > 0); /* as by a server that is restarted */
    CHECK(!gate_await_for(&loss.told, 1, options.ttl_ms + options.ttl_ms / 4));
    CHECK(hf_remaining_ms(lock) > 0);
    must_release(lock);
    hf_close(client);
}

/* Nothing but renewals asks for it. */
TEST_LIMIT(a_lock_is_renewed_where_the_name_leads_to_now, 60)
{
    const struct name name = unique_name("the-lock");
    struct loss loss = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hosts_answer(HOST, HOSTS_FORMER);
    hf_client *client = open_named();
    options.ttl_ms = test_ms(6000);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, name.text, &options);
    hosts_answer(HOST, THERE);
    hosts_move();
    CHECK(shut_connections(port, SHUT_RDWR) > 0);
    /* Longer than what may have been renewed before. */
    const int64_t end_ns = test_now_ns() + options.ttl_ms * MS * 3 / 2;
    while (test_now_ns() + hf_remaining_ms(lock) * MS < end_ns && gate_count(&loss.told) == 0)
        gate_await_for(&loss.told, 1, 20);
    CHECK_INT(0, gate_count(&loss.told));
    must_release(lock);
    hf_close(client);
}

TEST_LIMIT(a_loss_is_told_in_time_while_the_resolver_hangs, 40)
{
    const struct name name = unique_name("the-lock");
    struct loss loss = { 0 };
    hf_client *other = NULL;
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    hosts_answer(HOST, THERE);
    hf_client *client = open_named();
    options.ttl_ms = test_ms(4000);
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, name.text, &options);
    hosts_answer(HOST, NOBODY); /* the store is gone, and whoever looks it up knows that */
    CHECK_STATUS(HF_UNAVAILABLE, try_open(&other, 500, &err), &err);
    hosts_hang(HOST);
    const int64_t start = test_now_ns();
    CHECK(shut_connections(port, SHUT_RDWR) > 0); /* as by a server that is restarted */
    gate_await(&loss.told, 1);
    check_since(start, options.ttl_ms + test_ms(SOON_MS));
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    hf_close(client);
}

static void open_in_child(void *unused)
{
    (void)unused;
    hosts_answer(HOST, THERE);
    hf_close(open_named());
}

/* A child has none of its parent's threads. */
TEST_LIMIT(a_child_looks_up_for_itself_while_its_parent_waits, 40)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    hosts_hang(HOST);
    const int64_t start = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, try_open(&client, 300, &err), &err);
    helper_join(helper_start(open_in_child, NULL));
    check_since(start, test_ms(SOON_MS));
}

/* ---------------------------------------------------------------------------------------------- several addresses */

/* A socket whose queue is full: what comes in is thrown away, as by a firewall. */
static void swallow(const char *address)
{
    struct sockaddr_in where = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    REQUIRE_INT(1, inet_pton(AF_INET, address, &where.sin_addr));
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE_INT(0, bind(listener, (const struct sockaddr *)&where, sizeof where));
    REQUIRE_INT(0, listen(listener, 0));
    for (int i = 0; i < 4; i++) {
        const int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        const int result = connect(one, (const struct sockaddr *)&where, sizeof where);
        REQUIRE(result == 0 || errno == EINPROGRESS);
    }
}

TEST_LIMIT(an_address_that_swallows_everything_leaves_time_for_the_next, 40)
{
    const struct name name = unique_name("the-lock");
    hf_client *client = NULL;
    hf_error err = { 0 };
    swallow(SWALLOWS);
    hosts_answer(HOST, SWALLOWS " " THERE);
    REQUIRE_STATUS(HF_OK, try_open(&client, test_ms(4000), &err), &err);
    must_release(must_acquire(client, name.text, NULL));
    hf_close(client);
}

/* The resolver does not answer any more: what is known of the name is tried, the next address soon after the first. */
TEST_LIMIT(known_addresses_of_which_the_first_swallows_everything, 40)
{
    const struct name name = unique_name("the-lock");
    hf_client *client = NULL, *next = NULL;
    hf_error err = { 0 };
    swallow(SWALLOWS);
    hosts_answer(HOST, SWALLOWS " " THERE);
    REQUIRE_STATUS(HF_OK, try_open(&client, test_ms(4000), &err), &err);
    hosts_hang(HOST);
    try_open(&next, test_ms(1500), &err); /* from now on it is known that the resolver hangs */
    hf_close(next);
    REQUIRE_STATUS(HF_OK, try_open(&next, test_ms(4000), &err), &err);
    must_release(must_acquire(next, name.text, NULL));
    hf_close(client);
    hf_close(next);
}

static int64_t processor_ms(void)
{
    struct timespec used;
    REQUIRE_INT(0, clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used));
    return used.tv_sec * 1000 + used.tv_nsec / MS;
}

/* The first never answers, and the last cannot even be tried: there is nothing to do but to wait. */
TEST_LIMIT(addresses_that_lead_nowhere_are_waited_for_and_not_asked_again_and_again, 40)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    swallow(SWALLOWS);
    hosts_answer(HOST, SWALLOWS " " NO_ADDRESS);
    const int64_t start = test_now_ns(), before = processor_ms();
    CHECK_STATUS(HF_UNAVAILABLE, try_open(&client, 2000, &err), &err);
    const int64_t used = processor_ms() - before, took = (test_now_ns() - start) / MS;
    test_note("%lld of %lld ms", (long long)used, (long long)took);
    CHECK(used * 5 < took);
}

TEST(an_address_where_nobody_is_leaves_time_for_the_next)
{
    hosts_answer(HOST, NOBODY " " THERE);
    hf_close(open_named());
}

int main(int argc, char **argv)
{
    if (argc < 2 || !name_url(argv[1])) {
        fprintf(stderr, "usage: test_hosts URL [SUBSTRING...]\n");
        return 64;
    }
    store_url = named_url;
    if (getrandom(&run_tag, sizeof run_tag, 0) != sizeof run_tag)
        return 1;
    return test_run(argc - 2, argv + 2, NULL);
}
