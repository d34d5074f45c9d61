/* SPDX-License-Identifier: MIT
 *
 * store.h: the file engine's state: a directory, a lifeline, and the locks that are held.
 */
#ifndef HFI_FILE_STORE_H
#define HFI_FILE_STORE_H

#include "file.h"

enum file_state {
    FILE_NEW,
    FILE_OPEN,     /* the file is open, nothing else */
    FILE_IN_QUEUE, /* `place` is our connection to the queue */
    FILE_FIRST,    /* `queue` is ours, the lock is not */
    FILE_GIVEN,    /* the kernel's lock is ours; the record is still to be written */
    FILE_HELD
};

/* A door that is open before it is needed. */
struct file_door {
    int fd; /* -1: none */
    uint64_t number;
};
#define HFI_FILE_NO_DOOR ((struct file_door){ -1, 0 })

struct file_lock {
    enum file_state state;
    ino_t inode;
    dev_t device;
    int fd; /* the lock file */
    struct file_queue queue;
    int place;              /* -1 */
    int watch;              /* of FIRST: the holder's lifeline; -1 */
    uint64_t watched;       /* whose lifeline */
    struct file_door door;  /* where to knock when it is let go; set by the keeper */
    hfi_time soon_ns;       /* the last short pause */
    struct file_lock *next; /* in the store's list of held ones */
    bool broken;            /* somebody has asked for it, while it was in that list; with the store's mutex */
    struct hfi_owner owner;
    uint64_t token;
};

#define HFI_FILE_IDLE_MOST 8

/* A lock file that is kept open because it was just used: opening costs more than locking. */
struct file_idle {
    int fd;
    uint64_t used; /* the larger, the later */
    char name[HFI_NAME_MAX + 1];
};

struct file_store {
    const struct hfi_env *env;
    struct file_directory directory;
    uint64_t id; /* of this client's lifeline, and so the length of its locks */
    int64_t pid;
    char host[65];
    pthread_mutex_t mutex;
    struct hfi_lifeline lifeline;
    struct file_lock *held;
    struct file_idle idle[HFI_FILE_IDLE_MOST];
    size_t idle_count;
    uint64_t idle_used;
};

/* file.c */
/* Lets go of what is still held: of what could not be recorded as done. */
void hfi_file_let_go_of_all(struct file_store *store);

/* store.c */
hf_status hfi_file_store_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                              struct hfi_opened *opened, hf_error *err);
void hfi_file_store_close(void *memory);
/* Makes the lifeline if there is none yet: clients that only look need none. */
hf_status hfi_file_store_ready(struct file_store *store, hf_error *err);
/* The lock's file, if it is still open from before; -1. It may have been removed in the meantime. */
int hfi_file_store_reopen(struct file_store *store, const char *name);
void hfi_file_store_keep_open(struct file_store *store, int fd, const char *name);
void hfi_file_store_close_idle(struct file_store *store);
int hfi_file_push_fd(void *memory);
void hfi_file_take_push(void *memory);

/* look.c */
/* Removes what dead clients left behind. */
void hfi_file_tidy(const struct file_directory *directory);
hf_status hfi_file_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                           hf_error *err);
hf_status hfi_file_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                               hf_error *err);
hf_status hfi_file_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                hf_error *err);
hf_status hfi_file_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);
hf_status hfi_file_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);

/* file_doctor.c */
hf_status hfi_file_examine_store(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                                 hf_error *err);

#endif
