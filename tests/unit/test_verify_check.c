/* SPDX-License-Identifier: MIT
 *
 * What `holdfast verify` makes of a history, on histories that are made up: a good one of each kind passes, and each
 * way to break a promise is found, and called by its number.
 */
#include "verify.h"

#include "test.h"

#include <string.h>

#define ROWS 3 /* workers; the probe is the fourth */
#define TTL_MS 1000
#define MOST 64

static struct verify_record record[MOST];
static struct verify_event event[MOST];
static struct verify_history history;
static struct verify_result result;

static int64_t at(int64_t ms)
{
    return VERIFY_SECOND + ms * VERIFY_MS;
}

/* Ten seconds of an engine with these capabilities. */
static void begin(uint32_t caps)
{
    memset(record, 0, sizeof record);
    memset(event, 0, sizeof event);
    history = (struct verify_history){ .record = record,
                                       .event = event,
                                       .workers = ROWS,
                                       .caps = caps | HF_CAP_PROCESSES,
                                       .ttl_ms = TTL_MS,
                                       .end_ms = caps & HF_CAP_EXPIRY ? TTL_MS : 0,
                                       .claim_ms = 2000,
                                       .start_ns = at(0),
                                       .end_ns = at(10000),
                                       .over_ns = at(10100) };
}

static struct verify_record *ask(uint32_t worker, enum verify_kind kind, int64_t asked, int64_t answered, int status)
{
    struct verify_record *new = &record[history.records++];
    *new = (struct verify_record){ .worker = worker,
                                   .owner = worker + 1,
                                   .kind = (uint8_t)kind,
                                   .flags = VERIFY_RENEWED,
                                   .status = status,
                                   .wait_ms = kind == VERIFY_WAIT ? 10000 : 0,
                                   .asked_ns = at(asked),
                                   .answered_ns = answered < 0 ? 0 : at(answered) };
    return new;
}

/* A hold that is released in the middle of a millisecond, so that others can follow at once. */
static struct verify_record *hold(uint32_t worker, int64_t from, int64_t to, uint64_t token)
{
    struct verify_record *new = ask(worker, VERIFY_WAIT, from, from, HF_OK);
    new->token = token;
    new->granted_ns = at(from);
    new->believed_ns = at(to);
    new->until_ns = at(to + TTL_MS / 2);
    new->releasing_ns = at(to) + 1000;
    new->released_ns = at(to) + 2000;
    return new;
}

/* The same of one whose time ended. */
static struct verify_record *lose(uint32_t worker, int64_t from, int64_t to, uint64_t token)
{
    struct verify_record *new = hold(worker, from, to, token);
    new->until_ns = at(to);
    new->over_ns = at(to + 1);
    atomic_store(&new->told_ns, at(to + 1));
    new->releasing_ns = at(to + 2);
    new->released_ns = at(to + 3);
    new->release_status = HF_LOST;
    return new;
}

static void strike(enum verify_event_kind kind, uint32_t worker, int64_t from, int64_t to)
{
    event[history.events++] = (struct verify_event){
        .kind = kind, .worker = worker, .owner = worker + 1, .from_ns = at(from), .to_ns = at(to)
    };
}

static void write_at(struct verify_record *writer, int which, int64_t ms, int status)
{
    writer->write[which] = (struct verify_write){ at(ms), at(ms) + 1000, status };
}

static void check(void)
{
    REQUIRE(verify_check(&history, &result));
    for (size_t i = 0; i < result.violations; i++)
        test_note("promise %s: %s", verify_number(result.violation[i].promise), result.violation[i].text);
}

/* The promises in `broken` and no others. */
static void check_broken(uint32_t broken)
{
    check();
    for (int i = 0; i < VERIFY_PROMISES; i++)
        if ((result.verdict[i].outcome == VERIFY_BROKEN) != ((broken >> i & 1) == 1))
            FAIL("promise %s is %s", verify_number((enum verify_promise)i),
                 verify_outcome_name(result.verdict[i].outcome));
    verify_result_free(&result);
}

