/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_late.c: requests to masters of redlock: whose connection broke, and which arrive all the same,
 * after their successor. Three masters, each behind a relay that keeps chosen requests back.
 */
#include "late_relay.h"
#include "redlock_support.h"

#include <string.h>

struct stage {
    struct redis_group *group;
    struct late_relay *relays[3];
    char url[200]; /* by way of the relays */
    hf_client *client;
};

static struct stage *set_up(void)
{
    struct stage *stage = shared_new(sizeof *stage);
    char *url = stage->url;
    snprintf(url, sizeof stage->url, "redlock://");
    stage->group = start_masters(3, NULL);
    for (int i = 0; i < 3; i++) {
        const struct redis_server *server = stage->group->server[i];
        stage->relays[i] = late_relay_start(server->address, server->port);
        snprintf(url + strlen(url), sizeof stage->url - strlen(url), "%s127.0.0.1:%d", i ? "," : "",
                 late_relay_port(stage->relays[i]));
    }
    stage->client = open_url("%s", url);
    teach_masters(stage->group, stage->client);
    return stage;
}

static void cut_all(struct stage *stage, unsigned nth)
{
    for (int i = 0; i < 3; i++)
        late_relay_cut(stage->relays[i], "EVAL", nth);
}

static void deliver_all(struct stage *stage)
{
    for (int i = 0; i < 3; i++)
        late_relay_deliver(stage->relays[i]);
}

static void check_times(struct stage *stage, int64_t least_ms)
{
    for (int i = 0; i < 3; i++)
        CHECK(redis_server_number(stage->group->server[i], "PTTL %s", NAME) >= least_ms);
}

struct values {
    char of[3][100]; /* what each master has; "" if it has nothing */
};

static struct values look_at_masters(struct stage *stage)
{
    struct values values;
    for (int i = 0; i < 3; i++) {
        struct redis_server *server = stage->group->server[i];
        values.of[i][0] = 0;
        if (redis_server_number(server, "EXISTS %s", NAME) == 1)
            redis_server_text(server, values.of[i], sizeof values.of[i], "GET %s", NAME);
    }
    return values;
}

/* Delivers what was kept back: it must change nothing on the masters, a majority at least, that have voted for the
 * holder; the last may have been slow, and still have what `before` says, or nothing. */
static void deliver_in_vain(struct stage *stage, const struct values *before)
{
    const struct values now = look_at_masters(stage);
    int voted = 0;
    deliver_all(stage);
    const struct values then = look_at_masters(stage);
    for (int i = 0; i < 3; i++) {
        if (!now.of[i][0] || (before && strcmp(before->of[i], now.of[i]) == 0))
            continue;
        CHECK_STR(now.of[i], then.of[i]);
        voted++;
    }
    CHECK(voted >= 2);
}

TEST(a_late_renewal_cuts_no_lease_that_a_later_one_has_lengthened)
{
    struct stage *stage = set_up();
    const hf_options options = stranger(20000);
    hf_error err = { 0 };
    hf_lock *lock = acquire_on_all(stage->group, stage->client, &options, NULL);
    cut_all(stage, 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 2000, &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(lock, 20000, &err), &err);
    deliver_all(stage);
    check_times(stage, 10000);
    CHECK_STATUS(HF_OK, hf_renew(lock, 20000, &err), &err);
    must_release(lock);
    await_clean(stage->group);
    hf_close(stage->client);
}

static hf_options once_in_an_hour(void)
{
    hf_options options = stranger(endless_ttl_ms());
    options.once_per_ms = 3600000;
    return options;
}

/* The majority granted it, and it was released everywhere, before the last master heard of it. */
static void acquire_is_later_than_release(hf_status (*release)(hf_lock *, hf_error *))
{
    struct stage *stage = set_up();
    const hf_options options = release == hf_release ? stranger(endless_ttl_ms()) : once_in_an_hour();
    hf_error err = { 0 };
    late_relay_cut(stage->relays[2], "EVAL", 1);
    hf_lock *lock = must_acquire(stage->client, NAME, &options);
    late_relay_await(stage->relays[2]);
    const int64_t before = redis_server_sent(stage->group->server[2]);
    CHECK_STATUS(HF_OK, release(lock, &err), &err);
    while (redis_server_sent(stage->group->server[2]) == before)
        await_a_moment();
    late_relay_deliver(stage->relays[2]);
    CHECK_INT(0, votes(stage->group));
    await_clean(stage->group);
    hf_close(stage->client);
}

TEST(a_late_acquire_after_its_release_takes_nothing)
{
    acquire_is_later_than_release(hf_release);
}

TEST(a_late_acquire_after_its_work_is_done_takes_nothing)
{
    acquire_is_later_than_release(hf_release_done);
}

