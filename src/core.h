/* SPDX-License-Identifier: MIT
 *
 * core.h: what the files of the core share. Engines do not see it.
 *
 * Words used throughout: a *hold* is one grant of one name to one owner, or one that is on its way; a *handle*
 * (hf_lock) is the caller's end of it, several to one hold when the owner re-entered; a *wait* is a thread that sleeps
 * for a name; a *turn* is a wait in the client's line for a name, behind others of the same client.
 *
 * One mutex per client guards everything in it. It is never held over a call of an engine or of a user's callback.
 */
#ifndef HFI_CORE_H
#define HFI_CORE_H

#include "engine.h"
#include "lease.h"
#include "timers.h"
#include "waker.h"
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#define HFI_DEFAULT_TTL_MS 30000u
#define HFI_MIN_TTL_MS 100u
#define HFI_DEFAULT_TIMEOUT_MS 5000u
#define HFI_NOTE_MAX 120
#define HFI_ONCE_MOST_MS (366 * UINT64_C(86400000))
/* Exchanges in the background at once: one, unless some hang or very many locks are to be renewed. */
#define HFI_HELPERS 16
#define HFI_DEFAULT_HANDOFF_MS 5
/* Buckets of the client's lines: a name has one while somebody waits for it. */
#define HFI_LINES 1024

/* --- error.c, clock.c, random.c, name.c, url.c, registry.c, place.c --- */

hfi_time hfi_now_ns(void);
uint64_t hfi_random(void);

/* True if `name` may be a lock's name. */
bool hfi_name_check(const char *name);
/* True if `text` is 1 to `max` bytes of UTF-8 without control characters. */
bool hfi_text_check(const char *text, size_t max);
/* As much of `text` as there is room for, with '?' for each byte that is not of such a text. */
void hfi_text_clean(char *out, size_t size, const char *text);

/* What went wrong is told if it failed. On the way to success it is nobody's business. */
hf_status hfi_pass_on(hf_status status, const hf_error *trouble, hf_error *err);

/* Splits "scheme:rest"; `scheme` gets room for 32 bytes. HF_INVALID if there is no scheme. */
hf_status hfi_url_split(char *scheme, const char **rest, const char *url, hf_error *err);
/* A copy of `url` with "user:password@" cut down to "user@". NULL: no memory. */
char *hfi_url_without_password(const char *url);

/* client.c: what hf_open() does once it knows the engine. */
hf_status hfi_open_engine(hf_client **out, const struct hfi_engine *engine, const struct hfi_url *split,
                          const char *url, const hf_client_options *options, hf_error *err);

/* Where modules are. */
void hfi_module_directory(char out[PATH_MAX]);
hf_status hfi_registry_find(const struct hfi_engine **out, const char *scheme, hf_error *err);

/* --- options.c --- */

struct hfi_want;
/* Copies what the caller's struct has; false if it was not initialised or asks for what this library does not know. */
bool hfi_options_copy(void *known, size_t known_size, const void *given, size_t given_size);
hf_status hfi_want_read(struct hfi_want *want, hf_client *client, const char *name, const hf_options *options,
                        hf_error *err);

/* --- fork.c --- */

/* Grows by one in the child of every fork: what belongs to another generation belongs to another process. */
extern unsigned hfi_generation;

/* --- resolve.c --- */

void hfi_resolve_before_fork(void);
void hfi_resolve_after_fork(bool child);

/* --- waker.c --- */

struct hfi_waker *hfi_waker_new(void); /* NULL: no memory or no descriptors */
void hfi_waker_free(struct hfi_waker *waker);
/* Wakes the sleeper for good: hfi_waker_called_back() is true from now until hfi_waker_reset(). */
void hfi_waker_call_back(struct hfi_waker *waker);
void hfi_waker_reset(struct hfi_waker *waker);

/* --- holds --- */

struct hfi_owner_key {
    hf_owner_kind kind;
    uint64_t number;  /* the thread's number; or the serial of the hold that the handle belongs to; 0 with text */
    const char *text; /* "" unless HF_OWNER_TEXT */
};

enum hfi_hold_state {
    HFI_HOLD_PENDING, /* some thread is asking for it */
    HFI_HOLD_HELD,
    HFI_HOLD_ENDED /* released or lost; only handles, callbacks and a release in the background may still need it */
};

