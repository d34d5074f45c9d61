/* SPDX-License-Identifier: MIT
 *
 * fuzz_reply.c: a redis server that answers anything. The engine gets a connection whose other end has said all it will
 * ever say, and so has the one for messages; asking for another connection finds nobody.
 *
 * Input: one byte that chooses what is asked, one for the dialect, the replies, a byte 0xff, and the messages.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/redis/redis.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const struct hfi_engine hfi_module_engine;

#define REPLIES_MOST 4096

const char *const fuzz_words[] = { ":41\r\n",
                                   "*5\r\n:-1\r\n:1000000\r\n:60000\r\n:0\r\n$12\r\n5 0 alpha 77\r\n",
                                   "*1\r\n:1\r\n",
                                   ":1\r\n",
                                   ":0\r\n",
                                   "-NOSCRIPT x\r\n",
                                   "-OOM x\r\n",
                                   "-ERR x\r\n",
                                   "*2\r\n$1\r\n0\r\n*1\r\n$8\r\nhf:{job}\r\n",
                                   "*7\r\n:1\r\n:41\r\n:900\r\n:100\r\n$12\r\nalpha 77 hey\r\n$1\r\na\r\n$1\r\nb\r\n",
                                   "*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$8\r\n1 41 1 0\r\n",
                                   "*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\n1\r\n",
                                   "*3\r\n$7\r\nmessage\r\n$28\r\nredisson_lock__channel:{job}\r\n$1\r\n0\r\n",
                                   "*3\r\n$9\r\nsubscribe\r\n$28\r\nredisson_lock__channel:{job}\r\n:1\r\n",
                                   "*3\r\n$11\r\nunsubscribe\r\n$28\r\nredisson_lock__channel:{job}\r\n:0\r\n",
                                   "*3\r\n$8\r\nsmessage\r\n$30\r\nhf:{job}:w:c:0000000000000007\r\n$1\r\n1\r\n",
                                   "-WRONGTYPE x\r\n",
                                   "-ERR unknown command 'DELEX'\r\n",
                                   "*5\r\n:1\r\n:0\r\n:-1\r\n:-1\r\n$0\r\n\r\n",
                                   ":-9223372036854775808\r\n",
                                   ":9223372036854775807\r\n",
                                   "$-1\r\n",
                                   "*-1\r\n",
                                   "*0\r\n",
                                   "$0\r\n\r\n",
                                   "\r\n",
                                   "\xff",
                                   NULL };

/* An end of a connection on which all of `bytes` has come, and then the end. *other must stay open, for what is
 * sent. */