/* Nobody answered the first attempt, and the second was granted. */
TEST(a_late_acquire_does_not_take_the_lock_from_a_later_attempt)
{
    struct stage *stage = set_up();
    const hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    cut_all(stage, 1);
    hf_lock *lock = must_acquire(stage->client, NAME, &options);
    deliver_in_vain(stage, NULL);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    await_clean(stage->group);
    hf_close(stage->client);
}

TEST(a_late_acquire_does_not_line_up_somebody_who_has_left)
{
    struct stage *stage = set_up();
    struct waiter waiter;
    const hf_options options = stranger(endless_ttl_ms());
    struct held *held = hold_lock(stage->group, endless_ttl_ms());
    late_relay_cut(stage->relays[0], "$1\r\n2\r\n", 1); /* the word by which it asks to line up */
    waiter_start(&waiter, stage->client, NAME, &options);
    late_relay_await(stage->relays[0]);
    while (in_line(stage->group) == 0)
        await_a_moment();
    CHECK_STATUS(HF_OK, hf_cancel(stage->client, NAME), NULL);
    waiter_join(&waiter, HF_CANCELED);
    while (in_line(stage->group) != 0)
        await_a_moment();
    late_relay_deliver(stage->relays[0]);
    CHECK_INT(0, in_line(stage->group));
    finish(held, HF_OK);
    await_clean(stage->group);
    hf_close(stage->client);
}

/* It has a vote, steps back, and lines up elsewhere. When that usher stops it lines up where its release is late. */
TEST(a_late_release_does_not_cost_a_place_in_line)
{
    enum { STEP_BACK = 2 };
    struct stage *stage = set_up();
    struct redis_server *first = stage->group->server[0];
    struct waiter waiter;
    const hf_options options = stranger(endless_ttl_ms());
    struct held *held = hold_lock(stage->group, endless_ttl_ms());
    redis_server_do(first, "DEL %s", NAME);
    late_relay_cut(stage->relays[0], "EVAL", STEP_BACK);
    waiter_start(&waiter, stage->client, NAME, &options);
    late_relay_await(stage->relays[0]);
    redis_server_do(first, "DEL %s", NAME);
    while (in_line(stage->group) == 0)
        await_a_moment();
    redis_server_do(first, "SET %s another PX %u", NAME, endless_ttl_ms()); /* it is busy there, too */
    strike(stage->group, 1, PAUSED);
    await_line(first, 1);
    late_relay_deliver(stage->relays[0]);
    CHECK_INT(1, line_at(first));
    redis_server_do(first, "DEL %s", NAME);
    hf_release(held->lock, NULL);
    waiter_join(&waiter, HF_OK);
    must_release(waiter.lock);
    hf_close(held->client);
    hf_close(stage->client);
}

