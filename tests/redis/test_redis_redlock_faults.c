/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_faults.c: what redlock: goes through when masters die, stand still, are cut off, forget and come
 * back, in the middle of everything. Time-to-live is endless where a test shows that something was removed, and not
 * just ended.
 */
#include "redlock_support.h"

#include <string.h>

/* --------------------------------------------------------------------------------------- a minority is out of reach */

static int compare(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

struct pace {
    int64_t median_ns, longest_ns;
};

static struct pace measure(hf_client *client)
{
    enum { PAIRS = 60 };
    int64_t took_ns[PAIRS];
    const hf_options options = stranger(endless_ttl_ms());
    for (int i = 0; i < PAIRS; i++) {
        const int64_t begun_ns = test_now_ns();
        must_release(must_acquire(client, NAME, &options));
        took_ns[i] = test_now_ns() - begun_ns;
    }
    qsort(took_ns, PAIRS, sizeof took_ns[0], compare);
    return (struct pace){ took_ns[PAIRS / 2], took_ns[PAIRS - 1] };
}

/* What a master may take to answer is set so high that whoever waits for one of the dead is noticed. */
static void work_without_two(struct redis_group *group, enum fault fault, int first, int second)
{
    enum { PATIENCE_S = 6 };
    hf_client *client = open_url("%s?timeout=%d", group->url, PATIENCE_S * 1000);
    measure(client);
    const struct pace well = measure(client);
    strike(group, first, fault);
    strike(group, second, fault);
    struct pace ill = measure(client);
    while (ill.median_ns >= 3 * well.median_ns) { /* others use the machine, too; who waited for them is never faster */
        await_a_moment();
        ill = measure(client);
    }
    test_note("%d and %d %s: a pair takes %d us, %d us before; the longest %d us, %d us before", first, second,
              fault_name(fault), (int)(ill.median_ns / 1000), (int)(well.median_ns / 1000),
              (int)(ill.longest_ns / 1000), (int)(well.longest_ns / 1000));
    CHECK(ill.longest_ns < PATIENCE_S * SECOND_NS);
    heal(group, first, fault);
    heal(group, second, fault);
    measure(client);
    hf_close(client);
    await_clean(group);
}

TEST_LIMIT(two_of_five_killed_cost_nothing, 60)
{
    struct redis_group *group = start_masters(5, NULL);
    work_without_two(group, KILLED, 0, 1);
    work_without_two(group, KILLED, 2, 4);
}

TEST_LIMIT(two_of_five_paused_cost_nothing, 60)
{
    struct redis_group *group = start_masters(5, NULL);
    work_without_two(group, PAUSED, 0, 1);
    work_without_two(group, PAUSED, 2, 4);
}

TEST_LIMIT(two_of_five_cut_off_cost_nothing, 60)
{
    struct redis_group *group = start_masters_apart(5);
    work_without_two(group, CUT, 0, 1);
    work_without_two(group, CUT, 2, 4);
}

/* Ten pairs; how many commands more than two for each the first master has got. */
static int64_t extra_commands(struct redis_group *group, hf_client *client)
{
    enum { PAIRS = 10 };
    const int64_t before = redis_server_sent(group->server[0]);
    for (int i = 0; i < PAIRS; i++)
        must_release(must_acquire(client, NAME, NULL));
    const int64_t sent = redis_server_sent(group->server[0]) - before;
    CHECK(sent >= 2 * PAIRS);
    CHECK(sent <= 3 * PAIRS); /* when a guess was late, its token is written back */
    return sent - (int64_t)2 * PAIRS;
}

TEST(one_of_three_dead_costs_no_more_commands_to_the_others)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    teach_masters(group, client);
    redis_server_kill(group->server[1]);
    must_release(must_acquire(client, NAME, NULL));
    await_clean(group);
    while (extra_commands(group, client) != 0)
        await_a_moment();
    hf_close(client);
}

/* A new client does not wait for the dead either. */
TEST(a_client_is_opened_while_two_are_cut_off)
{
    struct redis_group *group = start_masters_apart(5);
    strike(group, 0, CUT);
    strike(group, 3, CUT);
    const hf_client_options options = { .size = sizeof options, .timeout_ms = 60000 };
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, group->url, &options, &err), &err);
    const hf_options endless = stranger(endless_ttl_ms());
    must_release(must_acquire(client, NAME, &endless));
    hf_close(client);
}

