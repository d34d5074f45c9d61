/* SPDX-License-Identifier: MIT
 *
 * mysql_connect.c: getting in, and the pool of connections.
 *
 * libmariadb opens its sockets by itself, and not close-on-exec. So every step of connecting runs between
 * hfi_fd_begin() and hfi_fd_end(), and a host is looked up before that: libmariadb gets an address, unless it has to
 * compare the name with the server's certificate; then it gets the name, but only while the resolver answers for it.
 */
#include "mysql_engine.h"
#include "resolve.h"
#include <errmsg.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define A_MOMENT (5 * HFI_MS)
/* For a handshake of TLS and for loading a plugin; memory that is not touched costs nothing. */
#define STACK_SIZE (256 * 1024)
#define OLDEST_MARIADB 100500
#define OLDEST_MYSQL 80000
/* After so many seconds of silence the server ends a connection. A bound lock must end soon after its client was cut
 * off; its connection is pinged every few seconds. */
#define SILENCE_BOUND 20
#define SILENCE 3600
/* How long a statement waits in the server for a row, or for a table that is being altered or backed up, in seconds:
 * its client may be gone. */
#define ROW_PATIENCE 5
/* MariaDB 11.6.2 and newer fail a statement that had to wait for a row which has changed then; and it is the woken
 * waiter's that waits, for the release that woke it. Older ones do not know the word, and read a comment. */
#define SEE_CHANGES " /*M!110602 , innodb_snapshot_isolation = OFF */"

/* --- once --- */

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The signal is the program's business; see struct mysql_hush. */
static void start_library(void)
{
    struct sigaction before;
    sigaction(SIGPIPE, NULL, &before);
    mysql_library_init(0, NULL, NULL);
    sigaction(SIGPIPE, &before, NULL);
}

/* --- the socket --- */

void hfi_mysql_connecting_begin(struct mysql_connection *connection)
{
    hfi_fd_begin();
    hfi_fd_forget(mysql_get_socket(connection->client));
}

void hfi_mysql_connecting_end(struct mysql_connection *connection)
{
    const int fd = mysql_get_socket(connection->client);
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        connection->broken = hfi_fd_note(fd) < 0;
    }
    hfi_fd_end(-1);
}

/* A network that swallows everything is noticed after seconds, not hours. */
static void keep_alive(int fd)
{
    static const struct {
        int level, option, value;
    } settings[] = { { SOL_SOCKET, SO_KEEPALIVE, 1 },   { IPPROTO_TCP, TCP_KEEPIDLE, 5 },
                     { IPPROTO_TCP, TCP_KEEPINTVL, 2 }, { IPPROTO_TCP, TCP_KEEPCNT, 3 },
                     { IPPROTO_TCP, TCP_NODELAY, 1 },   { IPPROTO_TCP, TCP_USER_TIMEOUT, 10000 } };
    /* A socket file has none of them, and needs none. */
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        setsockopt(fd, settings[i].level, settings[i].option, &settings[i].value, sizeof settings[i].value);
}

void hfi_mysql_disconnect(struct mysql_connection *connection)
{
    if (!connection)
        return;
    if (connection->client && connection->wanted)
        hfi_mysql_abandon(connection);
    if (connection->client) {
        hfi_fd_begin();
        const int fd = mysql_get_socket(connection->client);
        hfi_fd_forget(fd);
        if (connection->broken && fd >= 0)
            hfi_mysql_reset(fd); /* no word of farewell, which could block */
        const struct mysql_hush hush = hfi_mysql_hush_begin(connection);
        mysql_close(connection->client);
        hfi_mysql_hush_end(&hush);
        hfi_fd_end(-1);
    }
    for (size_t i = 0; i < SQL_STATEMENTS; i++) {
        if (connection->prepared[i])
            mysql_stmt_close(connection->prepared[i]);
    }
    hfi_free(connection);
}

/* --- what libmariadb is told --- */

/* A server may answer any statement by asking for a file. */
static int refuse_file(void **context, const char *name, void *arg)
{
    (void)name;
    (void)arg;
    *context = NULL;
    return 1;
}

static int read_nothing(void *context, char *bytes, unsigned size)
{
    (void)context;
    (void)bytes;
    (void)size;
    return -1;
}

static void end_nothing(void *context)
{
    (void)context;
}

static int say_refused(void *context, char *text, unsigned size)
{
    (void)context;
    snprintf(text, size, "the server asked for a file of this machine");
    return CR_UNKNOWN_ERROR;
}

/* Ways to prove who one is that do not show the password to whoever listens. The others, mysql_clear_password and
 * dialog, are for socket files and for servers whose certificate is checked: TLS without that is with anybody. */
