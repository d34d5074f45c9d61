/* SPDX-License-Identifier: MIT
 *
 * postgres_connect.c: getting in, in steps that do not wait past the deadline, and the pool of connections.
 *
 * libpq opens and closes its sockets by itself, so every step that may do so runs between hfi_fd_begin() and
 * hfi_fd_end(): a forked child must find all of them in the list, and none that is closed. Names are looked up before
 * that, because libpq would wait for the answer inside of a step.
 */
#include "postgres.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define OPTIONS_MOST 80
#define LIST_MOST 2000
#define IDLE_MOST 16
#define A_MOMENT (5 * HFI_MS)
/* What libpq may open beside its socket: password, service and certificate files. */
#define SPARE_DESCRIPTORS 4
#define OLDEST_SERVER 110000

/* libpq says that a file is not there when it cannot be opened, and then that a password is missing. */
static hf_status check_descriptors(hf_error *err)
{
    int spare[SPARE_DESCRIPTORS];
    int failure = 0;
    hfi_fd_begin();
    for (size_t i = 0; i < SPARE_DESCRIPTORS; i++) {
        spare[i] = failure ? -1 : eventfd(0, EFD_CLOEXEC);
        if (spare[i] < 0 && !failure)
            failure = errno;
    }
    for (size_t i = 0; i < SPARE_DESCRIPTORS; i++) {
        if (spare[i] >= 0)
            close(spare[i]);
    }
    hfi_fd_end(-1);
    return failure ? hfi_fail_errno(err, failure, "open", "a connection") : HF_OK;
}

/* --- what libpq is told --- */

struct parameters {
    const char *keywords[OPTIONS_MOST], *values[OPTIONS_MOST];
    size_t count;
    char hosts[LIST_MOST], addresses[LIST_MOST], ports[LIST_MOST];
};

static const char *given(const struct parameters *parameters, const char *keyword)
{
    for (size_t i = 0; i < parameters->count; i++) {
        if (strcmp(parameters->keywords[i], keyword) == 0)
            return parameters->values[i];
    }
    return NULL;
}

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

static void set_unless(struct parameters *parameters, const char *keyword, const char *variable, const char *value)
{
    if (!given(parameters, keyword) && !(variable && getenv(variable)))
        set(parameters, keyword, value);
}

static void append(char *list, const char *item)
{
    const size_t used = strlen(list);
    snprintf(list + used, LIST_MOST - used, "%s%s", used ? "," : "", item);
}

