/* SPDX-License-Identifier: MIT
 *
 * redis_wire.c: see redis_wire.h.
 */
#include "redis_wire.h"
#include "loop/await.h"
#include "loop/loop.h"
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* A connection that was idle for longer may have been closed by the server in the meantime: better looked at than used
 * and the outcome unknown. */
#define TRUSTED_FOR (200 * HFI_MS)
#define FIRST_ROOM 16

/* Each is the first in its struct. */
static struct redis_wire *wire_of(struct hfi_source *source)
{
    return (struct redis_wire *)source;
}

static struct redis_call *call_of(struct hfi_op *op)
{
    return (struct redis_call *)op;
}

/* --- its end --- */

static void gone(struct hfi_source *source)
{
    struct redis_wire *wire = wire_of(source);
    if (wire->said != wire->answered && wire->store->config.kind != REDIS_REDLOCK)
        hfi_dial_reset(wire->connection->fd); /* what was not delivered yet must not be */
    hfi_redis_disconnect(wire->connection);
    hfi_free(wire->plain.data);
    hfi_free(wire->calls);
    hfi_free(wire);
}

void hfi_redis_wire_leave(struct redis_wire *wire)
{
    if (*wire->slot == wire)
        *wire->slot = NULL;
    if (wire->waiting == 0)
        hfi_source_remove(&wire->store->loop, &wire->source);
}

static void stop_waiting(struct redis_call *call, hf_status how)
{
    call->wire->waiting--;
    call->wire = NULL;
    hfi_op_wake(&call->op, how);
}

/* It is broken: `err` says how to those who wait for it to be ready. */
static void break_wire(struct redis_wire *wire, const hf_error *err)
{
    struct hfi_op *op;
    while ((op = wire->connecting.first) != NULL) {
        struct redis_call *call = call_of(op);
        hfi_op_list_remove(&wire->connecting, op);
        *call->trouble = *err;
        stop_waiting(call, err->status);
    }
    for (uint64_t i = wire->answered; i < wire->said; i++) {
        struct redis_call *call = wire->calls[i & (wire->room - 1)];
        if (!call || !call->wire)
            continue;
        hfi_fail(call->trouble, HF_UNKNOWN, err->native, "%.200s", err->message);
        stop_waiting(call, HF_UNKNOWN);
    }
    hfi_redis_wire_leave(wire);
}

/* --- bytes --- */

/* False: the answers make no sense, or nobody asked for this. */
static bool take_replies(struct redis_wire *wire, hf_error *err)
{
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(wire->connection->reader, &reply) != REDIS_OK) {
            hfi_fail(err, HF_UNKNOWN, 0, "the server's reply is no Redis protocol (%.60s)",
                     wire->connection->reader->errstr);
            return false;
        }
        if (!reply)
            return true;
        if (wire->answered == wire->said) {
            freeReplyObject(reply);
            hfi_fail(err, HF_UNKNOWN, 0, "the server answered what nobody had asked");
            return false;
        }
        struct redis_call *call = wire->calls[wire->answered++ & (wire->room - 1)];
        if (!call) { /* nobody waits for it any more */
            wire->scripts = hfi_redis_is_error(reply, "NOSCRIPT") ? 0 : wire->scripts;
            freeReplyObject(reply);
            continue;
        }
        call->replies[call->got++] = reply;
        if (call->got == call->question->count)
            stop_waiting(call, HF_OK);
    }
}

/* Bytes that were read are decrypted, if need be, for the parser. False: they are the last that make sense. */
static bool feed(struct redis_wire *wire, const void *bytes, size_t length)
{
    char clear[4096];
    int got;
    if (!wire->inward)
        return redisReaderFeed(wire->connection->reader, bytes, length) == REDIS_OK;
    if (BIO_write(wire->inward, bytes, (int)length) != (int)length)
        return false;
    ERR_clear_error();
    while ((got = SSL_read(wire->connection->tls, clear, sizeof clear)) > 0) {
        if (redisReaderFeed(wire->connection->reader, clear, (size_t)got) != REDIS_OK)
            return false;
    }
    if (BIO_pending(wire->outward))
        hfi_source_say(&wire->store->loop, &wire->source);
    return SSL_get_error(wire->connection->tls, got) == SSL_ERROR_WANT_READ;
}

