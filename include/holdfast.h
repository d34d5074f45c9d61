/* SPDX-License-Identifier: MIT
 *
 * holdfast.h: a lock that threads, processes and machines can agree on.
 *
 *     hf_client *client;
 *     hf_lock *lock;
 *     hf_error err;
 *
 *     if (hf_open(&client, "file:", NULL, &err) != HF_OK)
 *         return complain(err.message);
 *     if (hf_acquire(&lock, client, "nightly-report", NULL, &err) == HF_OK) {
 *         write_report(hf_token(lock));
 *         hf_release(lock, NULL);
 *     }
 *     hf_close(client);
 *
 * Five rules hold everywhere.
 *
 *  1. Every function that can fail returns an hf_status. The words go into an hf_error that the caller owns; NULL
 *     means that nobody wants the words. An hf_error is written only when something failed.
 *  2. What comes out through `out` is yours: hf_close(), hf_release() and hf_op_free() free it, whatever they return,
 *     and take NULL. Strings that go in are copied before the call returns.
 *  3. In an options struct zero means the default. Start from HF_OPTIONS_INIT; fields are only ever appended.
 *  4. Clients and locks may be used from any thread. A callback runs on a thread of the client's own (or, for a loss
 *     noticed by a call, on that call's thread) with no lock of the library held, so it may call any function but
 *     hf_close().
 *  5. Nothing crosses fork(). The child holds nothing: a client from before the fork answers HF_INVALID, a lock
 *     HF_LOST, and hf_close() and hf_release() there do nothing. Open a new client in the child.
 *
 * A lock is a promise among those who ask for it. To be safe from a holder that was paused for too long and then goes
 * on writing, pass hf_token() along with every write and let the place that is written to refuse a smaller token than
 * the largest it has seen.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF_VERSION_MAJOR 0
#define HF_VERSION_MINOR 1
#define HF_VERSION_PATCH 0

#if defined(__GNUC__)
#define HF_API __attribute__((visibility("default")))
#else
#define HF_API
#endif

/* ------------------------------------------------------------------------------------------------- status and error */

/* Grouped by what the caller does next. The numbers never change. */
typedef enum hf_status {
    HF_OK = 0,

    /* The store answered, and the answer is no. */
    HF_BUSY = 1,     /* somebody else holds it */
    HF_TIMEOUT = 2,  /* the wait ended at its deadline */
    HF_LOST = 3,     /* it was held, and ended before it was released */
    HF_CANCELED = 4, /* hf_cancel(), hf_op_cancel() or hf_close() ended the wait */
    HF_DONE = 5,     /* it was asked for once per some time, and was done within that time */

    /* Trouble; later may help. The lock is not held. */
    HF_UNAVAILABLE = 16, /* the store could not be asked; nothing was changed */
    HF_UNKNOWN = 17,     /* the store was asked and its answer lost; what it may have done is being undone */

    /* Trying again will not help. */
    HF_DENIED = 32,      /* the store or the system refuses this user */
    HF_INVALID = 33,     /* an argument makes no sense */
    HF_UNSUPPORTED = 34, /* this engine cannot do that */
    HF_NOMEM = 35,       /* no memory, or no descriptors left */
    HF_INTERNAL = 36     /* a bug in Holdfast, or a store that breaks its own rules */
} hf_status;

/* "HF_BUSY" for HF_BUSY, and so on; "unknown status" for anything else. */
HF_API const char *hf_status_name(hf_status status);

typedef struct hf_error {
    hf_status status;
    int native;        /* errno, or the store's own number; 0 if there is none */
    char message[240]; /* one sentence without a newline; never contains a password */
} hf_error;

/* "0.1.0" */
HF_API const char *hf_version(void);

/* ----------------------------------------------------------------------------------------------------------- client */

typedef struct hf_client hf_client;

typedef struct hf_client_options {
    size_t size;         /* sizeof(hf_client_options): set by HF_CLIENT_OPTIONS_INIT */
    uint32_t timeout_ms; /* the longest that one exchange with the store may take; default 5000 */
    /* Threads of this client that wait for one name stand in one line, and the first of them alone asks the store. For
     * so long after the store has granted the lock, hf_release() passes it on to the first in the line without asking
     * the store, where others may wait; default 5 (and what is 0). Less than 0: every waiter stands in the store's own
     * queue, and nothing is passed on. Only with stores that give tokens in advance: "mem:", and "redis:" without
     * dialect=. See holdfast(3). */
    int64_t handoff_ms;
} hf_client_options;

#define HF_CLIENT_OPTIONS_INIT                                                                                         \
    {                                                                                                                  \
        sizeof(hf_client_options), 0, 0                                                                                \
    }

