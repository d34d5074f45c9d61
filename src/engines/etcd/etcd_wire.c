/* SPDX-License-Identifier: MIT
 *
 * etcd_wire.c: see etcd_wire.h.
 */
#include "etcd_wire.h"
#include "loop/await.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* One that has said nothing for longer is looked at before it is used. */
#define JUST_NOW (50 * HFI_MS)
/* One that has said nothing for longer, and leaves a call unanswered, is left. */
#define SILENT_FOR HFI_SECOND
/* Streams have odd numbers, up to twice this one: long before, another connection is made. */
#define LAST_STREAM (1u << 30)

struct etcd_wire {
    struct hfi_source source;
    struct etcd_store *store;
    struct etcd_wire **place; /* where those who ask find it */
    struct etcd_node *node;
    struct etcd_connection *connection;
    struct hfi_op_list waiters; /* for it to be ready, and from then on for answers */
    unsigned users;             /* those, and who was woken and has not gone on yet */
    hfi_time said_ns, heard_ns;
    bool given_up; /* something was sent and will not be answered */
};

/* One question, on the stack of whoever asks. */
struct etcd_asking {
    struct hfi_op op;
    struct etcd_store *store;
    struct etcd_node *node;
    struct etcd_question *question;
    const char *token;
    struct etcd_wire **place;
    struct etcd_wire *wire; /* that it uses; NULL: none */
    size_t open;            /* streams that are not over */
    hfi_time sent_ns;
    hf_error *err;
};

/* Each is the first in its struct. */
static struct etcd_wire *wire_of(struct hfi_source *source)
{
    return (struct etcd_wire *)source;
}

static struct etcd_asking *asking_of(struct hfi_op *op)
{
    return (struct etcd_asking *)op;
}

/* --- its end --- */

static void gone(struct hfi_source *source)
{
    struct etcd_wire *wire = wire_of(source);
    if (wire->given_up)
        hfi_dial_reset(wire->connection->fd); /* what was not delivered yet must not be */
    hfi_etcd_disconnect(wire->connection);
    hfi_free(wire);
}

/* Nothing more is asked on it, and the last user ends it. */
static void leave(struct etcd_wire *wire)
{
    if (*wire->place == wire)
        *wire->place = NULL;
    if (wire->users == 0)
        hfi_source_remove(&wire->store->loop, &wire->source);
}

static void wait_on(struct etcd_wire *wire, struct etcd_asking *asking)
{
    asking->wire = wire;
    wire->users++;
    hfi_op_list_add(&wire->waiters, &asking->op);
}

static void wake(struct etcd_asking *asking, hf_status how)
{
    hfi_op_list_remove(&asking->wire->waiters, &asking->op);
    hfi_op_wake(&asking->op, how);
}

/* It was woken, or need not wait. */
static void stop_using(struct etcd_asking *asking)
{
    struct etcd_wire *wire = asking->wire;
    asking->wire = NULL;
    if (wire && --wire->users == 0 && *wire->place != wire)
        leave(wire);
}

static bool was_sent(const struct etcd_question *question)
{
    for (size_t i = 0; i < question->count; i++) {
        if (question->calls[i].stream.sent)
            return true;
    }
    return false;
}

/* How a question that is not answered ends. */
static hf_status no_answer(const struct etcd_asking *asking, int native, const char *why)
{
    const bool sent = was_sent(asking->question);
    asking->wire->given_up = asking->wire->given_up || sent;
    return hfi_fail(asking->err, sent ? HF_UNKNOWN : HF_UNAVAILABLE, native, "%s", why);
}

/* It is broken: `err` says how. */
static void break_wire(struct etcd_wire *wire, const hf_error *err)
{
    struct hfi_op *op;
    while ((op = wire->waiters.first) != NULL) {
        struct etcd_asking *asking = asking_of(op);
        if (asking->err)
            *asking->err = *err;
        wake(asking, wire->source.connected ? no_answer(asking, err->native, err->message) : err->status);
    }
    leave(wire);
}

/* --- bytes --- */

static bool fill(struct hfi_source *source)
{
    return hfi_etcd_make_frames(wire_of(source)->connection, &source->out);
}

/* Called by nghttp2. */
static void take_over(struct etcd_stream *stream)
{
    struct etcd_asking *asking = stream->asking;
    if (--asking->open == 0)
        wake(asking, HF_OK);
}

