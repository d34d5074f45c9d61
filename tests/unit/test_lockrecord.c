/* SPDX-License-Identifier: MIT
 *
 * test_lockrecord.c: the bytes of a lock file, without a file. A reboot is a slot with another boot's name in it.
 */
#include "engines/file/lockrecord.h"
#include "test.h"
#include <string.h>

static const struct file_record who = { .client = 7, .pid = 42, .host = "web-3", .note = "n", .name = "x" };

/* Writes the next record into the slots as the engine does; returns its token. */
static uint64_t write_next(struct lock_slots *slots, bool *synced)
{
    const struct lock_slot *last = hfi_lockrecord_current(slots, sizeof *slots);
    struct lock_slot next;
    *synced = hfi_lockrecord_next(&next, last, &who);
    slots->slot[last == &slots->slot[0] ? 1 : 0] = next;
    return next.token;
}

TEST(tokens_count_up_and_only_the_first_is_synced)
{
    struct lock_slots slots = { 0 };
    bool synced;
    CHECK_INT(1, write_next(&slots, &synced));
    CHECK(synced);
    for (uint64_t token = 2; token < 50; token++) {
        CHECK_INT(token, write_next(&slots, &synced));
        CHECK(!synced);
    }
}

TEST(the_mark_is_moved_on_disk_before_a_token_passes_it)
{
    struct lock_slots slots = { 0 };
    bool synced;
    uint64_t token = write_next(&slots, &synced);
    const uint64_t mark = hfi_lockrecord_current(&slots, sizeof slots)->mark;
    while (token < mark)
        token = write_next(&slots, &synced);
    CHECK(!synced);
    CHECK_INT(mark + 1, write_next(&slots, &synced));
    CHECK(synced);
    CHECK(hfi_lockrecord_current(&slots, sizeof slots)->mark > mark + 1);
}

/* What a power failure may leave of what was not synced: the synced slot alone, or any later pair. */
TEST(after_a_power_failure_tokens_go_on_above_all_that_were_given_out)
{
    struct lock_slots slots = { 0 };
    struct lock_slots on_disk;
    bool synced;
    write_next(&slots, &synced);
    on_disk = slots;
    uint64_t given = 0;
    for (int i = 0; i < 1000; i++)
        given = write_next(&slots, &synced);

    /* The disk comes back with the first record, written by another boot. */
    struct lock_slot *old = &on_disk.slot[0];
    struct lock_slot rewritten;
    const struct file_record record = who;
    CHECK(hfi_lockrecord_this_boot(old));
    memcpy(old->boot, "an-earlier-boot", 16);
    CHECK(hfi_lockrecord_current(&on_disk, sizeof on_disk) == NULL); /* the checksum notices */
    /* A slot that an earlier boot really wrote has a checksum of its own: make one by its own rules. */
    hfi_lockrecord_next(&rewritten, NULL, &record);
    CHECK(hfi_lockrecord_next(&rewritten, old, &record)); /* must be synced */
    CHECK(rewritten.token > given);
    CHECK(rewritten.mark > rewritten.token);
}

TEST(a_torn_write_leaves_the_older_record)
{
    struct lock_slots slots = { 0 };
    bool synced;
    write_next(&slots, &synced);
    const uint64_t second = write_next(&slots, &synced);
    CHECK(hfi_lockrecord_current(&slots, sizeof slots) == &slots.slot[1]);
    for (size_t cut = 0; cut < sizeof(struct lock_slot); cut += 8) {
        struct lock_slots torn = slots;
        struct lock_slot next;
        hfi_lockrecord_next(&next, &slots.slot[1], &who);
        memcpy(&torn.slot[0], &next, cut); /* the third write goes over slot 0 and is cut */
        const struct lock_slot *current = hfi_lockrecord_current(&torn, sizeof torn);
        REQUIRE(current != NULL);
        CHECK(current->token == second || current->token == second + 1);
    }
}

TEST(garbage_is_no_record)
{
    struct lock_slots slots;
    memset(&slots, 0, sizeof slots);
    CHECK(!hfi_lockrecord_current(&slots, sizeof slots));
    memset(&slots, 'x', sizeof slots);
    CHECK(!hfi_lockrecord_current(&slots, sizeof slots));
    struct lock_slots good = { 0 };
    bool synced;
    write_next(&good, &synced);
    CHECK(!hfi_lockrecord_current(&good, 100)); /* cut short */
    for (size_t at = 0; at < sizeof(struct lock_slot); at += 61) {
        struct lock_slots damaged = good;
        ((char *)&damaged)[at] ^= 0x40;
        CHECK(!hfi_lockrecord_current(&damaged, sizeof damaged));
    }
}
