/* SPDX-License-Identifier: MIT
 *
 * Administration: hf_inspect() shows exactly what is held, by whom and since when; hf_break() frees it, tells the
 * holder and serves who waits.
 */
#include "conformance.h"

#include <string.h>
#include <unistd.h>

#define MOST 8

struct seen {
    unsigned count, stop_after;
    struct {
        char name[256], host[256], note[200];
        hf_info info;
    } locks[MOST];
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    CHECK(info->size >= sizeof *info);
    if (seen->count < MOST) {
        strncpy(seen->locks[seen->count].name, info->name, 255);
        strncpy(seen->locks[seen->count].host, info->host, 255);
        strncpy(seen->locks[seen->count].note, info->note, 199);
        seen->locks[seen->count].info = *info;
    }
    seen->count++;
    return seen->stop_after && seen->count >= seen->stop_after;
}

static unsigned count_held(hf_client *client, const char *prefix)
{
    struct seen seen = { 0 };
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_inspect(client, prefix, see, &seen, &err), &err);
    return seen.count;
}

PROMISE(admin_inspect_finds_exactly_what_is_held, HF_CAP_INSPECT)
{
    enum { COUNT = 3 };
    struct name prefix = unique_name("in"), names[COUNT], outside = unique_name("out");
    hf_client *client = open_client(), *other = open_client();
    hf_lock *locks[COUNT], *elsewhere = must_acquire(client, outside.text, NULL);
    CHECK_INT(0, count_held(other, prefix.text));
    for (unsigned i = 0; i < COUNT; i++) {
        names[i] = numbered_name("in", i);
        locks[i] = must_acquire(client, names[i].text, NULL);
        CHECK_INT(i + 1, count_held(other, prefix.text));
    }
    /* A prefix is where a name begins, and no pattern. */
    CHECK_INT(0, count_held(other, prefix.text + 1));
    struct name pattern = unique_name("*");
    CHECK_INT(0, count_held(other, pattern.text));
    CHECK_INT(1, count_held(other, names[1].text));
    CHECK(count_held(other, NULL) >= COUNT + 1);
    for (unsigned i = 0; i < COUNT; i++) {
        must_release(locks[i]);
        CHECK_INT(COUNT - 1 - i, count_held(other, prefix.text));
    }
    must_release(elsewhere);
    hf_close(client);
    hf_close(other);
}

/* Each of its bytes becomes three in some stores. */
PROMISE(admin_inspect_of_what_no_name_begins_with_finds_nothing, HF_CAP_INSPECT)
{
    char prefix[5001] = "";
    hf_client *client = open_client();
    memset(prefix, '/', sizeof prefix - 1);
    CHECK_INT(0, count_held(client, prefix));
    if (store_can(HF_CAP_ONCE))
        CHECK_STATUS(HF_OK, hf_inspect_done(client, prefix, see, &(struct seen){ 0 }, NULL), NULL);
    hf_close(client);
}

PROMISE(admin_inspect_one_finds_that_lock_alone, HF_CAP_INSPECT)
{
    struct name name = unique_name("in"), longer = numbered_name("in", 7);
    hf_client *client = open_client(), *other = open_client();
    struct seen nobody = { 0 }, seen = { 0 }, after = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    options.note = "the one";
    hf_lock *neighbour = must_acquire(client, longer.text, NULL);
    CHECK_STATUS(HF_OK, hf_inspect_one(other, name.text, see, &nobody, &err), &err);
    CHECK_INT(0, nobody.count);
    hf_lock *lock = must_acquire(client, name.text, &options);
    CHECK_STATUS(HF_OK, hf_inspect_one(other, name.text, see, &seen, &err), &err);
    REQUIRE_INT(1, seen.count);
    CHECK_STR(name.text, seen.locks[0].name);
    CHECK_STR("the one", seen.locks[0].note);
    CHECK_INT(getpid(), seen.locks[0].info.pid);
    CHECK_INT(hf_token(lock), seen.locks[0].info.token);
    must_release(lock);
    CHECK_STATUS(HF_OK, hf_inspect_one(other, name.text, see, &after, &err), &err);
    CHECK_INT(0, after.count);
    CHECK_STATUS(HF_INVALID, hf_inspect_one(other, "", see, &after, &err), &err);
    must_release(neighbour);
    hf_close(client);
    hf_close(other);
}