/* What a hold waits for: it has one timer, which is in one of these heaps, or in none. */
enum hfi_due {
    HFI_DUE_RENEWAL, /* held: until it is to be renewed */
    HFI_DUE_OVERDUE, /* held, and nobody has begun to renew it: until its end, so that the most urgent is the first */
    HFI_DUE_END,     /* held, being renewed or not to be renewed: until its end */
    HFI_DUE_UNDO,    /* ended: until its release is tried again */
    HFI_DUE_KINDS
};

/* A sentence that many holds have in common, as when the store is gone. Counted with the client's mutex held. */
struct hfi_text {
    unsigned references;
    char text[];
};

/* What few holds need. */
struct hfi_extra {
    uint64_t once_ms;              /* its work is done once in so long; 0: whenever somebody asks */
    hfi_time granted_ns;           /* since when that is counted */
    hfi_time pass_until_ns;        /* until then it may be passed on inside of the client */
    hfi_time trouble_since_ns;     /* when the first renewal was sent that was not answered well since; 0: none */
    struct hfi_text *trouble_text; /* its message, of the last one; NULL: not known */
    struct hfi_text *why;          /* it was lost; NULL: not known */
    hf_status trouble;             /* what became of the last one */
    int lost_fd;                   /* -1 until somebody asks for it */
};

struct hf_lock {
    hf_lock *next; /* in hold->handles, or in the client's list of free handles */
    struct hfi_hold *hold;
    unsigned generation;
    bool told;
    hf_lost_fn on_lost;
    void *arg;
};

/* There may be a million of them: what few need is in `extra`, and their texts are no longer than they must be. */
struct hfi_hold {
    struct hfi_hold *next_in_bucket; /* or in the client's list of free holds */
    struct hfi_hold *next_by_serial;
    hf_client *client;
    uint64_t serial;     /* of its struct hfi_owner */
    uint64_t key_number; /* of its struct hfi_owner_key */
    uint64_t token;
    struct hfi_lease lease; /* once ended: when its release is tried again is renew_at_ns, and until when deadline_ns */
    _Atomic hfi_time safe_until_ns; /* the lease's deadline for hf_remaining_ms(); 0 once lost */
    hf_lock *handles;
    hf_lock handle;          /* the first of them, as a rule the only one; free if its `hold` is NULL */
    struct hfi_timer timer;  /* see hfi_hold_schedule() */
    hfi_time asked_ns;       /* when its last renewal in the background was sent */
    struct hfi_extra *extra; /* NULL: nothing of it is needed yet */
    uint32_t name_hash;
    unsigned pins;        /* threads that use it without the mutex */
    uint8_t state;        /* enum hfi_hold_state */
    uint8_t due;          /* enum hfi_due: where its timer is, if it is set */
    uint8_t kind;         /* hf_owner_kind, of its struct hfi_owner_key */
    bool engaged;         /* the engine may know of it: it must be released there */
    bool lost;            /* while it is held: it was so before that was known */
    bool doubted;         /* something happened to the store: renew it now, not when it would be time */
    bool overdue;         /* it should be renewed by now, and nobody has begun to */
    bool renewing;        /* an exchange that renews it is under way: two could answer in the wrong order */
    bool undoing;         /* its release is to be finished by the keeper */
    bool once;            /* its work is done once in a while, see its `extra`; never changes */
    bool done;            /* its work is done: the release marks it */
    uint8_t spare_tokens; /* so many times it may be passed on inside of the client, see its `extra` */
    uint8_t name_length, note_length;
    uint8_t text_room;      /* for its texts, in units of HFI_TEXT_UNIT */
    uint64_t engine_lock[]; /* the engine's lock_size bytes; behind them its name, its note and its owner's text */
};

#define HFI_TEXT_UNIT 8
/* A million locks must fit into the memory of a small machine. */
_Static_assert(sizeof(struct hfi_hold) <= 224, "a hold has become larger");

struct hfi_wait {
    struct hfi_wait *next, *prev;
    hf_op *op; /* that waits; NULL: a thread does */
    const char *name;
    struct hfi_hold *following; /* a hold of the same owner that another thread is asking for; NULL: waits for itself */
    struct hfi_waker *waker;    /* NULL: nothing to sleep with yet, the first question is still out */
    bool canceled;
};