static void take(struct hfi_source *source, const void *buffer, ssize_t got)
{
    struct redis_wire *wire = wire_of(source);
    const int number = got < 0 ? errno : 0;
    hf_error err;
    const bool more = got > 0 && feed(wire, buffer, (size_t)got);
    const bool sensible = take_replies(wire, &err); /* also those that came before the end */
    if (sensible && more) {
        wire->used_ns = hfi_loop_now_ns();
        if (*wire->slot != wire && wire->waiting == 0)
            hfi_redis_wire_leave(wire);
        return;
    }
    if (sensible)
        hfi_fail(&err, HF_UNKNOWN, number, "%s",
                 got > 0 ? "the server ended TLS, or there was no memory for its reply"
                         : "the server closed the connection before it answered");
    break_wire(wire, &err);
}

/* With TLS: what was said is encrypted. */
static bool fill(struct hfi_source *source)
{
    struct redis_wire *wire = wire_of(source);
    size_t done = 0;
    int step = 1;
    ERR_clear_error();
    for (; done < wire->plain.used && step > 0; done += step > 0 ? (size_t)step : 0)
        step = SSL_write(wire->connection->tls, wire->plain.data + done, (int)(wire->plain.used - done));
    if (step <= 0)
        return false;
    wire->plain.used = 0;
    const size_t more = BIO_ctrl_pending(wire->outward);
    if (!hfi_bytes_reserve(&source->out, more))
        return false;
    if (more)
        source->out.used += (size_t)BIO_read(wire->outward, source->out.data + source->out.used, (int)more);
    return true;
}

/* --- connecting --- */

/* Two threads may read and write at once: OpenSSL works on memory, with the mutex, and not on the socket. */
static bool prepare_tls(struct redis_wire *wire)
{
    BIO *inward = BIO_new(BIO_s_mem()), *outward = BIO_new(BIO_s_mem());
    if (!inward || !outward) {
        BIO_free(inward);
        BIO_free(outward);
        return false;
    }
    SSL_set_bio(wire->connection->tls, inward, outward);
    wire->inward = inward;
    wire->outward = outward;
    wire->source.fill = fill;
    return fcntl(wire->connection->fd, F_SETFL, fcntl(wire->connection->fd, F_GETFL) & ~O_NONBLOCK) == 0;
}

static void step(struct hfi_source *source)
{
    struct redis_wire *wire = wire_of(source);
    struct redis_connection *connection = wire->connection;
    hf_error err = { .status = HF_OK };
    struct hfi_op *op;
    const enum redis_phase phase = connection->phase;
    hf_status status = hfi_redis_connect_step(connection, &wire->node->address, &wire->store->config.access, &err);
    if (connection->phase != phase)
        wire->used_ns = hfi_loop_now_ns();
    source->fd = connection->fd;
    source->events = (connection->wants & POLLIN ? EPOLLIN : 0u) | (connection->wants & POLLOUT ? EPOLLOUT : 0u);
    if (status == HF_TIMEOUT)
        return;
    if (status == HF_OK && connection->tls && !prepare_tls(wire))
        status = hfi_fail(&err, HF_NOMEM, 0, "no memory for a connection");
    if (status != HF_OK) {
        break_wire(wire, &err);
        return;
    }
    source->connected = true;
    source->events = EPOLLIN;
    while ((op = wire->connecting.first) != NULL) {
        hfi_op_list_remove(&wire->connecting, op);
        stop_waiting(call_of(op), HF_OK);
    }
    if (!*wire->slot || !(*wire->slot)->source.connected) /* the first that is ready is the one */
        *wire->slot = wire;
    /* What came behind the log-in would be taken for the answer to the first question. */
    const bool in_step = connection->reader->pos == connection->reader->len;
    if (*wire->slot != wire || !in_step)
        hfi_redis_wire_leave(wire);
}

