/* SPDX-License-Identifier: MIT
 *
 * line_members.c: see line_members.h.
 */
#include "line_members.h"
#include <pthread.h>
#include <string.h>

hf_client *line_client(int64_t handoff_ms)
{
    atomic_store(&script_reserves, true);
    return scripted_line_client(0, handoff_ms);
}

hf_client *line_mem_client(int64_t handoff_ms)
{
    hf_client_options options = HF_CLIENT_OPTIONS_INIT;
    hf_client *client = NULL;
    hf_error err;
    options.handoff_ms = handoff_ms;
    REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", &options, &err), &err);
    return client;
}

size_t line_length(hf_client *client)
{
    size_t count = 0;
    hfi_client_lock(client);
    for (size_t i = 0; i < HFI_LINES; i++) {
        for (const struct hfi_turn *turn = client->lines[i]; turn; turn = turn->next)
            count++;
    }
    hfi_client_unlock(client);
    return count;
}

void await_line_length(hf_client *client, size_t count)
{
    while (line_length(client) != count) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        await_a_moment();
    }
}

/* --- threads --- */

static void *run(void *arg)
{
    struct member *member = arg;
    member->status = hf_acquire(&member->lock, member->client, "x", &member->options, &member->err);
    gate_pass(&member->ended);
    return NULL;
}

static void note_loss(hf_lock *lock, const char *why, void *arg)
{
    struct member *member = arg;
    (void)lock;
    (void)why;
    gate_pass(&member->told);
}

void member_prepare(struct member *member, hf_client *client)
{
    const hf_options options = HF_OPTIONS_INIT;
    memset(member, 0, sizeof *member);
    member->client = client;
    member->options = options;
    member->options.owner = HF_OWNER_HANDLE;
    member->options.on_lost = note_loss;
    member->options.arg = member;
}

void member_start(struct member *member)
{
    REQUIRE_INT(0, pthread_create(&member->thread, NULL, run, member));
}

void members_line_up(struct member *members, size_t count)
{
    hf_client *client = members[0].client;
    const size_t before = line_length(client);
    for (size_t i = 0; i < count; i++) {
        member_start(&members[i]);
        await_line_length(client, before + i + 1);
    }
}

void member_join(struct member *member, hf_status expected)
{
    gate_await(&member->ended, 1);
    REQUIRE_INT(0, pthread_join(member->thread, NULL));
    REQUIRE_STATUS(expected, member->status, &member->err);
    CHECK((member->lock != NULL) == (expected == HF_OK));
}

hf_lock *line_hold(hf_client *client, const hf_options *options)
{
    hf_lock *lock = NULL;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, "x", options, &err), &err);
    return lock;
}

void line_give(hf_lock *lock)
{
    hf_error err;
    CHECK_STATUS(HF_OK, hf_release(lock, &err), &err);
}

void members_serve_first(struct member *members, size_t count)
{
    hf_lock *lock = line_hold(members[0].client, NULL);
    members_line_up(members, count);
    line_give(lock);
    member_join(&members[0], HF_OK);
}

void members_prepare_two(struct member members[2], int64_t handoff_ms)
{
    hf_client *client = line_client(handoff_ms);
    member_prepare(&members[0], client);
    member_prepare(&members[1], client);
}

size_t line_asking(hf_client *client)
{
    size_t count = 0;
    hfi_client_lock(client);
    for (const struct hfi_wait *wait = client->waits; wait; wait = wait->next)
        count++;
    hfi_client_unlock(client);
    return count;
}
