/* SPDX-License-Identifier: MIT
 *
 * resolve.c: the addresses of a host. getaddrinfo() knows no deadline and cannot be called back, so it runs on a thread
 * of its own: one for a name at most, however many ask for it. Everything the thread touches is here for as long as the
 * process lives, so that neither a client that is closed nor an engine that is unloaded has to wait for it.
 *
 * Each new connection asks anew, since a name may lead to another server by now. But what a name led to the last time
 * is kept, and used when the resolver hangs or fails.
 */
#include "resolve.h"
#include "core.h"
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Names that are known, or being looked up, at the same time; and so the most threads there can be. */
#define NAMES_MOST 64
#define NAME_SIZE 256
/* What hangs for longer than this is not waited for, if it is known what the name led to before. */
#define PATIENCE (HFI_RESOLVE_PATIENCE_MS * HFI_MS)

struct hfi_name {
    char host[NAME_SIZE];
    struct hfi_addresses known; /* the last that were found */
    bool running;               /* a thread is looking it up … */
    hfi_time begun_ns;          /* … since then */
    struct hfi_lookup *waiting;
    uint64_t used; /* the greater, the later */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct hfi_name names[NAMES_MOST];
static uint64_t uses;

/* --- around fork() --- */

void hfi_resolve_before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

/* `child`: the threads are the parent's, and so is everybody who waits for them. */
void hfi_resolve_after_fork(bool child)
{
    for (size_t i = 0; i < NAMES_MOST && child; i++) {
        names[i].running = false;
        names[i].waiting = NULL;
    }
    pthread_mutex_unlock(&mutex);
}

/* --- addresses --- */

/* As the resolver has sorted them, but the two families in turn (RFC 8305): where one of them leads nowhere, the second
 * address is of the other. */
static void take_addresses(struct hfi_addresses *out, const struct addrinfo *all)
{
    const int first = all->ai_family;
    const struct addrinfo *next[2] = { all, all }; /* of the first family, of the other */
    out->count = 0;
    out->known = out->pending = false;
    for (size_t turn = 0; out->count < HFI_ADDRESSES_MOST && (next[0] || next[1]); turn ^= 1) {
        const struct addrinfo *one = next[turn];
        while (one && (one->ai_family == first) != (turn == 0))
            one = one->ai_next;
        next[turn] = one ? one->ai_next : NULL;
        if (one && one->ai_addrlen <= sizeof out->list[0])
            memcpy(&out->list[out->count++], one->ai_addr, one->ai_addrlen);
    }
}

/* 0, or what getaddrinfo() says; of EAI_SYSTEM, *number is the errno. */
static int ask(struct hfi_addresses *out, const char *host, int flags, int *number)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags };
    struct addrinfo *all = NULL;
    errno = 0;
    const int failure = getaddrinfo(host, NULL, &hints, &all);
    *number = errno;
    if (failure)
        return failure;
    take_addresses(out, all);
    freeaddrinfo(all);
    return 0;
}