/* A thread that is inside of a callback. */
struct hfi_telling {
    struct hfi_telling *next;
    struct hfi_hold *hold;
    const hf_lock *handle;
    uint64_t thread;
};

enum { HFI_TURN_WAITS, HFI_TURN_CALLED, HFI_TURN_PASSED };

/* On the stack of the thread that waits, or part of the operation that does. */
struct hfi_turn {
    struct hfi_turn *next;      /* in the line */
    struct hfi_turn *prev;      /* of all but the first one */
    struct hfi_turn *last;      /* of the line; the first one's only */
    struct hfi_turn *next_line; /* in the bucket; the first one's only */
    const struct hfi_want *want;
    _Atomic uint32_t state; /* a futex */
    bool canceled;
    bool alone;    /* it is to ask the store itself, whoever else of the client does so */
    hf_lock *lock; /* what was passed on to it */
};

/* In the client's queue of events, until it is told: an operation has ended, or a lock is lost. */
struct hfi_event {
    struct hfi_event *next, *prev;
    bool queued;
    hf_op *op;     /* NULL: a loss */
    hf_lock *lock; /* that is lost */
    void *tag;
};

struct hf_client {
    const struct hfi_engine *engine;
    void *store;
    uint32_t caps;
    struct hfi_env env;
    char *url;
    unsigned generation;
    hfi_time timeout_ns;
    hfi_time handoff_ns; /* 0: there are no lines */
    bool starts;         /* its engine starts exchanges without a thread */

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a callback, a pinned use or a wait has ended */
    unsigned references;    /* the user's own and one for each hold: the last one frees the client */
    bool closing;
    hfi_time close_by_ns; /* then: until what waits should have been given up */
    uint64_t serial;
    size_t hold_count;
    struct hfi_hold **buckets; /* by name, those that can be re-entered or are pending */
    size_t bucket_count;       /* a power of two */
    struct hfi_hold **serials; /* all of them, by serial, as many buckets */
    struct hfi_timers timers[HFI_DUE_KINDS];
    struct hfi_text *last_trouble, *last_why; /* those that were made last: the next one may be the same */
    struct hfi_hold *free_holds;
    hf_lock *free_locks;
    struct hfi_waker *free_wakers;
    struct hfi_wait *waits;
    struct hfi_turn *lines[HFI_LINES]; /* the first of each, by name */
    unsigned turns;                    /* in all of them */
    struct hfi_telling *tellings;      /* callbacks under way */
    unsigned busy;                     /* threads inside of a call that uses the store */

    /* operations */
    struct hfi_event *first_event, *last_event;
    int events_fd; /* an eventfd: there are events; -1 until somebody asks for it */
    struct {
        hf_op *first, *last;
    } to_run[2];                 /* releases, and what waits in a store or has waited there, come first */
    unsigned count_to_run;       /* in both */
    hfi_time taken_ns;           /* when a runner took one of them last */
    struct hfi_timers op_timers; /* of those that stand in a line, or are parked */
    unsigned runners, idle_runners;
    bool runner_looks;                /* an idle one looks after what comes due */
    _Atomic unsigned waiting_runners; /* in the wait() of an engine */
    struct hfi_runner *ended_runner;  /* the last one: to be joined by the next that ends */
    pthread_cond_t work;              /* there is something to run, or the runners are to end */
    bool runners_stop;
    pthread_t attendant; /* the thread that attends to exchanges without one */
    bool attended;       /* it is there */
    unsigned under_way;  /* such exchanges, or on the point of being started */

    /* the keeper */
    pthread_t keeper;
    bool keeper_runs;
    bool keeper_stops;
    hfi_time keeper_due_ns; /* when it will look next by itself */
    int keeper_bell;        /* eventfd: look now */
    int keeper_timer;       /* timerfd on CLOCK_BOOTTIME, so that a suspended machine notices losses when it wakes */