static void take(struct hfi_source *source, const void *buffer, ssize_t got)
{
    struct etcd_wire *wire = wire_of(source);
    if (got <= 0 || !hfi_etcd_feed(wire->connection, buffer, (size_t)got)) {
        hf_error err;
        hfi_fail(&err, HF_UNKNOWN, got < 0 ? errno : 0, "the server closed the connection before it answered");
        break_wire(wire, &err);
        return;
    }
    wire->heard_ns = hfi_loop_now_ns();
    /* The window may have to be opened for the rest. What goes out after the last answer can wait, and so can what
     * answers a ping, unless the server means to find out whether somebody is there. */
    const bool idle = wire->heard_ns - wire->said_ns > HFI_SECOND;
    if (wire->waiters.first && (hfi_etcd_has_frames(wire->connection) || (wire->connection->pinged && idle)))
        hfi_source_say(&wire->store->loop, source);
    if (wire->connection->leaving)
        leave(wire);
}

/* --- connecting --- */

/* From now on reads block. */
static bool prepare(int fd)
{
    const struct timeval block = { .tv_sec = 1 }; /* HFI_LOOP_BLOCK_NS */
    return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &block, sizeof block) == 0 &&
           fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0;
}

static void step(struct hfi_source *source)
{
    struct etcd_wire *wire = wire_of(source);
    struct etcd_connection *connection = wire->connection;
    hf_error err = { .status = HF_OK };
    struct hfi_op *op;
    hf_status status = hfi_etcd_connect_step(connection, wire->node->address, wire->store->tls, &err);
    source->fd = connection->fd;
    source->events = (connection->wants & POLLIN ? EPOLLIN : 0u) | (connection->wants & POLLOUT ? EPOLLOUT : 0u);
    if (status == HF_TIMEOUT)
        return;
    if (status == HF_OK && !prepare(connection->fd))
        status = hfi_fail_errno(&err, errno, "prepare", "a connection");
    if (status != HF_OK) {
        break_wire(wire, &err);
        return;
    }
    source->connected = true;
    wire->heard_ns = hfi_loop_now_ns();
    while ((op = wire->waiters.first) != NULL)
        wake(asking_of(op), HF_OK);
    if (!*wire->place || !(*wire->place)->source.connected) /* the first that is ready is the one */
        *wire->place = wire;
}

static struct etcd_wire *connect_wire(struct etcd_asking *asking)
{
    struct etcd_store *store = asking->store;
    struct etcd_wire *wire = hfi_alloc(sizeof *wire);
    hf_error err;
    hf_status status = HF_NOMEM;
    if (wire)
        status =
            hfi_etcd_connect_begin(&wire->connection, asking->node->address, store->config.address_count == 1, &err);
    else
        hfi_fail(&err, HF_NOMEM, 0, "no memory for a connection");
    if (!wire || status != HF_OK) {
        hfi_free(wire);
        if (asking->err)
            *asking->err = err;
        asking->op.woken = status;
        return NULL;
    }
    wire->store = store;
    wire->node = asking->node;
    wire->connection->over = take_over;
    wire->source.fd = wire->connection->fd;
    wire->source.events = EPOLLIN | EPOLLOUT;
    wire->source.fill = fill;
    wire->source.take = take;
    wire->source.step = step;
    wire->source.gone = gone;
    wire->place = asking->place;
    *wire->place = wire;
    hfi_source_add(&store->loop, &wire->source);
    return wire;
}

/* Takes what an idle one has been told meanwhile; it may be left, or gone, then. */
static void look_at(struct etcd_wire *wire)
{
    char buffer[4096];
    if (nghttp2_session_get_next_stream_id(wire->connection->session) >= LAST_STREAM) {
        leave(wire);
        return;
    }
    if (!wire->source.connected || wire->waiters.first || wire->source.read ||
        hfi_loop_now_ns() - wire->heard_ns < JUST_NOW)
        return;
    const ssize_t got = recv(wire->source.fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got >= 0 || (errno != EAGAIN && errno != EINTR))
        take(&wire->source, buffer, got);
}

static hf_status withdraw_from_connecting(struct hfi_op *op)
{
    struct etcd_asking *asking = asking_of(op);
    struct etcd_wire *wire = asking->wire;
    hfi_op_list_remove(&wire->waiters, op);
    leave(wire); /* whoever comes next begins another one */
    return hfi_etcd_connect_late(wire->connection, wire->node->address, asking->err);
}

