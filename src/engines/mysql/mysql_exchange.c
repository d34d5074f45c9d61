/* SPDX-License-Identifier: MIT
 *
 * mysql_exchange.c: one statement and its answer, with libmariadb's calls that do not wait: each call is a step that is
 * started, and then goes on whenever the socket is ready, until it is over or the deadline has come. A statement is
 * prepared when a connection first uses it.
 */
#include "mysql_engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define TRIES_MOST 5
#define PARAMETERS_MOST (4 + 2 * HFI_MYSQL_MANY) /* those of a renewal */

/* --- steps --- */

struct mysql_hush hfi_mysql_hush_begin(const struct mysql_connection *connection)
{
    struct mysql_hush hush = { .needed = connection->tls };
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (hush.needed)
        pthread_sigmask(SIG_BLOCK, &pipe, &hush.before);
    return hush;
}

void hfi_mysql_hush_end(const struct mysql_hush *hush)
{
    const struct timespec none = { .tv_sec = 0 };
    sigset_t pipe;
    if (!hush->needed)
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (!sigismember(&hush->before, SIGPIPE))
        sigtimedwait(&pipe, NULL, &none); /* ours */
    pthread_sigmask(SIG_SETMASK, &hush->before, NULL);
}

static void continue_step(struct mysql_connection *connection, int ready)
{
    MYSQL *client = connection->client;
    MYSQL_STMT *statement = connection->statement;
    switch (connection->step) {
    case STEP_NONE:
        connection->wanted = 0;
        break;
    case STEP_CONNECT:
        connection->wanted = mysql_real_connect_cont(&connection->connected, client, ready);
        break;
    case STEP_QUERY:
        connection->wanted = mysql_real_query_cont(&connection->failed, client, ready);
        break;
    case STEP_RESULT:
        connection->wanted = mysql_store_result_cont(&connection->result, client, ready);
        break;
    case STEP_PREPARE:
        connection->wanted = mysql_stmt_prepare_cont(&connection->failed, statement, ready);
        break;
    case STEP_EXECUTE:
        connection->wanted = mysql_stmt_execute_cont(&connection->failed, statement, ready);
        break;
    case STEP_STORE:
        connection->wanted = mysql_stmt_store_result_cont(&connection->failed, statement, ready);
        break;
    case STEP_PING:
        connection->wanted = mysql_ping_cont(&connection->failed, client, ready);
        break;
    }
}

static int ready_bits(const struct mysql_connection *connection, short revents)
{
    const int both = connection->wanted & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE);
    if (revents & (POLLERR | POLLHUP))
        return both;
    return both & ((revents & POLLIN ? MYSQL_WAIT_READ : 0) | (revents & POLLOUT ? MYSQL_WAIT_WRITE : 0));
}

static short poll_events(const struct mysql_connection *connection)
{
    return (short)((connection->wanted & MYSQL_WAIT_READ ? POLLIN : 0) |
                   (connection->wanted & MYSQL_WAIT_WRITE ? POLLOUT : 0));
}

static void step_on(struct mysql_connection *connection, int ready)
{
    const bool connects = connection->step == STEP_CONNECT;
    const struct mysql_hush hush = hfi_mysql_hush_begin(connection);
    if (connects)
        hfi_mysql_connecting_begin(connection);
    continue_step(connection, ready);
    if (connects)
        hfi_mysql_connecting_end(connection);
    hfi_mysql_hush_end(&hush);
}

void hfi_mysql_go_on(struct mysql_connection *connection)
{
    struct pollfd one = { .fd = mysql_get_socket(connection->client), .events = poll_events(connection) };
    while (connection->wanted && poll(&one, 1, 0) > 0) {
        step_on(connection, ready_bits(connection, one.revents));
        one.fd = mysql_get_socket(connection->client);
        one.events = poll_events(connection);
    }
}

void hfi_mysql_reset(int fd)
{
    const struct sockaddr nobody = { .sa_family = AF_UNSPEC };
    if (connect(fd, &nobody, sizeof nobody) != 0) /* a socket file: nothing is on its way */
        shutdown(fd, SHUT_RDWR);
}

void hfi_mysql_abandon(struct mysql_connection *connection)
{
    hfi_mysql_reset(mysql_get_socket(connection->client));
    for (int i = 0; connection->wanted && i < 8; i++)
        step_on(connection, connection->wanted & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE));
    connection->broken = true;
}

