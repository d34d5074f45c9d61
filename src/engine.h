/* SPDX-License-Identifier: MIT
 *
 * engine.h: what an engine is. Read docs/NEW-ENGINE.md beside it; src/engines/mem.c is the reference.
 *
 * The core owns time, waiting, retry, renewal, re-entry, names, memory and words. An engine turns one request into one
 * exchange with its store and says truthfully what happened. It starts no thread, sees no user option, knows no other
 * engine, and keeps no clock: env->now_ns() is the only time, request->deadline_ns the only limit. It calls no
 * getaddrinfo(), which has none, nor lets a library do so: the core looks up hosts, see resolve.h.
 *
 * All functions may be called from several threads at once, but never two for the same lock, except that renew() and
 * take_push() run beside anything. None may block past its deadline; all descriptors are close-on-exec and, unless an
 * engine's library hides them, opened with HFI_FD() so that a forked child drops them.
 */
#ifndef HFI_ENGINE_H
#define HFI_ENGINE_H

#include <holdfast.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HFI_ENGINE_ABI 9u

/* Nanoseconds on CLOCK_BOOTTIME, which goes on during suspend. */
typedef int64_t hfi_time;
#define HFI_NEVER INT64_MAX
#define HFI_MS ((hfi_time)1000000)
#define HFI_SECOND ((hfi_time)1000000000)

/* Who asks, unique for all time and machines: a random number per client, and a count of its holds. */
struct hfi_owner {
    uint64_t client;
    uint64_t serial;
};

/* A place where one thread sleeps until somebody wakes it. See waker.h. */
struct hfi_waker;

struct hfi_url {
    const char *scheme; /* "file" */
    const char *rest;   /* what follows "scheme:", percent-decoding left to the engine, password included */
};

/* What the core gives to an engine. The functions may be called from any thread. */
struct hfi_env {
    uint64_t client;     /* the random number of every hfi_owner of this client */
    hfi_time timeout_ns; /* the longest that open(), and any other exchange without a deadline, may take */
    hfi_time (*now_ns)(void);
    uint64_t (*random)(void);
    /* The store took away what `owner` held: the core tells its user at once. For take_push(), and for nothing else. */
    void (*lost)(void *core, struct hfi_owner owner, const char *why);
    /* Something happened to the store that may have cost it our locks, a failover say, or the one of this serial: the
     * core has all of them (0), or that one, renewed now, and not when it would be time. */
    void (*recheck)(void *core, uint64_t serial);
    void *core;
};

/* What open() may tell of its store. */
struct hfi_opened {
    char *shown;   /* NULL, or an allocated URL to show instead of the user's */
    uint32_t caps; /* the engine's, for open() to change where the URL decides on them */
    bool reserves; /* a grant can have several tokens, see hfi_request.reserve */
    bool starts;   /* exchanges can be started without a thread that waits for them, see hfi_engine.start */
};

#define HFI_TOKENS_MOST 64u

struct hfi_request {
    const char *name; /* checked: 1 to 255 bytes of UTF-8, no control characters */
    struct hfi_owner owner;
    uint32_t ttl_ms;
    hfi_time deadline_ns;    /* the call returns by then */
    bool queue;              /* the caller is going to wait: take a place in the store's queue, if it has one */
    const char *note;        /* never NULL */
    struct hfi_waker *waker; /* where wait() sleeps; NULL outside of a wait */
    /* NULL, or what wait() may leave to be woken in place of sleeping: see there. */
    struct hfi_waker *parked;
    bool once;        /* attempt(): HF_DONE if the store has a mark that the work of this lock is done */
    uint64_t done_ms; /* release(): not 0: leaves such a mark if it was held until now, to last for so long */
    /* attempt(): so many tokens are of use, for whom the core is going to pass the lock on to; at most HFI_TOKENS_MOST.
     * Never more than 1 unless open() has said that it reserves. */
    uint32_t reserve;
};

struct hfi_grant {
    uint64_t token;
    /* The moment from which the store counts the time-to-live, or an earlier one. The core sets it to the moment before
     * the call; an engine that knows better, or must ask for less, may change it. */
    hfi_time counted_from_ns;
    /* 0: granted for the whole time-to-live. Else for so long only, unless it is renewed: the core sees to that. */
    uint32_t valid_ms;
    /* After HF_BUSY, for people: who holds it, "" if not known; and how long still, -1 if not known. After HF_DONE: who
     * did it, for how long that counts still, and how long ago it was, -1 if not known. */
    char holder[160];
    int64_t holder_left_ms;
    int64_t done_ago_ms;
    /* `token` and those that follow it are all of this grant, so many: the next grant's is greater than each of them.
     * The core sets it to 1. */
    uint32_t tokens;
};