static struct redis_connection *connection_with(const uint8_t *bytes, size_t size, int *other)
{
    int ends[2];
    struct redis_connection *connection = hfi_alloc(sizeof *connection);
    hfi_fd_begin();
    const bool made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
    hfi_fd_end(made ? ends[0] : -1);
    FUZZ_REQUIRE(connection && made);
    FUZZ_REQUIRE(send(ends[1], bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size);
    FUZZ_REQUIRE(shutdown(ends[1], SHUT_WR) == 0);
    *other = ends[1];
    connection->fd = ends[0];
    connection->reader = redisReaderCreate();
    connection->used_ns = hfi_now_ns();
    connection->phase = REDIS_READY;
    FUZZ_REQUIRE(connection->reader != NULL);
    return connection;
}

static int look(const hf_info *info, void *arg)
{
    FUZZ_REQUIRE(strlen(info->name) <= HFI_REDIS_KEY_MAX && info->host && info->note && info->waiters >= -1);
    ++*(size_t *)arg;
    return 0;
}

struct engine {
    struct redis_store *store;
    struct hfi_env env;
    struct redis_lock lock;
    struct hfi_waker *waker;
    bool silent; /* the server said nothing at all */
};

static struct hfi_request request_of(const struct engine *engine, bool queue)
{
    return (struct hfi_request){ .name = "job",
                                 .owner = { engine->env.client, 1 },
                                 .ttl_ms = 20000,
                                 .deadline_ns = hfi_now_ns() + HFI_MS,
                                 .queue = queue,
                                 .note = "",
                                 .waker = engine->waker };
}

static void ask_and_wait(struct engine *engine, bool queue)
{
    for (int round = 0; round < 4; round++) {
        struct hfi_grant grant = { .counted_from_ns = hfi_now_ns() };
        hf_error err = { 0 };
        struct hfi_request request = request_of(engine, queue);
        hf_status status = hfi_module_engine.attempt(engine->store, &engine->lock, &request, &grant, &err);
        fuzz_check_answer(status, &err);
        FUZZ_REQUIRE(status != HF_OK || (!engine->silent && grant.counted_from_ns <= hfi_now_ns()));
        FUZZ_REQUIRE(memchr(grant.holder, 0, sizeof grant.holder));
        if (status != HF_BUSY || !queue)
            break;
        request = request_of(engine, true);
        status = hfi_module_engine.wait(engine->store, &engine->lock, &request, &err);
        fuzz_check_answer(status, &err);
    }
}

static void renew(struct engine *engine)
{
    struct hfi_renewal renewals[3];
    hf_error err = { 0 };
    for (size_t i = 0; i < 3; i++)
        renewals[i] = (struct hfi_renewal){ .lock = &engine->lock,
                                            .name = "job",
                                            .owner = { engine->env.client, i },
                                            .ttl_ms = 20000,
                                            .status = HF_INTERNAL };
    const hf_status status = hfi_module_engine.renew(engine->store, renewals, 3, hfi_now_ns() + HFI_MS, &err);
    fuzz_check_answer(status, &err);
    const bool each = engine->store->config.dialect == &hfi_redis_tair; /* one command each, which may fail each */
    FUZZ_REQUIRE(status != HF_OK || !engine->silent || each);
    for (size_t i = 0; i < 3 && status == HF_OK; i++) {
        FUZZ_REQUIRE(renewals[i].status != HF_BUSY && renewals[i].status != HF_TIMEOUT);
        FUZZ_REQUIRE(renewals[i].status != HF_OK || !engine->silent);
        FUZZ_REQUIRE(renewals[i].status != HF_INTERNAL || each); /* it was set, or said so as a whole */
    }
}

static void administer(struct engine *engine, bool evict)
{
    hf_error err = { 0 };
    size_t seen = 0;
    const hfi_time deadline = hfi_now_ns() + HFI_MS;
    const hf_status status = evict ? hfi_module_engine.evict(engine->store, "job", "root@host:1", deadline, &err)
                                   : hfi_module_engine.inspect(engine->store, "", look, &seen, deadline, &err);
    fuzz_check_answer(status, &err);
    FUZZ_REQUIRE(status != HF_OK || !engine->silent);
}

static void give_back(struct engine *engine)
{
    const struct hfi_request request = request_of(engine, false);
    hf_error err = { 0 };
    fuzz_check_answer(hfi_module_engine.release(engine->store, &engine->lock, &request, &err), &err);
    FUZZ_REQUIRE(engine->store->nodes->push.shared.first == NULL); /* nobody listens for a lock that may be freed now */
    FUZZ_REQUIRE(engine->lock.wait == NULL);
}

/* What open() would have found out: the dialect, whether publishing is sharded, and how to release. */
static void choose_dialect(struct redis_store *store, uint8_t choice)
{
    static const struct redis_dialect *const dialects[] = { &hfi_redis_native, &hfi_redis_plain, &hfi_redis_tair,
                                                            &hfi_redis_redisson };
    static const enum redis_verb verbs[] = { REDIS_BY_SCRIPT, REDIS_BY_DELEX, REDIS_BY_DELIFEQ, REDIS_BY_CAD };
    const struct redis_dialect *dialect = dialects[choice & 3];
    store->config.dialect = dialect;
    store->sharded = choice & 4;
    store->by_channels = dialect->own_channels || store->sharded;
    if (dialect->strangers)
        store->verb = dialect == &hfi_redis_tair ? REDIS_BY_CAD : verbs[choice >> 3 & 3];
    hfi_redis_scripts_init(store->scripts, dialect, store->sharded);
}

/* Our reader is a plain one of hiredis, which sets aside whatever the header of an array asks for; the engine's own
 * has a limit, which the tests on the wire try. */
static bool asks_for_gigabytes(const uint8_t *bytes, size_t size)
{
    size_t digits = 0;
    bool array = false;
    for (size_t i = 0; i < size && digits < 8; i++) {
        digits = array && bytes[i] >= '0' && bytes[i] <= '9' ? digits + 1 : 0;
        array = bytes[i] == '*' || digits > 0 || (array && bytes[i] == '+');
    }
    return digits == 8;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hfi_url nobody = { "redis+unix", "///holdfast-fuzz-is-not-there/socket" };
    if (size < 2 || size > REPLIES_MOST || asks_for_gigabytes(data, size))
        return 0;
    const uint8_t choice = data[0];
    const uint8_t *replies = data + 2;
    const uint8_t *mark = memchr(replies, 0xff, size - 2);
    const size_t length = mark ? (size_t)(mark - replies) : size - 2;
    const size_t rest = mark ? size - 3 - length : 0;
    int others[2];
    struct engine engine = { .env = { .client = 7, .timeout_ns = HFI_MS, .now_ns = hfi_now_ns, .random = hfi_random },
                             .silent = length == 0 && rest == 0 };
    engine.store = hfi_alloc(hfi_module_engine.store_size);
    engine.waker = hfi_waker_new();
    FUZZ_REQUIRE(engine.store && engine.waker);
    /* Finds nobody there, but leaves everything else ready. */
    FUZZ_REQUIRE(hfi_module_engine.open(engine.store, &nobody, &engine.env, &(struct hfi_opened){ 0 }, NULL) ==
                 HF_UNAVAILABLE);
    choose_dialect(engine.store, data[1]);
    engine.store->config.replicas = choice & 0x40 ? 1 : 0;
    engine.store->config.fsync = choice & 0x80;
    hfi_redis_give_back(engine.store, engine.store->nodes, connection_with(replies, length, &others[0]));
    struct redis_push *push = &engine.store->nodes->push;
    push->connection = connection_with(mark ? mark + 1 : replies, rest, &others[1]);
    hfi_push_connected(&push->shared, push->connection->fd, hfi_now_ns());
    if (choice & 1)
        ask_and_wait(&engine, choice & 2);
    if (choice & 4)
        renew(&engine);
    if (choice & 8)
        administer(&engine, choice & 16);
    give_back(&engine);
    hfi_module_engine.close(engine.store);
    hfi_free(engine.store);
    hfi_waker_free(engine.waker);
    close(others[0]);
    close(others[1]);
    return 0;
}