/* All addresses of one host, in the form that libpq takes. False: it has none. */
static bool look_up(struct parameters *parameters, const char *host, const char *port)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    for (const struct addrinfo *one = found; one; one = one->ai_next) {
        char address[NI_MAXHOST];
        if (getnameinfo(one->ai_addr, one->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        append(parameters->hosts, host);
        append(parameters->addresses, address);
        append(parameters->ports, port);
    }
    freeaddrinfo(found);
    return *parameters->addresses != 0;
}

/* The item of a list that is separated by commas; the only one, if there is one for all. */
static void pick(char *out, size_t size, const char *list, size_t index)
{
    const char *at = list;
    for (size_t i = 0; i < index && strchr(at, ','); i++)
        at = strchr(at, ',') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
}

static hf_status look_up_hosts(struct parameters *parameters, hf_error *err)
{
    const char *hosts = given(parameters, "host");
    const char *ports = given(parameters, "port");
    if (given(parameters, "service") || getenv("PGSERVICE") || given(parameters, "hostaddr") || getenv("PGHOSTADDR"))
        return HF_OK;
    if (!hosts)
        hosts = getenv("PGHOST");
    if (!ports)
        ports = getenv("PGPORT");
    if (!hosts || !*hosts || hosts[0] == '/' || hosts[0] == '@')
        return HF_OK;
    if (strchr(hosts, ','))
        set_unless(parameters, "target_session_attrs", "PGTARGETSESSIONATTRS", "read-write");
    for (size_t i = 0;; i++) {
        char host[256], port[16];
        pick(host, sizeof host, hosts, i);
        pick(port, sizeof port, ports ? ports : "", i);
        look_up(parameters, host, *port ? port : "5432");
        const char *rest = hosts;
        for (size_t j = 0; j <= i && rest; j++)
            rest = strchr(rest, ',') ? strchr(rest, ',') + 1 : NULL;
        if (!rest)
            break;
    }
    if (!*parameters->addresses)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s", hosts);
    set(parameters, "host", parameters->hosts);
    set(parameters, "hostaddr", parameters->addresses);
    set(parameters, "port", parameters->ports);
    return HF_OK;
}

static hf_status collect(struct parameters *parameters, const struct postgres_config *config, hf_error *err)
{
    for (const PQconninfoOption *one = config->options; one->keyword; one++) {
        if (one->val)
            set(parameters, one->keyword, one->val);
    }
    const hf_status status = look_up_hosts(parameters, err);
    set(parameters, "client_encoding", "UTF8");
    set_unless(parameters, "fallback_application_name", NULL, "holdfast");
    set_unless(parameters, "gssencmode", "PGGSSENCMODE", "disable"); /* its handshake may wait for other servers */
    /* A network that swallows everything is noticed after seconds, not hours. */
    set_unless(parameters, "keepalives_idle", NULL, "5");
    set_unless(parameters, "keepalives_interval", NULL, "2");
    set_unless(parameters, "keepalives_count", NULL, "3");
    set_unless(parameters, "tcp_user_timeout", NULL, "10000");
    parameters->keywords[parameters->count] = NULL;
    parameters->values[parameters->count] = NULL;
    return status;
}

/* --- one connection --- */

void hfi_postgres_disconnect(struct postgres_connection *connection)
{
    if (!connection)
        return;
    hfi_fd_begin();
    hfi_fd_forget(PQsocket(connection->pq));
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

static hf_status start(struct postgres_store *store, struct postgres_connection *connection, hf_error *err)
{
    struct parameters *parameters = hfi_alloc(sizeof *parameters);
    if (!parameters)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    hf_status status = collect(parameters, &store->config, err);
    if (status == HF_OK) {
        hfi_fd_begin();
        connection->pq = PQconnectStartParams(parameters->keywords, parameters->values, 0);
        const int fd = connection->pq ? PQsocket(connection->pq) : -1;
        if (!connection->pq || (fd >= 0 && hfi_fd_note(fd) < 0))
            status = hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
        hfi_fd_end(-1);
    }
    hfi_free(parameters);
    if (status == HF_OK && PQstatus(connection->pq) == CONNECTION_BAD)
        status = hfi_postgres_unreachable(store, connection->pq, err);
    return status;
}

/* --- the session --- */

static void ignore_notice(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

/* Whatever a role, a database or a server has as its defaults, a lock must not end or wait because of it. Nothing is
 * set through a pooler: it would be set for others. */
static void compose_setup(char *out, size_t size, const struct postgres_store *store, int version)
{
    const bool bound = store->config.strategy->bound;
    const long long patience_ms = bound ? 0 : store->env->timeout_ns / HFI_MS + 1;
    int used = snprintf(out, size,
                        "SELECT pg_backend_pid(), pg_is_in_recovery(), CASE WHEN pg_backend_pid() = $1::int OR $2::bool"
                        " THEN set_config('default_transaction_isolation', 'read committed', false)"
                        " || set_config('statement_timeout', '0', false)"
                        " || set_config('lock_timeout', '%lld', false)"
                        " || set_config('idle_in_transaction_session_timeout', '0', false)"
                        " || set_config('tcp_keepalives_idle', '5', false)"
                        " || set_config('tcp_keepalives_interval', '2', false)"
                        " || set_config('tcp_keepalives_count', '3', false)",
                        patience_ms);
    if (version >= 120000)
        used += snprintf(out + used, size - (size_t)used, " || set_config('tcp_user_timeout', '10000', false)");
    if (version >= 140000)
        used += snprintf(out + used, size - (size_t)used,
                         " || set_config('idle_session_timeout', '0', false)"
                         " || set_config('client_connection_check_interval', '1000', false)");
    snprintf(out + used, size - (size_t)used, " END");
}

static hf_status set_up(struct postgres_store *store, struct postgres_connection *connection, hfi_time deadline_ns,
                        hf_error *err)
{
    char text[1200], backend[16];
    PGresult *result = NULL;
    const int version = PQserverVersion(connection->pq);
    if (version < OLDEST_SERVER)
        return hfi_fail(err, HF_UNSUPPORTED, version, "%s runs PostgreSQL %d; this engine needs 11 or newer",
                        store->config.where, version / 10000);
    PQsetNoticeReceiver(connection->pq, ignore_notice, NULL);
    if (PQsetnonblocking(connection->pq, 1) != 0 || PQenterPipelineMode(connection->pq) != 1)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    compose_setup(text, sizeof text, store, version);
    snprintf(backend, sizeof backend, "%d", PQbackendPID(connection->pq));
    const char *const parameters[] = { backend, store->config.session_pooler ? "true" : "false" };
    hf_status status = hfi_postgres_say(store, connection, text, parameters, 2, &result, deadline_ns, err);
    if (status == HF_UNKNOWN) { /* nothing but a session is unknown */
        status = HF_UNAVAILABLE;
        if (err)
            err->status = status;
    }
    if (status != HF_OK)
        return status;
    connection->backend = (int)hfi_postgres_number(result, 0, 0, 0);
    connection->pooled = connection->backend != PQbackendPID(connection->pq) && !store->config.session_pooler;
    connection->recovering = PQgetvalue(result, 0, 1)[0] == 't';
    PQclear(result);
    if (connection->recovering)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "%s is a standby, on which nothing can be written",
                        store->config.where);
    if (connection->pooled && store->config.strategy->bound)
        return hfi_fail(err, HF_UNSUPPORTED, 0,
                        "there is a pooler before %.60s, which may give a lock's connection to others; connect "
                        "directly, or say pooler=session if it keeps sessions together",
                        store->config.where);
    return HF_OK;
}

hf_status hfi_postgres_connect(struct postgres_store *store, struct postgres_connection **out, hfi_time deadline_ns,
                               hf_error *err)
{
    *out = NULL;
    hf_status status = check_descriptors(err);
    if (status != HF_OK)
        return status;
    struct postgres_connection *connection = hfi_alloc(sizeof *connection);
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    status = start(store, connection, err);
    if (status == HF_OK) {
        PQsetErrorVerbosity(connection->pq, PQERRORS_VERBOSE); /* so that a refusal comes with its number */
        status = finish_connecting(store, connection->pq, deadline_ns, err);
    }
    if (status == HF_OK)
        status = set_up(store, connection, deadline_ns, err);
    if (status == HF_OK)
        *out = connection;
    else
        hfi_postgres_disconnect(connection);
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
    for (;;) {
        pthread_mutex_lock(&store->mutex);
        struct postgres_connection *connection = store->idle;
        if (connection) {
            store->idle = connection->next;
            store->idle_count--;
        }
        pthread_mutex_unlock(&store->mutex);
        *out = connection;
        if (!connection)
            return hfi_postgres_connect(store, out, deadline_ns, err);
        if (is_alive(store, connection))
            return HF_OK;
        hfi_postgres_disconnect(connection);
    }
}

void hfi_postgres_give_back(struct postgres_store *store, struct postgres_connection *connection)
{
    if (!connection)
        return;
    pthread_mutex_lock(&store->mutex);
    const bool keep = !connection->broken && store->idle_count < IDLE_MOST;
    if (keep) {
        connection->used_ns = store->env->now_ns();
        connection->next = store->idle;
        store->idle = connection;
        store->idle_count++;
    }
    pthread_mutex_unlock(&store->mutex);
    if (!keep)
        hfi_postgres_disconnect(connection);
}
