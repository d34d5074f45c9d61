/* SPDX-License-Identifier: MIT
 *
 * zookeeper.c: machines that share a ZooKeeper ensemble.
 *
 * What ends a grant:  release(), which deletes its node; the end of the session, which deletes all nodes of the client.
 * Who counts time:    the leader, from the last it has heard of the session; the core keeps an earlier deadline of its
 *                     own, from what was proven to have reached the leader (zookeeper_session.c).
 * Exchanges:          three for a lock that nobody else wants: create the node, list the directory, delete the node.
 * Waiting:            by a watch on the node just before ours; its end wakes nobody else.
 * Done:               a node for each name beside the directories, written with the release; its time is the leader's.
 * Token:              the transaction number that created the node (czxid): of one counter for the whole ensemble.
 * Cannot promise:     a holder that dies keeps the lock until its session expires, up to half as long again as its
 *                     time-to-live, and a tick; an ensemble that was set back to an older state gives old tokens again.
 */
#include "zookeeper.h"
#include "resolve.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define ADDRESSES_MOST 64
#define FAREWELL_MOST HFI_SECOND

/* --- addresses --- */

struct found {
    char list[ADDRESSES_MOST][NI_MAXHOST + NI_MAXSERV + 2];
    unsigned count;
};

/* The hosts of the configuration, and what they lead to. */
struct hosts {
    char list[ADDRESSES_MOST][NI_MAXHOST + NI_MAXSERV + 2];
    const char *names[ADDRESSES_MOST], *ports[ADDRESSES_MOST];
    struct hfi_addresses addresses[ADDRESSES_MOST];
    size_t count;
};

static void split_hosts(struct hosts *hosts, const char *list)
{
    while (*list && hosts->count < ADDRESSES_MOST) {
        const size_t length = strcspn(list, ",");
        char *host = hosts->list[hosts->count];
        snprintf(host, sizeof hosts->list[0], "%.*s", (int)length, list);
        char *colon = strrchr(host, ':');
        *colon = 0;
        hosts->names[hosts->count] = host;
        hosts->ports[hosts->count++] = colon + 1;
        list += length + (list[length] == ',');
    }
}

static void add_addresses(struct found *found, const struct hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++) {
        for (size_t j = 0; j < hosts->addresses[i].count && found->count < ADDRESSES_MOST; j++) {
            char number[NI_MAXHOST];
            if (hfi_address_print(number, sizeof number, &hosts->addresses[i].list[j]))
                snprintf(found->list[found->count++], sizeof found->list[0], "%s:%s", number, hosts->ports[i]);
        }
    }
}

/* In random order, so that clients spread over the servers. */
static char *join_addresses(const struct zookeeper_store *store, struct found *found)
{
    char *all = hfi_alloc(found->count * sizeof found->list[0]);
    char *end = all;
    for (unsigned left = found->count; all && left > 0; left--) {
        const uint64_t chosen = store->env->random() % left;
        end = stpcpy(end, end == all ? "" : ",");
        end = stpcpy(end, found->list[chosen]);
        memmove(found->list[chosen], found->list[left - 1], sizeof found->list[0]);
    }
    return all;
}

/* Whether they are those that are in use already, in whatever order. */
static bool are_known(const struct zookeeper_store *store, const struct found *found)
{
    unsigned known = 0;
    for (unsigned i = 0; store->addresses && i < found->count; i++) {
        const size_t length = strlen(found->list[i]);
        const char *place = store->addresses;
        while (place && !(strncmp(place, found->list[i], length) == 0 && (place[length] == ',' || !place[length]))) {
            place = strchr(place, ',');
            place = place ? place + 1 : NULL;
        }
        known += place != NULL;
    }
    return known == found->count && known == store->address_count;
}

/* The sessions there are take them up with their next connection. */
static hf_status use_addresses(struct zookeeper_store *store, struct found *found)
{
    store->look_up_again = false;
    if (are_known(store, found))
        return HF_OK;
    char *addresses = join_addresses(store, found);
    if (!addresses)
        return HF_NOMEM;
    hfi_free(store->addresses);
    store->addresses = addresses;
    store->address_count = found->count;
    hfi_fd_begin();
    zoo_deterministic_conn_order(1);
    for (struct zookeeper_session *one = store->sessions; one; one = one->next) {
        if (!one->dead && !one->connected)
            zoo_set_servers(one->zh, addresses);
    }
    zoo_deterministic_conn_order(0);
    hfi_fd_end(-1);
    return HF_OK;
}

