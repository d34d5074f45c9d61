/* SPDX-License-Identifier: MIT
 *
 * etcd_connection.c: gRPC calls on one HTTP/2 connection. nghttp2 makes and reads the frames; the socket is ours, so
 * that every wait ends when the core says so.
 *
 * A call is a stream: a POST whose body, in both directions, is messages with five bytes before each, and whose trailer
 * says what came of it.
 */
#include "etcd.h"
#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER 16384
#define HEAD 5 /* one byte: not compressed; four: how long */
/* No answer to us is longer. */
#define MESSAGE_MOST ((size_t)64 << 20)

/* --- bytes --- */

static bool add_bytes(struct hfi_bytes *bytes, const void *data, size_t length)
{
    if (!hfi_bytes_reserve(bytes, length))
        return false;
    memcpy(bytes->data + bytes->used, data, length);
    bytes->used += length;
    return true;
}

static void drop_bytes(struct hfi_bytes *bytes, size_t count)
{
    bytes->used -= count;
    if (bytes->used)
        memmove(bytes->data, bytes->data + count, bytes->used);
}

void hfi_etcd_stream_free(struct etcd_stream *stream)
{
    hfi_free(stream->out.data);
    hfi_free(stream->in.data);
    *stream = (struct etcd_stream){ .path = stream->path };
}

/* --- messages --- */

/* Where protobuf-c packs a message to. */
struct sink {
    ProtobufCBuffer base;
    struct hfi_bytes *bytes;
    bool full;
};

static void pack_append(ProtobufCBuffer *buffer, size_t length, const uint8_t *data)
{
    struct sink *sink = (struct sink *)buffer;
    sink->full = sink->full || !add_bytes(sink->bytes, data, length);
}

bool hfi_etcd_add_message(struct etcd_stream *stream, const ProtobufCMessage *message)
{
    const size_t length = protobuf_c_message_get_packed_size(message);
    const uint8_t head[HEAD] = { 0, (uint8_t)(length >> 24), (uint8_t)(length >> 16), (uint8_t)(length >> 8),
                                 (uint8_t)length };
    struct sink sink = { .base = { .append = pack_append }, .bytes = &stream->out };
    if (stream->sent == stream->out.used) /* nothing of what went before is needed any more */
        stream->sent = stream->out.used = 0;
    const size_t before = stream->out.used;
    sink.full = !add_bytes(&stream->out, head, sizeof head);
    if (!sink.full)
        protobuf_c_message_pack_to_buffer(message, &sink.base);
    if (sink.full)
        stream->out.used = before;
    return !sink.full;
}

bool hfi_etcd_take_message(struct etcd_stream *stream, const ProtobufCMessageDescriptor *type, ProtobufCMessage **out)
{
    const uint8_t *in = (const uint8_t *)stream->in.data;
    *out = NULL;
    if (stream->in.used < HEAD)
        return true;
    const size_t length = (size_t)in[1] << 24 | (size_t)in[2] << 16 | (size_t)in[3] << 8 | in[4];
    if (in[0] != 0 || length > MESSAGE_MOST)
        return false;
    if (stream->in.used < HEAD + length)
        return true;
    *out = protobuf_c_message_unpack(type, NULL, length, in + HEAD);
    drop_bytes(&stream->in, HEAD + length);
    return *out != NULL;
}

/* --- what nghttp2 calls --- */

static ssize_t give_data(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t room, uint32_t *flags,
                         nghttp2_data_source *source, void *user)
{
    struct etcd_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    (void)source;
    (void)user;
    if (!stream) /* it is being canceled */
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const size_t left = stream->out.used - stream->sent;
    const size_t part = left < room ? left : room;
    if (part == 0 && stream->stays_open)
        return NGHTTP2_ERR_DEFERRED;
    memcpy(buffer, stream->out.data + stream->sent, part);
    stream->sent += part;
    if (part == left && !stream->stays_open)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)part;
}