static struct redis_wire *connect_wire(struct redis_store *store, struct redis_node *node, struct redis_wire **slot,
                                       hf_error *err)
{
    struct redis_wire *wire = hfi_alloc(sizeof *wire);
    struct redis_call **calls = hfi_alloc(FIRST_ROOM * sizeof(struct redis_call *));
    if (!wire || !calls)
        hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    else if (hfi_redis_connect_begin(&wire->connection, &node->address, &store->config.access, err) == HF_OK) {
        wire->store = store;
        wire->node = node;
        wire->slot = slot;
        wire->used_ns = hfi_loop_now_ns();
        wire->calls = calls;
        wire->room = FIRST_ROOM;
        wire->source.fd = wire->connection->fd;
        wire->source.events = EPOLLIN | EPOLLOUT;
        wire->source.take = take;
        wire->source.step = step;
        wire->source.gone = gone;
        hfi_source_add(&store->loop, &wire->source);
        *slot = wire;
        return wire;
    }
    hfi_free(calls);
    hfi_free(wire);
    return NULL;
}

static void stop_asking(struct redis_call *call)
{
    struct redis_wire *wire = call->wire;
    wire->waiting--;
    call->wire = NULL;
    if (!call->patient || *wire->slot != wire) /* it goes with the last one */
        hfi_redis_wire_leave(wire);
}

static hf_status withdraw_from_connecting(struct hfi_op *op)
{
    struct redis_call *call = call_of(op);
    struct redis_wire *wire = call->wire;
    hf_status status = HF_UNAVAILABLE;
    hfi_op_list_remove(&wire->connecting, op);
    if (!call->patient)
        status = hfi_redis_connect_late(wire->connection, &wire->node->address, call->trouble);
    stop_asking(call); /* whoever comes next begins another one */
    return status;
}