    /* those that make exchanges for it */
    pthread_t helpers[HFI_HELPERS];
    unsigned helper_count;
    unsigned idle_helpers;
    pthread_cond_t exchange; /* one is due, or the keeper stops */
    hfi_time hangs_at_ns;    /* when the exchange that was begun last is under way for suspiciously long */
    bool undo_runs;          /* one of them is at the releases to be finished */
};

/* What one acquire wants, after checks. */
struct hfi_want {
    hf_op *op;       /* on whose behalf; NULL: a thread waits for it */
    uint64_t thread; /* that has asked */
    const char *name;
    uint32_t name_hash;
    struct hfi_owner_key key;
    hf_options options;
    bool may_wait;
    hfi_time deadline_ns;
};

enum hfi_op_kind { HFI_OP_ACQUIRE, HFI_OP_RELEASE, HFI_OP_RELEASE_DONE };

/* It is freed when the caller has given it back, nobody works on it, and its event is told or unwanted. */
struct hf_op {
    struct hfi_event event;
    hf_op *next, *prev; /* among those to be run */
    hf_client *client;
    unsigned generation;
    uint8_t kind;           /* enum hfi_op_kind */
    bool kept;              /* the caller has it */
    bool silent;            /* nobody is to be told of its end */
    bool active;            /* it is to be run, is run, or stands in a line */
    bool to_run;            /* it is in that list */
    bool in_line;           /* by its `turn` */
    bool delivered;         /* the caller knows how it ended, and has what it got */
    unsigned waiters;       /* threads in hf_op_wait(): then it is told there, and not by an event */
    _Atomic uint32_t ended; /* a futex */
    hf_lock *lock;          /* what it got, or is to release */
    struct hfi_event *loss; /* for the lock that it may get; NULL: the caller has a callback of his own */
    struct hfi_wait *wait;  /* for its lock; NULL: it does not wait */
    struct hfi_turn turn;
    struct hfi_contest *contest; /* while it asks the store, or waits there */
    struct hfi_waker parked;     /* of a wait in the store that no thread sleeps for */
    bool is_parked;              /* nobody runs it until that is woken */
    bool woken;                  /* it was, while it ran */
    bool started;                /* a release: the store is asked, or is to be; the lock is no longer held */
    bool answered;               /* the exchange is over, and it is to go on with `answer` */
    hf_status answer;            /* `error` has the sentence, unless it has ended already */
    struct hfi_exchange exchange;
    struct hfi_request request; /* of a release */
    struct hfi_timer timer;     /* while it stands in a line, or is parked */
    struct hfi_want want;
    hf_error error; /* how it ended */
    char texts[];   /* its name, its note, its owner's text */
};

/* hold.c, client.c: all with the client's mutex held, except where said. */
struct hfi_hold *hfi_hold_find(hf_client *client, const struct hfi_want *want);
/* One that is held or asked for, whoever its owner is; NULL: none. */
struct hfi_hold *hfi_hold_of_name(hf_client *client, uint32_t name_hash, const char *name);
bool hfi_same_owner(const struct hfi_owner_key *a, const struct hfi_owner_key *b);
/* It is that owner's from now on; `own` stands for one that shows no handle. False: there is no room for its text. */
bool hfi_hold_set_owner(struct hfi_hold *hold, const struct hfi_owner_key *key, uint64_t own);
struct hfi_hold *hfi_hold_new(hf_client *client,
                              const struct hfi_want *want); /* pending and in the table; NULL: no memory */
void hfi_hold_forget(struct hfi_hold *hold); /* takes it out of the table: it cannot be re-entered any more */
void hfi_hold_settle(struct hfi_hold *hold); /* frees it if nobody needs it any more */
struct hfi_hold *hfi_hold_of_serial(const hf_client *client, uint64_t serial); /* NULL: there is none */
struct hfi_hold *hfi_hold_after(const hf_client *client,
                                const struct hfi_hold *hold); /* the next of all; NULL: first */
/* Sets its timer anew: after each change of what it depends on, its state, its lease, `lost`, `renewing`, `doubted`,
 * `overdue`, `undoing`. */