#define SECRET_PLUGINS                                                                                                 \
    "mysql_native_password,client_ed25519,parsec,caching_sha2_password,sha256_password,auth_gssapi_client"

static bool set_safety(const struct mysql_config *config, MYSQL *client)
{
    const bool trusted = config->by_name || config->settings[SET_SOCKET];
    const unsigned off = 0;
    /* Also if an option file says otherwise. */
    mysql_set_local_infile_handler(client, refuse_file, read_nothing, end_nothing, say_refused, NULL);
    return mysql_options(client, MYSQL_OPT_LOCAL_INFILE, &off) == 0 &&
           (trusted || mysql_options(client, MARIADB_OPT_RESTRICTED_AUTH, SECRET_PLUGINS) == 0);
}

static hf_status set_options(const struct mysql_config *config, MYSQL *client)
{
    static const struct {
        enum mysql_setting setting;
        enum mysql_option option;
    } texts[] = {
        { SET_DEFAULT_FILE, MYSQL_READ_DEFAULT_FILE },
        { SET_GROUP, MYSQL_READ_DEFAULT_GROUP },
        { SET_SSL_CA, MYSQL_OPT_SSL_CA },
        { SET_SSL_CAPATH, MYSQL_OPT_SSL_CAPATH },
        { SET_SSL_CERT, MYSQL_OPT_SSL_CERT },
        { SET_SSL_KEY, MYSQL_OPT_SSL_KEY },
        { SET_SSL_CRL, MYSQL_OPT_SSL_CRL },
        { SET_SSL_CIPHER, MYSQL_OPT_SSL_CIPHER },
        { SET_TLS_VERSION, MYSQL_OPT_TLS_VERSION },
    };
    const my_bool yes = 1, no = 0;
    const size_t stack = STACK_SIZE;
    const unsigned tcp = MYSQL_PROTOCOL_TCP;
    bool good = mysql_options(client, MYSQL_OPT_NONBLOCK, &stack) == 0 &&
                mysql_options(client, MYSQL_OPT_RECONNECT, &no) == 0 &&
                mysql_options(client, MYSQL_SET_CHARSET_NAME, "utf8mb4") == 0 &&
                mysql_options4(client, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "holdfast") == 0 &&
                set_safety(config, client);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && good; i++) {
        const char *value = config->settings[texts[i].setting];
        good = !value || mysql_options(client, texts[i].option, value) == 0;
    }
    if (good && config->settings[SET_DEFAULT_FILE] && !config->settings[SET_GROUP])
        good = mysql_options(client, MYSQL_READ_DEFAULT_GROUP, "client") == 0;
    if (good && (config->by_name || config->settings[SET_SSL_VERIFY]))
        good = mysql_options(client, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, config->by_name ? &yes : &no) == 0;
    if (good && config->tls)
        good = mysql_options(client, MYSQL_OPT_SSL_ENFORCE, &yes) == 0;
    if (good && config->host && !config->settings[SET_SOCKET]) /* "localhost" is a host like others */
        good = mysql_options(client, MYSQL_OPT_PROTOCOL, &tcp) == 0;
    return good ? HF_OK : HF_NOMEM;
}

/* --- one connection --- */

static hf_status connect_failed(const struct mysql_store *store, const struct mysql_connection *connection,
                                bool in_time, hf_error *err)
{
    const unsigned number = mysql_errno(connection->client);
    if (!in_time || connection->broken)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot connect to %s: no answer in time", store->config.where);
    /* Numbers of the client library start at 2000: nobody has answered, or not as a server does. */
    if (number >= 2000 && number < 2020)
        return hfi_fail(err, HF_UNAVAILABLE, (int)number, "cannot connect to %.60s: %.*s", store->config.where,
                        (int)strcspn(mysql_error(connection->client), "\r\n"), mysql_error(connection->client));
    return hfi_mysql_refusal(store, number, mysql_error(connection->client), err);
}

/* To one address, or to what libmariadb makes of NULL. */
static hf_status connect_to(struct mysql_store *store, struct mysql_connection *connection, const char *address,
                            hfi_time deadline_ns, hf_error *err)
{
    const struct mysql_config *config = &store->config;
    connection->client = mysql_init(NULL);
    if (!connection->client || set_options(config, connection->client) != HF_OK)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    connection->step = STEP_CONNECT;
    connection->connected = NULL;
    connection->tls = true; /* until it is known that it is not */
    hfi_mysql_connecting_begin(connection);
    connection->wanted =
        mysql_real_connect_start(&connection->connected, connection->client, address, config->user, config->password,
                                 config->database, config->port, config->settings[SET_SOCKET], CLIENT_FOUND_ROWS);
    hfi_mysql_connecting_end(connection);
    const bool in_time = hfi_mysql_finish_step(store, connection, deadline_ns);
    connection->step = STEP_NONE;
    if (!in_time || !connection->connected || connection->broken)
        return connect_failed(store, connection, in_time, err);
    connection->tls = mysql_get_ssl_cipher(connection->client) != NULL;
    if (config->tls && !connection->tls) /* libmariadb takes it for a wish */
        return hfi_fail(err, HF_DENIED, 0, "%s does not speak TLS", config->where);
    keep_alive(mysql_get_socket(connection->client));
    return HF_OK;
}

