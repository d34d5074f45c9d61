/* SPDX-License-Identifier: MIT
 *
 * fuzz_etcd.c: an etcd server that answers anything. The engine gets connections whose other end has said all it will
 * ever say: well-formed frames of HTTP/2, with messages made of the input. Asking for another connection finds nobody.
 *
 * Input: one byte that chooses what is asked, and parts between bytes 0xff, one for each connection: a byte with the
 * code of gRPC, another with how long the first message is, that message, and one for a second call at the same time.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/etcd/etcd.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const struct hfi_engine hfi_module_engine;

#define INPUT_MOST 2048
#define PARTS_MOST 6

const char *const fuzz_words[] = { "\n\x04\x18\x09 \x02", /* a header: revision 9, term 2 */
                                   "\x10\x01",            /* succeeded; created; an id or a revision of 1 */
                                   "\x1a\x02\n",          /* an operation's answer, with a range */
                                   "\x12\x1c\n\x0eholdfast/job/7\x10\x05*\x06h 1 hi0\x07", /* a key of ours */
                                   "\x12\x12\n\x0eholdfast/job/8",
                                   "\x12\x0c\n\x08holdfast/",
                                   "\x12 \n\x12holdfast/.done/job*\x08h 1:2 hi0\x09", /* a mark, with a lease of 9 */
                                   "\x18\x01",                                        /* a lease's time; created */
                                   " \x01",                                           /* canceled */
                                   "Z\x02\x08\x01",                                   /* an event: deleted */
                                   "\xff",
                                   NULL };

/* --- what a server says --- */

struct script {
    uint8_t bytes[2 * INPUT_MOST];
    size_t used;
};

static void say(struct script *script, const void *bytes, size_t length)
{
    FUZZ_REQUIRE(script->used + length <= sizeof script->bytes);
    if (length)
        memcpy(script->bytes + script->used, bytes, length);
    script->used += length;
}

static void say_frame(struct script *script, uint8_t type, uint8_t flags, uint32_t stream, const void *bytes,
                      size_t length)
{
    const uint8_t head[9] = { 0, (uint8_t)(length >> 8), (uint8_t)length, type, flags, 0,
                              0, (uint8_t)(stream >> 8), (uint8_t)stream };
    say(script, head, sizeof head);
    say(script, bytes, length);
}

/* Status 200; the message; and a trailer with the code. */
static void answer(struct script *script, uint32_t stream, uint8_t code, const uint8_t *message, size_t length)
{
    static const uint8_t good[] = { 0x88 };
    uint8_t body[5 + INPUT_MOST] = { 0, 0, 0, (uint8_t)(length >> 8), (uint8_t)length };
    uint8_t trailer[] = { 0, 11, 'g', 'r', 'p', 'c', '-', 's', 't', 'a', 't', 'u', 's', 1, (uint8_t)('0' + code % 10) };
    if (length)
        memcpy(body + 5, message, length);
    say_frame(script, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, stream, good, sizeof good);
    say_frame(script, NGHTTP2_DATA, 0, stream, body, 5 + length);
    say_frame(script, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, stream, trailer,
              sizeof trailer);
}

static void write_script(struct script *script, const uint8_t *part, size_t length)
{
    static const uint8_t farewell[8] = { 0x7f, 0xff, 0xff, 0xff };
    script->used = 0;
    if (length >= 2) {
        const size_t rest = length - 2, first = part[1] < rest ? part[1] : rest;
        answer(script, 1, part[0], part + 2, first);
        if (rest > first)
            answer(script, 3, part[0], part + 2 + first, rest - first);
    }
    say_frame(script, NGHTTP2_GOAWAY, 0, 0, farewell, sizeof farewell);
}