static void check_seen(enum verify_promise promise, uint64_t seen)
{
    check();
    CHECK_INT(seen, result.verdict[promise].seen);
    CHECK_INT(seen > 0 ? VERIFY_KEPT : VERIFY_NOT_SEEN, result.verdict[promise].outcome);
    verify_result_free(&result);
    check_broken(0);
}

#define LEASES (HF_CAP_EXPIRY | HF_CAP_MACHINES)
#define BIT(promise_) (1u << (promise_))

/* --- good ones --- */

TEST(an_empty_history_breaks_nothing)
{
    begin(LEASES);
    for (int i = 0; i < VERIFY_LOCKS; i++)
        history.left[i].status = HF_UNAVAILABLE;
    check();
    for (int i = 0; i < VERIFY_PROMISES; i++)
        CHECK_INT(VERIFY_NOT_SEEN, result.verdict[i].outcome);
    verify_result_free(&result);
}

TEST(holds_that_follow_each_other_are_kept)
{
    begin(LEASES);
    hold(0, 0, 100, 1);
    hold(1, 101, 200, 2);
    hold(0, 201, 300, 5);
    check_seen(VERIFY_P1, 3);
    check_seen(VERIFY_P9, 3);
    check_seen(VERIFY_P12, 3);
}

TEST(two_locks_do_not_meet)
{
    begin(LEASES);
    hold(0, 0, 100, 9);
    hold(1, 50, 200, 1)->lock = VERIFY_LONG;
    ask(1, VERIFY_TRY, 20, 21, HF_BUSY);
    ask(0, VERIFY_TRY, 120, 121, HF_BUSY)->lock = VERIFY_LONG;
    check_seen(VERIFY_P1, 2);
}

/* One worker, and the probe: nobody was there who could have been let in beside. */
TEST(who_has_no_rival_shows_nothing_of_exclusion)
{
    begin(LEASES);
    hold(0, 0, 100, 1);
    hold(0, 200, 300, 2);
    hold(ROWS, 0, 300, 1)->lock = VERIFY_PROBE;
    check_seen(VERIFY_P1, 0);
}

/* --- 1 and 7 --- */

TEST(two_who_believe_at_once_are_found)
{
    begin(LEASES);
    hold(0, 0, 100, 1);
    hold(1, 99, 200, 2);
    check_broken(BIT(VERIFY_P1));
}

TEST(one_who_comes_inside_of_a_long_hold_is_found_behind_a_short_one)
{
    begin(LEASES);
    hold(0, 0, 1000, 1);
    hold(1, 100, 200, 2);
    hold(2, 500, 600, 3);
    check();
    CHECK_INT(2, result.verdict[VERIFY_P1].broken);
    verify_result_free(&result);
}

TEST(a_loss_that_is_known_before_the_next_grant_is_kept)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    lose(0, 0, 1000, 1);
    hold(1, 1001, 1100, 2);
    check_seen(VERIFY_P7, 1);
}

TEST(a_loss_that_is_known_too_late_is_found)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    lose(0, 0, 1000, 1);
    hold(1, 900, 1100, 2);
    check_broken(BIT(VERIFY_P1) | BIT(VERIFY_P7));
}

TEST(a_release_that_says_yes_after_the_end_is_found)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    lose(0, 0, 1000, 1)->release_status = HF_OK;
    check_broken(BIT(VERIFY_P7));
}

TEST(a_loss_that_nobody_was_told_of_is_found)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    atomic_store(&lose(0, 0, 1000, 1)->told_ns, 0);
    check_broken(BIT(VERIFY_P7));
}