/* --------------------------------------------------------------------------------------- a majority is out of reach */

/* Neither who tries nor who waits gets it, in time, and the two that are alive are left as they were. */
static void fail_without_three(struct redis_group *group, enum fault fault)
{
    hf_client *client = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    measure(client);
    await_clean(group);
    for (int i = 0; i < 3; i++)
        strike(group, 2 * i, fault);
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&lock, client, NAME, &options, &err), &err);
    check_words(&err, "2 of 5");
    CHECK_INT(0, votes(group));

    options.wait_ms = test_ms(1500);
    const int64_t begun_ns = test_now_ns();
    CHECK_STATUS(HF_UNAVAILABLE, hf_acquire(&lock, client, NAME, &options, &err), &err);
    const int64_t took_ns = test_now_ns() - begun_ns;
    test_note("three %s: refused after %d ms of %u", fault_name(fault), (int)(took_ns / 1000000), options.wait_ms);
    CHECK(took_ns >= options.wait_ms * 1000000LL);
    CHECK(took_ns < (options.wait_ms + test_ms(1000)) * 1000000LL);
    CHECK_INT(0, votes(group));
    CHECK_INT(0, in_line(group));

    for (int i = 0; i < 3; i++)
        heal(group, 2 * i, fault);
    check_becomes_free(client, NAME); /* and what came late to those that stood still is undone */
    await_clean(group);
    hf_close(client);
}

TEST(three_of_five_killed_is_unavailable_and_nothing_is_left)
{
    fail_without_three(start_masters(5, NULL), KILLED);
}

TEST(three_of_five_paused_is_unavailable_and_nothing_is_left)
{
    fail_without_three(start_masters(5, NULL), PAUSED);
}

TEST_LIMIT(three_of_five_cut_off_is_unavailable_and_nothing_is_left, 30)
{
    fail_without_three(start_masters_apart(5), CUT);
}

/* Every master gets the question late, when nobody wants the answer any more. */
TEST(what_all_masters_did_too_late_is_undone)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client(), *other = open_client();
    hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    measure(client);
    for (int i = 0; i < 3; i++)
        redis_server_pause(group->server[i]);
    options.wait_ms = test_ms(300);
    const hf_status status = hf_acquire(&lock, client, NAME, &options, &err);
    CHECK_STATUS(status == HF_UNKNOWN ? HF_UNKNOWN : HF_UNAVAILABLE, status, &err);
    for (int i = 0; i < 3; i++)
        redis_server_continue(group->server[i]);
    check_becomes_free(other, NAME);
    await_clean(group);
    hf_close(client);
    hf_close(other);
}

struct asker {
    struct gate ready, go;
    uint32_t ttl_ms;
};

static void ask_in_vain(void *arg)
{
    struct asker *asker = arg;
    const hf_options options = stranger(asker->ttl_ms);
    hf_client *client = open_client();
    measure(client);
    gate_pass(&asker->ready);
    gate_await(&asker->go, 1);
    must_acquire(client, NAME, &options);
}

/* The asker dies in between: then only its time ends it. */
TEST(what_masters_did_for_the_dead_ends_by_itself)
{
    struct redis_group *group = start_masters(3, NULL);
    struct asker *asker = shared_new(sizeof *asker);
    asker->ttl_ms = short_ttl_ms();
    const pid_t pid = helper_start(ask_in_vain, asker);
    gate_await(&asker->ready, 1);
    await_clean(group);
    redis_server_pause(group->server[1]);
    redis_server_pause(group->server[2]);
    gate_pass(&asker->go);
    await_votes(group, 1);
    helper_kill(pid);
    redis_server_continue(group->server[1]);
    redis_server_continue(group->server[2]);
    hf_client *client = open_client();
    check_becomes_free(client, NAME);
    await_clean(group);
    hf_close(client);
}

/* ------------------------------------------------------------------------------------------------------- while held */

static void hold_without_two(enum fault fault)
{
    struct redis_group *group = start_masters(5, NULL);
    struct held *held = hold_lock(group, test_ms(1500));
    strike(group, 0, fault);
    strike(group, 3, fault);
    await_renewal(held->lock);
    await_renewal(held->lock);
    heal(group, 0, fault);
    heal(group, 3, fault);
    await_renewal(held->lock);
    hf_client *other = open_client();
    check_busy(other, NAME);
    finish(held, HF_OK);
    check_free(other, NAME);
    hf_close(other);
}

