/* SPDX-License-Identifier: MIT
 *
 * compare_consul.c: what Holdfast adds to the requests of an uncontended lock, and what a hand-off costs.
 *
 *     compare_consul URL [ROUNDS]    prints one object of JSON; URL is consul://HOST:PORT
 *
 * The raw side makes the requests of Consul's own client with libcurl, over one connection each that is kept: acquire
 * and release a key with a session; and to be handed the lock, a long poll on the key, then acquire. Both sides take
 * turns, so that they see the same machine.
 */
#include "compare_store.h"
#include <curl/curl.h>
#include <holdfast.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDOFFS 200
#define BATCH 50

/* --- plain libcurl --- */

struct raw {
    CURL *curl;
    char where[200]; /* http://HOST:PORT */
    char session[40];
    char answer[1000];
    size_t used;
    unsigned long long index;
};

static size_t keep_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct raw *raw = arg;
    const size_t room = sizeof raw->answer - 1 - raw->used;
    const size_t some = size * count < room ? size * count : room;
    memcpy(raw->answer + raw->used, bytes, some);
    raw->used += some;
    raw->answer[raw->used] = 0;
    return size * count;
}

static size_t keep_index(char *bytes, size_t size, size_t count, void *arg)
{
    struct raw *raw = arg;
    sscanf(bytes, "X-Consul-Index: %llu", &raw->index);
    return size * count;
}

static void raw_ask(struct raw *raw, const char *method, const char *path, const char *body)
{
    char url[500];
    snprintf(url, sizeof url, "%s%s", raw->where, path);
    raw->used = 0;
    raw->answer[0] = 0;
    curl_easy_setopt(raw->curl, CURLOPT_URL, url);
    curl_easy_setopt(raw->curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(raw->curl, CURLOPT_POSTFIELDS, body);
    if (!body)
        curl_easy_setopt(raw->curl, CURLOPT_HTTPGET, 1L);
    demand(curl_easy_perform(raw->curl) == CURLE_OK, "no answer");
}

static void raw_open(struct raw *raw, const char *url)
{
    const char *host = strstr(url, "://");
    demand(host != NULL && (raw->curl = curl_easy_init()) != NULL, "the URL is consul://HOST:PORT");
    snprintf(raw->where, sizeof raw->where, "http://%.*s", (int)strcspn(host + 3, "/?"), host + 3);
    curl_easy_setopt(raw->curl, CURLOPT_WRITEFUNCTION, keep_body);
    curl_easy_setopt(raw->curl, CURLOPT_WRITEDATA, raw);
    curl_easy_setopt(raw->curl, CURLOPT_HEADERFUNCTION, keep_index);
    curl_easy_setopt(raw->curl, CURLOPT_HEADERDATA, raw);
    raw_ask(raw, "PUT", "/v1/session/create", "{\"TTL\": \"60s\", \"LockDelay\": \"0s\"}");
    demand(sscanf(raw->answer, "{\"ID\":\"%36[^\"]", raw->session) == 1, "no session");
}

static void raw_close(struct raw *raw)
{
    char path[100];
    snprintf(path, sizeof path, "/v1/session/destroy/%s", raw->session);
    raw_ask(raw, "PUT", path, "");
    curl_easy_cleanup(raw->curl);
}

static bool raw_change(struct raw *raw, const char *verb)
{
    char path[200];
    snprintf(path, sizeof path, "/v1/kv/raw/.lock?%s=%s&flags=3304740253564472344", verb, raw->session);
    raw_ask(raw, "PUT", path, "holder");
    return strncmp(raw->answer, "true", 4) == 0;
}

/* As api.Lock waits: by a long poll, until nobody has it. */
static void raw_acquire(struct raw *raw)
{
    char path[200];
    raw->index = 0;
    do {
        snprintf(path, sizeof path, "/v1/kv/raw/.lock?wait=15s&index=%llu", raw->index);
        raw_ask(raw, "GET", path, NULL);
    } while (strstr(raw->answer, "\"Session\"") || !raw_change(raw, "acquire"));
}

/* --- pairs --- */

static double raw_pair_us(struct raw *raw)
{
    const double start = now_us();
    demand(raw_change(raw, "acquire") && raw_change(raw, "release"), "not acquired, or not released");
    return now_us() - start;
}

/* --- hand-off --- */

struct runner {
    struct raw *raw;
    double got_us;
};

static void *wait_in_thread(void *arg)
{
    struct runner *runner = arg;
    raw_acquire(runner->raw);
    runner->got_us = now_us();
    return NULL;
}

static double raw_handoff_us(struct raw *holder, struct raw *other)
{
    struct runner runner = { .raw = other };
    pthread_t thread;
    demand(raw_change(holder, "acquire"), "not free");
    demand(pthread_create(&thread, NULL, wait_in_thread, &runner) == 0, "no thread");
    rest();
    const double start = now_us();
    raw_change(holder, "release");
    pthread_join(thread, NULL);
    raw_change(other, "release");
    return runner.got_us - start;
}

int main(int argc, char **argv)
{
    demand(argc >= 2, "usage: compare_consul URL [ROUNDS]");
    const size_t rounds = argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 1000;
    double *ours = calloc(rounds, sizeof *ours), *theirs = calloc(rounds, sizeof *theirs), mine[HANDOFFS],
           plain[HANDOFFS];
    struct raw raw = { .curl = NULL }, second = { .curl = NULL };
    hf_client *client = NULL, *other = NULL;
    hf_error err = { 0 };
    demand(ours && theirs && rounds > 0, "no memory");
    demand(hf_open(&client, argv[1], NULL, &err) == HF_OK && hf_open(&other, argv[1], NULL, &err) == HF_OK,
           err.message);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    raw_open(&raw, argv[1]);
    raw_open(&second, argv[1]);
    for (size_t i = 0; i < rounds; i += BATCH) {
        for (size_t j = i; j < i + BATCH && j < rounds; j++)
            ours[j] = our_pair_us(client);
        for (size_t j = i; j < i + BATCH && j < rounds; j++)
            theirs[j] = raw_pair_us(&raw);
    }
    for (size_t i = 0; i < HANDOFFS; i++) {
        mine[i] = our_handoff_us(client, other);
        plain[i] = raw_handoff_us(&raw, &second);
    }
    const double pair = median(ours, rounds), raw_pair = median(theirs, rounds), handoff = median(mine, HANDOFFS),
                 raw_handoff = median(plain, HANDOFFS);
    printf(
        "{\"pair_us\": %.1f, \"raw_pair_us\": %.1f, \"ratio\": %.3f, \"handoff_us\": %.1f, \"raw_handoff_us\": %.1f, "
        "\"handoff_ratio\": %.3f}\n",
        pair, raw_pair, pair / raw_pair, handoff, raw_handoff, handoff / raw_handoff);
    raw_close(&raw);
    raw_close(&second);
    hf_close(client);
    hf_close(other);
    free(ours);
    free(theirs);
    return 0;
}