#define HFI_WHY_MAX 200

/* One lock of a renewal. renew() sets `status` to HF_OK, to HF_LOST if the store no longer has it, or to what went
 * wrong; with HF_LOST, if it knows more than that, `why`, a sentence as for env->lost(); and, if it knows better,
 * counted_from_ns. valid_ms: as in struct hfi_grant. */
struct hfi_renewal {
    void *lock;
    const char *name;
    struct hfi_owner owner;
    uint32_t ttl_ms;
    hfi_time counted_from_ns;
    uint32_t valid_ms;
    hf_status status;
    char why[HFI_WHY_MAX]; /* "" before */
};

/* What the store is to be examined for, and who is told: by hfi_finding(). */
struct hfi_examination {
    uint32_t ttl_ms; /* of the locks; never 0 */
    hf_examine_fn each;
    void *arg;
};

/* An attempt() or a release() that no thread waits for. The core keeps it, and what it points to, until it is done. */
struct hfi_exchange {
    void *lock;
    const struct hfi_request *request;
    struct hfi_grant *grant; /* of an attempt(); NULL: it is a release() */
    /* Called once, on any thread that is in the engine, without a mutex of the engine's that start() needs: what the
     * blocking function would have returned, and with it the sentence if that is not HF_OK. Does not block. */
    void (*done)(struct hfi_exchange *exchange, hf_status status, const hf_error *err);
};

struct hfi_engine {
    unsigned abi;        /* HFI_ENGINE_ABI */
    const char *name;    /* "redis" */
    const char *schemes; /* "redis: rediss: redis+unix:", for people; registry.c has the table */
    const char *summary; /* one line for `holdfast engines` */
    uint32_t caps;       /* HF_CAP_ bits, for a URL without options: the same bits refuse, print and select tests */
    bool immediate;      /* never blocks but in wait(): its requests carry no deadline, and no clock is read for it */
    bool parks;          /* wait() may be left with hfi_waker_park(), and a few threads do for any number of waits */
    bool lingers;        /* what is not renewed stays for as long as the client's session: it must be released */
    size_t store_size;   /* the core allocates and zeroes both; a store lives from open() to close(), */
    size_t lock_size;    /* a lock from the first attempt() to the release() that follows it */

    /* Connects. On failure the core still calls close(). */
    hf_status (*open)(void *store, const struct hfi_url *url, const struct hfi_env *env, struct hfi_opened *opened,
                      hf_error *err);
    void (*close)(void *store);

    /* Asks for the lock. With request->once a mark is looked for in the same exchange, whether the lock is free or
     * not; and HF_OK says that there was none once the lock was ours: a push that grants it is not enough, as whoever
     * released it may have left one. Idempotent by owner: asking again after HF_BUSY or a lost reply finds the earlier
     * success. HF_OK: held, `grant` filled in. HF_BUSY: somebody else holds it; with request->queue the place in the
     * queue is kept. HF_DONE: there is a mark. HF_UNKNOWN: sent, but no answer. Any other: nothing was changed, or it
     * is there but must not be relied on. After all but HF_OK the core either asks again or calls release(). Nothing
     * is released here: a release could arrive late, and free what the same owner was granted since. */
    hf_status (*attempt)(void *store, void *lock, const struct hfi_request *request, struct hfi_grant *grant,
                         hf_error *err);

    /* Sleeps on request->waker, and on what else the engine listens to, until it is worth asking again, the deadline
     * has come or the waker was woken. HF_OK: ask again. HF_TIMEOUT: the deadline came and there is no news. May return
     * early and for no reason, but not in a loop. NULL: the store cannot tell, and the core asks from time to time.
     * If there is nothing to listen to, or another thread listens for it, and request->parked is not NULL, it may
     * return hfi_waker_park() in place of sleeping: whoever has news wakes request->parked, and the core calls wait()
     * again then, or at the time that was given. That waker is good until the next wait(), an attempt() that is
     * granted, or release(). */
    hf_status (*wait)(void *store, void *lock, const struct hfi_request *request, hf_error *err);

    /* Extends `count` locks to their ttl from now in as few exchanges as the store allows, by `deadline_ns`. HF_OK:
     * every status was set. Anything else: no status is to be trusted. NULL for engines without HF_CAP_EXPIRY. */
    hf_status (*renew)(void *store, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns, hf_error *err);