TEST(a_held_lock_survives_two_of_five_that_come_back_empty)
{
    hold_without_two(KILLED);
}

TEST(a_held_lock_survives_two_of_five_that_stand_still)
{
    hold_without_two(PAUSED);
}

/* What they kept is a vote again, as soon as they are back: the other three may go then. */
TEST(masters_that_come_back_with_their_data_count_again)
{
    struct redis_group *group = start_masters(5, DURABLE);
    struct held *held = hold_lock(group, test_ms(3000));
    strike(group, 0, KILLED);
    strike(group, 1, KILLED);
    await_renewal(held->lock);
    heal(group, 0, KILLED);
    heal(group, 1, KILLED);
    CHECK_INT(5, votes(group));
    await_renewal(held->lock);
    strike(group, 2, KILLED);
    strike(group, 3, KILLED);
    await_renewal(held->lock);
    finish(held, HF_OK);
    await_clean(group);
}

static void lose_without_three(enum fault fault)
{
    struct redis_group *group = start_masters(5, NULL);
    struct held *held = hold_lock(group, test_ms(1500));
    for (int i = 0; i < 3; i++)
        strike(group, i, fault);
    gate_await(&held->loss.told, 1);
    CHECK(atomic_load(&held->loss.told_ns) >= held->asked_ns + held->ttl_ms * 900000LL); /* not before it must be */
    for (int i = 0; i < 3; i++)
        heal(group, i, fault);
    finish(held, HF_LOST);
    hf_client *other = open_client();
    check_becomes_free(other, NAME);
    hf_close(other);
}

TEST(losing_a_majority_is_told_when_the_time_is_over)
{
    lose_without_three(KILLED);
}

TEST(a_majority_that_stands_still_is_told_when_the_time_is_over)
{
    lose_without_three(PAUSED);
}

/* The holder learns it before anybody else is granted it. */
TEST(a_holder_that_was_cut_off_knows_before_others_get_it)
{
    struct netns *here = netns_new();
    struct redis_group *group = start_masters_apart(5);
    struct holder *holder = holder_new("");
    struct waiter waiter;
    snprintf(holder->name.text, sizeof holder->name.text, "%s", NAME);
    holder->options = stranger(test_ms(1500));
    netns_enter(here);
    const pid_t pid = holder_start(holder);
    netns_enter(netns_new());
    hf_client *client = open_client();
    waiter_start(&waiter, client, NAME, NULL);
    await_line(group->server[0], 1);
    netns_cut(here);
    waiter_join(&waiter, HF_OK);
    CHECK_INT(1, gate_count(&holder->told));
    CHECK(atomic_load(&holder->told_ns) <= waiter.ended_ns);
    CHECK(atomic_load(&holder->believed_ns) <= waiter.ended_ns);
    CHECK(waiter.token > atomic_load(&holder->token));
    netns_heal(here);
    holder_finish(holder, pid, HF_LOST);
    check_busy(client, NAME);
    must_release(waiter.lock);
    hf_close(client);
}

/* A majority that comes back in time has kept it. */
TEST(a_majority_that_stood_still_for_less_than_the_time_is_no_loss)
{
    struct redis_group *group = start_masters(5, NULL);
    struct held *held = hold_lock(group, test_ms(3000));
    for (int i = 0; i < 4; i++)
        redis_server_pause(group->server[i]);
    while (hf_remaining_ms(held->lock) > held->ttl_ms / 2)
        await_a_moment();
    for (int i = 0; i < 4; i++)
        redis_server_continue(group->server[i]);
    await_renewal(held->lock);
    finish(held, HF_OK);
    await_clean(group);
}

TEST(a_lock_that_a_minority_forgot_is_kept)
{
    struct redis_group *group = start_masters(5, NULL);
    struct held *held = hold_lock(group, test_ms(1500));
    hf_client *other = open_client();
    redis_server_do(group->server[0], "FLUSHALL");
    redis_server_do(group->server[4], "FLUSHALL");
    await_renewal(held->lock);
    await_renewal(held->lock);
    check_busy(other, NAME);
    await_votes(group, 3); /* a renewal takes nothing, and who was refused leaves nothing */
    finish(held, HF_OK);
    hf_close(other);
}