PROMISE(admin_inspect_says_who_holds_it, HF_CAP_INSPECT)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct seen seen = { 0 };
    struct waiter waiter;
    hf_error err = { 0 };
    char host[256] = "";
    REQUIRE_INT(0, gethostname(host, sizeof host - 1));
    options.ttl_ms = 20000;
    options.note = "the note of 锁";
    hf_lock *lock = must_acquire(client, name.text, &options);
    waiter_start(&waiter, other, name.text, NULL);
    await_waiters(client, name.text, 1);

    CHECK_STATUS(HF_OK, hf_inspect(other, name.text, see, &seen, &err), &err);
    REQUIRE_INT(1, seen.count);
    CHECK_STR(name.text, seen.locks[0].name);
    CHECK_STR(host, seen.locks[0].host);
    CHECK_STR("the note of 锁", seen.locks[0].note);
    CHECK_INT(getpid(), seen.locks[0].info.pid);
    CHECK_INT(hf_token(lock), seen.locks[0].info.token);
    /* Stores that keep sessions know neither since when a lock is held nor how long its session was silent. */
    CHECK(seen.locks[0].info.held_ms >= 0 || seen.locks[0].info.held_ms == -1);
    CHECK(seen.locks[0].info.remaining_ms == -1 || store_can(HF_CAP_EXPIRY));
    CHECK(seen.locks[0].info.remaining_ms == -1 ||
          (seen.locks[0].info.remaining_ms > 0 && seen.locks[0].info.remaining_ms <= options.ttl_ms));
    CHECK(seen.locks[0].info.waiters == 1 || seen.locks[0].info.waiters == -1);
    must_release(lock);
    waiter_finish(&waiter);
    hf_close(client);
    hf_close(other);
}

PROMISE(admin_inspect_says_who_holds_it_in_another_process, HF_CAP_INSPECT | HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    struct seen seen = { 0 };
    hf_error err = { 0 };
    holder->options.note = "from afar";
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    CHECK_STATUS(HF_OK, hf_inspect(client, holder->name.text, see, &seen, &err), &err);
    REQUIRE_INT(1, seen.count);
    CHECK_INT(pid, seen.locks[0].info.pid);
    CHECK_INT(atomic_load(&holder->token), seen.locks[0].info.token);
    CHECK_STR("from afar", seen.locks[0].note);
    holder_finish(holder, pid, HF_OK);
    CHECK_INT(0, count_held(client, holder->name.text));
    hf_close(client);
}

PROMISE(admin_inspect_does_not_show_the_dead, HF_CAP_INSPECT | HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    holder->options.ttl_ms = ttl_ms_of_the_doomed();
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    CHECK_INT(1, count_held(client, holder->name.text));
    helper_kill(pid);
    /* Without HF_CAP_BOUND it is held until its time is over, and a server must first notice; but nobody need take it
     * for that. */
    while ((!store_can(HF_CAP_BOUND) || store_can(HF_CAP_MACHINES)) && count_held(client, holder->name.text) > 0) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        random_pause(4000);
    }
    CHECK_INT(0, count_held(client, holder->name.text));
    check_free(client, holder->name.text);
    hf_close(client);
}

PROMISE(admin_inspect_stops_when_told, HF_CAP_INSPECT)
{
    struct name prefix = unique_name("in");
    hf_client *client = open_client();
    struct seen seen = { .stop_after = 2 };
    hf_error err = { 0 };
    hf_lock *locks[4];
    for (unsigned i = 0; i < 4; i++)
        locks[i] = must_acquire(client, numbered_name("in", i).text, NULL);
    CHECK_STATUS(HF_OK, hf_inspect(client, prefix.text, see, &seen, &err), &err);
    CHECK_INT(2, seen.count);
    for (unsigned i = 0; i < 4; i++)
        must_release(locks[i]);
    hf_close(client);
}

/* --- break --- */

/* Where a lock is bound its holder is told, without asking. Else it learns of it when it renews: soon, for a test. */
static uint32_t ttl_ms_of_the_broken(void)
{
    return store_can(HF_CAP_BOUND) ? endless_ttl_ms() : 4 * short_ttl_ms();
}