/* *again: whether to look them up again, should all of them fail; and whether that is what happened. */
static hf_status look_up(struct zookeeper_store *store, bool *again, hfi_time deadline_ns, hf_error *err)
{
    struct room {
        struct found found;
        struct hosts hosts;
    } *room = hfi_alloc(sizeof *room);
    if (!room)
        return hfi_zookeeper_no_memory(err);
    struct hosts *hosts = &room->hosts;
    split_hosts(hosts, store->config.hosts);
    hf_status status = hfi_resolve(hosts->addresses, hosts->names, hosts->count, *again, deadline_ns, err);
    *again = hfi_resolve_is_worth(hosts->addresses, hosts->count, deadline_ns);
    if (status == HF_OK) {
        add_addresses(&room->found, hosts);
        pthread_mutex_lock(&store->mutex);
        if (use_addresses(store, &room->found) != HF_OK)
            status = hfi_zookeeper_no_memory(err);
        pthread_mutex_unlock(&store->mutex);
    }
    hfi_free(room);
    return status;
}

void hfi_zookeeper_enter(struct zookeeper_store *store)
{
    pthread_mutex_lock(&store->mutex);
    if (!store->look_up_again)
        return;
    pthread_mutex_unlock(&store->mutex);
    /* If it fails, the old ones may do. */
    bool again = false;
    look_up(store, &again, store->env->now_ns() + HFI_RESOLVE_PATIENCE_MS * HFI_MS, NULL);
    pthread_mutex_lock(&store->mutex);
}

/* --- opening and closing --- */

static hfi_time earlier(hfi_time a, hfi_time b)
{
    return a < b ? a : b;
}

static hf_status open_push(struct zookeeper_store *store, hf_error *err)
{
    struct epoll_event event = { .events = EPOLLIN };
    store->push = HFI_FD(epoll_create1(EPOLL_CLOEXEC));
    store->timer = store->push >= 0 ? HFI_FD(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) : -1;
    if (store->timer < 0 || epoll_ctl(store->push, EPOLL_CTL_ADD, store->timer, &event) != 0)
        return hfi_fail_errno(err, errno, "open", "an event queue");
    return HF_OK;
}

static hf_status get_in(struct zookeeper_store *store, hfi_time deadline_ns, hf_error *err)
{
    hf_status status;
    bool again = false;
    do {
        struct zookeeper_session *session;
        status = look_up(store, &again, deadline_ns, err);
        if (status != HF_OK)
            continue;
        pthread_mutex_lock(&store->mutex);
        status = hfi_zookeeper_session_borrow(store, 0, &session, deadline_ns, err);
        if (status == HF_OK)
            hfi_zookeeper_session_give_back(session);
        pthread_mutex_unlock(&store->mutex);
    } while (status == HF_UNAVAILABLE && again);
    return status;
}

static hf_status zookeeper_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                                struct hfi_opened *opened, hf_error *err)
{
    struct zookeeper_store *store = memory;
    char host[256] = "";
    (void)opened;
    store->env = env;
    store->push = store->timer = -1;
    store->timer_ns = HFI_NEVER;
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->changed, NULL);
    gethostname(host, sizeof host - 1);
    snprintf(store->who, sizeof store->who, "%s %d", host, (int)getpid());
    hf_status status = hfi_zookeeper_config_read(&store->config, url, err);
    if (status == HF_OK)
        status = open_push(store, err);
    if (status == HF_OK)
        status = get_in(store, env->now_ns() + env->timeout_ns, err);
    return status;
}

static void zookeeper_close_store(void *memory)
{
    struct zookeeper_store *store = memory;
    const hfi_time now = store->env->now_ns(), most = earlier(store->env->timeout_ns, FAREWELL_MOST);
    pthread_mutex_lock(&store->mutex);
    while (store->sessions)
        hfi_zookeeper_session_close(store->sessions, now + most);
    pthread_mutex_unlock(&store->mutex);
    hfi_fd_close(store->timer);
    hfi_fd_close(store->push);
    hfi_free(store->addresses);
    hfi_zookeeper_config_free(&store->config);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->mutex);
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "zookeeper",
    .schemes = "zookeeper:",
    .summary = "machines that share a ZooKeeper ensemble",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_ONCE,
    .lingers = true,
    .store_size = sizeof(struct zookeeper_store),
    .lock_size = sizeof(struct zookeeper_lock),
    .open = zookeeper_open,
    .close = zookeeper_close_store,
    .attempt = hfi_zookeeper_attempt,
    .wait = hfi_zookeeper_wait,
    .renew = hfi_zookeeper_renew,
    .release = hfi_zookeeper_release,
    .inspect = hfi_zookeeper_inspect,
    .inspect_one = hfi_zookeeper_inspect_one,
    .inspect_done = hfi_zookeeper_inspect_done,
    .forget_done = hfi_zookeeper_forget_done,
    .evict = hfi_zookeeper_evict,
    .examine = hfi_zookeeper_examine,
    .push_fd = hfi_zookeeper_push_fd,
    .take_push = hfi_zookeeper_take_push,
};
