/* SPDX-License-Identifier: MIT
 *
 * test_redis_redlock_once.c: what is done once in a while, on redlock: masters of which some forget, are down, or
 * answer nothing. The record that the work of NAME is done is the string hf:{NAME}:d.
 */
#include "redlock_support.h"

#include <string.h>

#define HOUR_MS 3600000

static hf_options once(uint32_t ttl_ms)
{
    hf_options options = stranger(ttl_ms);
    options.once_per_ms = HOUR_MS;
    options.note = "backup";
    return options;
}

/* "" if this master has none, or has it forgotten. */
static void read_record(struct redis_server *server, char out[300])
{
    redis_server_text(server, out, 300, "GET hf:{%s}:d", NAME);
    if (strchr(out, ' ') && strcmp(strchr(out, ' '), " -") == 0)
        out[0] = 0;
}

/* How many of the masters that run have one. */
static int records(struct redis_group *group)
{
    int count = 0;
    for (int i = 0; i < group->count; i++) {
        char record[300] = "";
        if (redis_server_runs(group->server[i]))
            read_record(group->server[i], record);
        count += *record != 0;
    }
    return count;
}

static void await_records(struct redis_group *group, int count)
{
    while (records(group) != count)
        await_a_moment();
}

/* All masters that run have had the lock, and have the record. */
static uint64_t do_it(struct redis_group *group, hf_client *client)
{
    const hf_options options = once(endless_ttl_ms());
    hf_error err = { 0 };
    hf_lock *lock = acquire_on_all(group, client, &options, NULL);
    const uint64_t token = hf_token(lock);
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
    await_records(group, running(group));
    await_clean(group);
    return token;
}

static void must_forget(hf_client *client)
{
    hf_error err = { 0 };
    CHECK_STATUS(HF_OK, hf_forget_done(client, NAME, &err), &err);
}

/* A master may have been slow to give back what the last one had, and it may take another try. */
static hf_status ask(hf_client *client)
{
    const hf_options options = once(endless_ttl_ms());
    hf_error err = { 0 };
    hf_lock *lock = NULL;
    const hf_status status = hf_acquire(&lock, client, NAME, &options, &err);
    if (status == HF_DONE)
        check_words(&err, "backup");
    else if (CHECK_STATUS(HF_OK, status, &err))
        must_release(lock);
    return status;
}

static int64_t write_backs(struct redis_group *group, hf_client *client)
{
    const hf_options options = once(endless_ttl_ms());
    int64_t before[REDIS_GROUP_MOST];
    must_forget(client);
    note_sent(group, before);
    CHECK_STATUS(HF_OK, hf_release_done(must_acquire(client, NAME, &options), NULL), NULL);
    await_clean(group);
    CHECK(records(group) >= 2);
    return write_backs_since(group, before, 1);
}

TEST(a_pair_for_once_is_two_commands_to_each_master)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    teach_masters(group, client);
    do_it(group, client);
    while (write_backs(group, client) != 0)
        await_a_moment();
    hf_close(client);
}

/* It says who did it, and lasts by the clock of each master. */
TEST(each_master_has_the_record_and_ends_it_by_itself)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    const uint64_t token = do_it(group, client);
    for (int i = 0; i < 3; i++) {
        char record[300], number[24];
        const int64_t left_ms = redis_server_number(group->server[i], "PTTL hf:{%s}:d", NAME);
        read_record(group->server[i], record);
        snprintf(number, sizeof number, "%llu ", (unsigned long long)token);
        CHECK(strncmp(record, number, strlen(number)) == 0);
        CHECK(strstr(record, " backup") != NULL);
        CHECK(left_ms > HOUR_MS - 60000 && left_ms <= HOUR_MS);
        redis_server_do(group->server[i], "PEXPIRE hf:{%s}:d 1", NAME);
    }
    await_records(group, 0);
    CHECK_STATUS(HF_OK, ask(client), NULL);
    hf_close(client);
}

