/* SPDX-License-Identifier: MIT
 *
 * mem.c: threads of one process. The reference for how an engine looks.
 *
 * What ends a grant:  release(), or the end of the process. The core ends leases that are not renewed.
 * Who counts time:    nobody; there is no HF_CAP_EXPIRY.
 * The store:          one table for the whole process; every client opened with "mem:" shares it.
 * Order:              waiters stand in a list; release() hands the lock to the first and wakes that one thread.
 * Done:               marks beside the holders, gone with the process or at their time, whichever comes first.
 * Token:              one count for all names, so that nothing has to be kept of a name that nobody holds.
 * Cannot promise:     anything beyond this process.
 */
#include "registry.h"
#include "waker.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define SHARDS 64
#define FIRST_BUCKETS 4
#define ASK_AGAIN (50 * HFI_MS)
enum mem_state { NEW, WAITING, HOLDING };

/* There may be very many that are held. */
struct mem_lock {
    uint8_t state;  /* enum mem_state */
    uint8_t tokens; /* so many from `token` on; while it waits: so many are of use */
    uint32_t hash;
    const char *name; /* the request's: lives as long as this lock does */
    const char *note;
    uint64_t serial; /* of its owner */
    uint64_t token;
    union {
        hfi_time since_ns;       /* of one that holds */
        struct hfi_waker *waker; /* of one that waits; NULL while its thread is not asleep */
    };
    struct mem_store *store;
    struct mem_lock *next_holder; /* in the bucket */
    struct mem_lock *next_waiter; /* behind the holder */
    struct mem_lock *last_waiter; /* of a holder; garbage if it has none */
};
_Static_assert(sizeof(struct mem_lock) <= 80, "a lock has become larger");

struct mem_store {
    const struct hfi_env *env;
    int bell; /* eventfd: one of this client's locks was broken */
};

/* That the work of a lock is done. */
struct mem_mark {
    struct mem_mark *next;
    hfi_time done_ns, until_ns;
    uint64_t token;
    char note[128];
    char name[];
};

/* A thread that is inside of mem_evict(). */
struct mem_break {
    struct mem_break *next;
    const struct mem_lock *lock; /* NULL: it was released */
    const char *by;              /* its client is to be told; NULL: it was */
};

#define UNUSED .mutex = PTHREAD_MUTEX_INITIALIZER, .released = PTHREAD_COND_INITIALIZER
static struct shard {
    pthread_mutex_t mutex;
    pthread_cond_t released;   /* for mem_evict() */
    struct mem_lock **holders; /* by hash; NULL: there has been none yet */
    size_t bucket_count;       /* a power of two */
    size_t holder_count;
    struct mem_break *breaks;
    struct mem_mark *marks;
    struct mem_lock **parents; /* a forked child's: what `holders` was there, so that it is not taken for lost */
} shards[SHARDS] = { [0 ... SHARDS - 1] = { UNUSED } };

static atomic_uint_fast64_t last_token;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A forked child holds nothing, and nothing in its table is anybody's; nor freed: the parent may have been at work. */
static void forget_parent(void)
{
    for (size_t i = 0; i < SHARDS; i++)
        shards[i] = (struct shard){ UNUSED, .parents = shards[i].holders };
}

static void install_forget_parent(void)
{
    pthread_atfork(NULL, NULL, forget_parent);
}

static struct shard *shard_of(uint32_t hash)
{
    return &shards[hash % SHARDS];
}

static struct mem_lock **bucket_of(const struct shard *shard, uint32_t hash)
{
    return &shard->holders[hash / SHARDS & (shard->bucket_count - 1)];
}

/* The holder, or the end of the list that it would be in. There is room. */
static struct mem_lock **find(const struct shard *shard, uint32_t hash, const char *name)
{
    struct mem_lock **link = bucket_of(shard, hash);
    while (*link && ((*link)->hash != hash || strcmp((*link)->name, name) != 0))
        link = &(*link)->next_holder;
    return link;
}

/* Room for one holder more; false: no memory. */
static bool make_room(struct shard *shard)
{
    if (shard->holder_count < shard->bucket_count)
        return true;
    const size_t old_count = shard->bucket_count, more = old_count ? 2 * old_count : FIRST_BUCKETS;
    struct mem_lock **old = shard->holders, **larger = hfi_alloc(more * sizeof(struct mem_lock *));
    if (!larger)
        return old_count > 0; /* a crowded table still works */
    shard->holders = larger;
    shard->bucket_count = more;
    for (size_t i = 0; i < old_count; i++) {
        for (struct mem_lock *lock = old[i], *next; lock; lock = next) {
            next = lock->next_holder;
            struct mem_lock **place = bucket_of(shard, lock->hash);
            lock->next_holder = *place;
            *place = lock;
        }
    }
    hfi_free(old);
    return true;
}