/* Opens the store that `url` names. NULL means the environment's HOLDFAST_URL or, without one, "file:". `options` may
 * be NULL. HF_INVALID: the URL is empty or malformed, or its scheme is unknown. HF_UNSUPPORTED: the engine is known but
 * not installed; the message says what to install. HF_DENIED, HF_UNAVAILABLE: the store refused, or was not there. */
HF_API hf_status hf_open(hf_client **out, const char *url, const hf_client_options *options, hf_error *err);

/* Ends all waits with HF_CANCELED, releases every lock that the client holds, and frees it. Blocks until the waits have
 * ended, and for at most the client's timeout while it releases. Locks that are still in the caller's hands answer
 * HF_LOST from then on, without a callback; each must still be given to hf_release(), which frees it. */
HF_API void hf_close(hf_client *client);

/* ------------------------------------------------------------------------------------------------------------- lock */

typedef struct hf_lock hf_lock;

typedef enum hf_renew_mode {
    HF_RENEW_ON = 0, /* renewed in the background at a third of its time-to-live for as long as it is held */
    HF_RENEW_OFF = 1 /* a plain lease: it ends ttl_ms after it was granted, unless hf_renew() is called */
} hf_renew_mode;

/* Who may take a held lock again (re-entry). Re-entry needs no round trip, keeps the token, ignores ttl_ms, renew,
 * max_hold_ms, note and once_per_ms, and the last release frees the lock. Owners are told apart within one client
 * only. */
typedef enum hf_owner_kind {
    HF_OWNER_THREAD = 0, /* the calling thread; any thread may release */
    HF_OWNER_HANDLE = 1, /* nobody, or whoever shows owner_handle, a lock of the same name held by the same client */
    HF_OWNER_TEXT = 2    /* whoever names the same owner_text */
} hf_owner_kind;

/* Called once for each lock that ends before its release. `why` is one sentence, valid during the call. */
typedef void (*hf_lost_fn)(hf_lock *lock, const char *why, void *arg);

typedef struct hf_options {
    size_t size;                 /* sizeof(hf_options): set by HF_OPTIONS_INIT */
    uint32_t wait_ms;            /* how long hf_acquire() waits; 0: for ever */
    uint32_t ttl_ms;             /* time-to-live; default 30000, at least 100 */
    hf_renew_mode renew;         /* default on */
    uint32_t max_hold_ms;        /* end it after this long even if it could be renewed; 0: never */
    hf_owner_kind owner;         /* default: the calling thread */
    const char *owner_text;      /* for HF_OWNER_TEXT: 1 to 255 bytes */
    const hf_lock *owner_handle; /* for HF_OWNER_HANDLE: may be NULL */
    hf_lost_fn on_lost;          /* may be NULL */
    void *arg;                   /* handed to on_lost */
    const char *note;            /* shown by `holdfast ls`: at most 120 bytes of printable UTF-8 */
    uint64_t once_per_ms; /* not 0: HF_DONE instead of a grant if hf_release_done() was called within this time */
} hf_options;

#define HF_OPTIONS_INIT                                                                                                \
    {                                                                                                                  \
        sizeof(hf_options), 0, 0, HF_RENEW_ON, 0, HF_OWNER_THREAD, 0, 0, 0, 0, 0, 0                                    \
    }

/* Takes the lock `name`, waiting for it if need be. Names are 1 to 255 bytes of UTF-8 without control characters.
 *
 * HF_OK: held, and *out is its handle. Anything else: not held, *out is NULL, and nothing is left in the store (or is
 * being removed in the background, after HF_UNKNOWN). HF_TIMEOUT: wait_ms passed. HF_CANCELED: see hf_cancel().
 * HF_UNAVAILABLE, HF_UNKNOWN: the store was out of reach for wait_ms or, if that is shorter, for ttl_ms in a row; a
 * store that comes back in time is not noticed by the caller. */
HF_API hf_status hf_acquire(hf_lock **out, hf_client *client, const char *name, const hf_options *options,
                            hf_error *err);

/* The same without waiting: HF_BUSY, with a message that says who holds it, if somebody does. */
HF_API hf_status hf_try_acquire(hf_lock **out, hf_client *client, const char *name, const hf_options *options,
                                hf_error *err);

/* Gives the lock back, from any thread, nested handles in any order, and frees the handle. HF_OK: it was held until
 * now. HF_LOST: it had ended before; whoever holds it now is not disturbed. HF_UNAVAILABLE, HF_UNKNOWN: it was held
 * until now, and the release is being finished in the background; at the worst the lock ends by its time-to-live.
 * HF_DENIED: the same, and the store does not allow it, or not to make certain of it. */
