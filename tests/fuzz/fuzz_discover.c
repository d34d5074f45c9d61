/* SPDX-License-Identifier: MIT
 *
 * fuzz_discover.c: Sentinels and clusters that answer anything. Whatever host the engine looks for, it finds the same
 * socket, and there a thread that says to each new connection what the input has for it, and nothing more. No name is
 * ever looked up, and nothing leaves the process.
 *
 * Input: one byte that chooses the URL, one that chooses what is asked, and the replies to one connection after the
 * other, with a byte 0xff between them. Connections beyond them hear nothing but the end.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/redis/redis.h"

#include <netdb.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern const struct hfi_engine hfi_module_engine;

#define REPLIES_MOST 4096
#define PATIENCE (10 * HFI_MS)

const char *const fuzz_words[] = { "+PONG\r\n",
                                   "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
                                   "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:6379\r\n$9\r\nconnected\r\n:0\r\n",
                                   "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n",
                                   "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n",
                                   "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$16\r\nm h 6379 i 6380 \r\n",
                                   "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\nh\r\n:6379\r\n",
                                   "*1\r\n*4\r\n:0\r\n:16383\r\n*2\r\n$1\r\nh\r\n:1\r\n*2\r\n$1\r\n?\r\n:2\r\n",
                                   "*2\r\n:0\r\n:5000\r\n*2\r\n$0\r\n\r\n:6379\r\n",
                                   "*1\r\n*1\r\n$8\r\nspublish\r\n",
                                   "*3\r\n*1\r\n$5\r\ndelex\r\n*-1\r\n*-1\r\n",
                                   "*1\r\n*-1\r\n",
                                   "-MOVED 3999 h:6379\r\n",
                                   "-MOVED 99999 :6380\r\n",
                                   "-ASK 3999 i:6380\r\n",
                                   "+OK\r\n",
                                   "-TRYAGAIN x\r\n",
                                   "-CLUSTERDOWN x\r\n",
                                   "-READONLY x\r\n",
                                   "-NOSCRIPT x\r\n",
                                   "-ERR unknown command 'x'\r\n",
                                   ":41\r\n",
                                   ":1\r\n",
                                   ":0\r\n",
                                   "*5\r\n:-1\r\n:1000000\r\n:60000\r\n:0\r\n$0\r\n\r\n",
                                   "*3\r\n$10\r\nssubscribe\r\n$28\r\nhf:{job}:c:0000000000000007\r\n:1\r\n",
                                   "*3\r\n$12\r\nsunsubscribe\r\n$28\r\nhf:{job}:c:0000000000000007\r\n:0\r\n",
                                   "*3\r\n$9\r\nsubscribe\r\n$28\r\nredisson_lock__channel:{job}\r\n:1\r\n",
                                   "*3\r\n$7\r\nmessage\r\n$28\r\nredisson_lock__channel:{job}\r\n$1\r\n0\r\n",
                                   "*1\r\n:1\r\n",
                                   "$-1\r\n",
                                   "*-1\r\n",
                                   "*0\r\n",
                                   "\xff",
                                   NULL };

static const char *const schemes[] = { "redis+sentinel", "redis+cluster", "redis" };
static const char *const rests[] = { "//a,b/m?module=no&dialect=%s", "//a,b?module=no&dialect=%s", "//a?dialect=%s" };
static const char *const dialects[] = { "native", "plain", "tair", "redisson" };

/* --- the only server there is --- */

static struct {
    int listener;
    struct sockaddr_un address;
    socklen_t address_size;
    pthread_mutex_t mutex;
    const uint8_t *bytes; /* what is still to be said */
    size_t size;
} server = { .listener = -1, .mutex = PTHREAD_MUTEX_INITIALIZER };

/* What the next connection hears. */
static size_t next_part(uint8_t *out)
{
    pthread_mutex_lock(&server.mutex);
    const uint8_t *mark = server.size ? memchr(server.bytes, 0xff, server.size) : NULL;
    const size_t length = mark ? (size_t)(mark - server.bytes) : server.size;
    if (length)
        memcpy(out, server.bytes, length);
    server.size -= length + (mark ? 1 : 0);
    server.bytes += length + (mark ? 1 : 0);
    pthread_mutex_unlock(&server.mutex);
    return length;
}

static void *serve(void *arg)
{
    static uint8_t part[REPLIES_MOST];
    (void)arg;
    for (int before = -1;;) {
        const int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC); /* cppcheck-suppress nullPointer */
        FUZZ_REQUIRE(fd >= 0);
        const size_t length = next_part(part);
        const ssize_t sent = send(fd, part, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        FUZZ_REQUIRE(sent == (ssize_t)length || sent < 0); /* it may have gone away already */
        shutdown(fd, SHUT_WR);
        if (before >= 0) /* not this one: what it sends must not meet a closed socket */
            close(before);
        before = fd;
    }
    return NULL;
}