static hf_status mem_open(void *memory, const struct hfi_url *url, const struct hfi_env *env, struct hfi_opened *opened,
                          hf_error *err)
{
    struct mem_store *store = memory;
    opened->reserves = true;
    pthread_once(&once, install_forget_parent);
    store->env = env;
    store->bell = -1;
    if (*url->rest)
        return hfi_fail(err, HF_INVALID, 0, "\"mem:\" takes nothing behind the colon");
    store->bell = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return store->bell >= 0 ? HF_OK : hfi_fail_errno(err, errno, "make", "a client");
}

static void mem_close(void *memory)
{
    hfi_fd_close(((struct mem_store *)memory)->bell);
}

static void hold(struct mem_lock *lock, hfi_time now_ns)
{
    lock->state = HOLDING;
    lock->token = atomic_fetch_add(&last_token, lock->tokens) + 1;
    lock->since_ns = now_ns;
}

/* --- marks: with the shard's mutex --- */

/* The mark of `name`, or the end of the list; those whose time is over are freed on the way. */
static struct mem_mark **find_mark(struct shard *shard, const char *name, hfi_time now_ns)
{
    struct mem_mark **link = &shard->marks;
    while (*link) {
        struct mem_mark *mark = *link;
        if (mark->until_ns <= now_ns) {
            *link = mark->next;
            hfi_free(mark);
        } else if (strcmp(mark->name, name) == 0) {
            break;
        } else {
            link = &mark->next;
        }
    }
    return link;
}

static void unmark(struct shard *shard, const char *name, hfi_time now_ns)
{
    struct mem_mark **link = find_mark(shard, name, now_ns);
    struct mem_mark *mark = *link;
    if (mark)
        *link = mark->next;
    hfi_free(mark);
}

static bool leave_mark(struct shard *shard, const struct mem_lock *lock, uint64_t for_ms)
{
    const hfi_time now_ns = lock->store->env->now_ns();
    struct mem_mark *mark = hfi_alloc(sizeof *mark + strlen(lock->name) + 1);
    if (!mark)
        return false;
    unmark(shard, lock->name, now_ns);
    mark->done_ns = now_ns;
    mark->until_ns = now_ns + (hfi_time)for_ms * HFI_MS;
    mark->token = lock->token;
    snprintf(mark->note, sizeof mark->note, "%s", lock->note);
    memcpy(mark->name, lock->name, strlen(lock->name) + 1);
    mark->next = shard->marks;
    shard->marks = mark;
    return true;
}

static hf_status say_done(const struct mem_mark *mark, hfi_time now_ns, struct hfi_grant *grant)
{
    snprintf(grant->holder, sizeof grant->holder, "a thread of process %d%s%s", (int)getpid(), *mark->note ? " " : "",
             mark->note);
    grant->holder_left_ms = (mark->until_ns - now_ns) / HFI_MS;
    grant->done_ago_ms = (now_ns - mark->done_ns) / HFI_MS;
    return HF_DONE;
}

/* --- taking and releasing --- */

static hf_status attempt_locked(struct shard *shard, struct mem_lock *lock, const struct hfi_request *request,
                                struct hfi_grant *grant)
{
    const struct mem_mark *mark = request->once ? *find_mark(shard, request->name, grant->counted_from_ns) : NULL;
    if (mark)
        return say_done(mark, grant->counted_from_ns, grant);
    if (lock->state != HOLDING)
        lock->tokens = (uint8_t)request->reserve;
    if (lock->state == NEW) {
        struct mem_lock **link = find(shard, lock->hash, request->name);
        struct mem_lock *holder = *link;
        if (!holder) {
            hold(lock, grant->counted_from_ns);
            lock->next_waiter = NULL;
            lock->next_holder = NULL;
            *link = lock;
            shard->holder_count++;
        } else if (request->queue) {
            lock->state = WAITING;
            lock->next_waiter = NULL;
            *(holder->next_waiter ? &holder->last_waiter->next_waiter : &holder->next_waiter) = lock;
            holder->last_waiter = lock;
        }
    }
    if (lock->state == HOLDING) {
        grant->token = lock->token;
        grant->tokens = lock->tokens;
        return HF_OK;
    }
    snprintf(grant->holder, sizeof grant->holder, "another thread of process %d", (int)getpid());
    return HF_BUSY;
}

