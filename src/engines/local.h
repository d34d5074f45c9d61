/* SPDX-License-Identifier: MIT
 *
 * local.h: what engines for one machine share: a FIFO per client by which others reach it, for how long work counts as
 * done, and which file systems are not of one machine only.
 */
#ifndef HFI_LOCAL_H
#define HFI_LOCAL_H

#include "engine.h"
#include <sys/types.h>

/* --- lifeline.c: a FIFO per client that the kernel closes when its process dies --- */

struct hfi_lifeline {
    int fd; /* -1: none yet */
    uint64_t id;
};

/* Opens a FIFO that anybody may have put there. -1 with errno: ENOENT also for what is no FIFO or has a second name. */
int hfi_fifo_open(int folder, const char *name, int access);

/* Puts the lifeline of client `id` into a folder. False with errno. */
bool hfi_lifeline_open(struct hfi_lifeline *lifeline, int folder, mode_t mode, uint64_t id);
void hfi_lifeline_close(struct hfi_lifeline *lifeline, int folder);
/* Removes a lifeline, by its file name, that a dead client left behind. Other files are left alone. */
void hfi_lifeline_tidy(int folder, const char *file_name);
/* A descriptor that poll() reports as POLLERR once the process of client `id` is gone; -1 with errno: ENXIO, ENOENT if
 * it is gone already. */
int hfi_lifeline_watch(int folder, uint64_t id);

/* What can be said to a client. */
struct hfi_message {
    char magic[8];
    int kind;       /* each engine has its own */
    uint64_t inode; /* of a lock's file, where there is one */
    uint64_t number;
};

#define HFI_LIFELINE_TEXT_MAX 168

/* `text`: what is said with it, as far as there is room; may be "". False if nobody could be told. */
bool hfi_lifeline_tell(int folder, uint64_t id, const struct hfi_message *message, const char *text);
/* The next message, without waiting. False: none. The text is printable ASCII, whoever wrote it. */
bool hfi_lifeline_read(const struct hfi_lifeline *lifeline, struct hfi_message *message,
                       char text[HFI_LIFELINE_TEXT_MAX + 1]);

/* --- wall.c: the machine's wall clock, for what must outlast a reboot --- */

/* Milliseconds since 1970. */
int64_t hfi_wall_ms(void);
/* For how long what was done at `done_ms`, for `for_ms`, still counts; 0: it does not. A clock that was set forward
 * ends it as much earlier; one that was set back, as much later, but by no more than its own time: what would have been
 * done later than that counts no more. */
int64_t hfi_wall_done_left_ms(int64_t now_ms, int64_t done_ms, int64_t for_ms);

/* --- reach.c --- */

/* Whether a file system is one that several machines can share: by its type, statfs.f_type, and the device of a file on
 * it, stat.st_dev. */
bool hfi_is_network_file_system(uint32_t type, dev_t device);

#endif