void hfi_redis_wire_look(struct redis_wire *wire)
{
    char buffer[4096];
    struct redis_wire **const slot = wire->slot;
    for (int i = 0; i < 16 && *slot == wire && !wire->source.read; i++) {
        const ssize_t got = recv(wire->source.fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        take(&wire->source, buffer, got);
    }
}

/* An idle connection has nothing to say but answers that nobody waits for: else it is broken. */
static void look_at_idle(struct redis_wire *wire)
{
    const hfi_time now = hfi_loop_now_ns();
    if (!wire->source.connected || wire->waiting || now - wire->used_ns < TRUSTED_FOR)
        return;
    wire->used_ns = now;
    hfi_redis_wire_look(wire);
}

/* Another server took its place after it was found: whoever noticed has broken its connections, and would not break one
 * that is made now. */
static bool is_replaced(const struct redis_call *call)
{
    return call->store->config.kind == REDIS_SENTINEL && hfi_redis_sentinel_replaced(call->store, call->node);
}

bool hfi_redis_wire_start_ready(struct redis_call *call)
{
    if (is_replaced(call)) {
        call->op.woken = hfi_fail(call->trouble, HF_UNAVAILABLE, 0, "another server has taken its place");
        return false;
    }
    if (*call->slot)
        look_at_idle(*call->slot);
    struct redis_wire *wire = *call->slot;
    call->op.woken = call->op.over ? HF_UNAVAILABLE : HF_OK;
    if (call->op.over || (wire && wire->source.connected))
        return false;
    hf_error trouble = { .status = HF_NOMEM };
    if (!wire && !(wire = connect_wire(call->store, call->node, call->slot, &trouble))) {
        *call->trouble = trouble;
        call->op.woken = trouble.status;
        return false;
    }
    const hfi_time most = call->patient ? 0 : call->store->config.access.connect_ns;
    if (most && hfi_loop_now_ns() + most < call->deadline_ns)
        hfi_op_limit(&call->op, hfi_loop_now_ns() + most);
    call->wire = wire;
    wire->waiting++;
    hfi_op_list_add(&wire->connecting, &call->op);
    hfi_op_park(&call->op, NULL, withdraw_from_connecting);
    return true;
}

/* --- calls --- */

static bool reserve_answers(struct redis_wire *wire, size_t more)
{
    while (wire->said - wire->answered + more > wire->room) {
        struct redis_call **larger = hfi_alloc(2 * wire->room * sizeof(struct redis_call *));
        if (!larger)
            return false;
        for (uint64_t i = wire->answered; i < wire->said; i++)
            larger[i & (2 * wire->room - 1)] = wire->calls[i & (wire->room - 1)];
        hfi_free(wire->calls);
        wire->calls = larger;
        wire->room *= 2;
    }
    return true;
}

/* ASKING, if need be, and the commands go out in this order; `call` gets the answers. False: no memory, nothing is
 * said. */
static bool say(struct redis_wire *wire, const struct redis_command *commands, size_t count, bool asking,
                struct redis_call *call)
{
    struct redis_command permission = { REDIS_ROOM(1) };
    struct hfi_bytes *out = wire->inward ? &wire->plain : &wire->source.out;
    const size_t before = out->used;
    hfi_redis_add(&permission, "ASKING");
    bool room =
        reserve_answers(wire, count + asking) && (!asking || hfi_redis_format(out, wire->connection, &permission));
    for (size_t i = 0; i < count && room; i++)
        room = hfi_redis_format(out, wire->connection, &commands[i]);
    if (!room) {
        out->used = before;
        return false;
    }
    if (asking)
        wire->calls[wire->said++ & (wire->room - 1)] = NULL;
    if (call)
        call->said = wire->said - call->got;
    for (size_t i = 0; i < count; i++)
        wire->calls[wire->said++ & (wire->room - 1)] = call;
    hfi_source_say(&wire->store->loop, &wire->source);
    return true;
}

/* Its time is over. The answers may come yet, and are thrown away; whoever asks next does so on another connection, if
 * it was to be expected that they come in time. */
static hf_status withdraw_from_call(struct hfi_op *op)
{
    struct redis_call *call = call_of(op);
    struct redis_wire *wire = call->wire;
    for (size_t i = call->got; i < call->question->count; i++)
        wire->calls[(call->said + i) & (wire->room - 1)] = NULL;
    if (!call->patient)
        hfi_fail(call->trouble, HF_UNKNOWN, 0, "the server did not answer in time");
    stop_asking(call);
    return HF_UNKNOWN;
}

bool hfi_redis_wire_start_call(struct redis_call *call)
{
    struct redis_wire *wire = *call->slot;
    const struct redis_question *question = call->question;
    if (!wire || !wire->source.connected) {
        call->op.woken = hfi_fail(call->trouble, HF_UNAVAILABLE, 0, "the connection broke before anything was said");
        return false;
    }
    if (call->question->sent_ns == 0)
        call->question->sent_ns = call->store->env->now_ns();
    if (!say(wire, question->commands + call->first, question->count - call->first, call->asking, call)) {
        call->op.woken = hfi_fail(call->trouble, HF_NOMEM, 0, "no memory for a command");
        return false;
    }
    call->wire = wire;
    call->natively = wire->connection->native;
    wire->waiting++;
    hfi_op_park(&call->op, &wire->source, withdraw_from_call);
    return true;
}

/* The first command that the server did not know goes again, and whatever came behind it: a script with its text, since
 * it was restarted or its scripts flushed; a command of the module as the script that does the same. */
static bool goes_again(struct redis_call *call)
{
    const struct redis_question *question = call->question;
    enum redis_again how = REDIS_ANSWERED;
    size_t i = call->known;
    for (; i < question->count; i++) {
        bool gone;
        how = hfi_redis_again(question, call->replies, i, call->natively, &gone);
        if (gone && *call->slot)
            (*call->slot)->connection->native = false;
        if (how != REDIS_ANSWERED)
            break;
    }
    if (how == REDIS_ANSWERED)
        return false;
    call->known = i + (how == REDIS_BY_TEXT);
    hfi_redis_free_replies(call->replies + i, question->count - i);
    call->first = call->got = i;
    return true;
}

static int ask(struct hfi_op *op)
{
    struct redis_call *const call = call_of(op);
    BEGIN(op->line);
    do {
        AWAIT(hfi_redis_wire_start_ready(call));
        if (op->woken == HF_OK && call->question) {
            hfi_op_limit(op, call->deadline_ns);
            AWAIT(hfi_redis_wire_start_call(call));
        }
    } while (op->woken == HF_OK && call->question && goes_again(call));
    END;
    return (int)op->woken;
}

/* --- what others see --- */

static hf_status conclude(struct redis_call *call)
{
    const hf_status status = call->op.status;
    if (status != HF_OK)
        hfi_redis_free_replies(call->replies, call->got);
    if (status != HF_OK && call->trouble->status == HF_OK) /* it had no time to go again */
        hfi_fail(call->trouble, status, 0, "the server did not answer in time");
    return status;
}

static hf_status run(struct redis_call *call, hf_error *err)
{
    hfi_loop_run(&call->store->loop, &call->op);
    if (conclude(call) != HF_OK && err)
        *err = *call->trouble;
    return call->op.status;
}

hf_status hfi_redis_wire_open(struct redis_store *store, struct redis_node *node, hfi_time deadline_ns, hf_error *err)
{
    hf_error trouble = { .status = HF_OK };
    struct redis_call call = { .op = { .run = ask, .deadline_ns = deadline_ns },
                               .store = store,
                               .node = node,
                               .slot = &node->wire,
                               .deadline_ns = deadline_ns,
                               .trouble = &trouble };
    return run(&call, err);
}

static struct redis_call call_for(struct redis_store *store, struct redis_question *question, redisReply **replies,
                                  hfi_time deadline_ns, hf_error *trouble)
{
    struct redis_call call = { .store = store, .node = question->node, .question = question, .replies = replies };
    call.slot = &question->node->wire;
    call.trouble = trouble;
    call.op.run = ask;
    call.op.deadline_ns = call.deadline_ns = deadline_ns;
    question->sent_ns = 0;
    return call;
}

hf_status hfi_redis_wire_ask(struct redis_store *store, struct redis_question *question, bool asking,
                             redisReply **replies, hfi_time deadline_ns, hf_error *err)
{
    hf_error trouble = { .status = HF_OK };
    struct redis_call call = call_for(store, question, replies, deadline_ns, &trouble);
    call.asking = asking;
    const hf_status status = run(&call, err);
    for (size_t i = 0; i < call.known; i++) {
        if (question->commands[i].script) {
            question->commands[i].text[0] = "EVALSHA";
            question->commands[i].text[1] = question->commands[i].script->hash;
        }
    }
    return status;
}

/* One that no thread waits for. */
struct started {
    struct redis_call call;
    hfi_redis_answered_fn answered;
    hf_error trouble;
};

static void done(struct hfi_op *op)
{
    struct started *started = (struct started *)(void *)op;
    struct redis_call *call = &started->call;
    started->answered(call->store, call->question, conclude(call), &started->trouble);
    hfi_free(started);
}

bool hfi_redis_wire_start(struct redis_store *store, struct redis_question *question, redisReply **replies,
                          hfi_time deadline_ns, hfi_redis_answered_fn answered)
{
    struct started *started = hfi_alloc(sizeof *started);
    if (!started)
        return false;
    started->call = call_for(store, question, replies, deadline_ns, &started->trouble);
    started->call.op.done = done;
    started->answered = answered;
    hfi_loop_start(&store->loop, &started->call.op);
    return true;
}

void hfi_redis_wire_tell(struct redis_store *store, struct redis_node *node, const struct redis_command *command)
{
    hfi_loop_enter(&store->loop);
    if (node->wire && node->wire->source.connected)
        say(node->wire, command, 1, false, NULL);
    hfi_loop_leave(&store->loop);
}

bool hfi_redis_wire_is_busy(struct redis_store *store, const struct redis_node *node)
{
    hfi_loop_enter(&store->loop);
    const bool busy = node->wire && node->wire->waiting > 0;
    hfi_loop_leave(&store->loop);
    return busy;
}

void hfi_redis_wire_break(struct redis_store *store, struct redis_node *node)
{
    hf_error err;
    hfi_fail(&err, HF_UNAVAILABLE, 0, "the connection was given up, since another server took this one's place");
    hfi_loop_enter(&store->loop);
    for (struct hfi_source *source = store->loop.sources, *next; source; source = next) {
        next = source->next; /* also those that were left, and are still waited for */
        if (wire_of(source)->node == node)
            break_wire(wire_of(source), &err);
    }
    hfi_loop_leave(&store->loop);
}

void hfi_redis_wire_drop_old(struct redis_store *store, struct redis_node *node)
{
    if (store->config.kind == REDIS_REDLOCK) /* releases may be on their way there */
        return;
    hfi_loop_enter(&store->loop);
    if (node->wire && node->wire->waiting == 0 && hfi_loop_now_ns() - node->wire->used_ns >= TRUSTED_FOR)
        hfi_redis_wire_leave(node->wire);
    hfi_loop_leave(&store->loop);
}