static int take_header(nghttp2_session *session, const nghttp2_frame *frame, nghttp2_rcbuf *name, nghttp2_rcbuf *value,
                       uint8_t flags, void *user)
{
    struct etcd_stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    const char *what = (const char *)nghttp2_rcbuf_get_buf(name).base; /* both end with a zero byte */
    const char *text = (const char *)nghttp2_rcbuf_get_buf(value).base;
    (void)flags;
    (void)user;
    if (!stream)
        return 0;
    if (strcmp(what, ":status") == 0)
        stream->http = (int)strtol(text, NULL, 10);
    else if (strcmp(what, "grpc-status") == 0)
        stream->code = (int)strtol(text, NULL, 10);
    else if (strcmp(what, "grpc-message") == 0) /* percent-encoded where it is not plain; it is only shown */
        snprintf(stream->reason, sizeof stream->reason, "%s", text);
    return 0;
}

static int take_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t length,
                     void *user)
{
    struct etcd_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    (void)flags;
    (void)user;
    if (!stream)
        return 0;
    if (stream->in.used + length > MESSAGE_MOST + HEAD || !add_bytes(&stream->in, data, length))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

static int take_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
    struct etcd_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    const struct etcd_connection *connection = user;
    if (!stream)
        return 0;
    stream->closed = true;
    stream->untouched = code == NGHTTP2_REFUSED_STREAM || stream->sent == 0;
    if (connection->over)
        connection->over(stream);
    return 0;
}

static int take_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct etcd_connection *connection = user;
    (void)session;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        connection->leaving = true;
    if (frame->hd.type == NGHTTP2_PING && !(frame->hd.flags & NGHTTP2_FLAG_ACK)) {
        connection->pinged = true;
        memcpy(connection->ping, frame->ping.opaque_data, sizeof connection->ping);
    }
    return 0;
}

bool hfi_etcd_session_new(struct etcd_connection *connection)
{
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    const nghttp2_settings_entry settings[] = { { NGHTTP2_SETTINGS_ENABLE_PUSH, 0 } };
    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        return false;
    if (nghttp2_option_new(&option) != 0) {
        nghttp2_session_callbacks_del(callbacks);
        return false;
    }
    /* Until the server has said how many streams it takes; nghttp2 keeps the rest. */
    nghttp2_option_set_peer_max_concurrent_streams(option, 1);
    nghttp2_option_set_no_auto_ping_ack(option, 1);
    nghttp2_session_callbacks_set_on_header_callback2(callbacks, take_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, take_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, take_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, take_frame);
    const bool made = nghttp2_session_client_new2(&connection->session, callbacks, connection, option) == 0;
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return made && nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, settings, 1) == 0;
}

/* --- calls --- */

static nghttp2_nv header(const char *name, const char *value, uint8_t flags)
{
    return (nghttp2_nv){ .name = (uint8_t *)(uintptr_t)name,
                         .value = (uint8_t *)(uintptr_t)value,
                         .namelen = strlen(name),
                         .valuelen = strlen(value),
                         .flags = flags };
}

bool hfi_etcd_begin(struct etcd_connection *connection, struct etcd_stream *stream, const char *authority,
                    const char *token, hfi_time timeout_ns)
{
    nghttp2_nv headers[10];
    size_t count = 0;
    char timeout[24];
    const nghttp2_data_provider data = { .read_callback = give_data };
    headers[count++] = header(":method", "POST", 0);
    headers[count++] = header(":scheme", connection->tls ? "https" : "http", 0);
    headers[count++] = header(":path", stream->path, 0);
    headers[count++] = header(":authority", authority, 0);
    headers[count++] = header("content-type", "application/grpc", 0);
    headers[count++] = header("te", "trailers", 0);
    headers[count++] = header("hasleader", "true", 0); /* a server that is cut off says so, and does not wait */
    if (timeout_ns) {
        snprintf(timeout, sizeof timeout, "%lldm", (long long)(timeout_ns / HFI_MS) % 100000000 + 1);
        headers[count++] = header("grpc-timeout", timeout, NGHTTP2_NV_FLAG_NO_INDEX);
    }
    if (token)
        headers[count++] = header("token", token, NGHTTP2_NV_FLAG_NO_INDEX);
    stream->closed = stream->untouched = false;
    stream->http = 0;
    stream->code = -1;
    stream->reason[0] = 0;
    stream->in.used = 0;
    stream->id = nghttp2_submit_request(connection->session, NULL, headers, count, &data, stream);
    return stream->id > 0;
}