TEST(a_lock_that_a_majority_forgot_is_lost_and_told_at_the_next_renewal)
{
    struct redis_group *group = start_masters(5, NULL);
    struct held *held = hold_lock(group, test_ms(6000));
    const uint64_t token = hf_token(held->lock);
    await_clock(token);
    for (int i = 1; i < 4; i++)
        redis_server_do(group->server[i], "FLUSHALL");
    hf_client *other = open_client();
    const hf_options options = stranger(endless_ttl_ms());
    hf_lock *lock = must_acquire(other, NAME, &options); /* which nothing can prevent */
    CHECK(hf_token(lock) > token);
    gate_await(&held->loss.told, 1);
    CHECK(atomic_load(&held->loss.told_ns) < held->asked_ns + held->ttl_ms * 900000LL);
    finish(held, HF_LOST);
    await_votes(group, 3); /* those of the new holder, who is not disturbed */
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
    must_release(lock);
    hf_close(other);
}

/* ---------------------------------------------------------------------------------------------------------- release */

static void release_without_two(enum fault fault)
{
    struct redis_group *group = start_masters(5, DURABLE);
    hf_client *other = open_client();
    struct held *held = hold_lock(group, endless_ttl_ms());
    strike(group, 1, fault);
    strike(group, 2, fault);
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_release(held->lock, &err), &err);
    check_free(other, NAME);
    heal(group, 1, fault);
    heal(group, 2, fault);
    check_free(other, NAME);
    if (fault == PAUSED) /* the news was on the way; those that were dead keep what they have until its time is over */
        await_clean(group);
    hf_close(held->client);
    hf_close(other);
}

TEST(a_release_while_two_are_dead_frees_it)
{
    release_without_two(KILLED);
}

TEST(a_release_while_two_stand_still_reaches_them_later)
{
    release_without_two(PAUSED);
}

/* They were found to stand still before, and are left alone: but not with what must be given back. */
TEST(a_release_reaches_those_that_stood_still_for_long)
{
    struct redis_group *group = start_masters(5, NULL);
    char url[450];
    snprintf(url, sizeof url, "%s?timeout=300", group->url);
    use_url(url);
    struct held *held = hold_lock(group, endless_ttl_ms());
    hf_error err = { 0 };
    for (int i = 0; i < 3; i++)
        redis_server_pause(group->server[i]);
    for (int i = 0; i < 4; i++) /* no majority: the three are waited for, in vain */
        hf_renew(held->lock, 0, &err);
    redis_server_continue(group->server[2]);
    CHECK_STATUS(HF_OK, hf_release(held->lock, &err), &err);
    redis_server_continue(group->server[0]);
    redis_server_continue(group->server[1]);
    await_clean(group);
    hf_close(held->client);
}

/* Nobody is there to take it back: that goes on in the background. */
TEST(a_release_without_a_majority_is_finished_later)
{
    struct redis_group *group = start_masters(3, DURABLE);
    struct held *held = hold_lock(group, endless_ttl_ms());
    hf_error err = { 0 };
    strike(group, 0, KILLED);
    strike(group, 1, KILLED);
    CHECK_STATUS(HF_UNAVAILABLE, hf_release(held->lock, &err), &err);
    heal(group, 0, KILLED);
    heal(group, 1, KILLED);
    hf_client *other = open_client();
    check_becomes_free(other, NAME);
    hf_close(other);
    hf_close(held->client);
}

/* ---------------------------------------------------------------------------------------------------- slow majority */

static void *continue_later(void *arg)
{
    struct redis_group *group = arg;
    pause_ms(test_ms(400));
    for (int i = 0; i < group->count; i++) {
        if (group->server[i]->paused)
            redis_server_continue(group->server[i]);
    }
    return NULL;
}

/* What remains is counted from the moment the first was asked, however late the last of the majority answered. */
TEST(time_that_a_slow_majority_took_is_lost_time)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_url("%s?timeout=10000", group->url);
    hf_options options = stranger(test_ms(3000));
    pthread_t later;
    options.renew = HF_RENEW_OFF;
    teach_masters(group, client);
    for (int i = 0; i < 3; i++)
        redis_server_pause(group->server[i]);
    REQUIRE_INT(0, pthread_create(&later, NULL, continue_later, group));
    const int64_t begun_ns = test_now_ns();
    hf_lock *lock = must_acquire(client, NAME, &options);
    const int64_t left_ms = hf_remaining_ms(lock), took_ms = (test_now_ns() - begun_ns) / 1000000;
    REQUIRE_INT(0, pthread_join(later, NULL));
    CHECK(took_ms >= test_ms(400) - 1);
    CHECK(left_ms <= options.ttl_ms - test_ms(400) - options.ttl_ms / 100);
    CHECK(left_ms > 0);
    must_release(lock);
    await_clean(group);
    hf_close(client);
}