static void start_server(void)
{
    pthread_t thread;
    server.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    server.address.sun_family = AF_UNIX;
    /* A name that the kernel chooses, and that is in no directory. */
    socklen_t size = sizeof server.address;
    FUZZ_REQUIRE(server.listener >= 0);
    FUZZ_REQUIRE(bind(server.listener, (struct sockaddr *)&server.address, sizeof(sa_family_t)) == 0);
    FUZZ_REQUIRE(getsockname(server.listener, (struct sockaddr *)&server.address, &size) == 0);
    server.address_size = size;
    FUZZ_REQUIRE(listen(server.listener, 64) == 0);
    FUZZ_REQUIRE(pthread_create(&thread, NULL, serve, NULL) == 0);
    pthread_detach(thread);
}

/* In place of the C library's. */
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
    static struct addrinfo one;
    (void)hints;
    FUZZ_REQUIRE(*host && strlen(host) < 256 && !port);
    one = (struct addrinfo){ .ai_family = AF_UNIX,
                             .ai_socktype = SOCK_STREAM,
                             .ai_addr = (struct sockaddr *)&server.address,
                             .ai_addrlen = server.address_size };
    *out = &one;
    return 0;
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
void freeaddrinfo(struct addrinfo *all)
{
    (void)all;
}

/* --- the engine --- */

static void recheck(void *core, uint64_t serial)
{
    (void)serial;
    ++*(size_t *)core;
}

static int look(const hf_info *info, void *arg)
{
    FUZZ_REQUIRE(strlen(info->name) <= HFI_REDIS_KEY_MAX && info->host && info->note && info->waiters >= -1);
    ++*(size_t *)arg;
    return 0;
}

static struct hfi_request request_of(const struct hfi_env *env, struct hfi_waker *waker)
{
    return (struct hfi_request){ .name = "job",
                                 .owner = { env->client, 1 },
                                 .ttl_ms = 20000,
                                 .deadline_ns = hfi_now_ns() + PATIENCE,
                                 .queue = waker != NULL,
                                 .note = "",
                                 .waker = waker };
}

static void use(struct redis_store *store, const struct hfi_env *env, uint8_t choice)
{
    struct redis_lock lock = { 0 };
    hf_error err = { 0 };
    struct hfi_waker *waker = hfi_waker_new();
    FUZZ_REQUIRE(waker);
    for (int round = 0; round < 3 && (choice & 1); round++) {
        struct hfi_grant grant = { .counted_from_ns = hfi_now_ns() };
        struct hfi_request request = request_of(env, waker);
        hf_status status = hfi_module_engine.attempt(store, &lock, &request, &grant, &err);
        fuzz_check_answer(status, &err);
        FUZZ_REQUIRE(status != HF_OK || grant.counted_from_ns <= hfi_now_ns());
        if (status == HF_OK)
            break;
        request = request_of(env, waker);
        if (status == HF_BUSY)
            fuzz_check_answer(hfi_module_engine.wait(store, &lock, &request, &err), &err);
    }
    if (choice & 2) {
        struct hfi_renewal renewals[2] = {
            { .lock = &lock, .name = "job", .owner = { env->client, 1 }, .ttl_ms = 20000, .status = HF_OK },
            { .lock = &lock, .name = "other", .owner = { env->client, 2 }, .ttl_ms = 20000, .status = HF_OK }
        };
        fuzz_check_answer(hfi_module_engine.renew(store, renewals, 2, hfi_now_ns() + PATIENCE, &err), &err);
    }
    if (choice & 4 && hfi_module_engine.push_fd(store) >= 0)
        hfi_module_engine.take_push(store);
    size_t seen = 0;
    if (choice & 8)
        fuzz_check_answer(hfi_module_engine.inspect(store, "job", look, &seen, hfi_now_ns() + PATIENCE, &err), &err);
    const struct hfi_request request = request_of(env, NULL);
    fuzz_check_answer(hfi_module_engine.release(store, &lock, &request, &err), &err);
    FUZZ_REQUIRE(!lock.wait); /* nobody listens for a lock that may be freed now */
    hfi_waker_free(waker);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char rest[64];
    size_t rechecks = 0;
    hf_error err = { 0 };
    struct hfi_opened opened = { 0 };
    if (size < 2 || size > REPLIES_MOST)
        return 0;
    if (server.listener < 0)
        start_server();
    const size_t kind = data[0] % 3;
    const struct hfi_env env = { .client = 7,
                                 .timeout_ns = PATIENCE,
                                 .now_ns = hfi_now_ns,
                                 .random = hfi_random,
                                 .recheck = recheck,
                                 .core = &rechecks };
    snprintf(rest, sizeof rest, rests[kind], dialects[data[0] / 3 % 4]);
    const struct hfi_url url = { schemes[kind], rest };
    struct redis_store *store = hfi_alloc(hfi_module_engine.store_size);
    FUZZ_REQUIRE(store);
    pthread_mutex_lock(&server.mutex);
    server.bytes = data + 2;
    server.size = size - 2;
    pthread_mutex_unlock(&server.mutex);
    const hf_status status = hfi_module_engine.open(store, &url, &env, &opened, &err);
    fuzz_check_answer(status, &err);
    FUZZ_REQUIRE(status != HF_TIMEOUT && status != HF_BUSY);
    if (status == HF_OK)
        use(store, &env, data[1]);
    hfi_module_engine.close(store);
    hfi_free(store);
    pthread_mutex_lock(&server.mutex);
    server.size = 0; /* the input is not there any more */
    pthread_mutex_unlock(&server.mutex);
    return 0;
}
