/* SPDX-License-Identifier: MIT
 *
 * stock.c: the last item in stock. Eight customers, each a process of its own, want the one umbrella that is left.
 *
 *     cc stock.c -lholdfast -o stock && ./stock [URL]
 *
 * Each customer looks at the shelf, walks to it, and takes an umbrella if there was one: read, check, write. Without
 * a lock several of them would see the same umbrella. Exits 0 if exactly one customer got it.
 */
#include <holdfast.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUSTOMERS 8

/* How a customer's process ends. */
enum { BOUGHT = 0, SOLD_OUT = 1, FAILED = 2 };

/* What the shelf's file holds. */
struct shelf {
    int left;
    uint64_t token; /* of whoever changed it last */
};

static bool read_shelf(const char *path, struct shelf *shelf)
{
    FILE *file = fopen(path, "rb");
    bool done = file && fread(shelf, sizeof *shelf, 1, file) == 1;

    if (file)
        fclose(file);
    return done;
}

static bool write_shelf(const char *path, struct shelf shelf)
{
    FILE *file = fopen(path, "wb");

    if (!file)
        return false;
    fwrite(&shelf, sizeof shelf, 1, file);
    return fclose(file) == 0;
}

/* Read, check, write. Only called while the lock is held. */
static int take_one(const char *path, uint64_t token)
{
    struct shelf shelf;

    if (!read_shelf(path, &shelf))
        return FAILED;
    /* Fencing: somebody with a newer lock was here, so ours has ended without our noticing. A database makes this
     * check part of the write: UPDATE shelf SET left = left - 1, token = :token WHERE token <= :token. */
    if (token < shelf.token)
        return FAILED;
    if (shelf.left == 0)
        return SOLD_OUT;
    usleep(20000); /* the walk to the shelf: time enough for the others, if there were no lock */
    shelf.left--;
    shelf.token = token;
    return write_shelf(path, shelf) ? BOUGHT : FAILED;
}

static int buy(const char *url, const char *path)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_client *client;
    hf_lock *lock;
    hf_error err;
    int result = FAILED;

    /* Nothing crosses fork(), so every process opens a client of its own. */
    if (hf_open(&client, url, NULL, &err) != HF_OK) {
        fprintf(stderr, "stock: %s\n", err.message);
        return FAILED;
    }
    options.wait_ms = 20000; /* do not wait for ever */
    options.note = "buying the last umbrella";
    if (!(hf_capabilities(client) & HF_CAP_PROCESSES)) {
        fprintf(stderr, "stock: %s does not reach beyond one process\n", hf_url(client));
    } else if (hf_acquire(&lock, client, "umbrella", &options, &err) != HF_OK) {
        fprintf(stderr, "stock: %s\n", err.message);
    } else {
        result = take_one(path, hf_token(lock));
        printf("customer %ld  token %-4" PRIu64 " %s\n", (long)getpid(), hf_token(lock),
               result == BOUGHT     ? "bought it"
               : result == SOLD_OUT ? "came too late"
                                    : "FAILED");
        fflush(stdout);
        /* HF_LOST here would mean that the lock had ended before we were done. */
        if (hf_release(lock, &err) != HF_OK) {
            fprintf(stderr, "stock: %s\n", err.message);
            result = FAILED;
        }
    }
    hf_close(client);
    return result;
}

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : "file:";
    char path[] = "/tmp/holdfast-stock-XXXXXX";
    struct shelf full = { .left = 1 };
    int count[3] = { 0, 0, 0 };
    int fd = mkstemp(path);

    if (fd < 0 || !write_shelf(path, full)) {
        perror(path);
        return 1;
    }
    close(fd);
    for (int i = 0; i < CUSTOMERS; i++) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(buy(url, path));
        if (pid < 0)
            count[FAILED]++;
    }
    for (int status; wait(&status) > 0;)
        count[WIFEXITED(status) && WEXITSTATUS(status) < FAILED ? WEXITSTATUS(status) : FAILED]++;
    unlink(path);

    printf("1 umbrella: %d bought, %d came too late, %d failed\n", count[BOUGHT], count[SOLD_OUT], count[FAILED]);
    return count[BOUGHT] == 1 && count[SOLD_OUT] == CUSTOMERS - 1 ? 0 : 1;
}