/* On which the server has said how many streams it takes. *other must stay open, for what is sent. */
static struct etcd_connection *connection_with(const struct script *script, int *other)
{
    static const uint8_t settings[9] = { [3] = NGHTTP2_SETTINGS };
    int ends[2];
    struct etcd_connection *connection = hfi_alloc(sizeof *connection);
    hfi_fd_begin();
    const bool made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
    hfi_fd_end(made ? ends[0] : -1);
    FUZZ_REQUIRE(connection && made && hfi_etcd_session_new(connection));
    FUZZ_REQUIRE(send(ends[1], script->bytes, script->used, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)script->used);
    FUZZ_REQUIRE(shutdown(ends[1], SHUT_WR) == 0);
    FUZZ_REQUIRE(nghttp2_session_mem_recv(connection->session, settings, sizeof settings) == sizeof settings);
    *other = ends[1];
    connection->fd = ends[0];
    connection->phase = ETCD_READY;
    connection->wants = POLLIN;
    return connection;
}

/* Those that the engine is to get, the first the first. */
static struct {
    struct etcd_connection *next[PARTS_MOST];
    int others[PARTS_MOST];
    size_t count, taken;
} connections;

hf_status __wrap_hfi_etcd_connect_begin(struct etcd_connection **out, const struct etcd_address *address, bool alone,
                                        hf_error *err);
hf_status __wrap_hfi_etcd_connect_begin(struct etcd_connection **out, const struct etcd_address *address, bool alone,
                                        hf_error *err)
{
    (void)address;
    (void)alone;
    *out = NULL;
    if (connections.taken == connections.count)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "nobody is there");
    *out = connections.next[connections.taken++];
    return HF_OK;
}

/* --- what is asked --- */

struct engine {
    struct etcd_store *store;
    struct hfi_env env;
    struct etcd_lock lock;
    struct hfi_waker *waker;
    bool once;
};

static int look(const hf_info *info, void *arg)
{
    FUZZ_REQUIRE(strlen(info->name) <= HFI_NAME_MAX && info->host && info->note && info->waiters >= -1);
    for (int64_t i = 0; i < info->waiters; i++)
        FUZZ_REQUIRE(strlen(info->waiting[i]) < 256);
    ++*(size_t *)arg;
    return 0;
}

static void forget(void *core, uint64_t serial)
{
    (void)core;
    (void)serial;
}

static struct hfi_request request_of(const struct engine *engine, bool queue)
{
    return (struct hfi_request){ .name = "job",
                                 .owner = { engine->env.client, 1 },
                                 .ttl_ms = 20000,
                                 .deadline_ns = hfi_now_ns() + HFI_MS,
                                 .queue = queue,
                                 .note = "",
                                 .waker = engine->waker,
                                 .once = engine->once,
                                 .done_ms = engine->once ? 5000 : 0 };
}

static void ask_and_wait(struct engine *engine, bool queue)
{
    for (int round = 0; round < 3; round++) {
        struct hfi_grant grant = { .counted_from_ns = hfi_now_ns() };
        hf_error err = { 0 };
        struct hfi_request request = request_of(engine, queue);
        hf_status status = hfi_module_engine.attempt(engine->store, &engine->lock, &request, &grant, &err);
        if (!engine->once || status != HF_DONE)
            fuzz_check_answer(status, &err);
        FUZZ_REQUIRE(status != HF_OK || grant.counted_from_ns <= hfi_now_ns());
        FUZZ_REQUIRE(memchr(grant.holder, 0, sizeof grant.holder));
        if (status != HF_BUSY || !queue)
            break;
        request = request_of(engine, true);
        fuzz_check_answer(hfi_module_engine.wait(engine->store, &engine->lock, &request, &err), &err);
    }
}

static void renew(struct engine *engine)
{
    struct hfi_renewal renewal = { .lock = &engine->lock,
                                   .name = "job",
                                   .owner = { engine->env.client, 1 },
                                   .ttl_ms = 20000,
                                   .counted_from_ns = hfi_now_ns(),
                                   .status = HF_BUSY };
    hf_error err = { 0 };
    FUZZ_REQUIRE(hfi_module_engine.renew(engine->store, &renewal, 1, hfi_now_ns() + HFI_MS, &err) == HF_OK);
    FUZZ_REQUIRE(renewal.status != HF_BUSY && renewal.status != HF_TIMEOUT);
    FUZZ_REQUIRE(!*renewal.why || renewal.status == HF_LOST);
}

