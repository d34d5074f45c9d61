/* SPDX-License-Identifier: MIT
 *
 * lockrecord.c: see lockrecord.h.
 */
#include "lockrecord.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AHEAD ((uint64_t)1 << 20)

static const char slot_magic[8] = { 'h', 'o', 'l', 'd', 'f', 's', 't', '1' };
static const char mark_magic[8] = { 'h', 'o', 'l', 'd', 'm', 'a', 'r', 'k' };
static pthread_once_t boot_once = PTHREAD_ONCE_INIT;
static char boot_name[40];

static void read_boot_name(void)
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, boot_name, sizeof boot_name - 1) : -1;
    if (fd >= 0)
        close(fd);
    /* Without /proc every process counts as a boot of its own: tokens jump, but never fall. */
    if (length <= 0)
        snprintf(boot_name, sizeof boot_name, "process %d at %p", (int)getpid(), (void *)boot_name);
}

bool hfi_lockrecord_this_boot(const struct lock_slot *slot)
{
    pthread_once(&boot_once, read_boot_name);
    return memcmp(slot->boot, boot_name, sizeof boot_name) == 0;
}

uint64_t hfi_lockrecord_checksum(const void *from, size_t size)
{
    uint64_t sum = 0x9e3779b97f4a7c15u;
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)from + at, sizeof word);
        sum = (sum ^ word) * 0xff51afd7ed558ccdu;
        sum ^= sum >> 32;
    }
    return sum;
}

static uint64_t checksum(const struct lock_slot *slot)
{
    return hfi_lockrecord_checksum(&slot->sequence, sizeof *slot - offsetof(struct lock_slot, sequence));
}

static bool is_valid(const struct lock_slot *slot)
{
    return memcmp(slot->magic, slot_magic, sizeof slot_magic) == 0 && slot->checksum == checksum(slot) &&
           memchr(slot->name, 0, sizeof slot->name);
}

const struct lock_slot *hfi_lockrecord_current(const struct lock_slots *slots, size_t length)
{
    const struct lock_slot *best = NULL;
    for (size_t i = 0; i < 2 && (i + 1) * sizeof(struct lock_slot) <= length; i++) {
        const struct lock_slot *slot = &slots->slot[i];
        if (is_valid(slot) && (!best || slot->sequence > best->sequence))
            best = slot;
    }
    return best;
}

uint64_t hfi_lockrecord_floor(const struct lock_slots *slots, size_t length)
{
    uint64_t floor = 0;
    for (size_t i = 0; i < 2 && (i + 1) * sizeof(struct lock_slot) <= length; i++) {
        const struct lock_mark *copy = &slots->slot[i].copy;
        if (memcmp(copy->magic, mark_magic, sizeof mark_magic) == 0 && copy->check == ~copy->mark && copy->mark > floor)
            floor = copy->mark;
    }
    return floor;
}

bool hfi_lockrecord_next(struct lock_slot *next, const struct lock_slot *last, uint64_t floor,
                         const struct file_record *record)
{
    const bool doubted = !last || !hfi_lockrecord_this_boot(last);
    pthread_once(&boot_once, read_boot_name);
    memset(next, 0, sizeof *next);
    memcpy(next->magic, slot_magic, sizeof slot_magic);
    memcpy(next->boot, boot_name, sizeof boot_name);
    next->sequence = last ? last->sequence + 1 : 1;
    next->token = last ? last->token + 1 : 1;
    next->mark = last ? last->mark : 0;
    if (doubted && next->mark < floor)
        next->mark = floor;
    if (doubted && next->mark >= next->token)
        next->token = next->mark + 1;
    const bool must_sync = doubted || next->token > next->mark;
    if (must_sync)
        next->mark = next->token + AHEAD;
    next->copy = (struct lock_mark){ .mark = next->mark, .check = ~next->mark };
    memcpy(next->copy.magic, mark_magic, sizeof mark_magic);
    next->client = record->client;
    next->queue = record->queue;
    next->pid = record->pid;
    next->since_ns = record->since_ns;
    snprintf(next->host, sizeof next->host, "%s", record->host);
    snprintf(next->note, sizeof next->note, "%s", record->note);
    snprintf(next->name, sizeof next->name, "%s", record->name);
    next->checksum = checksum(next);
    return must_sync;
}

void hfi_lockrecord_unmark(struct lock_slot *slot)
{
    slot->mark = 0; /* the copy stays: after a reboot it does no harm, and without it an older one might be left */
    slot->checksum = checksum(slot);
}
