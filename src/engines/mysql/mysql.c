/* SPDX-License-Identifier: MIT
 *
 * mysql.c: machines that share a MySQL (8.0 or newer) or MariaDB (10.5 or newer) database, by one of five strategies.
 *
 * What ends a grant:  release(); its time-to-live by the server's clock (lease, insert, version); the end of its
 *                     connection (for-update, get-lock).
 * Who counts time:    the server; the core keeps an earlier deadline of its own.
 * Exchanges:          one round trip each to acquire and to release a lease that nobody else wants.
 * Waiting:            in the server's own queue: for the bell of the row, a user-level lock that its holder has beside
 *                     the row (lease, insert, version), or for the lock itself (for-update, get-lock).
 * Token:              the larger of last + 1 and the server's microseconds, drawn under the lock and committed before
 *                     the grant is known.
 * Cannot promise:     what the server forgets: a failover to a replica that lags. Locks that are bound to a connection,
 *                     and bells, are known to one server only. A clock that is set forward ends leases early: exclusion
 *                     is lost then, while the tokens still grow.
 */
#include "mysql_engine.h"
#include <unistd.h>

static hf_status connect_first(struct mysql_store *store, hf_error *err)
{
    const hfi_time deadline = store->env->now_ns() + store->env->timeout_ns;
    struct mysql_connection *connection;
    hf_status status = hfi_mysql_connect(store, &connection, deadline, err);
    if (status != HF_OK)
        return status;
    status = hfi_mysql_prepare_tables(store, connection, false, deadline, err);
    hfi_mysql_give_back(store, connection);
    if (status == HF_UNKNOWN && err)
        err->status = HF_UNAVAILABLE;
    return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
}

static hf_status mysql_engine_open(void *memory, const struct hfi_url *url, const struct hfi_env *env,
                                   struct hfi_opened *opened, hf_error *err)
{
    struct mysql_store *store = memory;
    store->env = env;
    store->watch = store->heart = -1;
    pthread_mutex_init(&store->mutex, NULL);
    store->pool.mutex = &store->mutex;
    gethostname(store->host, sizeof store->host - 1);
    store->pid = (uint64_t)getpid();
    hf_status status = hfi_mysql_config_read(&store->config, url, err);
    if (status != HF_OK)
        return status;
    opened->caps = store->config.strategy->caps;
    status = hfi_mysql_watch_open(store, err);
    return status == HF_OK ? connect_first(store, err) : status;
}

static void mysql_engine_close(void *memory)
{
    struct mysql_store *store = memory;
    for (void *connection; (connection = hfi_sql_pool_take(&store->pool)) != NULL;)
        hfi_mysql_disconnect(connection);
    hfi_fd_close(store->heart);
    hfi_fd_close(store->watch);
    hfi_mysql_config_free(&store->config);
    pthread_mutex_destroy(&store->mutex);
}

static hf_status mysql_attempt(void *memory, void *lock, const struct hfi_request *request, struct hfi_grant *grant,
                               hf_error *err)
{
    struct mysql_store *store = memory;
    return store->config.strategy->bound ? hfi_mysql_bound_attempt(store, lock, request, grant, err)
                                         : hfi_mysql_row_attempt(store, lock, request, grant, err);
}

static hf_status mysql_wait(void *memory, void *lock, const struct hfi_request *request, hf_error *err)
{
    struct mysql_store *store = memory;
    return store->config.strategy->bound ? hfi_mysql_bound_wait(store, lock, request, err)
                                         : hfi_mysql_row_wait(store, lock, request, err);
}

static hf_status mysql_renew(void *memory, struct hfi_renewal *renewals, size_t count, hfi_time deadline_ns,
                             hf_error *err)
{
    struct mysql_store *store = memory;
    return store->config.strategy->bound ? hfi_mysql_bound_renew(store, renewals, count)
                                         : hfi_mysql_row_renew(store, renewals, count, deadline_ns, err);
}

static hf_status mysql_release(void *memory, void *lock, const struct hfi_request *request, hf_error *err)
{
    struct mysql_store *store = memory;
    return store->config.strategy->bound ? hfi_mysql_bound_release(store, lock, request, err)
                                         : hfi_mysql_row_release(store, lock, request, err);
}

static int mysql_push_fd(void *memory)
{
    const struct mysql_store *store = memory;
    return store->watch;
}

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = {
    .abi = HFI_ENGINE_ABI,
    .name = "mysql",
    .schemes = "mysql: mariadb:",
    .summary = "machines that share a MySQL or MariaDB database",
    .caps = HF_CAP_EXPIRY | HF_CAP_FAIR | HF_CAP_WAKE_ONE | HF_CAP_PROCESSES | HF_CAP_MACHINES | HF_CAP_DURABLE_TOKEN |
            HF_CAP_INSPECT | HF_CAP_BREAK | HF_CAP_GUARD | HF_CAP_ONCE,
    .store_size = sizeof(struct mysql_store),
    .lock_size = sizeof(struct mysql_lock),
    .open = mysql_engine_open,
    .close = mysql_engine_close,
    .attempt = mysql_attempt,
    .wait = mysql_wait,
    .renew = mysql_renew,
    .release = mysql_release,
    .inspect = hfi_mysql_inspect,
    .inspect_one = hfi_mysql_inspect_one,
    .inspect_done = hfi_mysql_inspect_done,
    .forget_done = hfi_mysql_forget_done,
    .evict = hfi_mysql_evict,
    .guard = hfi_mysql_guard,
    .examine = hfi_mysql_examine,
    .push_fd = mysql_push_fd,
    .take_push = hfi_mysql_take_push,
};