static void administer(struct engine *engine, bool evict)
{
    hf_error err = { 0 };
    size_t seen = 0;
    const hfi_time deadline = hfi_now_ns() + HFI_MS;
    fuzz_check_answer(evict ? hfi_module_engine.evict(engine->store, "job", "root@host:1", deadline, &err)
                            : hfi_module_engine.inspect(engine->store, "", look, &seen, deadline, &err),
                      &err);
    fuzz_check_answer(evict ? hfi_module_engine.forget_done(engine->store, "job", deadline, &err)
                            : hfi_module_engine.inspect_done(engine->store, "", look, &seen, deadline, &err),
                      &err);
}

/* A lease as it would have been granted, long ago if `old`: then it is to be kept in the same exchange. */
static void lend(struct etcd_store *store, bool old)
{
    struct etcd_lease *lease = hfi_alloc(sizeof *lease);
    FUZZ_REQUIRE(lease != NULL);
    lease->state = ETCD_LEASE_ALIVE;
    lease->id = 7;
    lease->ttl_ms = 20000;
    lease->length_ns = 20 * HFI_SECOND;
    lease->counted_ns = lease->kept_ns = lease->used_ns = hfi_now_ns() - (old ? 10 * HFI_SECOND : 0);
    store->leases = lease;
}

static void give_back(struct engine *engine)
{
    const struct hfi_request request = request_of(engine, false);
    hf_error err = { 0 };
    fuzz_check_answer(hfi_module_engine.release(engine->store, &engine->lock, &request, &err), &err);
    FUZZ_REQUIRE(engine->store->push.shared.first ==
                 NULL); /* nothing is left that points to a lock that may be freed now */
}

/* Every part is what one connection says. */
static void connect_all(const uint8_t *data, size_t size)
{
    size_t count = 0;
    while (size && count < PARTS_MOST) {
        struct script script;
        const uint8_t *mark = memchr(data, 0xff, size);
        const size_t length = mark ? (size_t)(mark - data) : size;
        write_script(&script, data, length);
        connections.next[count] = connection_with(&script, &connections.others[count]);
        count++;
        data += length + (mark != NULL);
        size -= length + (mark != NULL);
    }
    connections.taken = 0;
    connections.count = count;
}

static void disconnect_all(void)
{
    for (size_t i = 0; i < connections.count; i++) {
        if (i >= connections.taken)
            hfi_etcd_disconnect(connections.next[i]);
        close(connections.others[i]);
    }
    connections.taken = connections.count = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hfi_url nobody = { "etcd", "//127.0.0.1:1" };
    if (size < 2 || size > INPUT_MOST)
        return 0;
    const uint8_t choice = data[0];
    struct engine engine = {
        .once = choice & 16,
        .env = { .client = 7, .timeout_ns = HFI_MS, .now_ns = hfi_now_ns, .random = hfi_random, .recheck = forget }
    };
    engine.store = hfi_alloc(hfi_module_engine.store_size);
    engine.waker = hfi_waker_new();
    FUZZ_REQUIRE(engine.store && engine.waker);
    /* Finds nobody there, but leaves everything else ready. */
    FUZZ_REQUIRE(hfi_module_engine.open(engine.store, &nobody, &engine.env, &(struct hfi_opened){ 0 }, NULL) ==
                 HF_UNAVAILABLE);
    connect_all(data + 1, size - 1);
    if (!(choice & 0x80))
        lend(engine.store, choice & 0x40);
    if (choice & 1)
        ask_and_wait(&engine, choice & 2);
    if (choice & 4)
        renew(&engine);
    if (choice & 8)
        administer(&engine, choice & 16);
    if (choice & 32)
        hfi_module_engine.take_push(engine.store);
    give_back(&engine);
    hfi_module_engine.close(engine.store);
    hfi_free(engine.store);
    hfi_waker_free(engine.waker);
    disconnect_all();
    return 0;
}