/* The others have forgotten it, and vote: what they have given must be given back. */
TEST(one_record_is_enough_and_no_vote_is_left)
{
    struct redis_group *group = start_masters(5, NULL);
    hf_client *client = open_client();
    for (int kept = 0; kept < 5; kept++) {
        do_it(group, client);
        for (int i = 0; i < 5; i++) {
            if (i != kept)
                redis_server_do(group->server[i], "DEL hf:{%s}:d", NAME);
        }
        redis_server_pause(group->server[(kept + 1) % 5]); /* so that there is no majority without that one */
        redis_server_pause(group->server[(kept + 2) % 5]);
        CHECK_STATUS(HF_DONE, ask(client), NULL);
        redis_server_continue(group->server[(kept + 1) % 5]);
        redis_server_continue(group->server[(kept + 2) % 5]);
        await_clean(group);
        must_forget(client);
    }
    hf_close(client);
}

/* Done by a majority; whichever majority is asked later. */
TEST(what_a_majority_has_recorded_is_known_to_every_majority)
{
    struct redis_group *group = start_masters(3, DURABLE);
    hf_client *client = open_client();
    for (int down = 0; down < 3; down++) {
        redis_server_kill(group->server[down]);
        do_it(group, client);
        redis_server_restart(group->server[down], true, "");
        redis_server_kill(group->server[(down + 1) % 3]);
        CHECK_STATUS(HF_DONE, ask(client), NULL);
        redis_server_restart(group->server[(down + 1) % 3], true, "");
        while (hf_forget_done(client, NAME, NULL) != HF_OK) /* as soon as all are back */
            await_a_moment();
        CHECK_INT(0, records(group));
    }
    hf_close(client);
}

static void restart_all(struct redis_group *group, bool with_data)
{
    for (int i = 0; i < group->count; i++) {
        redis_server_kill(group->server[i]);
        redis_server_restart(group->server[i], with_data, "");
    }
}

TEST(the_record_is_as_durable_as_the_masters)
{
    struct redis_group *group = start_masters(3, DURABLE);
    hf_client *client = open_client();
    do_it(group, client);
    restart_all(group, true);
    CHECK_STATUS(HF_DONE, ask(client), NULL);
    restart_all(group, false);
    CHECK_STATUS(HF_OK, ask(client), NULL);
    hf_close(client);
}

/* The masters do what they are asked when they go on, and their answers are lost. */
TEST(a_release_without_answers_is_recorded_once)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client(), *other = open_client();
    const hf_options options = once(endless_ttl_ms());
    hf_error err = { 0 };
    do_it(group, client);
    must_forget(client);
    hf_lock *lock = acquire_on_all(group, client, &options, NULL);
    const uint64_t token = hf_token(lock);
    strike(group, 0, PAUSED);
    strike(group, 2, PAUSED);
    const hf_status status = hf_release_done(lock, &err);
    CHECK(status == HF_UNAVAILABLE || status == HF_UNKNOWN);
    heal(group, 0, PAUSED);
    heal(group, 2, PAUSED);
    await_records(group, 3);
    char first[3][300], then[300];
    for (int i = 0; i < 3; i++) {
        read_record(group->server[i], first[i]);
        CHECK_INT(token, strtoull(first[i], NULL, 10));
    }
    hf_close(client); /* not before the release is finished, or given up */
    for (int i = 0; i < 3; i++) {
        read_record(group->server[i], then);
        CHECK_STR(first[i], then);
    }
    CHECK_STATUS(HF_DONE, ask(other), NULL);
    await_clean(group);
    hf_close(other);
}

/* The third master still had it, and let go of it with a record. */
TEST(what_a_majority_has_lost_leaves_no_record)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    const hf_options options = once(endless_ttl_ms());
    hf_error err = { 0 };
    for (int kept = 0; kept < 3; kept++) {
        hf_lock *lock = acquire_on_all(group, client, &options, NULL);
        for (int i = 0; i < 3; i++) {
            if (i != kept)
                redis_server_do(group->server[i], "DEL %s", NAME);
        }
        CHECK_STATUS(HF_LOST, hf_release_done(lock, &err), &err);
        await_clean(group);
        await_records(group, 0);
        CHECK_STATUS(HF_OK, ask(client), NULL);
    }
    hf_close(client);
}

