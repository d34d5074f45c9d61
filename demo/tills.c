/* SPDX-License-Identifier: MIT
 *
 * tills.c: the heart of `make demo`. Six processes sell the last 100 items of a stock, first without a lock, then
 * with one.
 *
 *     demo-tills URL STOCKFILE
 *
 * Every till is a process and sends its news to the parent through one pipe; the parent draws. A receipt is sent
 * before the lock is released, so receipts arrive in the order of the grants, and the parent can check that tokens
 * grow. Exits 0 only if the run without a lock sold more than there was and the run with it exactly that.
 */
#include "demo.h"
#include <fcntl.h>
#include <holdfast.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THINK_MS_MIN 8
#define THINK_MS_MAX 30
#define FRAME_MS 60
#define ROUND_LIMIT_US (30 * INT64_C(1000000)) /* far more than a round needs: a demonstration that hangs is a bug */
#define SALES_LIMIT (50 * ITEMS)               /* of one till, likewise */

/* Smaller than PIPE_BUF, so that news of two tills never mix. */
struct news {
    int till;
    enum doing doing;
    int left;
    uint64_t token;
    int64_t waited_us;
};

/* What a till works with. */
struct counter {
    int number;
    int news_fd;
    int stock_fd;
    hf_client *client; /* NULL: no lock */
    unsigned seed;
};

int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int fewest_sold(const struct round *round)
{
    int fewest = round->tills[0].sold;

    for (int i = 1; i < TILLS; i++)
        if (round->tills[i].sold < fewest)
            fewest = round->tills[i].sold;
    return fewest;
}

int most_sold(const struct round *round)
{
    int most = 0;

    for (int i = 0; i < TILLS; i++)
        if (round->tills[i].sold > most)
            most = round->tills[i].sold;
    return most;
}

int64_t longest_wait_us(const struct round *round)
{
    int64_t longest = 0;

    for (int i = 0; i < TILLS; i++)
        if (round->tills[i].longest_wait_us > longest)
            longest = round->tills[i].longest_wait_us;
    return longest;
}

/* ----------------------------------------------------------------------------------- the stock: a number in a file */

static bool stock_write(int fd, int left)
{
    char text[16];

    snprintf(text, sizeof text, "%5d\n", left);
    return pwrite(fd, text, 6, 0) == 6;
}

/* -1 if it cannot be read. */
static int stock_read(int fd)
{
    char text[16] = "";

    return pread(fd, text, 6, 0) == 6 ? (int)strtol(text, NULL, 10) : -1;
}

/* --------------------------------------------------------------------------------------- a till: the child process */

static void send_news(const struct counter *counter, enum doing doing, const hf_lock *lock, int left, int64_t waited_us)
{
    struct news news = { counter->number, doing, left, lock ? hf_token(lock) : 0, waited_us };

    if (write(counter->news_fd, &news, sizeof news) != sizeof news)
        _exit(1); /* the parent is gone, and nobody is watching */
}

static void think(struct counter *counter)
{
    usleep(1000 * (useconds_t)(THINK_MS_MIN + rand_r(&counter->seed) % (THINK_MS_MAX - THINK_MS_MIN + 1)));
}

/* Read, think, write back. CLOSED: there was nothing left. */
static enum doing sell_one(struct counter *counter, const hf_lock *lock, int64_t waited_us)
{
    int left = stock_read(counter->stock_fd);

    if (left <= 0)
        return left == 0 ? CLOSED : FAILED;
    send_news(counter, SERVING, lock, left, waited_us);
    think(counter);
    if (!stock_write(counter->stock_fd, left - 1))
        return FAILED;
    send_news(counter, SOLD, lock, left - 1, waited_us);
    return SOLD;
}

static enum doing sell_one_under_lock(struct counter *counter)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock;
    hf_error err;
    enum doing result;
    int64_t asked_us = now_us();

    options.wait_ms = 10000;
    options.note = "selling the last items";
    send_news(counter, WAITING, NULL, 0, 0);
    if (hf_acquire(&lock, counter->client, "stock", &options, &err) != HF_OK) {
        fprintf(stderr, "till %d: %s\n", counter->number + 1, err.message);
        return FAILED;
    }
    result = sell_one(counter, lock, now_us() - asked_us);
    if (hf_release(lock, &err) != HF_OK) {
        fprintf(stderr, "till %d: %s\n", counter->number + 1, err.message);
        return FAILED;
    }
    return result;
}