void hfi_hold_schedule(struct hfi_hold *hold);
void hfi_hold_set_timer(struct hfi_hold *hold, enum hfi_due due, hfi_time at_ns);
/* The hold of this kind whose timer is the first to go off; NULL: there is none. */
struct hfi_hold *hfi_hold_first(const hf_client *client, enum hfi_due due);
struct hfi_extra *hfi_hold_extra(struct hfi_hold *hold); /* makes it if there is none yet; NULL: no memory */
/* A sentence in the place of what *text was; `last`: of this kind of sentence. No memory: none in its place. */
void hfi_text_set(struct hfi_text **text, struct hfi_text **last, const char *sentence);
void hfi_hold_unpin(struct hfi_hold *hold);
void hfi_hold_publish(struct hfi_hold *hold); /* safe_until_ns := the lease's deadline */
/* That it is lost, and why, for when it is known to be held. */
void hfi_hold_mark_lost(struct hfi_hold *hold, const char *why);
/* Marks a held lock as lost. hfi_hold_tell() then calls the callbacks; it lets go of the mutex while it does. */
void hfi_hold_lose(struct hfi_hold *hold, const char *why);
/* The same for one that its store does not have any more; `why` is "" if it does not say why. */
void hfi_hold_lose_in_store(struct hfi_hold *hold, const char *why);
/* The same for one whose time is over: finds out why. */
void hfi_hold_lose_by_time(struct hfi_hold *hold);
void hfi_hold_tell(struct hfi_hold *hold);
/* The same for one handle, which may be gone afterwards. */
void hfi_handle_tell(hf_lock *handle);
const char *hfi_hold_why(const struct hfi_hold *hold); /* it was lost; "" if it was not */
hf_lock *hfi_handle_new(struct hfi_hold *hold);        /* NULL: no memory */
void hfi_handle_attach(hf_lock *handle, struct hfi_hold *hold, const hf_options *options);
void hfi_handle_free(hf_client *client, hf_lock *handle);
/* Around a call that uses the store: hf_close() waits for it. Both with the mutex held. */
void hfi_client_enter(hf_client *client);
void hfi_client_leave(hf_client *client);
void hfi_client_lock(hf_client *client);
void hfi_client_unlock(hf_client *client); /* frees it if that was the last reference */
/* Another handle of a lock that is held. */
hf_status hfi_hold_enter(hf_lock **out, struct hfi_hold *hold, const struct hfi_want *want, hf_error *err);

/* contest.c: all with the mutex held. */
void hfi_wait_begin(hf_client *client, struct hfi_wait *wait, const struct hfi_want *want, struct hfi_hold *following);
bool hfi_wait_get_waker(hf_client *client, struct hfi_wait *wait); /* false: no memory or no descriptor */
void hfi_wait_end(hf_client *client, struct hfi_wait *wait);
/* Ends it as soon as it sleeps, or now if it does. */
void hfi_wait_cancel(struct hfi_wait *wait);
/* It is done by an operation that was cancelled meanwhile. */
bool hfi_want_is_over(const struct hfi_want *want);
/* The store is asked without a thread: the operation goes on when it has answered, on another one perhaps, and may be
 * gone. */
#define HFI_UNDER_WAY ((hf_status)-2)
/* Asks the store on behalf of a new hold; `late`: once, since its time is over. Lets go of the mutex in between. An
 * operation may be HFI_PARKED or HFI_UNDER_WAY: then it is to be gone on with. */
hf_status hfi_contest_take(hf_lock **out, hf_client *client, const struct hfi_want *want, bool late, hf_error *err);
/* The same for an operation, on the thread of its caller: the store is asked, or a runner is to do so. It may be gone
 * afterwards. False: no memory. */
bool hfi_contest_start(hf_op *op);
/* The store's answer to an operation, a grant, is taken up, and that is all; the mutex is not let go of. False: the
 * operation is to be gone on with, and the grant may have to be given back. */
bool hfi_contest_win(hf_lock **out, hf_op *op);
hf_status hfi_contest_go_on(hf_lock **out, struct hfi_contest *contest, hf_error *err);

uint64_t hfi_thread_number(void); /* needs no mutex */

/* line.c: all with the mutex held, but for hfi_line_wake(). */