bool hfi_mysql_finish_step(const struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns)
{
    while (connection->wanted) {
        const hfi_time left = deadline_ns - store->env->now_ns();
        const struct timespec most = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
        struct pollfd one = { .fd = mysql_get_socket(connection->client), .events = poll_events(connection) };
        if (left <= 0) {
            hfi_mysql_abandon(connection);
            return false;
        }
        if (ppoll(&one, 1, &most, NULL) > 0)
            step_on(connection, ready_bits(connection, one.revents));
    }
    return true;
}

/* A step that ended in no answer. What was sent may have been done. */
static hf_status lost_answer(const struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                             hf_error *err)
{
    const bool late = store->env->now_ns() >= deadline_ns;
    connection->broken = true;
    return hfi_fail(err, HF_UNKNOWN, 0, "%s %s", store->config.where,
                    late ? "did not answer in time" : "closed the connection before it had answered");
}

static hf_status refused(const struct mysql_store *store, struct mysql_connection *connection, unsigned number,
                         const char *text, hfi_time deadline_ns, hf_error *err)
{
    if (hfi_mysql_is_lost(number))
        return lost_answer(store, connection, deadline_ns, err);
    return hfi_mysql_refusal(store, number, text, err);
}

/* --- parameters --- */

static char *put_hexadecimal(char *end, uint64_t number)
{
    for (int shift = 60; shift >= 0; shift -= 4)
        *end++ = "0123456789abcdef"[number >> shift & 15];
    return end;
}

void hfi_mysql_owner_text(char *out, struct hfi_owner owner)
{
    *put_hexadecimal(put_hexadecimal(out, owner.client), owner.serial) = 0;
}

/* Where database and name are plain, the name of the user-level lock can be read: database:name. All others are hashed
 * by the server, among them those that MySQL, which does not tell upper from lower case there, would mix up. */
static void choose_key(char *out, const char *database, const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz0123456789_-./";
    const size_t prefix = strlen(database), length = strlen(name);
    out[0] = 0;
    if (prefix > 0 && prefix + 1 + length <= HFI_MYSQL_KEY_MAX && strspn(database, plain) == prefix &&
        strspn(name, plain) == length)
        stpcpy(stpcpy(stpcpy(out, database), ":"), name);
}

void hfi_mysql_values(struct mysql_values *values, const struct mysql_store *store, const struct hfi_request *request)
{
    values->name = request->name;
    values->note = request->note;
    values->bell = NULL;
    hfi_mysql_owner_text(values->owner, request->owner);
    values->ttl_ms = request->ttl_ms;
    values->connection = values->version = values->request = 0;
    values->once = request->once;
    values->done_ms = request->done_ms;
    values->many = NULL;
    values->key[0] = 0;
    if (store->config.strategy->bound)
        choose_key(values->key, store->database, request->name);
}

static MYSQL_BIND text_of(const char *text)
{
    static my_bool yes = 1;
    if (!text || !*text)
        return (MYSQL_BIND){ .buffer_type = MYSQL_TYPE_STRING, .buffer = "", .is_null = text ? NULL : &yes };
    return (MYSQL_BIND){ .buffer_type = MYSQL_TYPE_STRING, .buffer = (void *)text, .buffer_length = strlen(text) };
}

static MYSQL_BIND number_of(const uint64_t *number)
{
    return (MYSQL_BIND){ .buffer_type = MYSQL_TYPE_LONGLONG, .buffer = (void *)number, .is_unsigned = 1 };
}

/* Bytes, so that no collation makes two names the same. */
static MYSQL_BIND bytes_of(const char *text)
{
    MYSQL_BIND bind = text_of(text);
    bind.buffer_type = MYSQL_TYPE_BLOB;
    return bind;
}

static MYSQL_BIND parameter(const struct mysql_store *store, const struct mysql_values *values, char letter)
{
    switch (letter) {
    case 'n':
        return bytes_of(values->name);
    case 'o':
        return bytes_of(*values->owner ? values->owner : NULL); /* a row that somebody else has made has none */
    case 't':
        return number_of(&values->ttl_ms);
    case 'h':
        return text_of(store->host);
    case 'p':
        return number_of(&store->pid);
    case 'k':
        return text_of(values->note);
    case 'l':
        return text_of(values->bell);
    case 'x':
        return text_of(*values->key ? values->key : NULL);
    case 'b':
        return number_of(&values->connection);
    case 'r':
        return number_of(&values->request);
    case 'd':
        return number_of(&values->done_ms);
    default:
        return number_of(&values->version);
    }
}

