/* SPDX-License-Identifier: MIT
 *
 * contest.c: one question after the other until the answer is final: asking a store, waiting, and going on asking when
 * it is in trouble. On the thread that wants the lock; or for an operation, which is left where it would have to sleep,
 * and gone on with later.
 */
#include "core.h"
#include <stdio.h>
#include <string.h>

/* What may come after a wait's deadline: taking up what was granted at the last moment, or giving up the place in the
 * queue. A store that does not answer within this time is left to the keeper. */
#define LAST_PATIENCE (50 * HFI_MS)
/* A store that answered before and is silent for so long may have much to do. */
#define LITTLE_TIME HFI_SECOND

/* Engines without wait() are asked from time to time, more and more seldom. */
#define POLL_MOST 4u

/* --- waits --- */

/* It is done by an operation that was cancelled meanwhile. */
bool hfi_want_is_over(const struct hfi_want *want)
{
    return want->op && atomic_load(&want->op->ended);
}

/* From here on hf_cancel() finds it: before the store is asked, or a call that comes while the first question is out
 * would be missed. What it sleeps with is only got when there is need to sleep. */
void hfi_wait_begin(hf_client *client, struct hfi_wait *wait, const struct hfi_want *want, struct hfi_hold *following)
{
    wait->op = want->op;
    wait->name = want->name;
    wait->following = following;
    wait->waker = NULL;
    wait->canceled = client->closing || hfi_want_is_over(want);
    wait->prev = NULL;
    wait->next = client->waits;
    if (wait->next)
        wait->next->prev = wait;
    client->waits = wait;
    if (wait->op)
        wait->op->wait = wait;
}

bool hfi_wait_get_waker(hf_client *client, struct hfi_wait *wait)
{
    wait->waker = client->free_wakers;
    if (wait->waker)
        client->free_wakers = wait->waker->next;
    else
        wait->waker = hfi_waker_new();
    if (!wait->waker)
        return false;
    hfi_waker_reset(wait->waker);
    if (wait->canceled)
        hfi_waker_call_back(wait->waker);
    return true;
}

static void wait_put_waker(hf_client *client, struct hfi_wait *wait)
{
    if (!wait->waker)
        return;
    wait->waker->next = client->free_wakers;
    client->free_wakers = wait->waker;
    wait->waker = NULL;
}

void hfi_wait_end(hf_client *client, struct hfi_wait *wait)
{
    *(wait->prev ? &wait->prev->next : &client->waits) = wait->next;
    if (wait->next)
        wait->next->prev = wait->prev;
    if (wait->op)
        wait->op->wait = NULL;
    wait_put_waker(client, wait);
}

void hfi_wait_cancel(struct hfi_wait *wait)
{
    wait->canceled = true;
    if (wait->waker)
        hfi_waker_call_back(wait->waker);
    else if (wait->op && wait->op->is_parked)
        hfi_operation_call(wait->op);
}

static void wake_followers(hf_client *client, const struct hfi_hold *hold)
{
    for (struct hfi_wait *wait = client->waits; wait; wait = wait->next) {
        if (wait->following == hold) {
            wait->following = NULL;
            hfi_waker_wake(wait->waker);
        }
    }
}

/* --- asking until the answer is final; no mutex held --- */

struct hfi_contest {
    hf_client *client;
    struct hfi_hold *hold;
    const struct hfi_want *want;
    struct hfi_request request;
    struct hfi_grant grant;
    struct hfi_wait wait;
    struct hfi_trouble trouble;
    unsigned polls;
    bool waits;     /* it was parked in a wait, which goes on */
    bool may_start; /* the question can be asked without a thread */
    bool answered;  /* so it was, with this */
    hf_status answer;
    bool heard;        /* the store has answered in this wait: somebody else has it */
    bool late;         /* its time was over before it came to ask: asks once, to say who has the lock */
    hfi_time asked_ns; /* when the last question was sent */
};

static hf_status ensure_waker(struct hfi_contest *contest, hf_error *err)
{
    if (contest->wait.waker)
        return HF_OK;
    /* Whoever waits must hear what the store says by itself, too: that another server has taken its place. Without the
     * keeper it would only be asked later, so its failure is none here. */
    const struct hfi_engine *engine = contest->client->engine;
    const bool speaks = engine->push_fd && engine->push_fd(contest->client->store) >= 0;
    hfi_client_lock(contest->client);
    const bool got = hfi_wait_get_waker(contest->client, &contest->wait);
    if (got && speaks)
        hfi_keeper_start(contest->client, NULL);
    hfi_client_unlock(contest->client);
    contest->request.waker = contest->wait.waker;
    return got ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory or no descriptor left to wait with");
}