static hf_status mem_attempt(void *store, void *memory, const struct hfi_request *request, struct hfi_grant *grant,
                             hf_error *err)
{
    struct mem_lock *lock = memory;
    if (!lock->name) {
        lock->store = store;
        lock->name = request->name;
        lock->note = request->note;
        lock->serial = request->owner.serial;
        lock->hash = (uint32_t)hfi_name_hash(request->name);
    }
    struct shard *shard = shard_of(lock->hash);
    pthread_mutex_lock(&shard->mutex);
    const hf_status status = make_room(shard) ? attempt_locked(shard, lock, request, grant)
                                              : hfi_fail(err, HF_NOMEM, 0, "no memory for a lock");
    pthread_mutex_unlock(&shard->mutex);
    return status;
}

static hf_status mem_wait(void *store, void *memory, const struct hfi_request *request, hf_error *err)
{
    (void)err;
    const struct hfi_env *env = ((const struct mem_store *)store)->env;
    struct mem_lock *lock = memory;
    struct shard *shard = shard_of(lock->hash);
    pthread_mutex_lock(&shard->mutex);
    const bool granted = lock->state == HOLDING;
    const bool parks = !granted && request->parked && env->now_ns() < request->deadline_ns;
    if (!granted)
        lock->waker = parks ? request->parked : request->waker;
    pthread_mutex_unlock(&shard->mutex);
    if (granted || parks)
        return granted ? HF_OK : hfi_waker_park(request->parked, request->deadline_ns);
    const bool woken = hfi_waker_sleep(request->waker, NULL, 0, request->deadline_ns);
    pthread_mutex_lock(&shard->mutex);
    const bool news = woken || lock->state == HOLDING;
    if (lock->state != HOLDING)
        lock->waker = NULL; /* the waker goes back to its client after this wait */
    pthread_mutex_unlock(&shard->mutex);
    return news ? HF_OK : HF_TIMEOUT;
}

static void hand_over(struct shard *shard, struct mem_lock *lock)
{
    struct mem_lock **link = find(shard, lock->hash, lock->name);
    struct mem_lock *heir = lock->next_waiter;
    *link = lock->next_holder;
    for (struct mem_break *wanted = shard->breaks; wanted; wanted = wanted->next) {
        if (wanted->lock == lock)
            wanted->lock = NULL;
        pthread_cond_broadcast(&shard->released);
    }
    if (!heir) {
        shard->holder_count--;
        return;
    }
    struct hfi_waker *waker = heir->waker;
    hold(heir, heir->store->env->now_ns());
    heir->last_waiter = lock->last_waiter;
    heir->next_holder = *link;
    *link = heir;
    if (waker)
        hfi_waker_wake(waker);
}

static void leave_queue(struct shard *shard, struct mem_lock *lock)
{
    struct mem_lock *holder = *find(shard, lock->hash, lock->name);
    struct mem_lock *before = holder;
    while (before->next_waiter != lock)
        before = before->next_waiter;
    before->next_waiter = lock->next_waiter;
    if (holder->last_waiter == lock)
        holder->last_waiter = before; /* garbage if nobody waits any more, as for every holder without waiters */
}

static hf_status mem_release(void *store, void *memory, const struct hfi_request *request, hf_error *err)
{
    (void)store;
    struct mem_lock *lock = memory;
    struct shard *shard = shard_of(lock->hash);
    pthread_mutex_lock(&shard->mutex);
    const bool marked = !request->done_ms || lock->state != HOLDING || leave_mark(shard, lock, request->done_ms);
    if (marked && lock->state == HOLDING)
        hand_over(shard, lock);
    else if (lock->state == WAITING)
        leave_queue(shard, lock);
    if (marked)
        lock->state = NEW;
    pthread_mutex_unlock(&shard->mutex);
    return marked ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory to remember that it is done");
}

/* --- administration --- */

struct shown {
    char name[HFI_NAME_MAX + 1];
    char note[128];
    uint64_t token;
    hfi_time since_ns;
    int64_t remaining_ms;
    int64_t waiters;
};

