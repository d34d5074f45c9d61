/* SPDX-License-Identifier: MIT
 *
 * postgres.c: machines that share a PostgreSQL database (11 or newer), by one of five strategies.
 *
 * What ends a grant:  release(); its time-to-live by the server's clock (lease, insert, version); the end of its
 *                     connection (for-update, advisory).
 * Who counts time:    the server; the core keeps an earlier deadline of its own.
 * Exchanges:          one round trip each to acquire and to release a lease that nobody else wants.
 * Waiting:            by LISTEN: whoever frees a row hands it to the first of the table of waiters, and notifies that
 *                     client alone. Bound strategies wait in the server, on the connection that is going to hold.
 * Token:              the larger of last + 1 and the server's microseconds, drawn under the lock and committed before
 *                     the grant is known.
 * Cannot promise:     what the server forgets: a failover to a standby that lags, or fsync off. Locks that
 *                     are bound to a connection do not survive any failover. A clock that is set forward ends leases
 *                     early: exclusion is lost then, while the tokens still grow.
 */
#include "postgres.h"
#include <stdio.h>
#include <unistd.h>

static hf_status connect_first(struct postgres_store *store, struct hfi_opened *opened, hf_error *err)
{
    const hfi_time deadline = store->env->now_ns() + store->env->timeout_ns;
    struct postgres_connection *connection;
    hf_status status = hfi_postgres_connect(store, &connection, deadline, err);
    if (status != HF_OK)
        return status;
    store->deaf = connection->pooled;
    if (store->deaf)
        opened->caps &= ~(uint32_t)(HF_CAP_FAIR | HF_CAP_WAKE_ONE);
    status = hfi_postgres_prepare_tables(store, connection, deadline, err);
    hfi_postgres_give_back(store, connection);
    return hfi_postgres_not_unknown(status, err);
}

static hf_status postgres_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                               struct hfi_opened *opened, hf_error *err)
{
    struct postgres_store *store = memory;
    store->env = env;
    store->watch = store->heart = -1;
    pthread_mutex_init(&store->mutex, NULL);
    store->pool.mutex = &store->mutex;
    hfi_postgres_push_open(store);
    gethostname(store->host, sizeof store->host - 1);
    snprintf(store->pid, sizeof store->pid, "%d", (int)getpid());
    hf_status status = hfi_postgres_config_read(&store->config, url, &opened->shown, err);
    if (status != HF_OK)
        return status;
    opened->caps = store->config.strategy->caps;
    if (store->config.strategy->bound)
        status = hfi_postgres_bound_open(store, err);
    return status == HF_OK ? connect_first(store, opened, err) : status;
}

static void postgres_close(void *memory)
{
    struct postgres_store *store = memory;
    hfi_postgres_push_close(store);
    hfi_postgres_forget_given_up(store);
    for (void *connection; (connection = hfi_sql_pool_take(&store->pool)) != NULL;)
        hfi_postgres_disconnect(connection);
    hfi_fd_close(store->watch);
    hfi_fd_close(store->heart);
    hfi_free(store->writers.backends);
    hfi_postgres_config_free(&store->config);
    pthread_mutex_destroy(&store->mutex);
}

static hf_status postgres_attempt(void *memory, void *lock, const struct hfi_request *request, struct hfi_grant *grant,
                                  hf_error *err)
{
    struct postgres_store *store = memory;
    const hf_status status = store->config.strategy->bound
                                 ? hfi_postgres_bound_attempt(store, lock, request, grant, err)
                                 : hfi_postgres_row_attempt(store, lock, request, grant, err);
    return request->once ? hfi_postgres_explain_once(store, status, err) : status;
}

static hf_status postgres_wait(void *memory, void *lock, const struct hfi_request *request, hf_error *err)
{
    struct postgres_store *store = memory;
    return store->config.strategy->bound ? hfi_postgres_bound_wait(store, lock, request, err)
                                         : hfi_postgres_row_wait(store, lock, request, err);
}

static hf_status postgres_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                                hf_error *err)
{
    struct postgres_store *store = memory;
    return store->config.strategy->bound ? hfi_postgres_bound_renew(store, renewals, count)
                                         : hfi_postgres_row_renew(store, renewals, count, deadline_ns, err);
}

static hf_status postgres_release(void *memory, void *lock, const struct hfi_request *request, hf_error *err)
{
    struct postgres_store *store = memory;
    const hf_status status = store->config.strategy->bound ? hfi_postgres_bound_release(store, lock, request, err)
                                                           : hfi_postgres_row_release(store, lock, request, err);
    return request->done_ms > 0 ? hfi_postgres_explain_once(store, status, err) : status;
}

static int postgres_push_fd(void *memory)
{
    const struct postgres_store *store = memory;
    return store->watch;
}

static void postgres_take_push(void *memory)
{
    hfi_postgres_bound_take_push(memory);
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "postgres",
    .schemes = "postgres: postgresql:",
    .summary = "machines that share a PostgreSQL database",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE,
    .parks = true,
    .store_size = sizeof(struct postgres_store),
    .lock_size = sizeof(struct postgres_lock),
    .open = postgres_open,
    .close = postgres_close,
    .attempt = postgres_attempt,
    .wait = postgres_wait,
    .renew = postgres_renew,
    .release = postgres_release,
    .inspect = hfi_postgres_inspect,
    .inspect_one = hfi_postgres_inspect_one,
    .inspect_done = hfi_postgres_inspect_done,
    .forget_done = hfi_postgres_forget_done,
    .evict = hfi_postgres_evict,
    .guard = hfi_postgres_guard,
    .examine = hfi_postgres_examine,
    .push_fd = postgres_push_fd,
    .take_push = postgres_take_push,
};