static bool bind_parameters(const struct mysql_store *store, MYSQL_STMT *prepared, const char *letters,
                            const struct mysql_values *values)
{
    MYSQL_BIND binds[PARAMETERS_MOST];
    size_t count = 0;
    for (; *letters; letters++) {
        const bool many = *letters == 'N' || *letters == 'O';
        for (size_t i = 0; many && i < HFI_MYSQL_MANY; i++)
            binds[count++] = bytes_of(*letters == 'N' ? values->many->names[i] : values->many->owners[i]);
        if (!many)
            binds[count++] = parameter(store, values, *letters);
    }
    return mysql_stmt_bind_param(prepared, binds) == 0;
}

/* Columns come as text, whatever they are. */
static bool bind_columns(struct mysql_connection *connection, MYSQL_STMT *prepared)
{
    MYSQL_BIND binds[MYSQL_COLUMNS];
    struct mysql_row *row = &connection->row;
    const unsigned count = mysql_stmt_field_count(prepared);
    for (unsigned i = 0; i < MYSQL_COLUMNS; i++)
        binds[i] = (MYSQL_BIND){ .buffer_type = MYSQL_TYPE_STRING,
                                 .buffer = row->text[i],
                                 .buffer_length = MYSQL_COLUMN_SIZE - 1,
                                 .is_null = &row->null[i],
                                 .length = &row->length[i] };
    return count <= MYSQL_COLUMNS && (count == 0 || mysql_stmt_bind_result(prepared, binds) == 0);
}

/* --- sending --- */

static hf_status prepare(struct mysql_store *store, struct mysql_connection *connection, enum mysql_sql statement,
                         hfi_time deadline_ns, hf_error *err)
{
    const char *text = store->config.sql[statement];
    MYSQL_STMT *prepared = mysql_stmt_init(connection->client);
    if (!prepared)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a statement");
    connection->statement = prepared;
    connection->step = STEP_PREPARE;
    const struct mysql_hush hush = hfi_mysql_hush_begin(connection);
    connection->wanted = mysql_stmt_prepare_start(&connection->failed, prepared, text, strlen(text));
    hfi_mysql_hush_end(&hush);
    hf_status status = HF_OK;
    if (!hfi_mysql_finish_step(store, connection, deadline_ns) || connection->failed)
        status = refused(store, connection, connection->broken ? 0 : mysql_stmt_errno(prepared),
                         mysql_stmt_error(prepared), deadline_ns, err);
    if (status == HF_UNKNOWN) { /* nothing was done yet */
        status = HF_UNAVAILABLE;
        if (err)
            err->status = status;
    }
    if (status == HF_OK && !bind_columns(connection, prepared))
        status = hfi_fail(err, HF_NOMEM, 0, "no memory for a statement");
    if (status == HF_OK)
        connection->prepared[statement] = prepared;
    else
        mysql_stmt_close(prepared);
    return status;
}

void hfi_mysql_ping(struct mysql_connection *connection, hfi_time now_ns)
{
    if (connection->broken || connection->step != STEP_NONE)
        return;
    connection->pinged_ns = now_ns;
    connection->step = STEP_PING;
    const struct mysql_hush hush = hfi_mysql_hush_begin(connection);
    connection->wanted = mysql_ping_start(&connection->failed, connection->client);
    hfi_mysql_hush_end(&hush);
}

/* The answer to a ping comes before any other. */
static bool end_ping(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns)
{
    if (connection->step != STEP_PING)
        return true;
    const bool good = hfi_mysql_finish_step(store, connection, deadline_ns) && !connection->failed;
    connection->step = STEP_NONE;
    connection->broken = connection->broken || !good;
    return good;
}

hf_status hfi_mysql_send(struct mysql_store *store, struct mysql_connection *connection, enum mysql_sql statement,
                         const struct mysql_values *values, hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_OK;
    if (connection->broken || !end_ping(store, connection, deadline_ns))
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the connection to %s broke", store->config.where);
    if (!connection->prepared[statement])
        status = prepare(store, connection, statement, deadline_ns, err);
    if (status != HF_OK)
        return status;
    MYSQL_STMT *prepared = connection->prepared[statement];
    if (!bind_parameters(store, prepared, store->config.strategy->sql[statement].parameters, values))
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a statement");
    connection->statement = prepared;
    connection->step = STEP_EXECUTE;
    const struct mysql_hush hush = hfi_mysql_hush_begin(connection);
    connection->wanted = mysql_stmt_execute_start(&connection->failed, prepared);
    hfi_mysql_hush_end(&hush);
    return HF_OK;
}

/* --- receiving --- */

bool hfi_mysql_next_row(struct mysql_connection *connection)
{
    struct mysql_row *row = &connection->row;
    const int outcome = mysql_stmt_fetch(connection->statement);
    if (outcome != 0 && outcome != MYSQL_DATA_TRUNCATED)
        return false;
    const unsigned count = mysql_stmt_field_count(connection->statement);
    for (unsigned i = 0; i < count; i++) {
        const size_t length = row->null[i] ? 0 : row->length[i];
        row->text[i][length < MYSQL_COLUMN_SIZE ? length : MYSQL_COLUMN_SIZE - 1] = 0;
    }
    return true;
}