static void copy_lock(struct shown *out, const struct mem_lock *lock)
{
    snprintf(out->name, sizeof out->name, "%s", lock->name);
    snprintf(out->note, sizeof out->note, "%s", lock->note);
    out->token = lock->token;
    out->since_ns = lock->since_ns;
    out->remaining_ms = -1;
    out->waiters = 0;
    for (const struct mem_lock *waiter = lock->next_waiter; waiter; waiter = waiter->next_waiter)
        out->waiters++;
}

/* Copies what the shard holds whose name begins so: the caller's function runs without its mutex. */
static size_t copy_shard(struct shard *shard, const char *name, size_t length, struct shown *out, size_t room)
{
    size_t count = 0;
    for (size_t i = 0; i < shard->bucket_count; i++) {
        for (const struct mem_lock *lock = shard->holders[i]; lock; lock = lock->next_holder) {
            if (strncmp(lock->name, name, length) != 0)
                continue;
            if (count < room)
                copy_lock(&out[count], lock);
            count++;
        }
    }
    return count;
}

/* The same for marks. */
static size_t copy_marks(struct shard *shard, const char *name, size_t length, struct shown *out, size_t room)
{
    size_t count = 0;
    for (const struct mem_mark *mark = shard->marks; mark; mark = mark->next) {
        if (strncmp(mark->name, name, length) != 0)
            continue;
        if (count < room) {
            struct shown *one = &out[count];
            snprintf(one->name, sizeof one->name, "%s", mark->name);
            snprintf(one->note, sizeof one->note, "%s", mark->note);
            one->token = mark->token;
            one->since_ns = mark->done_ns;
            one->remaining_ms = (mark->until_ns - mark->done_ns) / HFI_MS;
            one->waiters = -1;
        }
        count++;
    }
    return count;
}

static int show(const struct mem_store *store, const struct shown *one, hf_inspect_fn each, void *arg)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    const int64_t age_ms = (store->env->now_ns() - one->since_ns) / HFI_MS;
    if (one->remaining_ms >= 0 && one->remaining_ms <= age_ms)
        return 0; /* a mark whose time is over */
    const hf_info info = { .size = sizeof info,
                           .name = one->name,
                           .host = host,
                           .pid = getpid(),
                           .token = one->token,
                           .held_ms = age_ms,
                           .remaining_ms = one->remaining_ms < 0 ? -1 : one->remaining_ms - age_ms,
                           .waiters = one->waiters,
                           .note = one->note };
    return each(&info, arg);
}

typedef size_t copy_fn(struct shard *shard, const char *name, size_t length, struct shown *out, size_t room);

struct listing {
    const struct mem_store *store;
    copy_fn *copy;
    const char *name; /* so many bytes of it are compared */
    size_t length;
    hf_inspect_fn each;
    void *arg;
    int stop;
};

/* False: there is no memory for it. */
static bool show_shard(struct listing *listing, struct shard *shard)
{
    pthread_mutex_lock(&shard->mutex);
    const size_t wanted = listing->copy(shard, listing->name, listing->length, NULL, 0);
    struct shown *copies = wanted ? hfi_alloc(wanted * sizeof *copies) : NULL;
    if (copies)
        listing->copy(shard, listing->name, listing->length, copies, wanted);
    pthread_mutex_unlock(&shard->mutex);
    const bool possible = copies || !wanted;
    for (size_t i = 0; possible && i < wanted && !listing->stop; i++)
        listing->stop = show(listing->store, &copies[i], listing->each, listing->arg);
    hfi_free(copies);
    return possible;
}

static hf_status say_no_memory(hf_error *err)
{
    return hfi_fail(err, HF_NOMEM, 0, "no memory for a list of locks");
}

static hf_status show_all(const struct mem_store *store, copy_fn *copy, const char *prefix, hf_inspect_fn each,
                          void *arg, hf_error *err)
{
    struct listing listing = { store, copy, prefix, strlen(prefix), each, arg, 0 };
    bool shown = true;
    for (size_t i = 0; i < SHARDS && !listing.stop && shown; i++)
        shown = show_shard(&listing, &shards[i]);
    return shown ? HF_OK : say_no_memory(err);
}

static hf_status mem_inspect(void *store, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                             hf_error *err)
{
    (void)deadline_ns;
    return show_all(store, copy_shard, prefix, each, arg, err);
}

static hf_status mem_inspect_done(void *store, const char *prefix, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                  hf_error *err)
{
    (void)deadline_ns;
    return show_all(store, copy_marks, prefix, each, arg, err);
}