    /* Undoes attempt(), granted or not: frees the lock, or leaves the queue. Idempotent by owner. HF_OK: it was held,
     * or waited for, until now. HF_LOST: the store no longer had it. HF_UNAVAILABLE, HF_UNKNOWN, HF_NOMEM, HF_DENIED:
     * call again. Any other: given up, unless the store lingers: call again. After HF_OK, HF_LOST and giving up the
     * lock's memory may go. With request->done_ms the mark is there before anybody else can be granted the lock;
     * whoever has lost it leaves none. The last that is sent for an owner: an attempt that was not answered must find
     * nothing to take when it arrives. */
    hf_status (*release)(void *store, void *lock, const struct hfi_request *request, hf_error *err);

    /* Begins what attempt() or release() does, and returns at once; what is begun by several calls should go to the
     * store together. False: not this one, or not now; nothing was begun, and one of the two is called. True:
     * exchange->done() is called, by the request's deadline, perhaps before this returns. attend() sees to that on a
     * thread of its own, from before the first start() on, until dismiss() is called after the last is done: nobody
     * else needs to be in the engine. NULL, all three, for engines without; used if open() has said opened->starts. */
    bool (*start)(void *store, struct hfi_exchange *exchange);
    void (*attend)(void *store);
    void (*dismiss)(void *store);

    /* Calls `each` for every held lock whose name starts with `prefix`. NULL: no HF_CAP_INSPECT. */
    hf_status (*inspect)(void *store, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                         hf_error *err);

    /* The same for the lock `name` alone; the price does not grow with the number of locks. NULL with inspect(). */
    hf_status (*inspect_one)(void *store, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                             hf_error *err);

    /* Calls `each` for every mark that the work of a lock is done, and takes one back. NULL, both: no HF_CAP_ONCE. */
    hf_status (*inspect_done)(void *store, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                              hf_error *err);
    hf_status (*forget_done)(void *store, const char *name, hfi_time deadline_ns, hf_error *err);

    /* Forced release of `name`, whoever holds it. `by`: who wants it, "user@host:pid", for the holder to be told where
     * the store can carry it. NULL: no HF_CAP_BREAK. */
    hf_status (*evict)(void *store, const char *name, const char *by, hfi_time deadline_ns, hf_error *err);

    /* HF_OK: `token` is at least as great as every one that was shown for `resource`. HF_LOST: it is not. NULL: no
     * HF_CAP_GUARD. */
    hf_status (*guard)(void *store, const char *resource, uint64_t token, hfi_time deadline_ns, hf_error *err);

    /* Looks at the way the store is set up and says by hfi_finding() what follows for locks of examination->ttl_ms: one
     * finding for each thing that was looked at, also if it is as it should be. Writes nothing. What the store refuses
     * to show is a finding too, HF_FINDING_NOTE, and no reason to stop; other than HF_OK is returned only when the
     * store cannot be asked any more. NULL: there is nothing to look at. */
    hf_status (*examine)(void *store, const struct hfi_examination *examination, hfi_time deadline_ns, hf_error *err);

    /* The descriptor on which the store speaks up by itself, or -1; asked again after each take_push(). take_push() is
     * called on the keeper's thread when it is readable or broken, reads without blocking, wakes whom it concerns with
     * hfi_waker_wake() and reports losses to env->lost(). NULL, both, for a store that never speaks first. */
    int (*push_fd)(void *store);
    void (*take_push)(void *store);
};

/* --- what the core offers to engines. Exported for modules only; programs have no business with it. --- */

#define HFI_API __attribute__((visibility("default")))

/* Fills in `err` (may be NULL) and returns `status`. One line, lower case, naming the thing and the number. */
HFI_API hf_status hfi_fail(hf_error *err, hf_status status, int native, const char *format, ...)
    __attribute__((format(printf, 4, 5), nonnull(4)));

/* The status that a system call's errno stands for: EACCES and the like HF_DENIED, EMFILE HF_NOMEM, and so on; and the
 * sentence "cannot <verb> <object>: <reason>". */
HFI_API hf_status hfi_fail_errno(hf_error *err, int number, const char *verb, const char *object);

/* What the holder of a lock that was broken is told; `by`: who did it, as the store has it. Without control
 * characters, whatever that is. */
HFI_API void hfi_say_broken(char out[HFI_WHY_MAX], const char *by);