static hf_status say_busy(const struct hfi_contest *contest, hf_error *err)
{
    const char *holder = contest->grant.holder;
    const int64_t left = contest->grant.holder_left_ms;
    char how_long[48] = "";
    if (left >= 0)
        snprintf(how_long, sizeof how_long, ", %lld.%lld s left", (long long)left / 1000, (long long)left % 1000 / 100);
    if (!contest->want->may_wait)
        return hfi_fail(err, HF_BUSY, 0, "held by %s%s", *holder ? holder : "somebody else", how_long);
    return hfi_fail(err, HF_TIMEOUT, 0, "still held by %s%s after %u ms", *holder ? holder : "somebody else", how_long,
                    contest->want->options.wait_ms);
}

/* "11 h 59 min", "3 min 20 s" or "4.2 s" */
static void say_how_long(char out[32], int64_t ms)
{
    const long long s = ms / 1000;
    if (s >= 3600)
        snprintf(out, 32, "%lld h %lld min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(out, 32, "%lld min %lld s", s / 60, s % 60);
    else
        snprintf(out, 32, "%lld.%lld s", s, (long long)ms % 1000 / 100);
}

static hf_status say_done(const struct hfi_contest *contest, hf_error *err)
{
    const struct hfi_grant *grant = &contest->grant;
    const char *who = *grant->holder ? grant->holder : "somebody else";
    char ago[32], left[32];
    say_how_long(ago, grant->done_ago_ms);
    say_how_long(left, grant->holder_left_ms);
    if (grant->done_ago_ms < 0 || grant->holder_left_ms < 0)
        return hfi_fail(err, HF_DONE, 0, "done by %s", who);
    return hfi_fail(err, HF_DONE, 0, "done by %s %s ago, which counts for another %s", who, ago, left);
}

static bool is_trouble(hf_status status)
{
    return status == HF_UNAVAILABLE || status == HF_UNKNOWN;
}

/* Sleeps; or has the operation parked: what comes next is the next question. */
static hf_status sleep_until(struct hfi_contest *contest, hfi_time until_ns)
{
    if (contest->request.parked)
        return hfi_waker_park(contest->request.parked, until_ns);
    hfi_waker_sleep(contest->wait.waker, NULL, 0, until_ns);
    return HF_OK;
}

static hf_status say_canceled(hf_error *err)
{
    return hfi_fail(err, HF_CANCELED, 0, "the wait was cancelled");
}

static hf_status wait_in_store(struct hfi_contest *contest, hf_error *err)
{
    hf_client *client = contest->client;
    hfi_runner_begins_to_wait(client, contest->want);
    const hf_status status = client->engine->wait(client->store, contest->hold->engine_lock, &contest->request, err);
    hfi_runner_stops_to_wait(client, contest->want);
    contest->waits = status == HFI_PARKED;
    return status;
}

/* One sleep between two questions. HF_OK: ask again. */
static hf_status sleep_until_worth_asking(struct hfi_contest *contest, hf_error *err)
{
    const struct hfi_engine *engine = contest->client->engine;
    hf_status status = ensure_waker(contest, err);
    if (status != HF_OK)
        return status;
    contest->request.deadline_ns = contest->want->deadline_ns;
    if (hfi_waker_called_back(contest->wait.waker)) {
        /* fall through to the end */
    } else if (engine->wait) {
        status = wait_in_store(contest, err);
    } else {
        contest->polls += contest->polls < POLL_MOST;
        const hfi_time at = hfi_now_ns() + hfi_backoff_ns(contest->polls, contest->client->env.random());
        const hfi_time deadline = contest->request.deadline_ns;
        status = sleep_until(contest, at < deadline ? at : deadline);
        if (status == HF_OK && hfi_now_ns() >= deadline)
            status = HF_TIMEOUT;
    }
    if (hfi_waker_called_back(contest->wait.waker))
        return say_canceled(err);
    /* The last that was heard of the store is that somebody else has it. */
    if (is_trouble(status) && hfi_now_ns() >= contest->want->deadline_ns)
        return HF_TIMEOUT;
    return status;
}

/* The question was asked when the wait was all but over, so that the store had LAST_PATIENCE and no more to answer it,
 * or little more if it has answered before; and it has not. That is no trouble yet: the same store may have been waited
 * for with success. */
static bool is_out_of_time(const struct hfi_contest *contest, hfi_time now)
{
    const hfi_time end = contest->want->deadline_ns;
    const bool hurried =
        contest->request.deadline_ns > end || (contest->heard && contest->asked_ns + LITTLE_TIME > end);
    return hurried && contest->trouble.failures == 0 && now + HFI_MS >= contest->request.deadline_ns;
}

static hf_status pause_for_trouble(struct hfi_contest *contest, hf_status trouble, hf_error *err)
{
    hfi_time until;
    const hfi_time now = hfi_now_ns();
    const hfi_time patience = contest->want->options.ttl_ms * HFI_MS;
    if (contest->late || is_out_of_time(contest, now))
        return hfi_fail(err, HF_TIMEOUT, 0, "the wait of %u ms was over before the store had answered",
                        contest->want->options.wait_ms);
    if (!contest->want->may_wait || !hfi_trouble_again(&contest->trouble, now, contest->want->deadline_ns, patience,
                                                       contest->client->env.random(), &until))
        return trouble;
    const hf_status status = ensure_waker(contest, err);
    if (status != HF_OK)
        return status;
    const hf_status slept = sleep_until(contest, until);
    return hfi_waker_called_back(contest->wait.waker) ? say_canceled(err) : slept;
}

static hfi_time later(hfi_time a, hfi_time b)
{
    return a > b ? a : b;
}

static void set_question(struct hfi_contest *contest)
{
    const hf_client *client = contest->client;
    const hfi_time now = hfi_now_ns();
    contest->request.deadline_ns = now + client->timeout_ns;
    if (contest->want->may_wait && contest->want->deadline_ns < contest->request.deadline_ns)
        contest->request.deadline_ns = later(contest->want->deadline_ns, now + LAST_PATIENCE);
    contest->asked_ns = now;
    contest->grant.token = 0;
    contest->grant.counted_from_ns = now;
    contest->grant.valid_ms = 0;
    contest->grant.holder[0] = 0;
    contest->grant.holder_left_ms = -1;
    contest->grant.done_ago_ms = -1;
    contest->grant.tokens = 1;
}

/* It may be gone afterwards. */
static bool start_asking(struct hfi_contest *contest)
{
    contest->may_start = false;
    return hfi_operation_start(contest->want->op, contest->hold->engine_lock, &contest->request, &contest->grant);
}

static hf_status ask_once(struct hfi_contest *contest, hf_error *err)
{
    hf_client *client = contest->client;
    set_question(contest);
    if (contest->may_start) {
        if (start_asking(contest))
            return HFI_UNDER_WAY;
        hfi_client_lock(client);
        hfi_operation_end_exchange(client);
        hfi_client_unlock(client);
    }
    return client->engine->attempt(client->store, contest->hold->engine_lock, &contest->request, &contest->grant, err);
}

/* The store said yes. False: the answer took longer than the lease lasts, so it is not ours, or not for long enough. */
static bool start_lease(struct hfi_contest *contest)
{
    struct hfi_hold *hold = contest->hold;
    const struct hfi_terms terms = hold->lease.terms;
    hold->token = contest->grant.token;
    hold->spare_tokens = (uint8_t)(contest->grant.tokens - 1);
    if (hold->once)
        hold->extra->granted_ns = contest->asked_ns;
    hfi_lease_start(&hold->lease, &terms, contest->grant.valid_ms, contest->grant.counted_from_ns, contest->asked_ns);
    return hold->lease.deadline_ns == HFI_NEVER || hfi_now_ns() < hold->lease.deadline_ns;
}

/* How many tokens are of use: more than one if somebody stands in the line. Whoever marks its work as done needs the
 * store for that. Mutex held. */
static uint32_t tokens_to_reserve(hf_client *client, const struct hfi_want *want)
{
    return hfi_line_is_there(client, want) && !want->options.once_per_ms ? HFI_TOKENS_MOST : 1;
}

/* What was lost before is not what the next attempt may get. Mutex held. */
static void prepare_to_ask(struct hfi_contest *contest)
{
    const hf_op *op = contest->want->op;
    contest->hold->lost = false;
    contest->request.reserve = tokens_to_reserve(contest->client, contest->want);
    contest->may_start = op && hfi_operation_may_start(op);
    if (!contest->may_start)
        return;
    contest->client->under_way++;
    wait_put_waker(contest->client, &contest->wait); /* nobody sleeps meanwhile, and there may be many */
    contest->request.waker = NULL;
}

static hf_status ask(struct hfi_contest *contest, hf_error *err)
{
    const hf_status status = contest->answered ? contest->answer : ask_once(contest, err);
    if (status == HFI_UNDER_WAY)
        return status;
    contest->answered = false;
    if (status == HF_BUSY) {
        contest->trouble = (struct hfi_trouble){ 0 };
        contest->heard = true;
    } else {
        contest->polls = 0;
    }
    if (status != HF_OK || start_lease(contest))
        return status;
    const uint32_t ttl_ms = contest->want->options.ttl_ms, most_ms = contest->want->options.max_hold_ms;
    return hfi_fail(err, HF_UNAVAILABLE, 0, "the store took longer to answer than %s of %u ms",
                    most_ms && most_ms < ttl_ms ? "max_hold_ms" : "the lock's time-to-live",
                    most_ms && most_ms < ttl_ms ? most_ms : ttl_ms);
}

/* HFI_PARKED: nothing is to be done until the operation's waker is woken, or that one's time comes; then it goes on.
 * HFI_UNDER_WAY: until the store has answered; the contest may be gone. */
static hf_status contend(struct hfi_contest *contest, hf_error *err)
{
    for (;;) {
        hf_status status = contest->waits ? HF_BUSY : ask(contest, err);
        if (status == HF_OK || status == HFI_UNDER_WAY)
            return status;
        if (status == HF_DONE)
            return say_done(contest, err);
        if (status == HF_BUSY) {
            if (!contest->want->may_wait || (!contest->waits && hfi_now_ns() >= contest->want->deadline_ns))
                return say_busy(contest, err);
            status = sleep_until_worth_asking(contest, err);
            if (status == HF_TIMEOUT)
                return say_busy(contest, err);
        }
        if (is_trouble(status))
            status = pause_for_trouble(contest, status, err);
        if (status != HF_OK)
            return status;
        hfi_client_lock(contest->client);
        prepare_to_ask(contest);
        hfi_client_unlock(contest->client);
    }
}

/* --- from the first question to the end --- */

/* The store granted it: makes it usable. Mutex held. */
static hf_status take_up(hf_lock **out, struct hfi_hold *hold, const struct hfi_want *want, hf_error *err)
{
    hf_client *client = hold->client;
    const hfi_time due = hfi_lease_due(&hold->lease);
    const bool needs_keeper = due != HFI_NEVER || client->engine->push_fd;
    if (client->closing)
        return hfi_fail(err, HF_CANCELED, 0, "the client is being closed");
    if (needs_keeper && !hfi_keeper_start(client, err))
        return HF_NOMEM;
    const hf_status status = hfi_hold_enter(out, hold, want, err);
    if (status != HF_OK)
        return status;
    hold->state = HFI_HOLD_HELD;
    if (hold->spare_tokens && hfi_hold_extra(hold)) /* without, it is not passed on */
        hold->extra->pass_until_ns = hfi_now_ns() + client->handoff_ns;
    hfi_hold_publish(hold);
    if (due != HFI_NEVER || hold->lost) {
        hfi_hold_schedule(hold);
        hfi_keeper_expect(client, hold->lost || hold->doubted ? HFI_AT_ONCE : due);
    }
    return HF_OK;
}

/* There may be many to be given up when a client is closed. */
static hfi_time last_patience(const hf_client *client)
{
    const hfi_time left = client->closing ? client->close_by_ns - hfi_now_ns() : LAST_PATIENCE;
    return left < 0 ? 0 : left < LAST_PATIENCE ? left : LAST_PATIENCE;
}

/* It is held, or it is not. */
static void tell_others(hf_client *client, struct hfi_hold *hold, const struct hfi_want *want)
{
    if (hold->state == HFI_HOLD_HELD && client->turns)
        hfi_line_call_owner(hold, want);
    wake_followers(client, hold);
    hfi_hold_settle(hold);
}

/* What the store has said, or that nobody wants to know any more. */
static hf_status conclude(hf_lock **out, struct hfi_contest *contest, hf_status status, hf_error *err)
{
    hf_client *client = contest->client;
    struct hfi_hold *hold = contest->hold;
    const struct hfi_want *want = contest->want;
    if (want->may_wait)
        hfi_wait_end(client, &contest->wait);
    if (status == HF_OK)
        status = take_up(out, hold, want, err);
    if (status != HF_OK) {
        hold->state = HFI_HOLD_ENDED;
        hfi_hold_forget(hold);
        if (is_trouble(status) && want->may_wait) /* a patience is at its end */
            hfi_line_break_up(client, want->name_hash, want->name);
        hfi_undo(hold, last_patience(client), NULL);
    }
    tell_others(client, hold, want);
    return status;
}

/* Asks the store, or goes on with that. Mutex held; let go of in between. */
static hf_status pursue(hf_lock **out, struct hfi_contest *contest, hf_error *err)
{
    hf_client *client = contest->client;
    pthread_mutex_unlock(&client->mutex);
    hf_status status = contend(contest, err);
    pthread_mutex_lock(&client->mutex);
    if (status == HFI_UNDER_WAY)
        return status;
    if (status != HFI_PARKED)
        return conclude(out, contest, status, err);
    wait_put_waker(client, &contest->wait);
    contest->request.waker = NULL;
    hfi_operation_park(contest->want->op);
    return HFI_PARKED;
}

/* The same for an operation. */
hf_status hfi_contest_go_on(hf_lock **out, struct hfi_contest *contest, hf_error *err)
{
    hf_op *op = contest->want->op;
    hf_status status;
    contest->answered = op->answered;
    contest->answer = op->answer;
    if (op->answered && op->answer != HF_OK)
        *err = op->error;
    op->answered = false;
    if (contest->wait.canceled) {
        status = conclude(out, contest, say_canceled(err), err);
    } else {
        if (!contest->waits && !contest->answered) /* else the wait goes on, and it asks after that */
            prepare_to_ask(contest);
        status = pursue(out, contest, err);
    }
    if (status != HFI_PARKED && status != HFI_UNDER_WAY) {
        hfi_free(contest);
        op->contest = NULL;
    }
    return status;
}

static void begin(struct hfi_contest *contest, struct hfi_hold *hold, const struct hfi_want *want, bool late)
{
    hf_client *client = hold->client;
    hold->lease.terms = (struct hfi_terms){ .ttl_ms = want->options.ttl_ms,
                                            .max_hold_ms = want->options.max_hold_ms,
                                            .renew = want->options.renew == HF_RENEW_ON,
                                            .store_expires = client->caps & HF_CAP_EXPIRY };
    hold->engaged = true;
    contest->client = client;
    contest->hold = hold;
    contest->want = want;
    contest->request = hfi_hold_request(hold, 0);
    contest->request.queue = want->may_wait && !late;
    contest->request.reserve = tokens_to_reserve(client, want);
    /* Whoever is parked needs the keeper to be told that its time has come. */
    const bool may_park = want->op && (client->engine->parks || !client->engine->wait);
    contest->request.parked = may_park && hfi_keeper_start(client, NULL) ? &want->op->parked : NULL;
    contest->wait.waker = NULL;
    contest->wait.canceled = false;
    if (want->may_wait)
        hfi_wait_begin(client, &contest->wait, want, NULL);
    contest->trouble.failures = 0;
    contest->polls = 0;
    contest->waits = contest->heard = contest->may_start = contest->answered = false;
    contest->late = late;
    if (want->op)
        want->op->contest = contest;
}

/* Asks the store on behalf of a new hold; `late`: once, since its time is over. Mutex held; let go of in between. */
hf_status hfi_contest_take(hf_lock **out, hf_client *client, const struct hfi_want *want, bool late, hf_error *err)
{
    /* Field by field: most of it is a text that nobody reads unless the lock is busy. */
    struct hfi_contest own, *contest = &own;
    if (want->op)
        contest = hfi_alloc(sizeof own);
    struct hfi_hold *hold = contest ? hfi_hold_new(client, want) : NULL;
    if (!hold) {
        if (want->op)
            hfi_free(contest);
        hfi_line_call_first(client, want->name_hash, want->name);
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a lock");
    }
    begin(contest, hold, want, late);
    return want->op ? hfi_contest_go_on(out, contest, err) : pursue(out, contest, err);
}

bool hfi_contest_start(hf_op *op)
{
    hf_client *client = op->client;
    struct hfi_contest *contest = hfi_alloc(sizeof *contest);
    struct hfi_hold *hold = contest ? hfi_hold_new(client, &op->want) : NULL;
    if (!hold) {
        hfi_free(contest);
        return false;
    }
    begin(contest, hold, &op->want, false);
    prepare_to_ask(contest);
    pthread_mutex_unlock(&client->mutex);
    set_question(contest);
    const bool counts = contest->may_start, started = counts && start_asking(contest);
    pthread_mutex_lock(&client->mutex);
    if (!started)
        hfi_operation_call(op);
    if (counts && !started) /* after that: hf_close() stops the runners when nothing is under way any more */
        hfi_operation_end_exchange(client);
    return true;
}

bool hfi_contest_win(hf_lock **out, hf_op *op)
{
    struct hfi_contest *contest = op->contest;
    hf_error err;
    if (contest->wait.canceled || !start_lease(contest) || take_up(out, contest->hold, &op->want, &err) != HF_OK)
        return false;
    if (op->want.may_wait)
        hfi_wait_end(op->client, &contest->wait);
    tell_others(op->client, contest->hold, &op->want);
    hfi_free(contest);
    op->contest = NULL;
    return true;
}
