/* SPDX-License-Identifier: MIT
 *
 * redlock.h: what the files of the redlock engine share. redlock.c opens with how it works, redlock_script.c with what
 * each master does; redlock_attempt.c asks for a lock, redlock_round.c asks all masters at once, redlock_look.c shows
 * who holds what, redlock_once.c what is done, redlock_doctor.c what the masters are.
 */
#ifndef HFI_REDLOCK_H
#define HFI_REDLOCK_H

#include "engines/redis/redis_wire.h"

#define REDLOCK_MASTERS_MOST 15
/* What one master may take to answer is a tenth of the time-to-live, but at least this. */
#define REDLOCK_ANSWER_LEAST (50 * HFI_MS)
#define REDLOCK_CONTENDED 64

enum redlock_script_name {
    REDLOCK_ACQUIRE,
    REDLOCK_ACQUIRE_ONCE,
    REDLOCK_WRITE_BACK,
    REDLOCK_RELEASE,
    REDLOCK_RELEASE_DONE,
    REDLOCK_RENEW,
    REDLOCK_LOOK,
    REDLOCK_EVICT,
    REDLOCK_TELL,
    REDLOCK_LOOK_DONE,
    REDLOCK_FORGET_DONE,
    REDLOCK_SCRIPTS
};

/* How far a master's clock is ahead of ours can only be guessed: it answered `us` to what we sent at `sent_ns`. */
struct redlock_clock {
    bool known;
    int64_t us;
    hfi_time sent_ns;
};

struct redlock_store {
    struct redis_store redis; /* its nodes are the masters, in the order of the URL */
    struct redis_script scripts[REDLOCK_SCRIPTS];
    struct redis_node *masters[REDLOCK_MASTERS_MOST];
    size_t count, quorum;
    /* with the store's mutex */
    hfi_time looked_ns; /* when somebody last looked after the usher */
    struct redlock_clock clocks[REDLOCK_MASTERS_MOST];
    uint64_t last_token;                            /* the largest that this client was granted */
    hfi_time contended_until_ns[REDLOCK_CONTENDED]; /* by hash of the name */
};

struct redlock_lock {
    struct redis_lock redis;
    unsigned attempts;       /* each asks under a name of its own */
    unsigned splits;         /* one after the other: it had its usher's vote, and no majority */
    uint32_t maybe;          /* bit I: master I may have it, or our place in the queue */
    uint32_t freed;          /* bit I: master I has let go of it, when others did not answer to the release */
    uint32_t astray;         /* bit I: something may arrive there at any time, by a connection that is no longer ours */
    struct redis_node *line; /* the usher on which it stands in line; NULL: none */
    /* The number of the connection on which an answer may still be to come; 0: none. What is sent to that master next
     * must arrive behind the question, or a release could be overtaken by the acquire that it is to undo. */
    uint64_t late[REDLOCK_MASTERS_MOST];
    uint64_t score; /* of our place in the usher's queue; 0: none */
    uint64_t token; /* if it is held */
};

/* --- redlock_script.c --- */

extern const char *const hfi_redlock_scripts[REDLOCK_SCRIPTS];

/* --- redlock_round.c --- */

enum redlock_state { REDLOCK_UNASKED, REDLOCK_CONNECTING, REDLOCK_SENT, REDLOCK_ANSWERED, REDLOCK_FAILED };

struct redlock_leg {
    struct redis_call call;
    struct redlock_round *round;
    struct redis_question question;
    struct redis_command *command; /* NULL: this master is not asked */
    enum redlock_state state;
    bool sent;         /* it may have been done, whatever the state */
    bool marked;       /* it says that what is astray does not count */
    redisReply *reply; /* if answered; not an error */
};

/* One question to several masters at once. */
struct redlock_round {
    struct hfi_op op;
    struct redlock_store *store;
    struct redlock_leg legs[REDLOCK_MASTERS_MOST];
    struct redlock_lock *lock; /* behind whose requests it must arrive; NULL: none's */
    bool renews;               /* it must not wait behind anything else */
    uint32_t must;             /* bit I: a master that is asked also while it is down, and whose answer matters */
    /* The masters that were down need not be waited for any more; NULL: a majority has answered. */
    bool (*decided)(const struct redlock_round *round);
    bool (*enough)(const struct redlock_round *round);
    hfi_time begun_ns, deadline_ns;
    bool also_down, ended;
    hfi_time sent_ns; /* before the first was asked */
    hf_error trouble; /* of the last that failed */
    size_t failed;
};

/* Asks, and waits until `enough` says so (on any thread, with the loop's mutex), nobody is left to wait for, or the
 * deadline comes. Answers that come later are read and forgotten; what they answer to has then been done nevertheless.
 */
void hfi_redlock_ask(struct redlock_round *round, bool (*enough)(const struct redlock_round *round),
                     hfi_time deadline_ns);
