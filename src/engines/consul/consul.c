/* SPDX-License-Identifier: MIT
 *
 * consul.c: machines that share a Consul cluster. `consul lock P/NAME` shares the lock.
 *
 * What ends a grant:  release(); the end of its session, which is the end of its client, or a time-to-live without a
 *                     renewal; hf_break(); whoever deletes the key or destroys the session.
 * Who counts time:    the leader of the servers, from the last renewal: up to twice the time-to-live. The core keeps a
 *                     deadline of its own, one time-to-live after the last renewal that was answered was sent.
 * Exchanges:          one transaction each to acquire and to release; a renewal of the session now and then, whatever
 *                     the number of locks.
 * Waiting:            a place in a queue beside the lock, and a long poll on the place before it; a release wakes its
 *                     successor alone. Clients of others, which know no queue, may overtake.
 * Done:               a key for each name that was done once, written with the release, overwritten by the next. Its
 *                     time is counted by the clocks of the agents, which say seconds.
 * Token:              the Raft index at which the lock was taken: it grows for as long as the cluster keeps its data.
 *                     (LockIndex starts over when the key is deleted.)
 * Cannot promise:     that a holder knows in time when somebody destroys its session or deregisters its node: it is
 *                     told at once, but by then another one may hold the lock. lock_delay keeps others away meanwhile.
 */
#include "consul.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As it goes into names, values and messages: one word. */
static void name_host(struct consul_store *store)
{
    gethostname(store->host, sizeof store->host - 1);
    for (char *at = store->host; *at; at++) {
        if (!isgraph((unsigned char)*at) || *at == '"' || *at == '\\')
            *at = '_';
    }
    if (!*store->host)
        snprintf(store->host, sizeof store->host, "localhost");
}

/* The first exchange: whether somebody is there and lets us in, and what time it is there. */
static hf_status greet(struct consul_store *store, hf_error *err)
{
    char key[HFI_CONSUL_KEY_MAX];
    struct consul_answer answer;
    const hfi_time deadline = store->env->now_ns() + store->env->timeout_ns;
    hfi_consul_session_key(key, store, "nobody");
    const struct consul_operation look = { .verb = "get-tree", .key = key };
    const hf_status status = hfi_consul_txn(store, &look, 1, &answer, deadline, err);
    if (status == HF_OK)
        hfi_consul_answer_free(&answer);
    if (status == HF_UNKNOWN && err)
        err->status = HF_UNAVAILABLE;
    return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
}

static hf_status consul_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                             struct hfi_opened *opened, hf_error *err)
{
    struct consul_store *store = memory;
    (void)opened;
    store->env = env;
    store->push = store->timer = -1;
    store->pid = (int)getpid();
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->changed, NULL);
    name_host(store);
    /* Once for all: a child that is forked while another thread does it would wait for it for ever. */
    hfi_fd_begin();
    json_object_seed((size_t)env->random() | 1);
    hfi_fd_end(-1);
    hf_status status = hfi_consul_config_read(&store->config, url, err);
    if (status == HF_OK && store->config.tls)
        status = hfi_consul_tls_open(store, err);
    if (status == HF_OK && !hfi_consul_push_open(store))
        status = hfi_fail_errno(err, errno, "make", "a client");
    return status == HF_OK ? greet(store, err) : status;
}

static void disconnect_all(struct consul_connection *connection)
{
    for (struct consul_connection *next; connection; connection = next) {
        next = connection->next;
        hfi_consul_disconnect(connection);
    }
}

static void consul_close(void *memory)
{
    struct consul_store *store = memory;
    hfi_consul_sessions_close(store);
    disconnect_all(store->idle);
    disconnect_all(store->late);
    hfi_consul_push_close(store);
    SSL_CTX_free(store->tls);
    hfi_consul_config_free(&store->config);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->mutex);
}

static int consul_push_fd(void *memory)
{
    const struct consul_store *store = memory;
    return store->push;
}

static void consul_take_push(void *memory)
{
    hfi_consul_take_push(memory);
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "consul",
    .schemes = "consul: consuls:",
    .summary = "machines that share a Consul cluster",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE,
    .lingers = true,
    .store_size = sizeof(struct consul_store),
    .lock_size = sizeof(struct consul_lock),
    .open = consul_open,
    .close = consul_close,
    .attempt = hfi_consul_attempt,
    .wait = hfi_consul_wait,
    .renew = hfi_consul_renew,
    .release = hfi_consul_release,
    .inspect = hfi_consul_inspect,
    .inspect_one = hfi_consul_inspect_one,
    .inspect_done = hfi_consul_inspect_done,
    .forget_done = hfi_consul_forget_done,
    .evict = hfi_consul_evict,
    .guard = hfi_consul_guard,
    .examine = hfi_consul_examine,
    .push_fd = consul_push_fd,
    .take_push = consul_take_push,
};