/* The first in the line for `name`; NULL: nobody stands there. */
struct hfi_turn *hfi_line_first(hf_client *client, uint32_t name_hash, const char *name);
/* True if somebody does. As a rule there is no line at all, which costs next to nothing to know. */
static inline bool hfi_line_is_there(hf_client *client, const struct hfi_want *want)
{
    return client->turns && hfi_line_first(client, want->name_hash, want->name);
}
/* Waits in the line; lets go of the mutex. HF_OK: *out is set if the lock was passed on to it; else it must look again
 * whom the lock belongs to, and ask. HF_TIMEOUT, HF_CANCELED: it has left the line. */
hf_status hfi_line_wait(hf_lock **out, hf_client *client, const struct hfi_want *want);
/* Has the first in the line ask, if nobody of this client holds the lock or asks for it: after each end of a hold. */
void hfi_line_call_first(hf_client *client, uint32_t name_hash, const char *name);
/* All of them are to ask: the store is in trouble, and each has a patience of its own. */
void hfi_line_break_up(hf_client *client, uint32_t name_hash, const char *name);
/* Others of the owner that has it now, as `want` asked for it, may re-enter. */
void hfi_line_call_owner(struct hfi_hold *hold, const struct hfi_want *want);
void hfi_line_cancel(hf_client *client, const char *name);
void hfi_line_cancel_all(hf_client *client);
/* The last handle of a hold that has spare_tokens passes it on, and itself with it. False: it must be released. Else
 * *to_wake: the thread that is to be woken once the mutex is free; NULL: it is an operation's, which may be gone. */
bool hfi_line_pass(struct hfi_hold *hold, hf_lock *handle, struct hfi_turn **to_wake);
void hfi_line_wake(struct hfi_turn *turn);

/* Stands in the line without a thread: hfi_operation_call() is called when it is to look. */
void hfi_line_join(hf_op *op);
/* It was called. True: it has left the line, and is to ask; false: it stands there still. */
bool hfi_line_take_turn(hf_op *op);
/* Whoever calls this sees to it that the next one is called. */
void hfi_line_leave(hf_op *op);

/* acquire.c: goes on with an operation that wants a lock. False: it stands in a line now, or is parked. Mutex held; let
 * go of in between. */
bool hfi_acquire_run(hf_op *op, hf_lock **lock, hf_status *status, hf_error *err);
/* The same if all that it has to do is to stand in a line, which needs no thread: then it does. */
bool hfi_acquire_line_up(hf_op *op);
/* The same if all that it has to do is to ask the store, which is done: it may be gone afterwards. */
bool hfi_acquire_start(hf_op *op);

/* lock.c: as hf_release() and hf_release_done(), for `thread`; without the mutex. */
hf_status hfi_release(hf_lock *lock, bool done, uint64_t thread, hf_error *err);
/* The release of an operation, if the store must be asked, and nothing else is to be done or waited for. True:
 * it is, or a runner is to do so; it may be gone afterwards. Lets go of the mutex in between. */
bool hfi_release_start(hf_op *op);
/* Goes on with it: asks, if that is still to be done, and ends it. */
hf_status hfi_release_go_on(hf_op *op, hf_error *err);

/* operation.c: all with the mutex held. */
/* It stands in a line, and is to look whether it is its turn; or it is parked, and is to go on. */
void hfi_operation_call(hf_op *op);
/* Nobody runs it until its waker is woken, or that one's time comes. */
void hfi_operation_park(hf_op *op);
/* It leaves the line that it stands in, and ends: HF_CANCELED, HF_TIMEOUT. The next one is not called. */
void hfi_operation_give_up(hf_op *op, hf_status why);
/* Before an exchange is started for it. False: none may be. */
bool hfi_operation_may_start(const hf_op *op);
/* Starts it, without the mutex; the operation may be gone afterwards. False: it could not be, and is under way until
 * hfi_operation_end_exchange(), which comes after whatever else is to become of it. */
bool hfi_operation_start(hf_op *op, void *lock, const struct hfi_request *request, struct hfi_grant *grant);
void hfi_operation_end_exchange(hf_client *client);
/* The lock was passed on to it, while it stood in a line. */
void hfi_operation_pass(hf_op *op, hf_lock *lock);
/* Goes on with it, on a runner's thread; lets go of the mutex in between. */
void hfi_operation_run(hf_op *op);
void hfi_operation_settle(hf_op *op); /* frees it if nobody needs it any more */
/* Lets go of the mutex until it has ended, or that time is over (false); less than 0: for ever. */
bool hfi_operation_await(hf_op *op, int64_t wait_ms);
/* Goes on with those whose time has come, and sees to it that there are runners. Returns when to look again. By the
 * keeper, by runners, and by whoever waits: each of them may be kept from it by a callback of the user's. */