/* Somebody breaks a lock, hears nothing, does it again; and the first arrives when another one holds it. */
static void break_is_late(unsigned nth)
{
    struct stage *stage = set_up();
    const hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    hf_client *other = open_client();
    hf_lock *first = acquire_on_all(stage->group, other, &options, NULL);
    const struct values before = look_at_masters(stage);
    cut_all(stage, nth);
    const hf_status status = hf_break(stage->client, NAME, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    CHECK_STATUS(HF_OK, hf_break(stage->client, NAME, &err), &err);
    CHECK(votes(stage->group) <= 1);
    CHECK_STATUS(HF_LOST, hf_release(first, &err), &err);
    hf_lock *second = must_acquire(other, NAME, &options);
    deliver_in_vain(stage, &before);
    CHECK_STATUS(HF_OK, hf_renew(second, 0, &err), &err);
    must_release(second);
    await_clean(stage->group);
    hf_close(other);
    hf_close(stage->client);
}

TEST(a_late_break_leaves_the_next_holder_alone)
{
    break_is_late(1);
}

TEST(the_second_request_of_a_break_breaks_only_whom_the_first_has_seen)
{
    break_is_late(2);
}

/* Its value has become another one, and it is still the same holder. */
TEST(a_break_ends_a_lock_that_was_renewed_after_an_answer_was_lost)
{
    struct stage *stage = set_up();
    const hf_options options = stranger(endless_ttl_ms());
    hf_error err = { 0 };
    hf_client *other = open_client();
    hf_lock *lock = acquire_on_all(stage->group, stage->client, &options, NULL);
    cut_all(stage, 1);
    CHECK_STATUS(HF_UNKNOWN, hf_renew(lock, 0, &err), &err);
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err); /* with a number */
    CHECK_STATUS(HF_OK, hf_break(other, NAME, &err), &err);
    CHECK(votes(stage->group) <= 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    hf_close(other);
    hf_close(stage->client);
}

/* --- what is done once in a while --- */

/* How many masters have a record that the work is done. */
static int records(struct stage *stage)
{
    int count = 0;
    for (int i = 0; i < 3; i++) {
        char text[300];
        redis_server_text(stage->group->server[i], text, sizeof text, "GET hf:{%s}:d", NAME);
        count += *text && !strstr(text, " -");
    }
    return count;
}

/* The first release was not answered, the second was; when its time is over somebody else does the work anew. */
TEST(a_late_release_neither_records_nor_frees_what_another_one_does)
{
    struct stage *stage = set_up();
    const hf_options options = once_in_an_hour();
    hf_error err = { 0 };
    hf_client *other = open_client();
    hf_lock *lock = acquire_on_all(stage->group, stage->client, &options, NULL);
    cut_all(stage, 1);
    const hf_status status = hf_release_done(lock, &err);
    CHECK(status == HF_UNKNOWN || status == HF_UNAVAILABLE);
    await_clean(stage->group);
    CHECK_INT(3, records(stage));
    for (int i = 0; i < 3; i++)
        redis_server_do(stage->group->server[i], "DEL hf:{%s}:d", NAME);
    lock = must_acquire(other, NAME, &options);
    deliver_in_vain(stage, NULL);
    CHECK_INT(0, records(stage));
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    await_clean(stage->group);
    hf_close(other);
    hf_close(stage->client);
}

/* It frees what the last master still has, and records nothing that was forgotten. */
TEST(a_late_release_does_not_bring_back_what_was_forgotten)
{
    struct stage *stage = set_up();
    const hf_options options = once_in_an_hour();
    hf_error err = { 0 };
    hf_client *other = open_client();
    hf_lock *lock = acquire_on_all(stage->group, stage->client, &options, NULL);
    late_relay_cut(stage->relays[2], "EVAL", 1);
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
    late_relay_await(stage->relays[2]);
    CHECK_INT(2, records(stage));
    CHECK_INT(1, votes(stage->group));
    CHECK_STATUS(HF_OK, hf_forget_done(other, NAME, &err), &err);
    late_relay_deliver(stage->relays[2]);
    CHECK_INT(0, votes(stage->group));
    CHECK_INT(0, records(stage));
    hf_close(other);
    hf_close(stage->client);
}

/* The last master has forgotten it, and would vote for whoever was told by the others that it is done. */
TEST(a_late_acquire_of_somebody_who_was_told_that_it_is_done_takes_nothing)
{
    struct stage *stage = set_up();
    const hf_options options = once_in_an_hour();
    hf_error err = { 0 };
    hf_client *other = open_client();
    hf_lock *lock = acquire_on_all(stage->group, other, &options, NULL);
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
    await_clean(stage->group);
    CHECK_INT(3, records(stage));
    redis_server_do(stage->group->server[2], "DEL hf:{%s}:d", NAME);
    late_relay_cut(stage->relays[2], "EVAL", 1);
    lock = NULL;
    CHECK_STATUS(HF_DONE, hf_try_acquire(&lock, stage->client, NAME, &options, &err), &err);
    late_relay_await(stage->relays[2]);
    /* The release is on its way, or done. */
    while (redis_server_number(stage->group->server[2], "EVAL %s 1 hf:{%s}:t",
                               "return string.find(redis.call('get', KEYS[1]) or '', '\\n', 1, true) and 1 or 0",
                               NAME) == 0)
        await_a_moment();
    late_relay_deliver(stage->relays[2]);
    CHECK_INT(0, votes(stage->group));
    CHECK_STATUS(HF_OK, hf_forget_done(other, NAME, &err), &err);
    hf_close(other);
    hf_close(stage->client);
}

/* --- a client that does not run --- */

/* How long masters may take to answer who asks for a long time-to-live: ANSWER_MOST of the engine. */
enum { ANSWER_MOST_MS = 1000 };

static void take_and_give_back(void *arg)
{
    const struct stage *stage = arg;
    const hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = NULL;
    hf_client *client = open_url("%s", stage->url);
    hf_try_acquire(&lock, client, NAME, &options, NULL);
    hf_release(lock, NULL);
    hf_close(client);
}

/* One of the answers, all of which wait to be read when their time is over, is a refusal. */
TEST(a_client_that_was_stopped_reads_what_was_answered_meanwhile)
{
    struct stage *stage = set_up();
    redis_server_do(stage->group->server[2], "CONFIG SET min-replicas-to-write 1");
    for (int i = 0; i < 3; i++)
        late_relay_catch(stage->relays[i], NAME, 1);
    const pid_t helper = helper_start(take_and_give_back, stage);
    for (int i = 0; i < 3; i++)
        late_relay_await(stage->relays[i]);
    helper_stop(helper);
    deliver_all(stage);
    pause_ms(ANSWER_MOST_MS + 100);
    helper_continue(helper);
    helper_join(helper);
    await_clean(stage->group);
    hf_close(stage->client);
}