static void take_answer(struct mysql_connection *connection, struct mysql_answer *answer)
{
    MYSQL_STMT *prepared = connection->statement;
    if (!answer)
        return;
    answer->changed = mysql_stmt_affected_rows(prepared);
    answer->number = mysql_stmt_insert_id(prepared);
    answer->found = mysql_stmt_field_count(prepared) > 0 && hfi_mysql_next_row(connection);
    if (answer->found)
        answer->row = connection->row;
}

hf_status hfi_mysql_await(struct mysql_store *store, struct mysql_connection *connection, struct mysql_answer *answer,
                          hfi_time deadline_ns, hf_error *err)
{
    MYSQL_STMT *prepared = connection->statement;
    bool good = hfi_mysql_finish_step(store, connection, deadline_ns) && !connection->failed;
    if (good && connection->step == STEP_EXECUTE && mysql_stmt_field_count(prepared) > 0) {
        connection->step = STEP_STORE;
        connection->wanted = mysql_stmt_store_result_start(&connection->failed, prepared);
        good = hfi_mysql_finish_step(store, connection, deadline_ns) && !connection->failed;
    }
    connection->step = STEP_NONE;
    if (!good)
        return refused(store, connection, connection->broken ? 0 : mysql_stmt_errno(prepared),
                       mysql_stmt_error(prepared), deadline_ns, err);
    take_answer(connection, answer);
    return HF_OK;
}

hf_status hfi_mysql_poll(struct mysql_store *store, struct mysql_connection *connection, struct mysql_answer *answer,
                         hf_error *err)
{
    hfi_mysql_go_on(connection);
    if (connection->wanted)
        return HF_BUSY;
    return hfi_mysql_await(store, connection, answer, store->env->now_ns() + store->env->timeout_ns, err);
}

/* --- whole exchanges --- */

hf_status hfi_mysql_run(struct mysql_store *store, struct mysql_connection *connection, enum mysql_sql statement,
                        const struct mysql_values *values, struct mysql_answer *answer, hfi_time deadline_ns,
                        hf_error *err)
{
    const hf_status status = hfi_mysql_send(store, connection, statement, values, deadline_ns, err);
    return status == HF_OK ? hfi_mysql_await(store, connection, answer, deadline_ns, err) : status;
}

/* The tables are gone: they were dropped, or the database is another one after a failover. */
static hf_status make_tables(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                             hf_error *err)
{
    const hf_status status = hfi_mysql_prepare_tables(store, connection, true, deadline_ns, err);
    if (status == HF_UNKNOWN && err)
        err->status = HF_UNAVAILABLE;
    return status == HF_UNKNOWN ? HF_UNAVAILABLE : status;
}

struct question {
    enum mysql_sql statement;
    const struct mysql_values *values;
    struct mysql_answer *answer;
    hfi_time deadline_ns;
};

/* One try. True: it is worth another one, on another connection if this one broke. */
static bool ask_once(struct mysql_store *store, struct mysql_connection **connection, const struct question *question,
                     hf_status *status, hf_error *trouble)
{
    *status = *connection ? HF_OK : hfi_mysql_borrow(store, connection, question->deadline_ns, trouble);
    if (*status == HF_OK)
        *status = hfi_mysql_run(store, *connection, question->statement, question->values, question->answer,
                                question->deadline_ns, trouble);
    if (*status == HF_OK || !*connection)
        return false;
    const unsigned number = (unsigned)trouble->native;
    /* Said again by the same connection: the bell may be on it, and with the bell would go the turn. */
    if (hfi_mysql_is_conflict(number))
        return true;
    /* A connection that had ended before the statement was sent is not the store's answer. */
    bool again = (*connection)->broken && *status == HF_UNAVAILABLE;
    if (hfi_mysql_is_missing_table(number)) {
        *status = make_tables(store, *connection, question->deadline_ns, trouble);
        again = *status == HF_OK;
    }
    (*connection)->broken = true; /* with it goes what the statement may have done to user-level locks */
    return again;
}

