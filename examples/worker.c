/* SPDX-License-Identifier: MIT
 *
 * worker.c: a worker that stops when its lock is lost, and a ledger that would refuse it if it did not.
 *
 *     cc worker.c -lholdfast -o worker && ./worker [URL]
 *
 * A lock can end while you work: the network was away for too long, an administrator broke it, or, as here, the work
 * took longer than max_hold_ms allows. There are two ways to be told, and this program uses both: a callback, and a
 * descriptor for programs that sit in poll(). Exits 0 if the worker was told, stopped, and its successor took over.
 */
#include <holdfast.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

/* Where the work goes. It remembers the largest token it has seen and refuses smaller ones: the last line of defence
 * against a worker that was paused at the wrong moment and has not heard the news yet. */
struct ledger {
    uint64_t largest_token;
    int entries;
};

static bool ledger_write(struct ledger *ledger, uint64_t token)
{
    if (token < ledger->largest_token)
        return false;
    ledger->largest_token = token;
    ledger->entries++;
    return true;
}

/* Runs on a thread of the library, so it only counts and speaks. Real programs set a flag or write to a pipe here. */
static void tell(hf_lock *lock, const char *why, void *arg)
{
    atomic_int *told = arg;

    atomic_fetch_add(told, 1);
    printf("callback: token %" PRIu64 " is lost: %s\n", hf_token(lock), why);
}

/* Works step by step until the lock is lost. True if that came to pass, false if there was no end to it. */
static bool work_until_lost(hf_lock *lock, struct ledger *ledger)
{
    struct pollfd lost = { .fd = hf_lost_fd(lock), .events = POLLIN };

    if (lost.fd < 0)
        return false;
    for (int step = 1; step <= 1000; step++) {
        /* One step of work takes 20 ms. poll() sleeps that long, or less if the lock is lost: then it says so. A
         * program with sockets of its own puts them into the same poll(). */
        if (poll(&lost, 1, 20) > 0) {
            printf("descriptor: the lock is lost, stopping before step %d\n", step);
            return true;
        }
        if (!ledger_write(ledger, hf_token(lock)))
            return false;
    }
    return false;
}

static bool expect(bool fact, const char *words)
{
    printf("%s %s\n", fact ? "  ok:" : "  WRONG:", words);
    return fact;
}

/* The worker's whole life. Returns its token, 0 if anything went wrong. */
static uint64_t first_worker(hf_client *client, struct ledger *ledger, atomic_int *told)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock;
    hf_error err;
    uint64_t token;
    bool right;

    options.wait_ms = 20000;
    options.max_hold_ms = 300; /* this is what ends it */
    options.on_lost = tell;
    options.arg = told;
    options.note = "writing the ledger";
    if (hf_acquire(&lock, client, "ledger", &options, &err) != HF_OK) {
        fprintf(stderr, "worker: %s\n", err.message);
        return 0;
    }
    token = hf_token(lock);
    printf("working with token %" PRIu64 ", certain for %" PRId64 " ms\n", token, hf_remaining_ms(lock));
    right = expect(work_until_lost(lock, ledger), "the worker heard of the loss and stopped");
    right &= expect(hf_remaining_ms(lock) <= 0, "no time remains");
    right &= expect(hf_release(lock, NULL) == HF_LOST, "hf_release() says HF_LOST, and disturbs nobody");
    return right ? token : 0;
}

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : "file:";
    struct ledger ledger = { 0, 0 };
    atomic_int told = 0;
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client;
    hf_lock *lock = NULL;
    hf_error err;
    uint64_t old_token;
    bool right = false;

    if (hf_open(&client, url, NULL, &err) != HF_OK) {
        fprintf(stderr, "worker: %s\n", err.message);
        return 1;
    }
    options.wait_ms = 20000;
    old_token = first_worker(client, &ledger, &told);
    if (old_token != 0 && hf_acquire(&lock, client, "ledger", &options, &err) != HF_OK)
        fprintf(stderr, "worker: %s\n", err.message);
    if (lock) {
        printf("the successor has token %" PRIu64 "\n", hf_token(lock));
        right = expect(hf_token(lock) > old_token, "its token is greater");
        right &= expect(ledger_write(&ledger, hf_token(lock)), "the ledger takes its entry");
        right &= expect(!ledger_write(&ledger, old_token), "the ledger refuses a late entry of the first worker");
        right &= expect(hf_release(lock, &err) == HF_OK, "it held the lock until it gave it back");
    }
    hf_close(client);
    right &= expect(atomic_load(&told) == 1, "the callback was called once");
    return right ? 0 : 1;
}