HF_API hf_status hf_release(hf_lock *lock, hf_error *err);

/* The same for work that is done only once in a while by whoever comes first, on a lock that was taken with
 * once_per_ms: records in the store, in the same step in which the lock is freed or before it, that the work is done.
 * For once_per_ms, counted from the grant by the store's clock, everybody who asks for the lock with once_per_ms of his
 * own is answered HF_DONE, also those who wait now; who asks without is not concerned. Nothing is recorded if the lock
 * was lost (HF_LOST), or held for longer than once_per_ms. What the last release of a lock that was re-entered says
 * counts. HF_UNAVAILABLE, HF_UNKNOWN: it is being recorded in the background, as the release is finished there.
 * HF_DENIED: it is not recorded, unless a release that is repeated in the background is allowed after all; the message
 * says whether the lock is released. HF_INVALID: it is released, but was taken without once_per_ms. Any other: it is
 * not recorded. */
HF_API hf_status hf_release_done(hf_lock *lock, hf_error *err);

/* Renews by hand, to `ttl_ms` from now (0: the lock's own time-to-live). HF_LOST: too late. */
HF_API hf_status hf_renew(hf_lock *lock, uint32_t ttl_ms, hf_error *err);

/* The fencing token: greater than that of every earlier grant of this name. Re-entry keeps it. */
HF_API uint64_t hf_token(const hf_lock *lock);

/* How long the lock is certain to stay ours, in milliseconds, rounded up: 0 or less means that it is lost. INT64_MAX
 * where nothing but the death of this process ends it. Never blocks and never asks the store. */
HF_API int64_t hf_remaining_ms(const hf_lock *lock);

/* A descriptor that becomes readable once the lock is lost, for event loops; -1 if none could be made. It belongs to
 * the lock: do not read from it or close it. */
HF_API int hf_lost_fd(const hf_lock *lock);

/* Ends every wait of this client for `name` with HF_CANCELED. Callable from any thread. HF_OK even if nobody waited. */
HF_API hf_status hf_cancel(hf_client *client, const char *name);

/* --------------------------------------------------------------------------------------- operations, for event loops
 *
 * The same without a thread that waits: an operation is started, which does not wait for the store, and ends exactly
 * once. Its end is told by hf_events(), which a program calls when the one descriptor of hf_events_fd() is readable, or
 * by hf_op_wait().
 *
 *     hf_start_acquire(NULL, client, "nightly-report", NULL, my_task, &err);
 *     ...
 *     poll hf_events_fd(client) together with everything else
 *     ...
 *     hf_event event;
 *     while (hf_events(client, &event, 1, sizeof event) == 1)
 *         if (event.kind == HF_EVENT_ENDED)
 *             go_on(event.tag, event.status, event.lock);
 *         else
 *             stop(event.tag, event.lock);
 *
 * Nobody but who calls hf_events() and hf_op_wait() is told anything, unless on_lost is set, which is called as ever,
 * perhaps before the end of the operation is told. Operations are not ordered among themselves: start an acquire when
 * the release before it has ended, if that matters.
 *
 * On "redis:" with one server, in its own dialect, one thread of the library sees to all exchanges, and those that are
 * started together are sent together. For now it makes those of other stores on threads of its own: one for each that
 * is under way, and, with some engines, one for each that waits in the store's queue. See holdfast(3). */

typedef struct hf_op hf_op;

typedef enum hf_event_kind {
    HF_EVENT_ENDED = 1, /* an operation has ended */
    HF_EVENT_LOST = 2   /* a lock was lost that an operation had taken, without on_lost; hf_release() frees it */
} hf_event_kind;

typedef struct hf_event {
    hf_event_kind kind;
    hf_status status; /* of the operation; HF_LOST */
    void *tag;        /* of the operation; of the one that took the lock: it is needed until that is released */
    hf_op *op;        /* NULL if its start was not asked for it */
    hf_lock *lock;    /* that was taken, and is the caller's from now on; or that is lost; else NULL */
    hf_error error;   /* if the status is not HF_OK */
} hf_event;

/* Starts what hf_acquire() does. HF_OK: its end will be told, with `tag`, perhaps to another thread before this call
 * has returned; *out is the operation, for those that want to cancel it or to wait for it, and must be given to
 * hf_op_free(). `out` may be NULL. Anything else: nothing was started. wait_ms counts from here. HF_OWNER_THREAD means
 * nothing to an operation: it is the same as HF_OWNER_HANDLE without a handle, so that two operations of one thread
 * exclude each other. */
