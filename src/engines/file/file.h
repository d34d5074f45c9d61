/* SPDX-License-Identifier: MIT
 *
 * file.h: what the files of the file engine share. file.c opens with how it works.
 */
#ifndef HFI_FILE_H
#define HFI_FILE_H

#include "engine.h"
#include "engines/local.h"
#include <pthread.h>
#include <sys/stat.h>
#include <sys/types.h>

#define HFI_FILE_NAME_MAX 255 /* what file systems allow */

/* --- directory.c: the directory that locks live in --- */

struct file_directory {
    int fd;
    char *path;  /* absolute, without links */
    mode_t mode; /* of the files in it: whoever may add files to the directory may use the locks in it */
};

/* `path` NULL: the default for this user. HF_DENIED if it belongs to somebody else or anybody could swap its files. */
hf_status hfi_file_directory_open(struct file_directory *directory, const char *path, hf_error *err);
void hfi_file_directory_close(struct file_directory *directory);

/* --- what is said to a client by its lifeline --- */

enum file_word {
    FILE_SAYS_BREAK = 1, /* let go of the lock; the number is its token, the text who wants it */
    FILE_SAYS_DOOR = 2,  /* somebody waits for it: the number is the queue to knock on */
};

/* --- lockfile.c: one file per lock: the kernel's lock on it and the record in it --- */

struct file_record {
    uint64_t token;
    uint64_t client; /* the holder's lifeline */
    uint64_t queue;  /* the queue that the holder owns; 0: none */
    int64_t pid;
    hfi_time since_ns;
    bool this_boot; /* since_ns is on this boot's clock */
    char host[65];
    char note[121];
    char name[HFI_NAME_MAX + 1];
};

/* The file name for a lock's name: the name itself as far as possible. `out` has room for HFI_FILE_NAME_MAX + 1
 * bytes. */
void hfi_file_name(char *out, const char *name);
/* Opens the lock's file, and makes it if there is none. *fd is -1 on failure. */
hf_status hfi_file_open(int *fd, const struct file_directory *directory, const char *name, hf_error *err);
/* What it is: refuses all but a regular file with one name. st_nlink is 0 if it was removed in the meantime. */
hf_status hfi_file_examine(int fd, struct stat *stat, const char *name, hf_error *err);
/* The same for somebody who only looks (O_RDONLY), or changes what is there (O_RDWR); -1 if there is no such lock
 * file. */
int hfi_file_open_to_look(const struct file_directory *directory, const char *file_name, int access, struct stat *stat);

/* The kernel's lock. Its length is the holder's lifeline id, so that whoever finds it taken knows by whom,
 * atomically. */
bool hfi_file_lock(int fd, uint64_t id); /* false with errno: EAGAIN if somebody else has it */
void hfi_file_unlock(int fd);
void hfi_file_lock_in_transit(int fd); /* keeps it, but nobody's, while it changes hands */
#define HFI_FILE_NOBODY 0u
#define HFI_FILE_IN_TRANSIT 1u
uint64_t hfi_file_holder(int fd);
/* A short lock on the file's queue, for whoever sets up or removes it. Never waits. */
bool hfi_file_lock_queue(int fd);
void hfi_file_unlock_queue(int fd);
/* Waiters in the queue show their presence by a lock on a byte of their own, until they close the file. */
void hfi_file_show_waiting(int fd, uint64_t random);
void hfi_file_hide_waiting(int fd);
int64_t hfi_file_count_waiting(int fd);

/* Reads the record. HF_INTERNAL if the file holds something else. A file without any is an all-zero record. */
hf_status hfi_file_read_record(int fd, struct file_record *record, const char *name, hf_error *err);
/* Writes the record of a new holder, which must have the kernel's lock, and fills in its token: one more than the last,
 * on disk before it is given out wherever a power failure could otherwise bring it back. */
hf_status hfi_file_write_record(int fd, const struct file_directory *directory, struct file_record *record,
                                hf_error *err);

/* --- done.c: that the work of a lock is done, behind its record in the lock file --- */

struct file_done {
    uint64_t token;
    int64_t pid;
    int64_t done_ms; /* when, by the wall clock, and for how long it counts */
    int64_t for_ms;
    int64_t left_ms; /* set by who reads it, as this: */
    int64_t ago_ms;
    char host[65];
    char note[121];
    char name[HFI_NAME_MAX + 1];
};

/* HF_DONE: that is recorded, and counts still. HF_OK: nothing of the kind. */
hf_status hfi_file_read_done(int fd, struct file_done *done, const char *name, hf_error *err);
/* Records it, on disk. The caller has the kernel's lock. */
hf_status hfi_file_write_done(int fd, const struct file_done *done, hf_error *err);
hf_status hfi_file_erase_done(int fd, const char *name, hf_error *err);

/* --- queue.c: the waiters of one lock --- */

/* A listening socket, whose backlog are the waiters, and a FIFO on which whoever lets go of the lock knocks. The two
 * travel together, and with the lock, from holder to holder. Their number is in the lock file while there is a
 * queue. */
struct file_queue {
    int line;   /* -1: not ours */
    int knocks; /* -1 */
    uint64_t number;
};
#define HFI_FILE_NO_QUEUE ((struct file_queue){ -1, -1, 0 })

/* Which queue the lock has, alive or not; 0: none. */
uint64_t hfi_file_queue_number(int lock_fd);
/* Lines up. -1 with errno: ENOENT if there is no live queue, EAGAIN if it is full, others as for connect(2). */
int hfi_file_queue_join(const struct file_directory *directory, int lock_fd);
/* Sets up the queue, unless there is a live one. False with errno: EAGAIN if there is, or if somebody else is at it. */
bool hfi_file_queue_found(struct file_queue *queue, const struct file_directory *directory, int lock_fd,
                          uint64_t random);
/* Removes one's own queue; those who are just lining up start over. */
void hfi_file_queue_dissolve(struct file_queue *queue, const struct file_directory *directory, int lock_fd);
void hfi_file_queue_close(struct file_queue *queue);
/* Whether somebody is at its head who does not hold the lock: `owned` is the queue that the holder owns. */
bool hfi_file_queue_has_first(const struct file_directory *directory, int lock_fd, uint64_t owned);
/* Removes the queue if it is dead. */
void hfi_file_queue_remove_dead(const struct file_directory *directory, int lock_fd);
/* Removes a socket or FIFO, by its file name, that a dead queue left behind. Other files are left alone. */
void hfi_file_queue_tidy(const struct file_directory *directory, const char *file_name);

/* Something to knock with: -1 with errno if there is none. The knock leaves it open. */
int hfi_file_queue_door(const struct file_directory *directory, uint64_t number);
void hfi_file_queue_knock(int door);
/* Forgets the knocks heard so far. */
void hfi_file_queue_hush(const struct file_queue *queue);

/* Gives the queue, and the lock unless lock_fd is -1, to the first waiter that is alive. False: nobody waits. The
 * caller closes its own descriptors either way. */
bool hfi_file_queue_pass(const struct file_queue *queue, int lock_fd);
/* Takes what hfi_file_queue_pass() sent. False with errno: EAGAIN if nothing has come, else the queue is gone. */
bool hfi_file_queue_take(int place, struct file_queue *queue, int *lock_fd);

#endif
