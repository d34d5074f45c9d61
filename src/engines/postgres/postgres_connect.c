/* SPDX-License-Identifier: MIT
 *
 * postgres_connect.c: getting in, in steps that do not wait past the deadline, and the pool of connections.
 *
 * libpq opens and closes its sockets by itself, so every step that may do so runs between hfi_fd_begin() and
 * hfi_fd_end(): a forked child must find all of them in the list, and none that is closed.
 */
#include "postgres.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define OPTIONS_MOST 80
#define A_MOMENT (5 * HFI_MS)

/* --- what libpq is told --- */

struct parameters {
    const char *keywords[OPTIONS_MOST], *values[OPTIONS_MOST];
    size_t count;
};

static void set(struct parameters *parameters, const char *keyword, const char *value)
{
    size_t i = 0;
    while (i < parameters->count && strcmp(parameters->keywords[i], keyword) != 0)
        i++;
    if (i + 1 >= OPTIONS_MOST)
        return;
    parameters->keywords[i] = keyword;
    parameters->values[i] = value;
    if (i == parameters->count)
        parameters->count++;
}

static void collect(struct parameters *parameters, const struct postgres_config *config,
                    const struct postgres_address *address)
{
    static const struct {
        const char *keyword, *value;
    } unless_given[] = {
        { "fallback_application_name", "holdfast" },
        /* A network that swallows everything is noticed after seconds, not hours. */
        { "keepalives_idle", "5" },
        { "keepalives_interval", "2" },
        { "keepalives_count", "3" },
        { "tcp_user_timeout", "10000" },
    };
    for (size_t i = 0; i < sizeof unless_given / sizeof unless_given[0]; i++)
        set(parameters, unless_given[i].keyword, unless_given[i].value);
    for (const PQconninfoOption *one = config->options; one->keyword; one++) {
        if (one->val)
            set(parameters, one->keyword, one->val);
    }
    if (config->session_attributes)
        set(parameters, "target_session_attrs", config->session_attributes);
    if (config->gss_mode)
        set(parameters, "gssencmode", config->gss_mode);
    if (config->password)
        set(parameters, "password", config->password);
    set(parameters, "host", address->host);
    set(parameters, "hostaddr", address->address);
    set(parameters, "port", address->port);
    set(parameters, "client_encoding", "UTF8");
    parameters->keywords[parameters->count] = NULL;
    parameters->values[parameters->count] = NULL;
}

/* --- one connection --- */