/* It says so, works as long as that master is away, and can be repeated when it is back. */
TEST(to_forget_needs_all_masters)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    hf_error err = { 0 };
    do_it(group, client);
    strike(group, 1, PAUSED);
    CHECK_STATUS(HF_UNAVAILABLE, hf_forget_done(client, NAME, &err), &err);
    check_words(&err, "only 2 of 3 masters have forgotten it");
    CHECK_INT(0, records(group));
    CHECK_STATUS(HF_OK, ask(client), NULL);
    heal(group, 1, PAUSED);
    do {
        await_a_moment();
    } while (hf_forget_done(client, NAME, &err) != HF_OK);
    CHECK_INT(0, records(group));
    CHECK_STATUS(HF_OK, ask(client), NULL);
    hf_close(client);
}

TEST(a_release_is_recorded_though_memory_is_short)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    const hf_options options = once(endless_ttl_ms());
    hf_error err = { 0 };
    hf_lock *lock = acquire_on_all(group, client, &options, NULL);
    for (int i = 0; i < 3; i++)
        redis_server_do(group->server[i], "CONFIG SET maxmemory 1");
    CHECK_STATUS(HF_OK, hf_release_done(lock, &err), &err);
    await_records(group, 3);
    CHECK_STATUS(HF_DONE, ask(client), NULL);
    must_forget(client);
    CHECK_INT(0, records(group));
    hf_close(client);
}

static int count(const hf_info *info, void *arg)
{
    CHECK_STR(NAME, info->name);
    CHECK_STR("backup", info->note);
    (*(int *)arg)++;
    return 0;
}

/* The others answer, and it is left alone for a while: but not by those who want to know all. */
TEST(a_record_of_a_master_that_was_slow_a_moment_ago_is_listed)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    hf_error err = { 0 };
    int seen = 0;
    do_it(group, client);
    for (int i = 1; i < 3; i++)
        redis_server_do(group->server[i], "DEL hf:{%s}:d", NAME);
    redis_server_pause(group->server[0]);
    for (int i = 0; i < 40; i++) { /* it fails several times, and the pauses between grow */
        hf_lock *lock = NULL;
        if (hf_try_acquire(&lock, client, "another", NULL, NULL) == HF_OK)
            hf_release(lock, NULL);
        pause_ms(50);
    }
    redis_server_continue(group->server[0]);
    CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, count, &seen, &err), &err);
    CHECK_INT(1, seen);
    hf_close(client);
}

/* On whichever master the record is; and with one of them down. */
TEST(a_record_of_one_master_is_listed)
{
    struct redis_group *group = start_masters(3, NULL);
    hf_client *client = open_client();
    hf_error err = { 0 };
    for (int kept = 0; kept < 3; kept++) {
        int seen = 0;
        do_it(group, client);
        for (int i = 0; i < 3; i++) {
            if (i != kept)
                redis_server_do(group->server[i], "DEL hf:{%s}:d", NAME);
        }
        CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, count, &seen, &err), &err);
        CHECK_INT(1, seen);
        redis_server_kill(group->server[(kept + 1) % 3]);
        CHECK_STATUS(HF_OK, hf_inspect_done(client, NAME, count, &seen, &err), &err);
        CHECK_INT(2, seen);
        redis_server_restart(group->server[(kept + 1) % 3], false, "");
        while (hf_forget_done(client, NAME, NULL) != HF_OK)
            await_a_moment();
        CHECK_STATUS(HF_OK, hf_inspect_done(client, NULL, count, &seen, &err), &err);
        CHECK_INT(2, seen);
    }
    hf_close(client);
}