HF_API hf_status hf_start_acquire(hf_op **out, hf_client *client, const char *name, const hf_options *options,
                                  void *tag, hf_error *err);

/* Starts what hf_try_acquire() does. */
HF_API hf_status hf_start_try_acquire(hf_op **out, hf_client *client, const char *name, const hf_options *options,
                                      void *tag, hf_error *err);

/* Starts what hf_release() does. HF_OK: the lock is no longer the caller's. Anything else: nothing was started, and it
 * still is. With `out` NULL nobody is told how it ended, and it cannot fail, as finalizers need it: if there is no
 * memory or no thread for it, the call makes the release itself, and returns what came of it. */
HF_API hf_status hf_start_release(hf_op **out, hf_lock *lock, void *tag, hf_error *err);
HF_API hf_status hf_start_release_done(hf_op **out, hf_lock *lock, void *tag, hf_error *err);

/* Ends this acquire, and no other, with HF_CANCELED, at once, unless it has ended already; if the store grants the lock
 * after that, the library gives it back. A release cannot be cancelled. */
HF_API void hf_op_cancel(hf_op *op);

/* Waits for its end, for `wait_ms` at most; less than 0: for ever. 1: it has ended, and *out says how, as hf_events()
 * would, which does not tell it any more. 0: not yet. A lock is handed out once, by whichever is the first to tell.
 * `size` is sizeof(hf_event). */
HF_API int hf_op_wait(hf_op *op, int64_t wait_ms, hf_event *out, size_t size);

/* Gives the operation back; NULL is allowed. An acquire that has not ended is cancelled, a release goes on, and neither
 * is told. A lock that it got and that nobody was told of is released, as hf_start_release() without `out` does it. */
HF_API void hf_op_free(hf_op *op);

/* A descriptor that is readable while there are events; -1 if none could be made. It belongs to the client: do not read
 * from it or close it, and take it out of your loop before hf_close(). */
HF_API int hf_events_fd(hf_client *client);

/* Takes up to `room` events, oldest first, and says how many; `size` is sizeof(hf_event). Never waits. Loops that are
 * told of changes alone (edge-triggered) call it until fewer than `room` have come. Whoever takes several at once must
 * know that what is done for one may end what another speaks of: a lock that is released, an operation that is freed.
 * A loss is told after the end of the operation that took the lock, and never once hf_release() was called or
 * hf_start_release() has returned HF_OK. After hf_close() there are no more events: acquires that have not ended end
 * with HF_CANCELED, and operations that the caller has must still be given to hf_op_free(). */
HF_API size_t hf_events(hf_client *client, hf_event *out, size_t room, size_t size);

/* --------------------------------------------------------------------------------------------------- administration */

typedef struct hf_info {
    size_t size;          /* of this struct in the library that calls back */
    const char *name;     /* the lock */
    const char *host;     /* where its holder runs; "" if not known */
    int64_t pid;          /* the holder's process as that host numbers it; 0 if not known */
    uint64_t token;       /* 0 if not known */
    int64_t held_ms;      /* since when; -1 if not known */
    int64_t remaining_ms; /* until the store ends it by itself; -1 if only the holder's death does, or not known */
    int64_t waiters;      /* how many wait in the store; -1 if not known. Threads of one client: see handoff_ms */
    const char *note;     /* the holder's note, or "" */
    /* Who waits, as many as `waiters`, "host:pid note" each, in the order in which they will be served; NULL if the
     * store cannot tell. */
    const char *const *waiting;
} hf_info;

/* Return non-zero to stop. The strings are valid during the call. */
typedef int (*hf_inspect_fn)(const hf_info *info, void *arg);

/* Calls `each` once for every held lock whose name starts with `prefix` (NULL: all). HF_OK also when there is none. */
HF_API hf_status hf_inspect(hf_client *client, const char *prefix, hf_inspect_fn each, void *arg, hf_error *err);

/* The same for the one lock `name`, without reading the others: `each` is called once, or not at all if it is free. */
HF_API hf_status hf_inspect_one(hf_client *client, const char *name, hf_inspect_fn each, void *arg, hf_error *err);

/* Calls `each` once for every lock whose work is recorded as done, as hf_release_done() does it, and whose name starts
 * with `prefix` (NULL: all). In hf_info, host, pid, token and note are those of who did it, held_ms is how long ago it
 * was done, remaining_ms for how long it still counts; waiters is -1. */
HF_API hf_status hf_inspect_done(hf_client *client, const char *prefix, hf_inspect_fn each, void *arg, hf_error *err);