/* A connection that broke: what is bound to it may be another's before that is known. Not so if nobody was told. */
TEST(what_is_bound_to_a_connection_claims_no_more_than_it_can)
{
    begin(HF_CAP_BOUND | HF_CAP_MACHINES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    lose(0, 0, 1000, 1);
    hold(1, 900, 1100, 2);
    check();
    CHECK_INT(VERIFY_NOT_CLAIMED, result.verdict[VERIFY_P7].outcome);
    CHECK_INT(1, result.verdict[VERIFY_P7].broken);
    verify_result_free(&result);
    check_broken(0);
    hold(0, 1050, 1200, 3);
    check_broken(BIT(VERIFY_P1));
}

/* --- 2 and 3 --- */

TEST(tries_and_waits_that_end_in_time_are_kept)
{
    begin(LEASES);
    ask(0, VERIFY_TRY, 0, 900, HF_BUSY);
    ask(0, VERIFY_WAIT, 1000, 1500, HF_TIMEOUT)->wait_ms = 500;
    check_seen(VERIFY_P2, 1);
    check_seen(VERIFY_P3, 1);
}

TEST(a_try_that_takes_long_is_found_unless_the_store_did_not_answer)
{
    begin(LEASES);
    ask(0, VERIFY_TRY, 0, 1500, HF_BUSY);
    check_broken(BIT(VERIFY_P2));
    ask(ROWS, VERIFY_TRY, 10, 1400, HF_OK)->lock = VERIFY_PROBE;
    check_broken(0);
    check_seen(VERIFY_P2, 0);
}

TEST(waits_that_end_late_early_or_never_are_found)
{
    begin(LEASES);
    ask(0, VERIFY_WAIT, 0, 1600, HF_TIMEOUT)->wait_ms = 500;
    check_broken(BIT(VERIFY_P3));
    begin(LEASES);
    ask(0, VERIFY_WAIT, 0, 400, HF_TIMEOUT)->wait_ms = 500;
    check_broken(BIT(VERIFY_P3));
    begin(LEASES);
    ask(0, VERIFY_WAIT, 0, -1, HF_OK)->wait_ms = 500;
    hold(1, 0, 10000, 1);
    check_broken(BIT(VERIFY_P3));
}

TEST(a_wait_of_a_process_that_did_not_run_is_not_judged)
{
    begin(LEASES);
    ask(0, VERIFY_WAIT, 0, 1600, HF_TIMEOUT)->wait_ms = 500;
    strike(VERIFY_PAUSED, 0, 100, 1590);
    check_broken(0);
    event[0].kind = VERIFY_STALLED;
    check_broken(0);
}

/* --- 4 --- */

TEST(a_late_release_that_says_no_is_kept)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    struct verify_record *late = lose(0, 0, 1000, 1);
    hold(1, 1001, 1500, 2);
    late->releasing_ns = at(1200);
    late->released_ns = at(1201);
    check_seen(VERIFY_P4, 1);
    late->release_status = HF_OK;
    check_broken(BIT(VERIFY_P4) | BIT(VERIFY_P7));
}

TEST(a_late_release_that_costs_another_the_lock_is_found)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    struct verify_record *late = lose(0, 0, 1000, 1);
    late->releasing_ns = at(1200);
    late->released_ns = at(1201);
    lose(1, 1001, 1300, 2)->until_ns = at(2000);
    check_broken(BIT(VERIFY_P4) | BIT(VERIFY_P6));
}

/* --- 5 and 12 --- */

static struct verify_record *die(uint32_t worker, int64_t from, int64_t to, uint64_t token)
{
    struct verify_record *dead = hold(worker, from, to, token);
    dead->releasing_ns = dead->released_ns = 0;
    strike(VERIFY_KILLED, worker, to, to + 1);
    return dead;
}

TEST(the_lock_of_the_dead_that_ends_in_time_is_kept)
{
    begin(LEASES);
    die(0, 0, 500, 1);
    hold(1, 1500, 10000, 2)->asked_ns = at(400);
    check_seen(VERIFY_P5, 1);
}