void hfi_etcd_resume(struct etcd_connection *connection, const struct etcd_stream *stream)
{
    nghttp2_session_resume_data(connection->session, stream->id); /* fails if it was not put off, which is fine */
}

/* --- bytes from and for the socket --- */

/* Of what is to be sent; what OpenSSL makes of it is left in memory. */
static bool encrypt(struct etcd_connection *connection, struct hfi_bytes *out)
{
    struct hfi_bytes *clear = &connection->clear;
    BIO *outward = SSL_get_wbio(connection->tls);
    size_t done = 0;
    int part = 1;
    ERR_clear_error();
    for (; done < clear->used && part > 0; done += part > 0 ? (size_t)part : 0)
        part = SSL_write(connection->tls, clear->data + done, (int)(clear->used - done));
    clear->used = 0;
    const size_t more = BIO_ctrl_pending(outward);
    if (part <= 0 || !hfi_bytes_reserve(out, more))
        return false;
    if (more)
        out->used += (size_t)BIO_read(outward, out->data + out->used, (int)more);
    return true;
}

bool hfi_etcd_make_frames(struct etcd_connection *connection, struct hfi_bytes *out)
{
    const uint8_t *frames;
    ssize_t length;
    if (connection->pinged && nghttp2_submit_ping(connection->session, NGHTTP2_FLAG_ACK, connection->ping) != 0)
        return false;
    connection->pinged = false;
    while ((length = nghttp2_session_mem_send(connection->session, &frames)) > 0) {
        if (!add_bytes(connection->tls ? &connection->clear : out, frames, (size_t)length))
            return false;
    }
    return length == 0 && (!connection->tls || encrypt(connection, out));
}

bool hfi_etcd_has_frames(const struct etcd_connection *connection)
{
    return nghttp2_session_want_write(connection->session) ||
           (connection->tls && BIO_ctrl_pending(SSL_get_wbio(connection->tls)));
}

bool hfi_etcd_feed(struct etcd_connection *connection, const void *bytes, size_t length)
{
    uint8_t clear[4096];
    int got;
    if (!connection->tls)
        return nghttp2_session_mem_recv(connection->session, bytes, length) == (ssize_t)length;
    if (BIO_write(SSL_get_rbio(connection->tls), bytes, (int)length) != (int)length)
        return false;
    ERR_clear_error();
    while ((got = SSL_read(connection->tls, clear, sizeof clear)) > 0) {
        if (nghttp2_session_mem_recv(connection->session, clear, (size_t)got) != got)
            return false;
    }
    return SSL_get_error(connection->tls, got) == SSL_ERROR_WANT_READ;
}

bool hfi_etcd_flush(struct etcd_connection *connection)
{
    struct hfi_bytes *out = &connection->out;
    ssize_t sent;
    if (!hfi_etcd_make_frames(connection, out)) /* all of them in one write */
        return false;
    do
        sent = out->used ? send(connection->fd, out->data, out->used, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN)
        return false;
    if (sent > 0)
        drop_bytes(out, (size_t)sent);
    connection->wants = out->used ? POLLIN | POLLOUT : POLLIN;
    return true;
}

bool hfi_etcd_fetch(struct etcd_connection *connection)
{
    uint8_t buffer[BUFFER];
    ssize_t got;
    do {
        got = recv(connection->fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (got <= 0 || !hfi_etcd_feed(connection, buffer, (size_t)got))
            return false;
    } while (got == sizeof buffer); /* the rest is there already */
    return true;
}
