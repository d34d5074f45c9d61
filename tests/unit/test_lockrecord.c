/* SPDX-License-Identifier: MIT
 *
 * test_lockrecord.c: the bytes of a lock file, without a file. A reboot is a slot with another boot's name in it.
 */
#include "engines/file/lockrecord.h"
#include "test.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const struct file_record who = { .client = 7, .pid = 42, .host = "web-3", .note = "n", .name = "x" };

/* Writes the next record into the slots as the engine does; returns its token. */
static uint64_t write_next(struct lock_slots *slots, bool *synced)
{
    const struct lock_slot *last = hfi_lockrecord_current(slots, sizeof *slots);
    struct lock_slot next;
    *synced = hfi_lockrecord_next(&next, last, 0, &who);
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
    hfi_lockrecord_next(&rewritten, NULL, 0, &record);
    CHECK(hfi_lockrecord_next(&rewritten, old, 0, &record)); /* must be synced */
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
        hfi_lockrecord_next(&next, &slots.slot[1], 0, &who);
        memcpy(&torn.slot[0], &next, cut); /* the third write goes over slot 0 and is cut */
        const struct lock_slot *current = hfi_lockrecord_current(&torn, sizeof torn);
        REQUIRE(current != NULL);
        CHECK(current->token == second || current->token == second + 1);
    }
}

/* --- a file, and a disk that keeps of it what it likes --- */

#define SECTOR 512
#define SECTORS 4
#define UNSYNCED 3

static int file_fd = -1;
static char disk[SECTORS][SECTOR]; /* what the disk is certain to have */
static int syncs;

static void read_file(char image[SECTORS][SECTOR])
{
    memset(image, 0, SECTORS * SECTOR);
    REQUIRE(pread(file_fd, image, SECTORS * SECTOR, 0) >= 0);
}

/* Instead of the C library's: notes what is there when the engine has it written to disk. */
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
int fdatasync(int fd)
{
    if (fd == file_fd)
        read_file(disk);
    syncs++;
    return 0;
}

static uint64_t write_file(void)
{
    const struct file_directory directory = { .fd = file_fd };
    static uint64_t queue; /* is in a record's second sector, nearly all else in its first */
    struct file_record record = who;
    record.queue = ++queue;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hfi_file_write_record(file_fd, &directory, &record, &err), &err);
    return record.token;
}

/* A record with this token and this mark. */
static void write_slot(int index, uint64_t token, uint64_t mark)
{
    struct lock_slot before, slot;
    hfi_lockrecord_next(&before, NULL, 0, &who);
    before.sequence = before.token = token - 1;
    before.mark = mark;
    CHECK(!hfi_lockrecord_next(&slot, &before, 0, &who));
    REQUIRE(pwrite(file_fd, &slot, sizeof slot, index * (off_t)sizeof slot) == (ssize_t)sizeof slot);
}

/* Two records, the second of which has the last token that their mark covers. */
static void make_file(void)
{
    file_fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    REQUIRE(file_fd >= 0);
    write_slot(0, 99, 100);
    write_slot(1, 100, 100);
}

/* After each mix of sectors that a power failure may leave, the next token is above all that were given out. */
TEST(a_torn_page_brings_no_token_back)
{
    make_file();
    CHECK_INT(101, write_file());
    CHECK_INT(1, syncs);

    char image[1 + UNSYNCED][SECTORS][SECTOR];
    memcpy(image[0], disk, sizeof disk);
    uint64_t given = 0;
    for (int i = 1; i <= UNSYNCED; i++) {
        given = write_file();
        read_file(image[i]);
    }
    CHECK_INT(1, syncs);
    for (unsigned mix = 0; mix < 1u << 2 * SECTORS; mix++) {
        _Alignas(struct lock_slots) char left[SECTORS][SECTOR];
        for (unsigned i = 0; i < SECTORS; i++)
            memcpy(left[i], image[mix >> 2 * i & 3][i], SECTOR);
        struct lock_slot next;
        const struct lock_slots *slots = (const struct lock_slots *)left;
        const struct lock_slot *last = hfi_lockrecord_current(slots, sizeof *slots);
        struct lock_slot earlier;
        if (last) { /* another boot's */
            earlier = *last;
            memcpy(earlier.boot, "an-earlier-boot", 16);
            last = &earlier;
        }
        hfi_lockrecord_next(&next, last, hfi_lockrecord_floor(slots, sizeof *slots), &who);
        REQUIRE(next.token > given);
    }
}

/* Neither slot is left: the tokens go on from the mark, and the file is a good one again. */
TEST(two_torn_slots_are_written_anew_above_the_mark)
{
    make_file();
    const uint64_t given = write_file();
    CHECK(pwrite(file_fd, "x", 1, 600) == 1 && pwrite(file_fd, "x", 1, 1624) == 1);
    const uint64_t next = write_file();
    CHECK(next > given);
    CHECK_INT(2, syncs);
    CHECK_INT(next + 1, write_file());
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