TEST(the_lock_of_the_dead_that_lasts_is_found)
{
    begin(LEASES);
    die(0, 0, 500, 1);
    hold(1, 3500, 10000, 2)->asked_ns = at(400);
    check_broken(BIT(VERIFY_P5));
    begin(HF_CAP_BOUND);
    die(0, 0, 500, 1);
    hold(1, 1600, 10000, 2)->asked_ns = at(400);
    check_broken(BIT(VERIFY_P5));
    begin(LEASES); /* nor is it granted before the end */
    die(0, 0, 500, 1);
    ask(1, VERIFY_WAIT, 400, -1, HF_OK)->wait_ms = 60000;
    check_broken(BIT(VERIFY_P5));
}

TEST(a_gap_in_which_nobody_waits_is_none)
{
    begin(LEASES);
    die(0, 0, 500, 1);
    hold(1, 9000, 10000, 2);
    check_broken(0);
    CHECK_INT(0, result.figures.gap_ns);
}

TEST(a_gap_is_counted_from_the_end_of_the_trouble)
{
    begin(LEASES);
    die(0, 0, 500, 1);
    hold(1, 3500, 10000, 2)->asked_ns = at(400);
    ask(2, VERIFY_TRY, 600, 2000, HF_UNAVAILABLE);
    check_broken(0);
}

TEST(a_paused_holder_is_overtaken_where_that_is_claimed)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 500, 5000);
    lose(0, 0, 499, 1)->until_ns = at(1499);
    record[0].told_ns = at(5001);
    record[0].over_ns = at(5001);
    record[0].releasing_ns = at(5002);
    record[0].released_ns = at(5003);
    hold(1, 1500, 10000, 2)->asked_ns = at(400);
    check_seen(VERIFY_P5_PAUSED, 1);
    record[1].answered_ns = record[1].granted_ns = at(4500);
    check_broken(BIT(VERIFY_P5_PAUSED));
    history.caps = HF_CAP_BOUND;
    check();
    CHECK_INT(VERIFY_NOT_CLAIMED, result.verdict[VERIFY_P5_PAUSED].outcome);
    verify_result_free(&result);
}

TEST(a_lock_that_nobody_is_given_is_found_without_any_strike)
{
    begin(LEASES);
    hold(0, 0, 500, 1);
    hold(1, 3500, 10000, 2)->asked_ns = at(400);
    check_broken(BIT(VERIFY_P12));
}

TEST(what_is_left_behind_is_found)
{
    begin(LEASES);
    history.left[1].status = HF_TIMEOUT;
    check_broken(BIT(VERIFY_P12));
    begin(LEASES);
    history.left[2].listed = true;
    check_broken(BIT(VERIFY_P12));
}

TEST(what_could_not_be_looked_at_may_be_left_behind)
{
    begin(LEASES);
    history.left[0].status = HF_UNAVAILABLE;
    check();
    CHECK_INT(VERIFY_NOT_SEEN, result.verdict[VERIFY_P12].outcome);
    verify_result_free(&result);
}

/* --- 6 --- */

TEST(a_hold_that_outlasts_its_time_is_a_renewal_that_was_seen)
{
    begin(LEASES);
    hold(0, 0, TTL_MS + 1, 1);
    check_seen(VERIFY_P6, 1);
    begin(LEASES);
    hold(0, 0, TTL_MS - 1, 1);
    check_seen(VERIFY_P6, 0);
}

TEST(a_loss_without_a_reason_is_found)
{
    begin(LEASES);
    lose(0, 0, 1000, 1);
    check_broken(BIT(VERIFY_P6));
    record[0].flags = 0; /* a lease ends */
    check_broken(0);
    record[0].flags = VERIFY_RENEWED | VERIFY_STARVED;
    check_broken(0);
    record[0].flags = VERIFY_RENEWED;
    ask(1, VERIFY_TRY, 500, 600, HF_UNAVAILABLE); /* the store was away when it should have been renewed */
    check_broken(0);
    record[1].owner = 9;
    strike(VERIFY_PAUSED, 8, 450, 650); /* or was it who asked? */
    check_broken(BIT(VERIFY_P6));
}