bool hfi_redlock_all_answered(const struct redlock_round *round);
/* Those that were to be asked, and to which nothing was sent. */
uint32_t hfi_redlock_untold(const struct redlock_round *round);
/* A majority is faster than a connection to a master that has come back: these get the command as soon as they let us
 * in, if that is soon enough, though nobody waits for an answer. */
#define REDLOCK_LET_IN (20 * HFI_MS) /* what that takes at most if a master is well, as a rule */
void hfi_redlock_reach(struct redlock_store *store, struct redlock_lock *lock, struct redis_command *command,
                       uint32_t masters, hfi_time most);
void hfi_redlock_end(struct redlock_round *round);
/* Before connections are closed: waits a moment for answers that are still to come. To close one on which something
 * arrives resets it, and the master may throw away what it has not read yet: a release. */
void hfi_redlock_drain(struct redlock_store *store);
/* That master is still to answer what it was asked for this lock, and what is sent next arrives behind it. */
bool hfi_redlock_is_behind(struct redlock_store *store, const struct redlock_lock *lock, size_t index);
/* A master that could not be reached is left alone for a while, as long as there is a majority without it. */
void hfi_redlock_mark(struct redlock_store *store, struct redis_node *node, bool failed);
bool hfi_redlock_is_down(struct redlock_store *store, const struct redis_node *node);
/* A number in a reply; -1 if there is none. */
int64_t hfi_redlock_number(const redisReply *reply, size_t index);

/* --- redlock_look.c --- */

hf_status hfi_redlock_inspect(void *memory, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                              hf_error *err);
hf_status hfi_redlock_inspect_one(void *memory, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err);
hf_status hfi_redlock_inspect_done(void *memory, const char *prefix, hf_inspect_fn each, void *arg,
                                   hfi_time deadline_ns, hf_error *err);
hf_status hfi_redlock_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);

/* --- redlock_doctor.c --- */

/* As the engine's examine(). */
hf_status hfi_redlock_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                              hf_error *err);

/* --- redlock_once.c --- */

/* True: this master answered that the work is done. */
bool hfi_redlock_says_done(const struct redlock_leg *leg);
/* HF_DONE and the last record of those in the answers; HF_OK: there is none. */
hf_status hfi_redlock_take_done(const struct redlock_round *round, const char *name, struct hfi_grant *grant,
                                hf_error *err);
/* Has all masters forget what was done up to `token`; how many have. */
size_t hfi_redlock_forget(struct redlock_round *round, const char *name, uint64_t token, hfi_time deadline_ns);
/* Shows the record of `name`, if there is one. */
hf_status hfi_redlock_show_done(struct redlock_store *store, const char *name, hf_inspect_fn each, void *arg, int *stop,
                                hfi_time deadline_ns, hf_error *err);
hf_status hfi_redlock_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err);

/* --- redlock_attempt.c --- */

hf_status hfi_redlock_attempt(void *memory, void *lock_memory, const struct hfi_request *request,
                              struct hfi_grant *grant, hf_error *err);
/* Whoever waits gives back what it may have left on masters that could not be told when it stepped back. */
void hfi_redlock_give_back_left(struct redlock_store *store, struct redlock_lock *lock,
                                const struct hfi_request *request);
/* The master on which to line up: the first that has not failed, else the first that is not down. The count: there is
 * none. */
size_t hfi_redlock_usher(struct redlock_store *store);

/* --- redlock.c --- */

#define REDLOCK_WORDS_MOST 14

struct redlock_words {
    redis_keys keys; /* the last, that of the record that it is done, only for a request that has to do with it */
    char base[HFI_REDIS_OWNER_MAX]; /* "client.serial" */
    char owner[HFI_REDIS_OWNER_MAX + 12];
    char info[256];
    char member[HFI_REDIS_OWNER_MAX + 256];
    char ttl[16];
    char number[24];  /* a token, or a score */
    char done_ms[24]; /* for how long it counts as done */
};

/* The name under which an attempt asks. */
void hfi_redlock_name(char out[HFI_REDIS_OWNER_MAX + 12], struct hfi_owner owner, unsigned attempt);
void hfi_redlock_words(struct redlock_words *words, const struct redlock_store *store, const struct redlock_lock *lock,
                       const struct hfi_request *request);
/* Starts a command with a script and the keys of a lock that it needs. */
void hfi_redlock_add_keys(struct redis_command *command, const struct redlock_store *store,
                          enum redlock_script_name script, const struct redlock_words *words);
/* A whole release; with a score, of those who step back and stay in line ("0": at its end). */
void hfi_redlock_add_release(struct redis_command *command, const struct redlock_store *store,
                             const struct redlock_words *words, const char *score);
/* Until when a master may answer. */
hfi_time hfi_redlock_answer_by(const struct redlock_store *store, uint32_t ttl_ms, hfi_time deadline_ns);
/* Only `count` masters did it. */
hf_status hfi_redlock_too_few(const struct redlock_round *round, size_t count, const char *did, hf_error *err);

#endif