/* --- the session --- */

static hf_status check_version(const struct mysql_store *store, const struct mysql_connection *connection,
                               hf_error *err)
{
    const bool mariadb = mariadb_connection(connection->client);
    const unsigned long version = mysql_get_server_version(connection->client);
    if (version >= (mariadb ? OLDEST_MARIADB : OLDEST_MYSQL))
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, (int)version, "%s runs %s; this engine needs %s", store->config.where,
                    mysql_get_server_info(connection->client), mariadb ? "MariaDB 10.5" : "MySQL 8.0");
}

static hf_status not_usable(const struct mysql_store *store, const struct mysql_connection *connection,
                            const struct mysql_row *row, hf_error *err)
{
    if (row->text[1][0] == 0)
        return hfi_fail(err, HF_INVALID, 0, "neither the URL nor an option file names a database");
    if (row->text[2][0] != '0')
        return hfi_fail(err, HF_UNAVAILABLE, 0, "%s is read-only: a replica, or a server under repair",
                        store->config.where);
    if (connection->id != mysql_thread_id(connection->client) && !store->config.session_pooler)
        return hfi_fail(err, HF_UNSUPPORTED, 0,
                        "there is a proxy before %.60s, which may give a lock's connection to others; connect "
                        "directly, or say pooler=session if it keeps sessions together",
                        store->config.where);
    return HF_OK;
}

/* Whatever a user or a server has as its defaults, a lock must not end, wait or mean something else because of it. Said
 * first: with them there may be no answer to anything. */
static void compose_setup(char *out, size_t size, const struct mysql_store *store,
                          const struct mysql_connection *connection)
{
    const bool mariadb = mariadb_connection(connection->client);
    const bool bound = store->config.strategy->bound;
    /* A log of statements allows READ COMMITTED to write nothing; every statement of ours finds its row by its key. */
    snprintf(out, size,
             "SET autocommit = 1, sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
             " sql_safe_updates = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1,"
             " completion_type = 0, innodb_lock_wait_timeout = %d, lock_wait_timeout = %d, wait_timeout = %d,"
             " %s = IF(@@log_bin AND @@binlog_format = 'STATEMENT', 'REPEATABLE-READ', 'READ-COMMITTED')%s",
             ROW_PATIENCE, ROW_PATIENCE, bound ? SILENCE_BOUND : SILENCE,
             mariadb ? "tx_isolation" : "transaction_isolation",
             mariadb ? ", tx_read_only = 0, max_statement_time = 0, idle_transaction_timeout = 0,"
                       " idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0" SEE_CHANGES
                     : ", transaction_read_only = 0, max_execution_time = 0");
}

/* Where the tables are. Once: it is read without the mutex. */
static void note_database(struct mysql_store *store, const char *name)
{
    pthread_mutex_lock(&store->mutex);
    if (!*store->database)
        snprintf(store->database, sizeof store->database, "%.*s", HFI_MYSQL_KEY_MAX, name);
    pthread_mutex_unlock(&store->mutex);
}

static hf_status set_up(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                        hf_error *err)
{
    char text[900];
    struct mysql_answer answer = { .found = false };
    compose_setup(text, sizeof text, store, connection);
    hf_status status = check_version(store, connection, err);
    if (status == HF_OK)
        status = hfi_mysql_say(store, connection, text, NULL, deadline_ns, err);
    if (status == HF_OK) {
        snprintf(text, sizeof text, "SELECT CONNECTION_ID(), %s, @@read_only", store->config.schema);
        status = hfi_mysql_say(store, connection, text, &answer, deadline_ns, err);
    }
    if (status == HF_OK) {
        connection->id = hfi_mysql_number(&answer.row, 0);
        status = not_usable(store, connection, &answer.row, err);
    }
    if (status == HF_OK)
        note_database(store, answer.row.text[1]);
    if (status == HF_UNKNOWN) { /* nothing but a session is unknown */
        status = HF_UNAVAILABLE;
        if (err)
            err->status = status;
    }
    return status;
}