TEST(a_store_that_forgets_is_found_in_trouble_too)
{
    begin(LEASES);
    lose(0, 0, 1000, 1)->until_ns = at(1700);
    ask(1, VERIFY_TRY, 500, 600, HF_UNAVAILABLE);
    check_broken(BIT(VERIFY_P6));
}

/* --- 8 and 10 --- */

TEST(re_entry_that_goes_wrong_is_found)
{
    begin(LEASES);
    hold(0, 0, 100, 1)->flags |= VERIFY_REENTERED;
    check_seen(VERIFY_P8, 1);
    record[0].flags |= VERIFY_REENTRY_WRONG;
    check_broken(BIT(VERIFY_P8));
}

TEST(a_handle_without_a_grant_is_found)
{
    begin(LEASES);
    ask(0, VERIFY_TRY, 0, 100, HF_UNKNOWN);
    check_seen(VERIFY_P10, 1);
    record[0].flags |= VERIFY_GIVEN_A_NO;
    check_broken(BIT(VERIFY_P10));
}

/* --- 9 --- */

TEST(tokens_that_do_not_grow_are_found)
{
    begin(LEASES);
    hold(0, 0, 100, 2);
    hold(1, 101, 200, 1);
    check_broken(BIT(VERIFY_P9));
    record[1].token = 2;
    check_broken(BIT(VERIFY_P9));
    record[1].asked_ns = at(50); /* who waited already */
    check_broken(BIT(VERIFY_P9));
    record[1].token = 3;
    check_broken(0);
}

/* What came too late to be believed may have been granted in any order. */
TEST(a_grant_that_was_over_when_it_came_has_a_token_of_its_time)
{
    begin(LEASES);
    hold(0, 500, 600, 2);
    ask(1, VERIFY_WAIT, 0, 700, HF_OK)->token = 1;
    check_broken(0);
    record[1].asked_ns = at(650);
    check_broken(BIT(VERIFY_P9));
}

TEST(stale_writes_are_refused_or_found)
{
    begin(LEASES);
    strike(VERIFY_PAUSED, 0, 100, 2000);
    struct verify_record *late = lose(0, 0, 1000, 1), *next = hold(1, 1001, 1500, 2);
    write_at(late, 0, 10, HF_OK);
    write_at(next, 0, 1010, HF_OK);
    write_at(late, 1, 1100, HF_LOST);
    check();
    CHECK_INT(1, result.figures.refused);
    CHECK_INT(3, result.figures.writes);
    verify_result_free(&result);
    check_broken(0);
    write_at(late, 1, 1100, HF_OK);
    check_broken(BIT(VERIFY_P9));
    write_at(late, 1, 1005, HF_OK); /* before its successor wrote */
    check_broken(0);
}

TEST(a_holder_whose_write_is_refused_is_found)
{
    begin(LEASES);
    write_at(hold(0, 0, 100, 1), 0, 50, HF_LOST);
    check_broken(BIT(VERIFY_P9));
}

/* --- figures --- */

TEST(hand_offs_and_gaps_are_measured)
{
    begin(LEASES);
    hold(0, 0, 100, 1);
    hold(1, 150, 200, 2)->asked_ns = at(50);
    hold(0, 300, 400, 3); /* did not wait */
    check();
    CHECK_INT(1, result.figures.handoffs);
    CHECK_INT(at(150) - at(100) - 1000, result.figures.handoff_max_ns);
    CHECK_INT(at(150) - at(100), result.figures.gap_ns);
    CHECK_INT(at(100), result.figures.gap_from_ns);
    verify_result_free(&result);
}

TEST(no_more_than_the_first_violations_are_kept)
{
    begin(LEASES);
    for (int i = 0; i < 20; i++)
        hold((uint32_t)i % 2, 10 * i, 10 * i + 15, (uint64_t)i + 1);
    check();
    CHECK_INT(19, result.verdict[VERIFY_P1].broken);
    CHECK_INT(VERIFY_SHOWN, result.violations);
    verify_result_free(&result);
}