/* A majority that was slower than the lock lasts has granted nothing. */
TEST(a_majority_that_took_longer_than_the_time_to_live_grants_nothing)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_url("%s?timeout=10000", group->url);
    const hf_options options = stranger(test_ms(200));
    pthread_t later;
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    teach_masters(group, client);
    for (int i = 0; i < 3; i++)
        redis_server_pause(group->server[i]);
    REQUIRE_INT(0, pthread_create(&later, NULL, continue_later, group));
    CHECK_STATUS(HF_UNAVAILABLE, hf_try_acquire(&lock, client, NAME, &options, &err), &err);
    CHECK(lock == NULL);
    hf_release(lock, NULL);
    REQUIRE_INT(0, pthread_join(later, NULL));
    await_clean(group);
    check_free(client, NAME);
    hf_close(client);
}

/* ----------------------------------------------------------------------------------- in the middle of what there is */

struct busy {
    hf_client *client;
    _Atomic bool over;
    _Atomic uint32_t pairs;
    _Atomic uint32_t doubts; /* no majority was left that had it */
    uint64_t last;
};

static void *work(void *arg)
{
    struct busy *busy = arg;
    const hf_options options = stranger(test_ms(5000));
    while (!atomic_load(&busy->over)) {
        hf_lock *lock = must_acquire(busy->client, NAME, &options);
        CHECK(hf_token(lock) > busy->last);
        busy->last = hf_token(lock);
        if (hf_renew(lock, 0, NULL) != HF_OK)
            atomic_fetch_add(&busy->doubts, 1);
        if (hf_release(lock, NULL) != HF_OK)
            atomic_fetch_add(&busy->doubts, 1);
        atomic_fetch_add(&busy->pairs, 1);
    }
    return NULL;
}

/* Waits until all masters are asked each time: one that came back is left alone for a while. A lock that was taken
 * meanwhile has no more than a majority. */
static void await_known(struct redis_group *group, const struct busy *busy)
{
    enum { PAIRS = 10 };
    bool known = false;
    while (!known) {
        int64_t before[5];
        const uint32_t pairs = atomic_load(&busy->pairs);
        note_sent(group, before);
        while (atomic_load(&busy->pairs) <= pairs + PAIRS)
            await_a_moment();
        known = true;
        for (int i = 0; i < group->count; i++) /* acquire, renew, release */
            known = known && redis_server_sent(group->server[i]) - before[i] >= 3 * PAIRS;
    }
}

/* One after the other dies or stands still, and comes back at any moment. Each that asks is granted it; a lock that
 * is held may be hit if a master had no processor when it was taken, which is as bad as a third one that is down. */
static void work_through(enum fault fault)
{
    struct redis_group *group = start_masters(5, NULL);
    struct busy busy = { .client = open_client() };
    pthread_t worker;
    teach_masters(group, busy.client);
    REQUIRE_INT(0, pthread_create(&worker, NULL, work, &busy));
    for (int i = 0; i < 10; i++) {
        const uint32_t pairs = atomic_load(&busy.pairs);
        strike(group, i % 5, fault);
        strike(group, (i + 1 + i / 5) % 5, fault);
        while (atomic_load(&busy.pairs) < pairs + 20)
            await_a_moment();
        heal(group, i % 5, fault);
        heal(group, (i + 1 + i / 5) % 5, fault);
        while (atomic_load(&busy.pairs) < pairs + 40)
            await_a_moment();
        await_known(group, &busy);
    }
    atomic_store(&busy.over, true);
    REQUIRE_INT(0, pthread_join(worker, NULL));
    test_note("%u pairs, %u in doubt", busy.pairs, busy.doubts);
    CHECK(busy.doubts <= 4);
    hf_close(busy.client);
}

TEST(two_of_five_die_in_the_middle_of_everything)
{
    work_through(KILLED);
}

TEST(two_of_five_stand_still_in_the_middle_of_everything)
{
    work_through(PAUSED);
}
