/* SPDX-License-Identifier: MIT
 *
 * doctor_here.c: what lies between the store and us: how long it takes to answer, names, clock, descriptors, proxies.
 */
#include "doctor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <time.h>

/* As many round trips as there is time for, up to this. */
#define TRIPS_MOST 50
#define TRIPS_MS 2000
#define RENEWALS 10
#define NAME_MS 5000
#define NAME_SLOW_MS 1000
#define HOSTS_MOST 32
#define DESCRIPTORS_LEAST 256

static double now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
    const double one = *(const double *)a, other = *(const double *)b;

    return (one > other) - (one < other);
}

/* --- round trips --- */

static int see(const hf_info *info, void *arg)
{
    (void)info;
    (void)arg;
    return 1;
}

/* Renewals come a third of the time-to-live apart: an answer that takes a tenth leaves room for few that are lost. */
static void judge_trips(struct hfc_doctor *doctor, const char *what, const char *which, double *trip, size_t count)
{
    qsort(trip, count, sizeof trip[0], by_size);
    const double half = trip[count / 2], most = trip[count - 1];

    if (most * 10 > doctor->ttl_ms)
        hfc_doctor_say(doctor, HF_FINDING_RISK, what,
                       "the store takes so long to answer that a few slow answers lose a lock\n"
                       "%s: median %.2f ms, 99%% %.2f ms, longest %.2f ms of %zu; the time-to-live is %u ms\n"
                       "a longer time-to-live (--ttl), or a store that is nearer or less busy",
                       which, half, trip[(count - 1) * 99 / 100], most, count, (unsigned)doctor->ttl_ms);
    else
        hfc_doctor_say(doctor, HF_FINDING_OK, what, "%s: median %.2f ms, 99%% %.2f ms, longest %.2f ms of %zu", which,
                       half, trip[(count - 1) * 99 / 100], most, count);
}

hf_status hfc_doctor_latency(struct hfc_doctor *doctor, hf_client *client)
{
    double trip[TRIPS_MOST];
    size_t done = 0;
    hf_error err = { .message = "" };
    hf_status status = HF_OK;
    const double begun = now_ms();

    if ((hf_capabilities(client) & HF_CAP_INSPECT) == 0)
        return HF_OK;
    while (done < TRIPS_MOST && (done == 0 || now_ms() - begun < TRIPS_MS) && status == HF_OK) {
        const double sent = now_ms();

        status = hf_inspect_one(client, HFC_DOCTOR_LOCK, see, NULL, &err);
        trip[done++] = now_ms() - sent;
    }
    if (status == HF_OK)
        judge_trips(doctor, "latency", "to look at a lock", trip, done);
    else
        hfc_doctor_say(doctor, HF_FINDING_BROKEN, "latency", "a lock cannot be looked at\n%s", err.message);
    return status;
}

/* --- a lock of our own --- */

static hf_status renew_some(struct hfc_doctor *doctor, hf_lock *lock, hf_error *err)
{
    double trip[RENEWALS];
    hf_status status = HF_OK;
    size_t done = 0;
    const double begun = now_ms();

    while (done < RENEWALS && (done == 0 || now_ms() - begun < TRIPS_MS) && status == HF_OK) {
        const double sent = now_ms();

        status = hf_renew(lock, 0, err);
        trip[done++] = now_ms() - sent;
    }
    if (status == HF_OK)
        judge_trips(doctor, "renewal", "to renew a lock", trip, done);
    return status;
}