hf_status hfi_mysql_ask_on(struct mysql_store *store, struct mysql_connection **connection, enum mysql_sql statement,
                           const struct mysql_values *values, struct mysql_answer *answer, hfi_time deadline_ns,
                           hf_error *err)
{
    const struct question question = { statement, values, answer, deadline_ns };
    hf_error trouble = { .native = 0 }; /* what went wrong on the way to success is nobody's business */
    hf_status status = HF_OK;
    for (unsigned tries = 0; tries < TRIES_MOST; tries++) {
        if (tries > 0 && (*connection)->broken) {
            hfi_mysql_disconnect(*connection);
            *connection = NULL;
        }
        if (!ask_once(store, connection, &question, &status, &trouble))
            break;
    }
    if (status == HF_OK && (*connection)->broken) /* it ended with making the tables, once more */
        status = hfi_fail(&trouble, HF_UNAVAILABLE, 0, "the tables of %s do not stay", store->config.where);
    if (status != HF_OK && *connection)
        (*connection)->broken = true; /* also after the last conflict */
    if (status != HF_OK && err)
        *err = trouble;
    return status;
}

hf_status hfi_mysql_ask(struct mysql_store *store, enum mysql_sql statement, const struct mysql_values *values,
                        struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    struct mysql_connection *connection = NULL;
    const hf_status status = hfi_mysql_ask_on(store, &connection, statement, values, answer, deadline_ns, err);
    hfi_mysql_give_back(store, connection);
    return status;
}

/* --- texts of our own --- */

static void take_text_answer(struct mysql_connection *connection, struct mysql_answer *answer)
{
    MYSQL_ROW row = mysql_fetch_row(connection->result);
    const unsigned count = mysql_num_fields(connection->result);
    answer->found = row != NULL;
    for (unsigned i = 0; row && i < MYSQL_COLUMNS; i++) {
        const char *text = i < count && row[i] ? row[i] : "";
        snprintf(answer->row.text[i], MYSQL_COLUMN_SIZE, "%s", text);
    }
}

hf_status hfi_mysql_say(struct mysql_store *store, struct mysql_connection *connection, const char *text,
                        struct mysql_answer *answer, hfi_time deadline_ns, hf_error *err)
{
    MYSQL *client = connection->client;
    bool good = end_ping(store, connection, deadline_ns);
    if (good) {
        connection->step = STEP_QUERY;
        const struct mysql_hush hush = hfi_mysql_hush_begin(connection);
        connection->wanted = mysql_real_query_start(&connection->failed, client, text, strlen(text));
        hfi_mysql_hush_end(&hush);
        good = hfi_mysql_finish_step(store, connection, deadline_ns) && !connection->failed;
    }
    if (good && mysql_field_count(client) > 0) {
        connection->step = STEP_RESULT;
        connection->result = NULL;
        connection->wanted = mysql_store_result_start(&connection->result, client);
        good = hfi_mysql_finish_step(store, connection, deadline_ns) && connection->result;
        if (good && answer)
            take_text_answer(connection, answer);
        mysql_free_result(connection->result);
    }
    connection->step = STEP_NONE;
    return good ? HF_OK
                : refused(store, connection, connection->broken ? 0 : mysql_errno(client), mysql_error(client),
                          deadline_ns, err);
}

bool hfi_mysql_cancel(struct mysql_store *store, struct mysql_connection *connection, struct mysql_answer *answer,
                      hfi_time deadline_ns)
{
    char text[48];
    struct mysql_connection *other = NULL;
    hf_status status = hfi_mysql_poll(store, connection, answer, NULL);
    if (status == HF_BUSY) {
        snprintf(text, sizeof text, "KILL QUERY %llu", connection->id);
        status = hfi_mysql_borrow(store, &other, deadline_ns, NULL);
        if (status == HF_OK)
            status = hfi_mysql_say(store, other, text, NULL, deadline_ns, NULL);
        hfi_mysql_give_back(store, other);
        if (status == HF_OK)
            status = hfi_mysql_await(store, connection, answer, deadline_ns, NULL);
    }
    if (connection->wanted)
        hfi_mysql_abandon(connection);
    if (status != HF_OK && answer)
        *answer = (struct mysql_answer){ .found = false };
    return !connection->broken;
}

hf_status hfi_mysql_let_go(struct mysql_store *store, struct mysql_connection *connection, hfi_time deadline_ns,
                           hf_error *err)
{
    struct mysql_answer answer = { .found = false };
    const hf_status status = hfi_mysql_say(store, connection, "SELECT RELEASE_ALL_LOCKS()", &answer, deadline_ns, err);
    if (status != HF_OK)
        connection->broken = true;
    return status;
}

bool hfi_mysql_is_done(const struct mysql_values *values, const struct mysql_answer *answer)
{
    return values->once && answer->changed == 0 && answer->number == 1;
}

uint64_t hfi_mysql_number(const struct mysql_row *row, int column)
{
    return strtoull(row->text[column], NULL, 10);
}