static hf_status try_address(struct mysql_store *store, struct mysql_connection **out, const char *address,
                             hfi_time deadline_ns, hf_error *err)
{
    struct mysql_connection *connection = hfi_alloc(sizeof *connection);
    if (!connection)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    hf_status status = connect_to(store, connection, address, deadline_ns, err);
    if (status == HF_OK)
        status = set_up(store, connection, deadline_ns, err);
    if (status == HF_OK)
        status = hfi_mysql_watch_connection(store, connection, err);
    if (status == HF_OK)
        *out = connection;
    else
        hfi_mysql_disconnect(connection);
    return status;
}

/* Each of a host's addresses in turn, beginning with the one that was good the last time. One that does not answer
 * costs its share of the time, so that there is some left for the others. */
static hf_status try_addresses(struct mysql_store *store, struct mysql_connection **out,
                               const struct hfi_addresses *found, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_UNAVAILABLE;
    pthread_mutex_lock(&store->mutex);
    const size_t first = store->address;
    pthread_mutex_unlock(&store->mutex);
    for (size_t i = 0; i < found->count && status == HF_UNAVAILABLE; i++) {
        const size_t index = (first + i) % found->count;
        const hfi_time now = store->env->now_ns();
        const hfi_time share = (deadline_ns - now) / (hfi_time)(found->count - i);
        char address[NI_MAXHOST];
        if (!hfi_address_print(address, sizeof address, &found->list[index]))
            status = hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s", store->config.host);
        else
            status = try_address(store, out, address, now + share, err);
        if (status != HF_OK)
            continue;
        pthread_mutex_lock(&store->mutex);
        store->address = index;
        pthread_mutex_unlock(&store->mutex);
    }
    return status;
}

static hf_status try_found(struct mysql_store *store, struct mysql_connection **out, const struct hfi_addresses *found,
                           hfi_time deadline_ns, hf_error *err)
{
    const struct mysql_config *config = &store->config;
    if (!config->by_name)
        return try_addresses(store, out, found, deadline_ns, err);
    if (found->known) /* libmariadb looks it up again, and would hang */
        return hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s: no answer in time", config->host);
    return try_address(store, out, config->host, deadline_ns, err);
}

static hf_status try_host(struct mysql_store *store, struct mysql_connection **out, hfi_time deadline_ns, hf_error *err)
{
    const char *const hosts[] = { store->config.host };
    struct hfi_addresses found;
    for (bool again = false;; again = true) {
        hf_status status = hfi_resolve(&found, hosts, 1, again, deadline_ns, err);
        if (status == HF_OK)
            status = try_found(store, out, &found, deadline_ns, err);
        if (status != HF_UNAVAILABLE || !hfi_resolve_is_worth(&found, 1, deadline_ns))
            return status;
    }
}

hf_status hfi_mysql_connect(struct mysql_store *store, struct mysql_connection **out, hfi_time deadline_ns,
                            hf_error *err)
{
    *out = NULL;
    pthread_once(&once, start_library);
    const hf_status status = hfi_sql_check_descriptors(err);
    if (status != HF_OK)
        return status;
    if (store->config.host && !store->config.settings[SET_SOCKET])
        return try_host(store, out, deadline_ns, err);
    return try_address(store, out, NULL, deadline_ns, err);
}

/* --- the pool --- */

/* An idle connection has nothing to hear but its end. One that has answered a moment ago need not be looked at. */
bool hfi_mysql_is_alive(const struct mysql_store *store, const struct mysql_connection *connection)
{
    struct pollfd one = { .fd = mysql_get_socket(connection->client), .events = POLLIN };
    if (connection->broken)
        return false;
    return store->env->now_ns() - connection->used_ns < A_MOMENT || connection->step == STEP_PING ||
           poll(&one, 1, 0) == 0;
}

hf_status hfi_mysql_borrow(struct mysql_store *store, struct mysql_connection **out, hfi_time deadline_ns,
                           hf_error *err)
{
    while ((*out = hfi_sql_pool_take(&store->pool)) != NULL) {
        if (hfi_mysql_is_alive(store, *out))
            return HF_OK;
        hfi_mysql_disconnect(*out);
    }
    return hfi_mysql_connect(store, out, deadline_ns, err);
}

void hfi_mysql_give_back(struct mysql_store *store, struct mysql_connection *connection)
{
    if (!connection)
        return;
    connection->used_ns = store->env->now_ns();
    if (connection->broken || !hfi_sql_pool_put(&store->pool, connection))
        hfi_mysql_disconnect(connection);
}

void hfi_mysql_warm_pool(struct mysql_store *store, hfi_time deadline_ns)
{
    struct mysql_connection *spare = NULL;
    if (hfi_mysql_borrow(store, &spare, deadline_ns, NULL) == HF_OK)
        hfi_mysql_give_back(store, spare);
}