hfi_time hfi_operations_look(hf_client *client);
/* Those that have not asked yet for `name`, or any lock (NULL). */
void hfi_operations_cancel(hf_client *client, const char *name);

/* runner.c: threads that make what operations want of the store; with the mutex held. */
/* False: there may be no thread for it. It is taken all the same. */
bool hfi_runner_submit(hf_op *op);
bool hfi_runner_is_there(hf_client *client); /* or is started; the last one stays */
/* Around a sleep of a runner on behalf of `want`, which others need not wait for; no mutex. */
void hfi_runner_begins_to_wait(hf_client *client, const struct hfi_want *want);
void hfi_runner_stops_to_wait(hf_client *client, const struct hfi_want *want);
/* Starts another one if what is to be run is not: there was no thread, or all of them hang. Returns when to look
 * again. */
hfi_time hfi_runners_catch_up(hf_client *client, hfi_time now_ns);
void hfi_runner_withdraw(hf_op *op);
void hfi_runners_stop(hf_client *client); /* lets go of the mutex while it joins them */
/* The thread that attends to exchanges which none waits for. */
bool hfi_attendant_is_there(hf_client *client); /* or is started */
void hfi_attendant_stop(hf_client *client);     /* lets go of the mutex while it joins it */

/* event.c: with the mutex held. */
void hfi_event_lost(hf_lock *lock, const char *why, void *argument); /* the on_lost of locks whose losses are events */
void hfi_event_queue(hf_client *client, struct hfi_event *event);
void hfi_event_unqueue(hf_client *client, struct hfi_event *event);
/* The lock is being released: no event tells of its loss from now on. */
void hfi_event_drop_loss(hf_lock *lock);
/* The caller does not know the lock: nor does any callback. */
void hfi_event_forget_loss(hf_lock *lock);
void hfi_events_close(hf_client *client); /* lets go of the mutex in between */

/* undo.c: releases a hold's engine lock; what cannot be finished now goes to the keeper. Mutex held; let go of in
 * between. */
hf_status hfi_undo(struct hfi_hold *hold, hfi_time patience_ns, hf_error *err);
/* What became of a release that the engine was asked for without that. */
void hfi_undo_answered(struct hfi_hold *hold, hf_status status);
/* No release will follow: it is done, or the store is closed. */
void hfi_undo_end(struct hfi_hold *hold);
/* The same at once, but not on this thread if the store may keep it waiting. */
void hfi_undo_soon(struct hfi_hold *hold);

/* keeper.c: all with the mutex held, but for the first. */
/* A thread that gets none of the user's signals. Returns an errno value. */
int hfi_thread_start(pthread_t *thread, void *(*body)(void *), void *argument);
#define HFI_AT_ONCE ((hfi_time)1) /* long past; 0 would switch the timer off */
bool hfi_keeper_start(hf_client *client, hf_error *err);
void hfi_keeper_expect(hf_client *client, hfi_time due_ns); /* look at `due_ns` at the latest, if it runs */
void hfi_keeper_stop(hf_client *client);                    /* lets go of the mutex while it joins */
/* The env->lost and env->recheck of every engine; no mutex. */
void hfi_keeper_lost(void *core, struct hfi_owner owner, const char *why);
void hfi_keeper_recheck(void *core, uint64_t serial);

static inline const char *hfi_hold_name(const struct hfi_hold *hold)
{
    return (const char *)hold->engine_lock + hold->client->engine->lock_size;
}

static inline struct hfi_owner hfi_hold_owner(const struct hfi_hold *hold)
{
    return (struct hfi_owner){ hold->client->env.client, hold->serial };
}

struct hfi_owner_key hfi_hold_key(const struct hfi_hold *hold);
/* A request for what the hold wants from its engine. */
struct hfi_request hfi_hold_request(const struct hfi_hold *hold, hfi_time deadline_ns);

#endif