/* Tells a finding. What the format yields are up to three lines: the sentence, which says what follows for locks; the
 * evidence, the value that was found and in parentheses the command that shows it; and the remedy, the setting that
 * mends it. With HF_FINDING_OK and _NOTE the last may be missing. Sentences begin in lower case, as messages do:
 *     hfi_finding(examination, HF_FINDING_RISK, "persistence",
 *                 "a crash of the server forgets the locks of the last second\n"
 *                 "appendfsync is %s (CONFIG GET appendfsync)\n"
 *                 "CONFIG SET appendfsync always", value); */
HFI_API void hfi_finding(const struct hfi_examination *examination, hf_finding_level level, const char *what,
                         const char *format, ...) __attribute__((format(printf, 4, 5), nonnull(1, 3, 4)));

/* Sleeps until the waker is woken, one of `count` further descriptors has something, or `deadline_ns` comes (HFI_NEVER:
 * no deadline). True: woken, or a descriptor has something (see revents). False: the deadline. */
HFI_API bool hfi_waker_sleep(struct hfi_waker *waker, struct pollfd *fds, size_t count, hfi_time deadline_ns);
HFI_API void hfi_waker_wake(struct hfi_waker *waker);
/* What wait() returns that does not sleep; `until_ns`: when it is to be called again, if nothing happens. */
#define HFI_PARKED ((hf_status)-1)
HFI_API hf_status hfi_waker_park(struct hfi_waker *waker, hfi_time until_ns);
/* True once the core wants the sleeper to come back (cancel, close): wait() then returns without sleeping again. */
HFI_API bool hfi_waker_called_back(const struct hfi_waker *waker);

/* Opens a descriptor that a forked child closes: HFI_FD(open(path, O_RDWR | O_CLOEXEC)). One step that no fork can
 * split, or the child could keep a lock alive after its parent's death. `call` must not block. */
#define HFI_FD(call) hfi_fd_end((hfi_fd_begin(), (call)))
HFI_API void hfi_fd_begin(void);
HFI_API int hfi_fd_note(int fd); /* between begin and end, for a call that yields several; returns as end does */
/* Between begin and end, before a library closes a descriptor by itself; takes -1. */
HFI_API void hfi_fd_forget(int fd);
HFI_API int hfi_fd_end(int fd);    /* returns fd; -1 with errno if it is -1 or could not be registered */
HFI_API void hfi_fd_close(int fd); /* takes -1 */

/* Memory that tests can make fail. Freed by hfi_free(). */
HFI_API void *hfi_alloc(size_t size); /* zeroed */
HFI_API char *hfi_strdup(const char *text);
HFI_API void hfi_free(void *memory);

/* Reading a URL: `length` bytes of it without their %XX; a copy that takes the place of what the field was, of text as
 * it is or of a part of the URL; yes or no; a number; the first line of a file, whose message begins "cannot <what>".
 * No message repeats what was read, which may be part of a password. */
#define HFI_URL_TEXT_MAX 1024
HFI_API hf_status hfi_url_decode(char out[HFI_URL_TEXT_MAX], const char *text, size_t length, hf_error *err);
HFI_API hf_status hfi_url_keep(char **field, const char *text, hf_error *err);
HFI_API hf_status hfi_url_keep_decoded(char **field, const char *text, size_t length, hf_error *err);
HFI_API hf_status hfi_url_read_switch(bool *out, const char *name, const char *value, hf_error *err);
HFI_API hf_status hfi_url_read_number(long *out, const char *text, long least, long most, const char *what,
                                      hf_error *err);
HFI_API hf_status hfi_url_read_secret(char out[HFI_URL_TEXT_MAX], const char *what, const char *path, hf_error *err);
HFI_API hf_status hfi_url_keep_secret(char **field, const char *what, const char *path, hf_error *err);

/* NAME as one path component: '/', '%' and a leading '.' become %XX, so that different names stay different and a plain
 * word stays itself. `out` has room for HFI_NAME_ENCODED_MAX bytes. hfi_name_decode() is its inverse; false if `text`
 * is not its output or does not fit. */
#define HFI_NAME_MAX 255
#define HFI_NAME_ENCODED_MAX (3 * HFI_NAME_MAX + 1)
HFI_API void hfi_name_encode(char *out, const char *name);
HFI_API bool hfi_name_decode(char *out, size_t size, const char *text);
HFI_API uint64_t hfi_name_hash(const char *name);

/* The path of a file that was installed together with the library, for messages; its name alone if there is none, or if
 * the path would leave no room for the rest of a message. */
#define HFI_DATA_FILE_MAX 80
HFI_API void hfi_data_file(char out[HFI_DATA_FILE_MAX], const char *name);

#endif
