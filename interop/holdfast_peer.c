/* SPDX-License-Identifier: MIT
 *
 * holdfast_peer.c: Holdfast, played by interop/run through one line at a time (see interop/README.md).
 *
 *     holdfast_peer URL
 */
#include <holdfast.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 512, NAME_BYTES = 256, MAX_LOCKS = 32 };

/* One line of input, taken apart. */
typedef struct command {
    char verb[16];
    char name[NAME_BYTES];
    uint32_t ttl_ms;
    uint32_t wait_ms;
} command;

typedef struct held_lock {
    char name[NAME_BYTES];
    hf_lock *lock;
} held_lock;

typedef struct peer {
    hf_client *client;
    held_lock held[MAX_LOCKS]; /* in the order in which they were taken */
    size_t count;
} peer;

/* The other side is a pipe: what stays in a buffer would never be answered. */
static void say(const char *answer)
{
    puts(answer);
    fflush(stdout);
}

static void say_error(hf_status status, const hf_error *err)
{
    printf("error %s: %s\n", hf_status_name(status), err->message);
    fflush(stdout);
}

static void on_lost(hf_lock *lock, const char *why, void *arg)
{
    (void)lock;
    (void)arg;
    fprintf(stderr, "lost: %s\n", why);
}

static void take(peer *self, const command *order)
{
    bool wait = strcmp(order->verb, "try") != 0;
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    hf_lock *lock;
    hf_status status;

    if (self->count == MAX_LOCKS) {
        say("error too many locks");
        return;
    }
    options.ttl_ms = order->ttl_ms;
    options.wait_ms = order->wait_ms;
    options.renew = strcmp(order->verb, "keep") == 0 ? HF_RENEW_ON : HF_RENEW_OFF;
    options.on_lost = on_lost;
    if (wait)
        status = hf_acquire(&lock, self->client, order->name, &options, &err);
    else
        status = hf_try_acquire(&lock, self->client, order->name, &options, &err);
    if (status == HF_OK) {
        held_lock *entry = &self->held[self->count++];
        snprintf(entry->name, sizeof(entry->name), "%s", order->name);
        entry->lock = lock;
        say("held");
    } else if (status == HF_BUSY || status == HF_TIMEOUT) {
        say("busy");
    } else {
        say_error(status, &err);
    }
}

/* The newest hold of that name, as the other clients count theirs. */
static void release(peer *self, const char *name)
{
    size_t index = self->count;
    hf_error err = { 0 };
    hf_status status;

    while (index > 0 && strcmp(self->held[index - 1].name, name) != 0)
        index--;
    if (index == 0) {
        say("error not held");
        return;
    }
    status = hf_release(self->held[index - 1].lock, &err);
    self->count--;
    memmove(&self->held[index - 1], &self->held[index], (self->count - (index - 1)) * sizeof(self->held[0]));
    if (status == HF_OK)
        say("released");
    else if (status == HF_LOST)
        say("refused");
    else
        say_error(status, &err);
}

static void obey(peer *self, const char *line)
{
    command order = { 0 };

    if (sscanf(line, "%15s %255s %" SCNu32 " %" SCNu32, order.verb, order.name, &order.ttl_ms, &order.wait_ms) < 2)
        say("error a command needs the name of a lock");
    else if (strcmp(order.verb, "try") == 0 || strcmp(order.verb, "acquire") == 0 || strcmp(order.verb, "keep") == 0)
        take(self, &order);
    else if (strcmp(order.verb, "release") == 0)
        release(self, order.name);
    else
        say("error unknown command");
}

int main(int argc, char **argv)
{
    char line[LINE_BYTES];
    hf_error err = { 0 };
    peer self = { 0 };

    if (argc != 2) {
        fputs("usage: holdfast_peer URL\n", stderr);
        return 64;
    }
    if (hf_open(&self.client, argv[1], NULL, &err) != HF_OK) {
        fprintf(stderr, "holdfast_peer: %s\n", err.message);
        return 1;
    }
    say("ready");
    while (fgets(line, sizeof(line), stdin) != NULL && strcmp(line, "quit\n") != 0)
        obey(&self, line);
    hf_close(self.client);
    while (self.count > 0)
        hf_release(self.held[--self.count].lock, NULL);
    return 0;
}