bool hfi_address_print(char *out, size_t size, const struct sockaddr_storage *address)
{
    const socklen_t length = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    return getnameinfo((const struct sockaddr *)address, length, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0;
}

/* --- the thread --- */

/* With the mutex. That there is no such name is an answer; anything else is the resolver's trouble, not the name's. */
static void finish(const struct hfi_name *name, struct hfi_lookup *lookup, int failure, int number)
{
    const bool answered = failure == 0 || failure == EAI_NONAME || failure == EAI_NODATA;
    lookup->name = NULL;
    lookup->failure = answered || name->known.count == 0 ? failure : 0;
    lookup->number = number;
    if (lookup->failure == 0)
        lookup->found = name->known;
    lookup->found.known = failure != 0;
    lookup->found.pending = name->running;
}

static void *look_up(void *argument)
{
    struct hfi_name *name = argument; /* its host stays as it is while this runs */
    struct hfi_addresses found;
    int number;
    const int failure = ask(&found, name->host, 0, &number);
    pthread_mutex_lock(&mutex);
    name->running = false;
    if (failure == 0)
        name->known = found;
    for (struct hfi_lookup *one = name->waiting, *next; one; one = next) {
        next = one->next;
        finish(name, one, failure, number);
        eventfd_write(one->bell, 1);
    }
    name->waiting = NULL;
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* The thread may outlive every client: what it runs must not be unloaded under it. */
static void stay_loaded(void)
{
    Dl_info here;
    if (dladdr(names, &here) && here.dli_fname) {
        const void *for_ever = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
        (void)for_ever;
    }
}

/* With the mutex. 0, or an errno. */
static int start(struct hfi_name *name)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* the user's signals are for the user's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failure = pthread_create(&thread, &detached, look_up, name);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    name->running = failure == 0;
    name->begun_ns = hfi_now_ns();
    return failure;
}

/* --- asking --- */

/* With the mutex. The place of this name, or the one that was not used for the longest time; NULL: all are in use. */
static struct hfi_name *find_name(const char *host)
{
    struct hfi_name *oldest = NULL;
    for (size_t i = 0; i < NAMES_MOST; i++) {
        if (strcmp(names[i].host, host) == 0)
            return &names[i];
        if (!names[i].running && (!oldest || names[i].used < oldest->used))
            oldest = &names[i];
    }
    if (oldest) {
        memset(oldest, 0, sizeof *oldest);
        memcpy(oldest->host, host, strlen(host) + 1);
    }
    return oldest;
}

static bool hangs(const struct hfi_name *name, const struct hfi_lookup *lookup)
{
    const hfi_time since = name->begun_ns > lookup->since_ns ? name->begun_ns : lookup->since_ns;
    return name->running && hfi_now_ns() - since >= PATIENCE;
}

static hf_status outcome(const struct hfi_lookup *lookup, const char *host, hf_error *err)
{
    if (lookup->failure == 0)
        return HF_OK;
    if (lookup->failure == EAI_SYSTEM && (lookup->number == EMFILE || lookup->number == ENFILE))
        return hfi_fail(err, HF_NOMEM, lookup->number, "no descriptor left to look up host %.120s", host);
    return hfi_fail(err, HF_UNAVAILABLE, lookup->failure, "cannot find host %.120s: %s", host,
                    gai_strerror(lookup->failure));
}

static void join(struct hfi_name *name, struct hfi_lookup *lookup)
{
    lookup->name = name;
    lookup->next = name->waiting;
    name->waiting = lookup;
}

/* With the mutex. */
static hf_status begin(struct hfi_lookup *lookup, const char *host, hf_error *err)
{
    struct hfi_name *name = find_name(host);
    if (!name)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s: too many hosts are being looked up", host);
    name->used = ++uses;
    const int failure = name->running ? 0 : start(name);
    if (name->known.count && (failure || hangs(name, lookup))) {
        finish(name, lookup, EAI_AGAIN, 0);
        return HF_OK;
    }
    if (failure)
        return hfi_fail(err, HF_NOMEM, failure, "no thread to look up host %.120s", host);
    join(name, lookup);
    return HF_TIMEOUT;
}

hf_status hfi_lookup_begin(struct hfi_lookup *lookup, const char *host, bool again, hf_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int number;
    *lookup = (struct hfi_lookup){ .bell = -1, .since_ns = again ? hfi_now_ns() : 0 };
    if (ask(&lookup->found, host, AI_NUMERICHOST, &number) == 0)
        return HF_OK;
    if (strlen(host) >= NAME_SIZE || !*host)
        return hfi_fail(err, HF_UNAVAILABLE, EAI_NONAME, "cannot find host %.120s: this is no name of a host", host);
    lookup->bell = HFI_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (lookup->bell < 0)
        return hfi_fail(err, HF_NOMEM, errno, "no descriptor left to look up host %.120s", host);
    pthread_once(&once, stay_loaded);
    pthread_mutex_lock(&mutex);
    const hf_status status = begin(lookup, host, err);
    pthread_mutex_unlock(&mutex);
    if (status != HF_TIMEOUT)
        hfi_lookup_end(lookup);
    return status;
}

static void leave(struct hfi_lookup *lookup)
{
    struct hfi_lookup **link = &lookup->name->waiting;
    while (*link != lookup)
        link = &(*link)->next;
    *link = lookup->next;
    lookup->name = NULL;
}

hf_status hfi_lookup_step(struct hfi_lookup *lookup, const char *host, bool last, hf_error *err)
{
    pthread_mutex_lock(&mutex);
    struct hfi_name *name = lookup->name;
    if (name && name->known.count && (last || hangs(name, lookup))) {
        leave(lookup);
        finish(name, lookup, EAI_AGAIN, 0);
    }
    const bool over = !lookup->name;
    pthread_mutex_unlock(&mutex);
    if (!over)
        return HF_TIMEOUT;
    hfi_lookup_end(lookup);
    return outcome(lookup, host, err);
}

void hfi_lookup_end(struct hfi_lookup *lookup)
{
    pthread_mutex_lock(&mutex);
    if (lookup->name)
        leave(lookup);
    pthread_mutex_unlock(&mutex);
    hfi_fd_close(lookup->bell);
    lookup->bell = -1;
}

/* --- several, by a deadline --- */

struct round {
    struct hfi_lookup *lookups;
    hf_status states[HFI_RESOLVE_MOST], trouble;
    size_t count, found, pending;
};

static void note(struct round *round, size_t index, hf_status status)
{
    round->states[index] = status;
    round->found += status == HF_OK;
    round->pending += status == HF_TIMEOUT;
    if (status != HF_OK && status != HF_TIMEOUT)
        round->trouble = status;
}

/* Sleeps until one of those that are under way may be over. */
static void wait_for_any(const struct round *round, hfi_time until_ns)
{
    struct pollfd bells[HFI_RESOLVE_MOST];
    nfds_t count = 0;
    const hfi_time left = until_ns - hfi_now_ns();
    const struct timespec time = { .tv_sec = left > 0 ? left / HFI_SECOND : 0,
                                   .tv_nsec = left > 0 ? left % HFI_SECOND : 0 };
    for (size_t i = 0; i < round->count; i++) {
        if (round->states[i] == HF_TIMEOUT)
            bells[count++] = (struct pollfd){ .fd = round->lookups[i].bell, .events = POLLIN };
    }
    ppoll(bells, count, &time, NULL);
}

static void step_all(struct round *round, const char *const *hosts, bool last, hf_error *err)
{
    round->pending = 0;
    for (size_t i = 0; i < round->count; i++) {
        if (round->states[i] == HF_TIMEOUT)
            note(round, i, hfi_lookup_step(&round->lookups[i], hosts[i], last, err));
    }
}

/* All of them for a moment, and then the first of them. */
static void wait_for_some(struct round *round, const char *const *hosts, hfi_time deadline_ns, hf_error *err)
{
    const hfi_time impatient = hfi_now_ns() + PATIENCE;
    for (bool last = false; round->pending && !last;) {
        const bool patient = hfi_now_ns() < impatient;
        if (!patient && round->found)
            break;
        wait_for_any(round, patient && impatient < deadline_ns ? impatient : deadline_ns);
        last = hfi_now_ns() >= deadline_ns;
        step_all(round, hosts, last, err);
    }
}

hf_status hfi_resolve(struct hfi_addresses *found, const char *const *hosts, size_t count, bool again,
                      hfi_time deadline_ns, hf_error *err)
{
    struct round round = { .trouble = HF_UNAVAILABLE, .count = count < HFI_RESOLVE_MOST ? count : HFI_RESOLVE_MOST };
    round.lookups = hfi_alloc(round.count * sizeof *round.lookups);
    if (!round.lookups)
        return hfi_fail(err, HF_NOMEM, 0, "no memory to look up a host");
    for (size_t i = 0; i < round.count; i++)
        note(&round, i, hfi_lookup_begin(&round.lookups[i], hosts[i], again, err));
    wait_for_some(&round, hosts, deadline_ns, err);
    for (size_t i = 0; i < count; i++) {
        const hf_status status = i < round.count ? round.states[i] : HF_UNAVAILABLE;
        found[i].count = 0;
        found[i].known = false;
        found[i].pending = status == HF_TIMEOUT;
        if (status == HF_TIMEOUT)
            hfi_lookup_end(&round.lookups[i]);
        else if (status == HF_OK)
            found[i] = round.lookups[i].found;
    }
    hfi_free(round.lookups);
    if (round.found == 0 && round.pending)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s: no answer in time", hosts[0]);
    return round.found ? HF_OK : round.trouble;
}

bool hfi_resolve_is_worth(const struct hfi_addresses *found, size_t count, hfi_time deadline_ns)
{
    bool pending = false;
    for (size_t i = 0; i < count; i++)
        pending = pending || found[i].pending;
    return pending && hfi_now_ns() + PATIENCE < deadline_ns; /* else nothing could be tried after it */
}