static hf_status mem_forget_done(void *memory, const char *name, hfi_time deadline_ns, hf_error *err)
{
    (void)deadline_ns;
    (void)err;
    const struct mem_store *store = memory;
    struct shard *shard = shard_of((uint32_t)hfi_name_hash(name));
    pthread_mutex_lock(&shard->mutex);
    unmark(shard, name, store->env->now_ns());
    pthread_mutex_unlock(&shard->mutex);
    return HF_OK;
}

static hf_status mem_inspect_one(void *store, const char *name, hf_inspect_fn each, void *arg, hfi_time deadline_ns,
                                 hf_error *err)
{
    (void)deadline_ns;
    struct listing listing = { store, copy_shard, name, strlen(name) + 1, each, arg, 0 };
    const bool shown = show_shard(&listing, shard_of((uint32_t)hfi_name_hash(name)));
    return shown ? HF_OK : say_no_memory(err);
}

static int mem_push_fd(void *memory)
{
    const struct mem_store *store = memory;
    return store->bell;
}

/* The serial of one of this store's locks that is to be broken, once; 0: there is none. */
static uint64_t next_broken(struct shard *shard, const struct mem_store *store, char by[160])
{
    uint64_t serial = 0;
    pthread_mutex_lock(&shard->mutex);
    for (struct mem_break *wanted = shard->breaks; wanted && !serial; wanted = wanted->next) {
        if (!wanted->by || !wanted->lock || wanted->lock->store != store)
            continue;
        snprintf(by, 160, "%s", wanted->by);
        wanted->by = NULL;
        serial = wanted->lock->serial;
    }
    pthread_mutex_unlock(&shard->mutex);
    return serial;
}

static void mem_take_push(void *memory)
{
    struct mem_store *store = memory;
    hfi_bell_hush(store->bell);
    for (size_t i = 0; i < SHARDS; i++) {
        struct hfi_owner owner = { .client = store->env->client };
        char by[160], why[HFI_WHY_MAX];
        while ((owner.serial = next_broken(&shards[i], store, by)) != 0) {
            hfi_say_broken(why, by);
            store->env->lost(store->env->core, owner, why);
        }
    }
}

/* Waits for a release in the shard, for so long at most. */
static void await_release(struct shard *shard, hfi_time most_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const hfi_time at = until.tv_sec * HFI_SECOND + until.tv_nsec + most_ns;
    const struct timespec end = { .tv_sec = at / HFI_SECOND, .tv_nsec = at % HFI_SECOND };
    pthread_cond_clockwait(&shard->released, &shard->mutex, CLOCK_MONOTONIC, &end);
}

static hf_status mem_evict(void *memory, const char *name, const char *by, hfi_time deadline_ns, hf_error *err)
{
    const struct mem_store *store = memory;
    const uint32_t hash = (uint32_t)hfi_name_hash(name);
    struct shard *shard = shard_of(hash);
    hf_status status = HF_OK;
    pthread_mutex_lock(&shard->mutex);
    struct mem_break wanted = { .next = shard->breaks, .lock = shard->bucket_count ? *find(shard, hash, name) : NULL };
    shard->breaks = &wanted;
    while (wanted.lock && status == HF_OK) {
        /* Again and again: a holder that has just been granted the lock may not know of it yet. */
        wanted.by = by;
        hfi_bell_ring(wanted.lock->store->bell);
        const hfi_time left = deadline_ns - store->env->now_ns();
        if (left <= 0)
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "the holder of %.100s is busy with a callback", name);
        else
            await_release(shard, left < ASK_AGAIN ? left : ASK_AGAIN);
    }
    struct mem_break **link = &shard->breaks;
    while (*link != &wanted)
        link = &(*link)->next;
    *link = wanted.next;
    pthread_mutex_unlock(&shard->mutex);
    return status;
}

const struct hfi_engine hfi_engine_mem = {
    .abi = HFI_ENGINE_ABI,
    .name = "mem",
    .schemes = "mem:",
    .summary = "threads of one process",
    .caps = HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_BOUND | HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_ONCE,
    .immediate = true,
    .parks = true,
    .store_size = sizeof(struct mem_store),
    .lock_size = sizeof(struct mem_lock),
    .open = mem_open,
    .close = mem_close,
    .attempt = mem_attempt,
    .wait = mem_wait,
    .release = mem_release,
    .inspect = mem_inspect,
    .inspect_one = mem_inspect_one,
    .inspect_done = mem_inspect_done,
    .forget_done = mem_forget_done,
    .evict = mem_evict,
    .push_fd = mem_push_fd,
    .take_push = mem_take_push,
};