hf_status hfc_doctor_lock(struct hfc_doctor *doctor, hf_client *client)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { .message = "" };
    hf_lock *lock = NULL;
    const char *step = "taken";

    options.wait_ms = TRIPS_MS; /* another doctor has done by then */
    options.ttl_ms = doctor->ttl_ms;
    options.renew = HF_RENEW_OFF;
    options.note = "holdfast doctor";
    hf_status status = hf_acquire(&lock, client, HFC_DOCTOR_LOCK, &options, &err);
    if (status == HF_TIMEOUT) {
        hfc_doctor_say(doctor, HF_FINDING_NOTE, "lock",
                       "somebody else holds '" HFC_DOCTOR_LOCK "': whether we can take one was not tried\n%s\n"
                       "wait until the other doctor has gone",
                       err.message);
        return status;
    }
    if (status == HF_OK) {
        step = "renewed";
        if ((hf_capabilities(client) & HF_CAP_EXPIRY) != 0)
            status = renew_some(doctor, lock, &err);
        const hf_status released = hf_release(lock, status == HF_OK ? &err : NULL);
        if (status == HF_OK && released != HF_OK) {
            step = "released";
            status = released;
        }
    }
    if (status == HF_OK)
        hfc_doctor_say(doctor, HF_FINDING_OK, "lock", "a lock was taken, renewed and released");
    else
        hfc_doctor_say(doctor, HF_FINDING_BROKEN, "lock", "a lock could not be %s\n%s", step, err.message);
    return status;
}

/* --- names --- */

/* getaddrinfo() knows no deadline: it is called by a thread that may be left behind, with this. */
struct lookup {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ended, left;
    int failure;
    char host[256];
};

static void free_lookup(struct lookup *lookup)
{
    pthread_cond_destroy(&lookup->changed);
    pthread_mutex_destroy(&lookup->mutex);
    free(lookup);
}

static void *look_up(void *arg)
{
    struct lookup *lookup = arg;
    struct addrinfo *found = NULL;
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    const int failure = getaddrinfo(lookup->host, NULL, &hints, &found);

    if (failure == 0)
        freeaddrinfo(found);
    pthread_mutex_lock(&lookup->mutex);
    lookup->failure = failure;
    lookup->ended = true;
    const bool left = lookup->left;
    pthread_cond_signal(&lookup->changed);
    pthread_mutex_unlock(&lookup->mutex);
    if (left)
        free_lookup(lookup);
    return NULL;
}

/* 0: found; -1: not in time; else what getaddrinfo() says. */
static int resolve(const char *host)
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    pthread_t thread;
    struct timespec until;

    if (lookup == NULL)
        return EAI_MEMORY;
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    pthread_mutex_init(&lookup->mutex, NULL);
    pthread_cond_init(&lookup->changed, NULL);
    if (pthread_create(&thread, NULL, look_up, lookup) != 0) {
        free_lookup(lookup);
        return EAI_AGAIN;
    }
    pthread_detach(thread);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += NAME_MS / 1000;
    pthread_mutex_lock(&lookup->mutex);
    while (!lookup->ended && pthread_cond_clockwait(&lookup->changed, &lookup->mutex, CLOCK_MONOTONIC, &until) == 0)
        continue;
    const bool ended = lookup->ended;
    const int failure = ended ? lookup->failure : -1;
    lookup->left = !ended;
    pthread_mutex_unlock(&lookup->mutex);
    if (ended)
        free_lookup(lookup);
    return failure;
}

static bool is_number(const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];

    return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1 || strchr(host, ':');
}

static void look_at_name(struct hfc_doctor *doctor, const char *host)
{
    const double begun = now_ms();
    const int failure = resolve(host);
    const double took = now_ms() - begun;

    if (failure == -1)
        hfc_doctor_say(doctor, HF_FINDING_RISK, "name",
                       "nobody says in time where %.100s is: a connection that breaks cannot be made again\n"
                       "no answer in %d s (getent ahosts %.100s)\nmend the resolver, or /etc/hosts",
                       host, NAME_MS / 1000, host);
    else if (failure != 0)
        hfc_doctor_say(doctor, HF_FINDING_RISK, "name",
                       "where %.100s is cannot be found out\n%s (getent ahosts %.100s)\nmend the name or the resolver",
                       host, gai_strerror(failure), host);
    else if (took > NAME_SLOW_MS)
        hfc_doctor_say(doctor, HF_FINDING_RISK, "name",
                       "it takes long to find %.100s: a connection that breaks is made again late\n"
                       "%.0f ms (getent ahosts %.100s)\nmend the resolver, or /etc/hosts",
                       host, took, host);
    else
        hfc_doctor_say(doctor, HF_FINDING_OK, "name", "%.100s was found in %.1f ms", host, took);
}

