/* SPDX-License-Identifier: MIT
 *
 * test_mysql_mixed.c: clients that use different strategies for the same name.
 */
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

static const char *const rows[] = { "lease", "insert", "version" };
#define ROWS 3

static hf_client *open_with(const struct mysql_server *server, const char *strategy)
{
    use_strategy(server, strategy);
    return open_client();
}

struct seen {
    int count;
    uint64_t token;
};

static int see(const hf_info *info, void *arg)
{
    struct seen *seen = arg;
    seen->count++;
    seen->token = info->token;
    return 0;
}

/* What both see of it. */
static void check_seen(hf_client *one, hf_client *other, const char *name, int held, uint64_t token)
{
    hf_client *const clients[] = { one, other };
    for (size_t i = 0; i < 2; i++) {
        struct seen seen = { 0 }, listed = { 0 };
        CHECK_STATUS(HF_OK, hf_inspect_one(clients[i], name, see, &seen, NULL), NULL);
        CHECK_STATUS(HF_OK, hf_inspect(clients[i], name, see, &listed, NULL), NULL);
        CHECK_INT(held, seen.count);
        CHECK_INT(held, listed.count);
        CHECK_INT(token, seen.token);
        CHECK_INT(token, listed.token);
    }
}

/* Held by the one, it is held to the other, which waits for it and gets it; then the other way round. */
static void check_pair(struct mysql_server *server, const char *one, const char *other)
{
    char name[60];
    snprintf(name, sizeof name, "%s-%s", one, other);
    hf_client *clients[] = { open_with(server, one), open_with(server, other) };
    uint64_t token = 0;
    for (int round = 0; round < 4; round++) {
        hf_client *holder = clients[round % 2], *next = clients[1 - round % 2];
        hf_options options = HF_OPTIONS_INIT;
        struct waiter waiter;
        options.ttl_ms = endless_ttl_ms();
        hf_lock *lock = must_acquire(holder, name, &options);
        CHECK(hf_token(lock) > token);
        check_busy(next, name);
        check_seen(holder, next, name, 1, hf_token(lock));
        waiter_start(&waiter, next, name, NULL);
        await_waiters(next, name, 1);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, NULL), NULL);
        token = hf_token(lock);
        must_release(lock);
        waiter_join(&waiter, HF_OK);
        CHECK(waiter.token > token);
        token = waiter.token;
        check_busy(holder, name);
        must_release(waiter.lock);
        check_seen(holder, next, name, 0, 0);
        check_free(round / 2 ? holder : next, name);
    }
    hf_close(clients[0]);
    hf_close(clients[1]);
}

TEST_LIMIT(row_strategies_exclude_each_other, 90)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < ROWS; j++) {
            if (i != j)
                check_pair(server, rows[i], rows[j]);
        }
    }
}

/* One that died is followed by one with another strategy, and a break reaches either. */
TEST_LIMIT(what_a_row_strategy_leaves_behind_is_not_in_the_way_of_another, 90)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < ROWS; j++) {
            if (i == j)
                continue;
            char name[60];
            hf_options options = HF_OPTIONS_INIT;
            options.ttl_ms = short_ttl_ms();
            options.renew = HF_RENEW_OFF;
            options.owner = HF_OWNER_HANDLE;
            snprintf(name, sizeof name, "left by %s to %s", rows[i], rows[j]);
            hf_client *client = open_with(server, rows[i]), *other = open_with(server, rows[j]);
            hf_lock *lock = must_acquire(client, name, &options);
            hf_lock *next = must_acquire(other, name, NULL); /* its time is over */
            CHECK_STATUS(HF_LOST, hf_release(lock, NULL), NULL);
            CHECK_STATUS(HF_OK, hf_break(client, name, NULL), NULL);
            check_free(other, name);
            CHECK_STATUS(HF_LOST, hf_release(next, NULL), NULL);
            check_free(client, name);
            hf_close(client);
            hf_close(other);
        }
    }
}

/* The row that for-update locks stays, and is nobody's. */
TEST_LIMIT(the_row_of_for_update_is_free_to_others, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < ROWS; i++) {
        hf_client *client = open_with(server, "for-update"), *other = open_with(server, rows[i]);
        must_release(must_acquire(client, rows[i], NULL));
        check_seen(client, other, rows[i], 0, 0);
        check_free(other, rows[i]);
        hf_close(client);
        hf_close(other);
    }
}

/* Or it would keep the holder from renewing. */
TEST_LIMIT(for_update_refuses_what_is_held_as_a_row, 60)
{
    struct mysql_server *server = start_store("lease", "");
    for (size_t i = 0; i < ROWS; i++) {
        hf_client *client = open_with(server, rows[i]), *other = open_with(server, "for-update");
        hf_options options = HF_OPTIONS_INIT;
        hf_error err = { 0 };
        hf_lock *theirs = NULL;
        options.ttl_ms = endless_ttl_ms();
        hf_lock *lock = must_acquire(client, rows[i], &options);
        CHECK_STATUS(HF_INVALID, hf_try_acquire(&theirs, other, rows[i], NULL, &err), &err);
        CHECK(strstr(err.message, "use the same one everywhere") != NULL);
        CHECK_STATUS(HF_INVALID, hf_acquire(&theirs, other, rows[i], NULL, &err), &err);
        CHECK_STATUS(HF_OK, hf_renew(lock, 0, &err), &err);
        must_release(lock);
        check_free(other, rows[i]);
        hf_close(client);
        hf_close(other);
    }
}
