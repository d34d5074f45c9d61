/* SPDX-License-Identifier: MIT
 *
 * talk.h: for engines with sockets of their own and a server that answers in the order in which it is asked: a URL with
 * one host, connections that each serve one thread at a time, and exchanges by a deadline.
 */
#ifndef HFI_TALK_H
#define HFI_TALK_H

#include "engines/dial.h"
#include <pthread.h>

/* A server, and the idle connections to it. */
struct hfi_talks {
    const struct hfi_env *env;
    size_t size; /* of a connection, which begins with a struct hfi_talk */
    /* Where the answer at `at` ends; NULL: not before `limit`. There is a 0 at `limit`. */
    const char *(*end_of)(const char *at, const char *limit);
    char host[256], port[8]; /* port "": the host is a socket's path */
    pthread_mutex_t mutex;
    struct hfi_talk *idle;
    size_t idle_count;
};

/* A connection, and what is said on it. */
struct hfi_talk {
    struct hfi_talk *next;
    struct hfi_talks *of;
    struct hfi_dial dial;
    int fd;
    bool is_new;    /* nothing was said on it yet */
    bool is_broken; /* what comes next on it is not to be believed */
    hfi_time deadline_ns;
    hf_status
        silence; /* what it means that there is no answer: HF_UNKNOWN, or HF_UNAVAILABLE where that does not matter */
    hf_error *err;
    size_t out_used, in_used; /* of: */
    char out[32768], in[32768];
};

/* Even if the URL is refused, which may be "//HOST", "//HOST:PORT", "//[HOST]:PORT" or, with a scheme that ends in
 * "+unix", "//PATH", hfi_talks_close() comes last. */
hf_status hfi_talks_open(struct hfi_talks *talks, const struct hfi_url *url, const char *usual_port, hf_error *err);
void hfi_talks_close(struct hfi_talks *talks);

/* An idle connection, or a new one. hfi_talk_end() must follow after HF_OK. */
hf_status hfi_talk_begin(struct hfi_talk **out, struct hfi_talks *talks, hfi_time deadline_ns, hf_error *err);
/* Adds to what will be sent; what there is no room for is a mistake of the engine's. */
void hfi_talk_add(struct hfi_talk *talk, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sends it, and reads so many answers, which are in talk->in then, with a 0 behind them. */
hf_status hfi_talk_ask(struct hfi_talk *talk, size_t answers);
/* Keeps the connection, or closes it if it is broken or many are kept. Returns `status`. */
hf_status hfi_talk_end(struct hfi_talk *talk, hf_status status);

#endif