static int run_till(struct counter *counter, const char *url, int start_fd)
{
    enum doing result = SOLD;
    hf_error err;
    char byte;

    counter->seed = (unsigned)(now_us() + counter->number);
    if (url && hf_open(&counter->client, url, NULL, &err) != HF_OK) {
        fprintf(stderr, "till %d: %s\n", counter->number + 1, err.message);
        result = FAILED;
    }
    if (read(start_fd, &byte, 1) != 0) /* returns once the parent closes its end: all tills open at once */
        result = FAILED;
    for (int i = 0; i < SALES_LIMIT && result == SOLD; i++)
        result = counter->client ? sell_one_under_lock(counter) : sell_one(counter, NULL, 0);
    hf_close(counter->client);
    send_news(counter, result == CLOSED ? CLOSED : FAILED, NULL, 0, 0);
    return result == CLOSED ? 0 : 1;
}

/* --------------------------------------------------------------------------------------------- the parent: a round */

static void take_news(struct round *round, const struct news *news)
{
    struct till *till = &round->tills[news->till];

    till->doing = news->doing;
    till->since_us = now_us();
    if (news->doing != SOLD)
        return;
    till->sold++;
    till->token = news->token;
    till->waited_us += news->waited_us;
    if (news->waited_us > till->longest_wait_us)
        till->longest_wait_us = news->waited_us;
    if (round->receipts < FIRST_GRANTS)
        round->first_grants[round->receipts] = (struct grant){ news->till, news->token };
    if (round->receipts > 0 && news->token <= round->last_token)
        round->tokens_grow = false;
    round->last_token = news->token;
    round->receipts++;
    round->left = news->left;
}

/* Reads and draws until the last till has closed its end of the pipe. */
static bool watch(struct round *round, int news_fd)
{
    struct pollfd ready = { .fd = news_fd, .events = POLLIN };
    int64_t started_us = now_us();
    int64_t next_frame_us = started_us;

    while (now_us() - started_us < ROUND_LIMIT_US) {
        struct news news;
        int64_t left_us = next_frame_us - now_us();

        if (left_us <= 0) {
            screen_draw(round, false);
            next_frame_us = now_us() + FRAME_MS * 1000;
            continue;
        }
        if (poll(&ready, 1, (int)(left_us / 1000) + 1) <= 0)
            continue;
        if (read(news_fd, &news, sizeof news) != sizeof news) {
            round->took_us = now_us() - started_us;
            return true;
        }
        if (news.doing == SERVING)
            round->tills[news.till].token = news.token;
        take_news(round, &news);
    }
    fprintf(stderr, "demo: the tills did not come to an end\n");
    return false;
}

static pid_t open_till(int number, const char *url, int stock_fd, const int news[2], const int start[2])
{
    struct counter counter = { .number = number, .news_fd = news[1], .stock_fd = stock_fd };
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    /* Whoever interrupts the demonstration leaves no till behind. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    close(news[0]);
    close(start[1]);
    _exit(run_till(&counter, url, start[0]));
}

static bool run_round(struct round *round, const char *url, int stock_fd)
{
    pid_t pids[TILLS];
    int news[2], start[2];
    bool right;

    *round = (struct round){ .locked = url != NULL, .left = ITEMS, .tokens_grow = true };
    screen_title(round);
    if (!stock_write(stock_fd, ITEMS) || pipe2(news, O_CLOEXEC) != 0 || pipe2(start, O_CLOEXEC) != 0) {
        perror("demo");
        return false;
    }
    for (int i = 0; i < TILLS; i++)
        pids[i] = open_till(i, url, stock_fd, news, start);
    close(news[1]);
    close(start[0]);
    close(start[1]);
    right = watch(round, news[0]);
    close(news[0]);
    for (int i = 0; i < TILLS; i++) {
        int status;

        if (pids[i] > 0 && !right)
            kill(pids[i], SIGKILL);
        if (pids[i] < 0 || waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            right = false;
    }
    screen_draw(round, true);
    return right;
}

int main(int argc, char **argv)
{
    struct round without, with;
    int stock_fd = argc == 3 ? open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    bool right;

    if (stock_fd < 0) {
        fprintf(stderr, "usage: demo-tills URL STOCKFILE\n");
        return 64;
    }
    screen_start();
    if (!run_round(&without, NULL, stock_fd))
        return 1;
    printf("\n");
    if (!run_round(&with, argv[1], stock_fd))
        return 1;
    screen_compare(&without, &with);
    right = without.receipts > ITEMS && with.receipts == ITEMS && with.left == 0 && with.tokens_grow;
    screen_verdict(right);
    return right ? 0 : 1;
}
