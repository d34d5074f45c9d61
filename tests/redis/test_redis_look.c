/* SPDX-License-Identifier: MIT
 *
 * test_redis_look.c: listing and breaking locks on a real server, among keys that belong to others.
 */
#include "redis_support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "the-lock"

#define SEEN_MOST 40

struct seen {
    char waiting[400]; /* the waiters' notes, in order */
    int count;
    char names[SEEN_MOST][256];
    hf_info last; /* without the texts */
    char host[80], note[130];
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    REQUIRE(seen->count < SEEN_MOST);
    snprintf(seen->names[seen->count++], sizeof seen->names[0], "%s", info->name);
    seen->last = *info;
    snprintf(seen->host, sizeof seen->host, "%s", info->host);
    snprintf(seen->note, sizeof seen->note, "%s", info->note);
    seen->waiting[0] = 0;
    for (int64_t i = 0; i < info->waiters; i++) {
        const size_t used = strlen(seen->waiting);
        const char *note = strchr(info->waiting[i], ' ');
        snprintf(seen->waiting + used, sizeof seen->waiting - used, "%s|", note ? note + 1 : "");
    }
    return 0;
}

static struct seen *look(hf_client *client, const char *prefix)
{
    struct seen *seen = shared_new(sizeof *seen);
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_inspect(client, prefix, see, seen, &err), &err);
    return seen;
}

static int times_seen(const struct seen *seen, const char *name)
{
    int times = 0;
    for (int i = 0; i < seen->count; i++)
        times += strcmp(seen->names[i], name) == 0;
    return times;
}

TEST(a_lock_is_shown_with_its_holder_and_waiters)
{
    struct redis_server *server = serve("");
    struct waiter waiters[3];
    char host[80] = "";
    hf_client *client = open_client();
    hf_client *looking = open_client();
    hf_options options = with_ttl(60000);
    options.note = "nightly report, run 7";
    hf_lock *lock = must_acquire(client, NAME, &options);
    static const char *const notes[3] = { "first", "second of all", "third" };
    for (int i = 0; i < 3; i++) {
        hf_options waiting = HF_OPTIONS_INIT;
        waiting.note = notes[i];
        waiting.owner = HF_OWNER_HANDLE;
        waiter_start(&waiters[i], client, NAME, &waiting);
        await_queue(server, NAME, i + 1);
    }
    const struct seen *seen = look(looking, NULL);
    REQUIRE_INT(1, seen->count);
    CHECK_STR(NAME, seen->names[0]);
    CHECK_INT(3, seen->last.waiters);
    CHECK_STR("first|second of all|third|", seen->waiting);
    CHECK_INT(getpid(), seen->last.pid);
    REQUIRE_INT(0, gethostname(host, sizeof host - 1));
    CHECK_STR(host, seen->host);
    CHECK_STR("nightly report, run 7", seen->note);
    CHECK_INT(hf_token(lock), seen->last.token);
    CHECK(seen->last.held_ms >= 0 && seen->last.held_ms < 60000);
    CHECK(seen->last.remaining_ms > 0 && seen->last.remaining_ms <= 60000);
    CHECK_STATUS(HF_OK, hf_cancel(client, NAME), NULL);
    for (int i = 0; i < 3; i++)
        waiter_join(&waiters[i], HF_CANCELED);
    must_release(lock);
    CHECK_INT(0, look(looking, NULL)->count);
    hf_close(looking);
    hf_close(client);
}

TEST(one_lock_is_looked_at_without_scanning)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    struct seen *seen = shared_new(sizeof *seen), *nobody = shared_new(sizeof *nobody);
    hf_error err = { 0 };
    hf_lock *lock = must_acquire(client, NAME, NULL);
    CHECK_STATUS(HF_OK, hf_inspect_one(client, NAME, see, seen, &err), &err);
    CHECK_STATUS(HF_OK, hf_inspect_one(client, "the-loc", see, nobody, &err), &err);
    CHECK_INT(1, seen->count);
    CHECK_STR(NAME, seen->names[0]);
    CHECK_INT(0, nobody->count);
    CHECK_INT(0, redis_server_calls(server, "scan"));
    must_release(lock);
    hf_close(client);
}