/* Takes back that the work of `name` is done: whoever asks next may do it again. HF_OK even if it was not. */
HF_API hf_status hf_forget_done(hf_client *client, const char *name, hf_error *err);

/* An administrator's forced release. The holder learns of it as of any loss. HF_OK: it is free, or was. HF_UNAVAILABLE:
 * the holder could not be told; the message says what to do. */
HF_API hf_status hf_break(hf_client *client, const char *name, hf_error *err);

/* Fencing, for data that is kept in the same store: shows `token` to it on behalf of `resource`, a name like a lock's.
 * HF_OK: no greater one was ever shown, and from now on no smaller one passes. HF_LOST: a greater one was: whoever
 * holds `token` lost its lock, and must not write. HF_UNAVAILABLE, HF_UNKNOWN: show it again, or do not write. A token
 * is 1 to INT64_MAX, as hf_token() gives it.
 *
 * What is written after this call can still come too late. Where the store has transactions, let it check in the one
 * that writes: docs/FENCING.md has the statement for each. */
HF_API hf_status hf_guard(hf_client *client, const char *resource, uint64_t token, hf_error *err);

/* How bad what was found is for the locks. */
typedef enum hf_finding_level {
    HF_FINDING_OK = 0,    /* as it should be */
    HF_FINDING_NOTE = 1,  /* good to know; or it could not be looked at */
    HF_FINDING_RISK = 2,  /* something may go wrong one day, and a lock be lost then, or never granted */
    HF_FINDING_BROKEN = 3 /* locks do not work, or do not exclude, as things are */
} hf_finding_level;

typedef struct hf_finding {
    size_t size; /* of this struct in the library that calls back */
    hf_finding_level level;
    const char *what;     /* what was looked at, in one or two words: "persistence" */
    const char *sentence; /* what follows from it for locks */
    const char *evidence; /* what was found, and the command that shows it; "" if the sentence says it */
    const char *remedy;   /* what mends it; "" if nothing is to be done */
} hf_finding;

/* The finding and its strings are valid during the call. */
typedef void (*hf_examine_fn)(const hf_finding *finding, void *arg);

/* Looks at the store, the way it is set up, for whatever could lose a lock of `ttl_ms` (0: the default time-to-live) or
 * keep it from being granted, and calls `each` for every thing that it has looked at. Writes nothing, takes no lock.
 * HF_UNSUPPORTED: this engine's store has nothing to look at. Any other but HF_OK: it could not be asked to the end;
 * what was found before has been told. */
HF_API hf_status hf_examine(hf_client *client, uint32_t ttl_ms, hf_examine_fn each, void *arg, hf_error *err);

/* What an engine can do; what it lacks is refused with HF_UNSUPPORTED, never faked. */
enum {
    HF_CAP_EXPIRY = 1 << 0,        /* the store ends a lock that is not renewed */
    HF_CAP_BOUND = 1 << 1,         /* bound to process or connection: free at once when the holder dies */
    HF_CAP_FAIR = 1 << 2,          /* waiters are served in order of arrival; but see handoff_ms */
    HF_CAP_WAKE_ONE = 1 << 3,      /* a release wakes one waiter, however many there are */
    HF_CAP_PROCESSES = 1 << 4,     /* excludes other processes of this machine */
    HF_CAP_MACHINES = 1 << 5,      /* excludes other machines */
    HF_CAP_DURABLE_TOKEN = 1 << 6, /* tokens grow through a restart of everything */
    HF_CAP_INSPECT = 1 << 7,       /* hf_inspect() */
    HF_CAP_BREAK = 1 << 8,         /* hf_break() */
    HF_CAP_GUARD = 1 << 9,         /* hf_guard() */
    HF_CAP_ONCE = 1 << 10          /* once_per_ms, hf_release_done(), hf_inspect_done(), hf_forget_done() */
};

/* The capabilities of the client's engine, HF_CAP_ bits. */
HF_API uint32_t hf_capabilities(const hf_client *client);

/* The URL that the client was opened with, without password; the default spelt out. Valid as long as the client. */
HF_API const char *hf_url(const hf_client *client);

typedef struct hf_engine_info {
    size_t size;
    const char *name;    /* "file" */
    const char *schemes; /* "file:" */
    const char *summary; /* one line */
    uint32_t caps;       /* HF_CAP_ bits; 0 if the engine is not present */
    int present;         /* 1: usable now */
    const char *missing; /* why not, and what to install; "" if present */
} hf_engine_info;

/* Calls `each` for every engine that this library knows, present or not. */
HF_API void hf_engines(void (*each)(const hf_engine_info *info, void *arg), void *arg);

#ifdef __cplusplus
}
#endif

#endif