PROMISE(admin_break_tells_the_holder_and_serves_the_waiter, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client(), *other = open_client(), *admin = open_client();
    hf_options options = HF_OPTIONS_INIT;
    struct loss loss = { 0 };
    struct waiter waiter;
    hf_error err = { 0 };
    record_loss(&options, &loss);
    options.ttl_ms = ttl_ms_of_the_broken();
    hf_lock *lock = must_acquire(client, name.text, &options);
    waiter_start(&waiter, other, name.text, NULL);
    await_waiters(admin, name.text, 1);
    REQUIRE_STATUS(HF_OK, hf_break(admin, name.text, &err), &err);
    gate_await(&loss.told, 1);
    await_lost_fd(lock);
    CHECK(hf_remaining_ms(lock) <= 0);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > hf_token(lock));
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    check_busy(admin, name.text);
    must_release(waiter.lock);
    CHECK_INT(1, gate_count(&loss.told));
    hf_close(client);
    hf_close(other);
    hf_close(admin);
}

PROMISE(admin_break_reaches_another_process, HF_CAP_BREAK | HF_CAP_PROCESSES)
{
    struct holder *holder = holder_new("x");
    hf_error err = { 0 };
    holder->options.ttl_ms = ttl_ms_of_the_broken();
    pid_t pid = holder_start(holder);
    hf_client *client = open_client();
    struct waiter waiter;
    waiter_start(&waiter, client, holder->name.text, NULL);
    await_waiters(client, holder->name.text, 1);
    REQUIRE_STATUS(HF_OK, hf_break(client, holder->name.text, &err), &err);
    waiter_join(&waiter, HF_OK);
    gate_await(&holder->told, 1);
    /* A server tells the holder and serves the waiter at the same time. */
    CHECK(atomic_load(&holder->believed_ns) <= waiter.ended_ns || store_can(HF_CAP_EXPIRY) ||
          store_can(HF_CAP_MACHINES));
    holder_finish(holder, pid, HF_LOST);
    CHECK(waiter.token > atomic_load(&holder->token));
    must_release(waiter.lock);
    hf_close(client);
}

PROMISE(admin_break_of_a_free_lock_is_fine, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_break(client, name.text, &err), &err);
    must_release(must_acquire(client, name.text, NULL));
    CHECK_STATUS(HF_OK, hf_break(client, name.text, &err), &err);
    check_free(client, name.text);
    hf_close(client);
}

PROMISE(admin_break_of_ones_own_lock_is_a_loss, HF_CAP_BREAK)
{
    struct name name = unique_name("x");
    hf_client *client = open_client();
    hf_error err = { 0 };
    hf_options options = HF_OPTIONS_INIT;
    options.ttl_ms = ttl_ms_of_the_broken();
    hf_lock *lock = must_acquire(client, name.text, &options);
    REQUIRE_STATUS(HF_OK, hf_break(client, name.text, &err), &err);
    await_lost_fd(lock);
    /* It is not re-entered. */
    hf_lock *again = must_acquire(client, name.text, NULL);
    CHECK(hf_token(again) > hf_token(lock));
    CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
    check_busy(client, name.text);
    must_release(again);
    hf_close(client);
}

/* --- what it is --- */

/* "a: b:", one of which the store's URL begins with. */
static bool is_of_store(const char *schemes)
{
    const size_t length = strcspn(store_url, ":") + 1;
    for (const char *scheme = schemes; *scheme; scheme += strspn(scheme, " ")) {
        const size_t its_length = strcspn(scheme, " ");
        if (its_length == length && strncmp(scheme, store_url, length) == 0)
            return true;
        scheme += its_length;
    }
    return false;
}

static void find_engine(const hf_engine_info *info, void *arg)
{
    uint32_t *found = arg;
    CHECK(*info->name && *info->schemes && *info->summary);
    CHECK(info->present ? *info->missing == '\0' : *info->missing != '\0' && info->caps == 0);
    if (!is_of_store(info->schemes))
        return;
    ++*found;
    CHECK(info->present);
    /* An option may take some away, or bind the lock to a connection. */
    if (strchr(store_url, '?'))
        CHECK_INT(0, store_caps & ~(info->caps | HF_CAP_BOUND));
    else
        CHECK_INT(info->caps, store_caps);
}

PROMISE(admin_capabilities_are_those_of_the_engine, 0)
{
    hf_client *client = open_client();
    uint32_t found = 0;
    CHECK_INT(store_caps, hf_capabilities(client));
    hf_engines(find_engine, &found);
    CHECK_INT(1, found);
    /* Something must end the lock of the dead. */
    CHECK(store_can(HF_CAP_EXPIRY) || store_can(HF_CAP_BOUND));
    hf_close(client);
}