void hfi_postgres_disconnect(struct postgres_connection *connection)
{
    if (!connection)
        return;
    const struct linger reset = { .l_onoff = 1 };
    hfi_fd_begin();
    hfi_fd_forget(PQsocket(connection->pq));
    /* Whatever has not reached the server is not to be sent again after the end. */
    if (connection->broken)
        setsockopt(PQsocket(connection->pq), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    PQfinish(connection->pq);
    hfi_fd_end(-1);
    hfi_free(connection);
}

/* One step, which may close a socket and open another. */
static PostgresPollingStatusType step(PGconn *pq, hf_error *err)
{
    hfi_fd_begin();
    hfi_fd_forget(PQsocket(pq));
    PostgresPollingStatusType next = PQconnectPoll(pq);
    const int fd = PQsocket(pq);
    if (fd >= 0 && hfi_fd_note(fd) < 0) {
        hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
        next = PGRES_POLLING_FAILED;
    }
    hfi_fd_end(-1);
    return next;
}

static bool sleep_until_ready(const struct postgres_store *store, int fd, short events, hfi_time deadline_ns)
{
    const hfi_time left = deadline_ns - store->env->now_ns();
    const struct timespec most = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
    struct pollfd one = { .fd = fd, .events = events };
    return left > 0 && (ppoll(&one, 1, &most, NULL) != 0); /* a signal: look again */
}

static hf_status finish_connecting(struct postgres_store *store, PGconn *pq, hfi_time deadline_ns, hf_error *err)
{
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    while (next != PGRES_POLLING_OK) {
        const short events = next == PGRES_POLLING_READING ? POLLIN : POLLOUT;
        if (!sleep_until_ready(store, PQsocket(pq), events, deadline_ns) && store->env->now_ns() >= deadline_ns)
            return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot connect to %s: no answer in time", store->config.where);
        next = step(pq, err);
        if (next == PGRES_POLLING_FAILED)
            return hfi_postgres_unreachable(store, pq, err);
    }
    return HF_OK;
}

static hf_status start(struct postgres_store *store, struct postgres_connection *connection,
                       const struct postgres_address *address, hf_error *err)
{
    struct parameters parameters = { .count = 0 };
    collect(&parameters, &store->config, address);
    hfi_fd_begin();
    connection->pq = PQconnectStartParams(parameters.keywords, parameters.values, 0);
    const int fd = connection->pq ? PQsocket(connection->pq) : -1;
    const bool noted = connection->pq && (fd < 0 || hfi_fd_note(fd) >= 0);
    hfi_fd_end(-1);
    if (!noted)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    if (PQstatus(connection->pq) == CONNECTION_BAD)
        return hfi_postgres_unreachable(store, connection->pq, err);
    PQsetErrorVerbosity(connection->pq, PQERRORS_VERBOSE); /* so that a refusal comes with its number */
    return HF_OK;
}

static hf_status connect_to(struct postgres_store *store, struct postgres_connection **out,
                            const struct postgres_address *address, hfi_time deadline_ns, hf_error *err)
{
    struct postgres_connection *connection = hfi_alloc(sizeof *connection);
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    hf_status status = start(store, connection, address, err);
    if (status == HF_OK)
        status = finish_connecting(store, connection->pq, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_postgres_set_up(store, connection, deadline_ns, err);
    if (status == HF_OK)
        *out = connection;
    else
        hfi_postgres_disconnect(connection);
    return status;
}

/* Begins with the address that was good the last time. One that does not answer costs its share of the time, so that
 * there is some left for the others. */
static hf_status try_all(struct postgres_store *store, struct postgres_connection **out,
                         const struct postgres_addresses *addresses, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_UNAVAILABLE;
    pthread_mutex_lock(&store->mutex);
    const size_t first = store->address;
    pthread_mutex_unlock(&store->mutex);
    for (size_t i = 0; i < addresses->count && status == HF_UNAVAILABLE; i++) {
        const size_t index = (first + i) % addresses->count;
        const hfi_time now = store->env->now_ns();
        const hfi_time share = (deadline_ns - now) / (hfi_time)(addresses->count - i);
        status = connect_to(store, out, &addresses->list[index], now + share, err);
        if (status != HF_OK)
            continue;
        pthread_mutex_lock(&store->mutex);
        store->address = index;
        pthread_mutex_unlock(&store->mutex);
    }
    return status;
}

hf_status hfi_postgres_connect(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                               hf_error *err)
{
    *out = NULL;
    hf_status status = hfi_sql_check_descriptors(err);
    if (status != HF_OK)
        return status;
    struct postgres_addresses *addresses = hfi_alloc(sizeof *addresses);
    if (!addresses)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    do {
        status = hfi_postgres_look_up(addresses, &store->config, addresses->again, deadline_ns, err);
        if (status == HF_OK)
            status = try_all(store, out, addresses, deadline_ns, err);
    } while (status == HF_UNAVAILABLE && addresses->again);
    hfi_free(addresses);
    return status;
}

/* --- the pool --- */

/* An idle connection has nothing to hear but that its server is going away. (A setting that was changed is told too,
 * and costs a new connection.) One that has answered a moment ago need not be looked at. */
static bool is_alive(const struct postgres_store *store, const struct postgres_connection *connection)
{
    struct pollfd one = { .fd = PQsocket(connection->pq), .events = POLLIN };
    return store->env->now_ns() - connection->used_ns < A_MOMENT || poll(&one, 1, 0) == 0;
}

hf_status hfi_postgres_borrow(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                              hf_error *err)
{
    while ((*out = hfi_sql_pool_take(&store->pool)) != NULL) {
        if (is_alive(store, *out))
            return HF_OK;
        hfi_postgres_disconnect(*out);
    }
    return hfi_postgres_connect(store, out, deadline_ns, err);
}

void hfi_postgres_give_back(struct postgres_store *store, struct postgres_connection *connection)
{
    if (!connection)
        return;
    connection->used_ns = store->env->now_ns();
    if (connection->broken || !hfi_sql_pool_put(&store->pool, connection))
        hfi_postgres_disconnect(connection);
}