/* Characters that mean something to SCAN, to a cluster, or to the keys themselves. */
static const char *const odd_names[] = {
    "a*b",  "a?b",  "axb",   "[x]",  "x",          "{x}",    "{x}:",       "{x}:q", "x:q",    "x}",
    "{x",   "}x{",  "{}",    "{}x",  "a{tag}b",    "{tag}b", "a{tag}",     "*",     "hf:{x}", "hf:{x}:q",
    "\\",   "\\*",  "a\\*b", "^x",   "with blank", "{x}}",   "{{x}}",      "锁",    "%",      "%00",
    "x}:q", "x}:g", "}:q",   "};:q", "{-}}",       "{-}};",  "a{tag}b::q",
};

TEST(odd_names_are_different_locks_and_are_found_again)
{
    enum { COUNT = sizeof odd_names / sizeof *odd_names };
    serve("");
    hf_lock *locks[COUNT];
    hf_client *client = open_client();
    hf_options options = stranger(0);
    for (size_t i = 0; i < COUNT; i++)
        locks[i] = must_acquire(client, odd_names[i], &options); /* busy, and for ever, if it were another's */
    const struct seen *all = look(client, NULL);
    CHECK_INT(COUNT, all->count);
    for (size_t i = 0; i < COUNT; i++) {
        if (times_seen(all, odd_names[i]) != 1)
            FAIL("%s was seen %d times", odd_names[i], times_seen(all, odd_names[i]));
        const struct seen *some = look(client, odd_names[i]);
        CHECK_INT(1, times_seen(some, odd_names[i]));
        for (int j = 0; j < some->count; j++)
            CHECK(strncmp(some->names[j], odd_names[i], strlen(odd_names[i])) == 0);
    }
    for (size_t i = 0; i < COUNT; i++) {
        hf_error err = { 0 };
        CHECK_STATUS(HF_OK, hf_break(client, odd_names[i], &err), &err);
        CHECK_INT(COUNT - (int)i - 1, look(client, NULL)->count);
        hf_release(locks[i], NULL);
    }
    hf_close(client);
}

TEST(odd_prefixes_are_taken_literally)
{
    struct redis_server *server = serve("");
    hf_client *odd = open_url("%s?prefix=a*[b]?{c}%%5C", server->url);
    hf_client *plain = open_url("%s?prefix=a", server->url);
    hf_lock *lock = must_acquire(odd, NAME, NULL);
    hf_lock *other = must_acquire(plain, NAME, NULL);
    const struct seen *seen = look(odd, NULL);
    CHECK_INT(1, seen->count);
    CHECK_INT(1, times_seen(seen, NAME));
    CHECK_INT(1, times_seen(look(plain, NULL), NAME));
    must_release(lock);
    must_release(other);
    hf_close(odd);
    hf_close(plain);
}

/* In the dialects of others the key is the name, and beside it are keys that only Holdfast knows of. */
TEST(a_name_that_is_the_key_of_another_locks_companion_is_refused)
{
    static const char *const queries[] = { "?dialect=plain", "?dialect=redisson" };
    static const char *const names[] = { "hf:{x}:t", "hf:{x}:w", "hf:{x}:g", "hf::{x}y:t", "hf::{x}y:w" };
    for (size_t i = 0; i < 2; i++) {
        struct redis_server *server = serve("");
        hf_client *client = open_url("%s%s", server->url, queries[i]);
        hf_client *prefixed = open_url("%s%s&prefix=hf:{x", server->url, queries[i]);
        hf_error err = { 0 };
        char before[200], after[200];
        hf_lock *lock = must_acquire(client, "x", NULL), *tagged = must_acquire(client, "{x}y", NULL);
        redis_server_text(server, before, sizeof before, "GET hf:{x}:t");
        CHECK_INT(4, redis_server_number(server, "DBSIZE"));
        for (size_t j = 0; j < sizeof names / sizeof *names; j++) {
            refuse_lock(client, names[j], HF_INVALID, "another lock");
            CHECK_STATUS(HF_INVALID, hf_break(client, names[j], &err), &err);
            CHECK_INT(0, look(client, names[j])->count);
        }
        refuse_lock(prefixed, "}:t", HF_INVALID, "another lock");
        CHECK_INT(4, redis_server_number(server, "DBSIZE"));
        redis_server_text(server, after, sizeof after, "GET hf:{x}:t");
        CHECK_STR(before, after);
        if (i == 1)
            refuse_lock(client, "redisson_unlock_latch:{x}:1", HF_INVALID, "another lock");
        must_release(must_acquire(client, "hf:{x}", NULL)); /* which is nobody's */
        must_release(must_acquire(client, "hf:x:t", NULL));
        must_release(lock);
        must_release(tagged);
        hf_close(client);
        hf_close(prefixed);
    }
}