/* The hosts of SCHEME://[USER@]HOST[:PORT],…[/…]; nothing if there are none. */
static void look_at_names(struct hfc_doctor *doctor, const char *url)
{
    const char *at = strstr(url, "://");

    if (at == NULL || strncmp(url, "file:", 5) == 0 || strncmp(url, "sqlite:", 7) == 0 ||
        strncmp(url, "redis+unix:", 11) == 0)
        return;
    at += 3;
    const char *end = at + strcspn(at, "/?");
    for (const char *c = end; c > at; c--) {
        if (c[-1] == '@') {
            at = c;
            break;
        }
    }
    for (int n = 0; n < HOSTS_MOST && at < end; n++) {
        char host[256];
        size_t length = strcspn(at, ",/?");
        const size_t part = *at == '[' ? 0 : strcspn(at, ":,/?");

        if (part > 0 && part < sizeof host && strchr(at, '%') == NULL) {
            memcpy(host, at, part);
            host[part] = '\0';
            if (!is_number(host))
                look_at_name(doctor, host);
        }
        at += length;
        at += *at == ',';
    }
}

/* --- this machine --- */

static void look_at_clock(struct hfc_doctor *doctor)
{
    struct timex clock = { .modes = 0 };
    const int state = adjtimex(&clock);

    if (state == -1)
        hfc_doctor_say(doctor, HF_FINDING_NOTE, "our clock",
                       "whether anybody keeps it right is not known\n%s (adjtimex)", strerror(errno));
    else if (state == TIME_ERROR || (clock.status & STA_UNSYNC) != 0)
        hfc_doctor_say(doctor, HF_FINDING_NOTE, "our clock",
                       "nobody keeps it right: deadlines do not need that, but what is done once per day and the logs "
                       "do\nstatus 0x%x (timedatectl, chronyc tracking)\nrun chrony or systemd-timesyncd",
                       (unsigned)clock.status);
    else
        hfc_doctor_say(doctor, HF_FINDING_OK, "our clock", "it is kept right, to %.1f ms\n(adjtimex)",
                       (double)clock.esterror / 1e3);
}

static void look_at_descriptors(struct hfc_doctor *doctor)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    const unsigned long long most = (unsigned long long)limit.rlim_cur;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < DESCRIPTORS_LEAST)
        hfc_doctor_say(doctor, HF_FINDING_RISK, "descriptors",
                       "a program that starts from here runs out of them soon, and takes no more locks then\n"
                       "%llu are allowed (ulimit -n)\nulimit -n 1024, or LimitNOFILE= of its unit",
                       most);
    else
        hfc_doctor_say(doctor, HF_FINDING_OK, "descriptors", "%llu are allowed (ulimit -n)", most);
}

/* Of stores that speak HTTP somebody may think that a proxy is used. */
static void look_at_proxies(struct hfc_doctor *doctor, const char *url)
{
    static const char *const variables[] = { "http_proxy", "https_proxy", "all_proxy",
                                             "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY" };
    const bool http = strncmp(url, "consul", 6) == 0 || strncmp(url, "etcd", 4) == 0;

    for (size_t i = 0; http && i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value == NULL || *value == '\0')
            continue;
        hfc_doctor_say(doctor, HF_FINDING_NOTE, "proxy",
                       "a proxy is named, and is not used: the store is asked directly\n%s is set\n"
                       "if it cannot be reached directly, a tunnel, and its address in the URL",
                       variables[i]);
        return;
    }
}

void hfc_doctor_here(struct hfc_doctor *doctor, const char *url)
{
    look_at_names(doctor, url);
    look_at_clock(doctor);
    look_at_descriptors(doctor);
    look_at_proxies(doctor, url);
}