/* Awaits that there is a connection. */
static bool start_ready(struct etcd_asking *asking)
{
    struct etcd_node *node = asking->node;
    const bool busy = node->wire && node->wire->waiters.first;
    asking->place = asking->question->renews && busy ? &node->apart : &node->wire;
    if (*asking->place)
        look_at(*asking->place);
    struct etcd_wire *wire = *asking->place;
    if (wire && wire->source.connected)
        return false;
    if (!wire && !(wire = connect_wire(asking)))
        return false;
    wait_on(wire, asking);
    hfi_op_park(&asking->op, NULL, withdraw_from_connecting);
    return true;
}

/* --- calls --- */

/* Nobody waits for what is not over, and the server need not go on with it. */
static void cancel_all(const struct etcd_wire *wire, const struct etcd_question *question)
{
    for (size_t i = 0; i < question->count; i++) {
        const struct etcd_stream *stream = &question->calls[i].stream;
        if (stream->id <= 0 || stream->closed)
            continue;
        nghttp2_session_set_stream_user_data(wire->connection->session, stream->id, NULL);
        nghttp2_submit_rst_stream(wire->connection->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_CANCEL);
    }
    hfi_source_say(&wire->store->loop, (struct hfi_source *)wire);
}

static bool begin_all(const struct etcd_wire *wire, struct etcd_asking *asking)
{
    const hfi_time left = asking->op.deadline_ns - asking->sent_ns;
    for (size_t i = 0; i < asking->question->count; i++) {
        struct etcd_stream *stream = &asking->question->calls[i].stream;
        stream->asking = asking;
        if (!hfi_etcd_begin(wire->connection, stream, asking->node->authority, asking->token,
                            left > HFI_MS ? left : HFI_MS))
            return false;
    }
    return true;
}

static hf_status withdraw_from_call(struct hfi_op *op)
{
    struct etcd_asking *asking = asking_of(op);
    struct etcd_wire *wire = asking->wire;
    hfi_op_list_remove(&wire->waiters, op);
    cancel_all(wire, asking->question);
    if (wire->heard_ns <= asking->sent_ns || hfi_loop_now_ns() - wire->heard_ns > SILENT_FOR)
        leave(wire);
    return no_answer(asking, 0, "the server did not answer in time");
}

/* Awaits the answers. */
static bool start_call(struct etcd_asking *asking)
{
    struct etcd_wire *wire = *asking->place;
    if (asking->op.over || !wire || !wire->source.connected) {
        asking->op.woken = hfi_fail(asking->err, HF_UNAVAILABLE, 0, "the connection broke before anything was said");
        return false;
    }
    asking->sent_ns = wire->said_ns = hfi_loop_now_ns();
    asking->question->sent_ns = asking->store->env->now_ns();
    asking->open = asking->question->count;
    if (!begin_all(wire, asking)) {
        cancel_all(wire, asking->question);
        asking->op.woken = HF_NOMEM;
        return false;
    }
    wait_on(wire, asking);
    hfi_source_say(&asking->store->loop, &wire->source);
    hfi_op_park(&asking->op, &wire->source, withdraw_from_call);
    return true;
}

static int ask(struct hfi_op *op)
{
    struct etcd_asking *const asking = asking_of(op);
    BEGIN(op->line);
    AWAIT(start_ready(asking));
    stop_using(asking);
    if (op->woken == HF_OK)
        AWAIT(start_call(asking));
    stop_using(asking);
    END;
    return (int)op->woken;
}

/* --- what others see --- */

hf_status hfi_etcd_wire_ask(struct etcd_store *store, struct etcd_node *node, struct etcd_question *question,
                            const char *token, hfi_time deadline_ns, hf_error *err)
{
    struct etcd_asking asking = { .op = { .run = ask, .deadline_ns = deadline_ns },
                                  .store = store,
                                  .node = node,
                                  .question = question,
                                  .token = token,
                                  .err = err };
    const hf_status status = hfi_loop_run(&store->loop, &asking.op);
    return status == HF_NOMEM ? hfi_fail(err, HF_NOMEM, 0, "no memory for a request") : status;
}

void hfi_etcd_wires_close(struct etcd_store *store, struct etcd_node *node)
{
    hfi_loop_enter(&store->loop);
    if (node->wire)
        leave(node->wire);
    if (node->apart)
        leave(node->apart);
    hfi_loop_leave(&store->loop);
}
