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
#include <time.h>

enum { LINE_BYTES = 512, NAME_BYTES = 256, MAX_LOCKS = 32, PATIENCE_MS = 20000 };

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
    bool timed; /* the answer to a call says when that began, and when it was back */
} peer;

/* On the clock that all processes of a machine share. */
static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The other side is a pipe: what stays in a buffer would never be answered. */
static void say(const char *answer)
{
    puts(answer);
    fflush(stdout);
}

/* The same for a call, with the moments of its beginning and end if they were asked for. */
static void say_when(const peer *self, const char *answer, int64_t called_ns, int64_t back_ns)
{
    if (self->timed)
        printf("%s %" PRId64 " %" PRId64 "\n", answer, called_ns, back_ns);
    else
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
    int64_t called_ns, back_ns;

    if (self->count == MAX_LOCKS) {
        say("error too many locks");
        return;
    }
    options.ttl_ms = order->ttl_ms;
    options.wait_ms = order->wait_ms;
    options.renew = strcmp(order->verb, "keep") == 0 ? HF_RENEW_ON : HF_RENEW_OFF;
    options.on_lost = on_lost;
    called_ns = now_ns();
    if (wait)
        status = hf_acquire(&lock, self->client, order->name, &options, &err);
    else
        status = hf_try_acquire(&lock, self->client, order->name, &options, &err);
    back_ns = now_ns();
    if (status == HF_OK) {
        held_lock *entry = &self->held[self->count++];
        snprintf(entry->name, sizeof(entry->name), "%s", order->name);
        entry->lock = lock;
        say_when(self, "held", called_ns, back_ns);
    } else if (status == HF_BUSY || status == HF_TIMEOUT) {
        say("busy");
    } else {
        say_error(status, &err);
    }
}

/* The newest hold of that name, as the other clients count theirs; NULL if there is none. */
static held_lock *find(peer *self, const char *name)
{
    for (size_t index = self->count; index > 0; index--)
        if (strcmp(self->held[index - 1].name, name) == 0)
            return &self->held[index - 1];
    say("error not held");
    return NULL;
}

static void release(peer *self, const char *name)
{
    held_lock *entry = find(self, name);
    hf_error err = { 0 };
    hf_status status;
    int64_t called_ns, back_ns;

    if (entry == NULL)
        return;
    called_ns = now_ns();
    status = hf_release(entry->lock, &err);
    back_ns = now_ns();
    self->count--;
    memmove(entry, entry + 1, (size_t)(&self->held[self->count] - entry) * sizeof(*entry));
    if (status == HF_OK)
        say_when(self, "released", called_ns, back_ns);
    else if (status == HF_LOST)
        say("refused");
    else
        say_error(status, &err);
}

static void say_token(peer *self, const char *name)
{
    const held_lock *entry = find(self, name);

    if (entry == NULL)
        return;
    printf("%" PRIu64 "\n", hf_token(entry->lock));
    fflush(stdout);
}

/* Nanoseconds of each pair of a lock that nobody else wants. */
static void say_pairs(const peer *self, const char *name, uint32_t count)
{
    hf_options options = HF_OPTIONS_INIT;

    options.wait_ms = PATIENCE_MS;
    for (uint32_t i = 0; i < count; i++) {
        hf_error err = { 0 };
        hf_lock *lock;
        int64_t start_ns = now_ns();
        hf_status status = hf_acquire(&lock, self->client, name, &options, &err);

        if (status == HF_OK)
            status = hf_release(lock, &err);
        if (status != HF_OK) {
            say_error(status, &err);
            return;
        }
        printf("%" PRId64 " ", now_ns() - start_ns);
    }
    say("");
}

static void obey(peer *self, const char *line)
{
    command order = { 0 };

    self->timed = strncmp(line, "timed ", 6) == 0;
    if (self->timed)
        line += 6;
    if (sscanf(line, "%15s %255s %" SCNu32 " %" SCNu32, order.verb, order.name, &order.ttl_ms, &order.wait_ms) < 2)
        say("error a command needs the name of a lock");
    else if (strcmp(order.verb, "try") == 0 || strcmp(order.verb, "acquire") == 0 || strcmp(order.verb, "keep") == 0)
        take(self, &order);
    else if (strcmp(order.verb, "release") == 0)
        release(self, order.name);
    else if (strcmp(order.verb, "token") == 0)
        say_token(self, order.name);
    else if (strcmp(order.verb, "pairs") == 0)
        say_pairs(self, order.name, order.ttl_ms);
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
