/* SPDX-License-Identifier: MIT
 *
 * Promise 4, owner only: nobody's release, late or repeated, removes another's lock.
 */
#include "conformance.h"

/* A lease that ends by itself, and the next holder. */
struct succession {
    struct name name;
    hf_client *early, *late;
    hf_lock *lost, *held;
};

static void start_succession(struct succession *it)
{
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 150;
    options.renew = HF_RENEW_OFF;
    it->name = unique_name("x");
    it->early = open_client();
    it->late = open_client();
    it->lost = must_acquire(it->early, it->name.text, &options);
    it->held = must_acquire(it->late, it->name.text, NULL);
    CHECK(hf_token(it->held) > hf_token(it->lost));
}

static void end_succession(struct succession *it)
{
    check_busy(it->early, it->name.text);
    CHECK(hf_remaining_ms(it->held) > 0);
    must_release(it->held);
    check_free(it->early, it->name.text);
    hf_close(it->early);
    hf_close(it->late);
}

PROMISE(p04_a_late_release_does_not_disturb_the_next_holder, 0)
{
    struct succession it;
    start_succession(&it);
    hf_error err = { 0 };
    CHECK_STATUS(HF_LOST, hf_release(it.lost, &err), &err);
    CHECK(*err.message != '\0');
    end_succession(&it);
}

PROMISE(p04_a_late_renewal_does_not_disturb_the_next_holder, 0)
{
    struct succession it;
    start_succession(&it);
    hf_error err = { 0 };
    CHECK_STATUS(HF_LOST, hf_renew(it.lost, 10000, &err), &err);
    CHECK(hf_remaining_ms(it.lost) <= 0);
    check_busy(it.early, it.name.text);
    CHECK_STATUS(HF_LOST, hf_release(it.lost, NULL), NULL);
    end_succession(&it);
}

PROMISE(p04_repeated_late_releases_do_not_disturb_the_next_holder, 0)
{
    struct name name = unique_name("x");
    hf_client *early = open_client(), *late = open_client();
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *nested[5];
    /* Time for all five, also in a slow run: had the first been lost already, the second would be a new grant. */
    options.ttl_ms = short_ttl_ms();
    options.renew = HF_RENEW_OFF;
    for (int i = 0; i < 5; i++)
        nested[i] = must_acquire(early, name.text, &options);
    CHECK_INT(hf_token(nested[0]), hf_token(nested[4]));
    hf_lock *held = must_acquire(late, name.text, NULL);
    for (int i = 0; i < 5; i++) {
        CHECK_STATUS(HF_LOST, hf_release(nested[i], NULL), NULL);
        check_busy(early, name.text);
    }
    must_release(held);
    hf_close(early);
    hf_close(late);
}

PROMISE(p04_closing_a_client_that_lost_does_not_disturb_the_next_holder, 0)
{
    struct succession it;
    start_succession(&it);
    hf_close(it.early);
    CHECK_STATUS(HF_LOST, hf_release(it.lost, NULL), NULL);
    it.early = open_client();
    end_succession(&it);
}

PROMISE(p04_the_new_holder_may_be_the_same_client, 0)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = 150;
    options.renew = HF_RENEW_OFF;
    options.owner = HF_OWNER_HANDLE;
    hf_lock *lost = must_acquire(client, name.text, &options);
    hf_options stranger = HF_OPTIONS_INIT;
    stranger.owner = HF_OWNER_HANDLE;
    hf_lock *held = must_acquire(client, name.text, &stranger);
    CHECK(hf_token(held) > hf_token(lost));
    CHECK_STATUS(HF_LOST, hf_release(lost, NULL), NULL);
    check_busy(other, name.text);
    must_release(held);
    check_free(other, name.text);
    hf_close(client);
    hf_close(other);
}

PROMISE(p04_closing_one_client_keeps_the_locks_of_another, 0)
{
    struct name name = unique_name("x");
    hf_client *holder = open_client(), *passer_by = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(holder, name.text, NULL);
    check_busy(passer_by, name.text);
    hf_close(passer_by);
    check_busy(other, name.text);
    must_release(lock);
    hf_close(holder);
    hf_close(other);
}

PROMISE(p04_a_holder_that_was_paused_disturbs_nobody_when_it_wakes, HF_CAP_EXPIRY | HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    holder->options.ttl_ms = short_ttl_ms();
    pid_t pid = holder_start(holder);
    helper_stop(pid);
    hf_client *client = open_client(), *other = open_client();
    hf_lock *lock = must_acquire(client, holder->name.text, NULL);
    helper_continue(pid);
    holder_finish(holder, pid, HF_LOST);
    check_busy(other, holder->name.text);
    must_release(lock);
    hf_close(client);
    hf_close(other);
}
