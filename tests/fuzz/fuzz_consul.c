/* SPDX-License-Identifier: MIT
 *
 * fuzz_consul.c: URLs of the consul: engine, and answers as a server, or whoever stands in its place, may give them. No
 * crash, nothing read that is not there, and nothing held that was not granted.
 *
 * An input that begins with "consul" is a URL, any other one the bytes of an answer.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/consul/consul.h"

#include <string.h>
#include <unistd.h>

#define INPUT_MOST 65536

const char *const fuzz_words[] = { "HTTP/1.1 200 OK\r\n",
                                   "HTTP/1.1 409 Conflict\r\n",
                                   "HTTP/1.0 500 x\r\n",
                                   "Content-Length: 9\r\n",
                                   "Content-Length: 99999999999999999999\r\n",
                                   "Transfer-Encoding: chunked\r\n",
                                   "Connection: close\r\n",
                                   "X-Consul-Index: 18446744073709551615\r\n",
                                   "Date: Sun, 15 Nov 2026 10:44:12 GMT\r\n",
                                   "\r\n\r\n",
                                   "\r\n0\r\n\r\n",
                                   "7fffffff\r\n",
                                   "ffffffffffffffff\r\n",
                                   "{\"Results\":[{\"KV\":{",
                                   "\"Key\":\"holdfast/x/.lock\",",
                                   "\"Key\":\"holdfast/x/.holdfast/0000000000000001.2\",",
                                   "\"Key\":\"holdfast/x/.holdfast/queue\",",
                                   "\"Session\":\"65a1fe72-d015-9149-4b50-ff9b8e3f7ac2\",",
                                   "\"Flags\":3304740253564472344,",
                                   "\"Flags\":16210313421097356768,",
                                   "\"CreateIndex\":11,\"ModifyIndex\":11}}",
                                   "\"Value\":\"MDAwMDAwMDAwMDAwMDAwMS4yIDEgMiAzIGggNSBu\",",
                                   "\"Key\":\"holdfast/.done/x/mark\",",
                                   "\"Value\":\"MSA5OTk5OTk5OTk5OSAzIGggNSBu\",", /* 1 99999999999 3 h 5 n */
                                   "\"Value\":\"====\",",
                                   "],\"Errors\":null}",
                                   "{\"Results\":null,\"Errors\":[{\"OpIndex\":2,\"What\":\"due to lock delay\"}]}",
                                   "consul://",
                                   "consuls://h1,h2:8501,[::1]:8502/a/b",
                                   "?lock_delay=15s",
                                   "&datacenter=dc1",
                                   "&verify=no",
                                   "%2F",
                                   NULL };

static void check_url(const char *text)
{
    char scheme[32];
    struct hfi_url url = { .scheme = scheme };
    struct consul_config config = { .address_count = 0 };
    hf_error err = { 0 };
    if (hfi_url_split(scheme, &url.rest, text, &err) != HF_OK)
        return;
    const hf_status status = hfi_consul_config_read(&config, &url, &err);
    if (status == HF_OK) {
        FUZZ_REQUIRE(config.address_count > 0 && config.address_count <= HFI_CONSUL_HOSTS_MOST);
        FUZZ_REQUIRE(*config.prefix && strlen(config.prefix) <= HFI_CONSUL_PREFIX_MAX);
        FUZZ_REQUIRE(config.lock_delay_ms <= 60000);
        for (size_t i = 0; i < config.address_count; i++)
            FUZZ_REQUIRE(*config.addresses[i].host && *config.addresses[i].port);
    } else {
        FUZZ_REQUIRE(err.status == status && *err.message);
    }
    hfi_consul_config_free(&config);
}

static void read_all(const struct consul_store *store, const struct consul_answer *answer)
{
    const struct hfi_owner owner = { 1, 2 };
    struct consul_view view;
    struct consul_entry entry;
    char who[160];
    hfi_consul_view(&view, answer, store, "x", owner);
    FUZZ_REQUIRE(!view.mine || !view.free);
    FUZZ_REQUIRE(view.ahead_count == 0 || view.last.key);
    hfi_consul_say_who(who, &view.lock);
    for (size_t i = 0; i < hfi_consul_entries(answer); i++) {
        if (hfi_consul_entry(answer, i, &entry))
            FUZZ_REQUIRE(entry.key && entry.session && entry.modified > 0);
        hfi_consul_number(answer, i);
    }
    struct consul_lock lock = { .done = false };
    const struct hfi_request request = { .name = "x", .once = true };
    struct consul_work work = { .lock = &lock, .request = &request, .answer = *answer };
    hfi_consul_done_key(work.done, store, "x");
    hfi_consul_note_done(&work);
    FUZZ_REQUIRE(!lock.done || (lock.done_ago_ms >= -1 && lock.done_left_ms >= -1));
}

static void check_answer(const uint8_t *data, size_t size)
{
    static char prefix[] = "holdfast";
    struct hfi_env env = { .now_ns = hfi_now_ns, .random = hfi_random };
    struct consul_store store = { .env = &env, .config = { .address_count = 1, .prefix = prefix } };
    struct consul_exchange exchange = { .begun_ns = hfi_now_ns() };
    struct consul_answer answer;
    int ends[2];
    snprintf(store.config.addresses[0].host, sizeof store.config.addresses[0].host, "h");
    FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    struct consul_connection *connection = exchange.connection = hfi_alloc(sizeof *connection);
    FUZZ_REQUIRE(connection != NULL);
    FUZZ_REQUIRE(pthread_mutex_init(&store.mutex, NULL) == 0);
    connection->fd = ends[0];
    connection->phase = CONSUL_RECEIVING;
    connection->out_sent = 1;
    const ssize_t sent = size ? write(ends[1], data, size) : 0;
    FUZZ_REQUIRE(sent == (ssize_t)size);
    close(ends[1]);
    if (hfi_consul_txn_end(&store, &exchange, &answer, hfi_now_ns() + HFI_SECOND, NULL) == HF_OK) {
        read_all(&store, &answer);
        hfi_consul_answer_free(&answer);
    }
    FUZZ_REQUIRE(exchange.connection == NULL);
    for (struct consul_connection *next; store.idle; store.idle = next) {
        next = store.idle->next;
        hfi_consul_disconnect(store.idle);
    }
    pthread_mutex_destroy(&store.mutex);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[4096];
    if (size > INPUT_MOST)
        return 0;
    if (size < 6 || memcmp(data, "consul", 6) != 0) {
        check_answer(data, size);
    } else if (size < sizeof text) {
        memcpy(text, data, size);
        text[size] = 0;
        check_url(text);
    }
    return 0;
}