/* Keys of others under the same prefix are neither shown nor in the way. */
TEST(keys_of_others_do_not_disturb)
{
    struct redis_server *server = serve("");
    hf_client *client = open_client();
    redis_server_do(server, "EVAL %s 0", "for i = 1, 100000 do redis.call('set', 'other:' .. i, i) end");
    redis_server_do(server, "EVAL %s 0", "for i = 1, 2000 do redis.call('hset', 'hash:' .. i, 'o', i) end");
    redis_server_do(server, "HSET hf:settings colour blue");
    redis_server_do(server, "HSET hf:{settings} colour blue");
    redis_server_do(server, "HSET hf:{half} o somebody u 99999999999999999");
    redis_server_do(server, "HSET hf:{nonsense} o a u b t c i d");
    redis_server_do(server, "SET hf:{text} theirs");
    redis_server_do(server, "RPUSH hf:{list} theirs");
    hf_lock *lock = must_acquire(client, NAME, NULL);
    const struct seen *seen = look(client, NULL);
    CHECK_INT(1, times_seen(seen, NAME));
    CHECK_INT(0, times_seen(seen, "settings"));
    CHECK_INT(0, times_seen(seen, "text"));
    CHECK_INT(0, times_seen(seen, "list"));
    CHECK_INT(0, redis_server_calls(server, "keys"));
    must_release(lock);
    hf_close(client);
}

/* --------------------------------------------------------------------------------------------------------- breaking */

TEST(a_broken_lock_goes_to_the_first_waiter_and_its_holder_learns_of_it)
{
    struct redis_server *server = serve("");
    struct waiter waiter;
    struct loss loss = { 0 };
    hf_error err = { 0 };
    hf_client *client = open_client();
    hf_client *admin = open_client();
    hf_options options = with_ttl(test_ms(2000));
    record_loss(&options, &loss);
    hf_lock *lock = must_acquire(client, NAME, &options);
    waiter_start(&waiter, admin, NAME, NULL);
    await_queue(server, NAME, 1);
    CHECK_STATUS(HF_OK, hf_break(admin, NAME, &err), &err);
    waiter_join(&waiter, HF_OK);
    CHECK(waiter.token > hf_token(lock));
    gate_await(&loss.told, 1);
    CHECK_STATUS(HF_LOST, hf_release(lock, &err), &err);
    check_busy(client, NAME);
    must_release(waiter.lock);
    CHECK_STATUS(HF_OK, hf_break(admin, NAME, &err), &err); /* it is free already */
    CHECK_STATUS(HF_OK, hf_break(admin, "never seen", &err), &err);
    CHECK(!server_has_keys(server, "never seen"));
    hf_close(admin);
    hf_close(client);
}

TEST(a_lock_whose_time_is_over_is_not_shown)
{
    serve("");
    struct holder *holder = holder_new("unused");
    snprintf(holder->name.text, sizeof holder->name.text, "%s", NAME);
    holder->options.ttl_ms = short_ttl_ms();
    pid_t pid = holder_start(holder);
    helper_kill(pid);
    hf_client *client = open_client();
    while (look(client, NULL)->count != 0) {
        REQUIRE(test_now_ns() < test_deadline_ns() - 1000000000LL);
        pause_ms(20);
    }
    check_free(client, NAME);
    hf_close(client);
}
