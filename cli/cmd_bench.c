/* SPDX-License-Identifier: MIT
 *
 * cmd_bench.c: `holdfast bench` measures a store from where it is used: what a pair of acquire and release costs, how
 * many of them go through, how a lock is shared out among many, and how long it takes from one hand to the next.
 *
 * Processes are forked before this process opens a client of its own, because nothing of Holdfast crosses fork().
 */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Held for the length of a run: two runs on one store would measure each other. */
#define GUARD_NAME "holdfast-bench"
#define DEFAULT_WORKERS 8
#define DEFAULT_WINDOW_MS 5000
#define WINDOW_MAX_MS (3600 * 1000)
#define PROGRESS_NS (BENCH_SECOND_NS / 4)

static const struct {
    const char *name;
    uint32_t workers; /* 0: as many as the user wants */
} modes[] = {
    [BENCH_PAIR] = { "pair", 1 },
    [BENCH_THROUGHPUT] = { "throughput", 0 },
    [BENCH_CONTEND] = { "contend", 0 },
    [BENCH_HANDOFF] = { "handoff", 2 },
};
#define MODES (sizeof modes / sizeof modes[0])

static const char help[] =
    "usage: holdfast bench [-u URL] [--mode MODE] [--workers N] [--procs] [--seconds S] [--json]\n"
    "\n"
    "Measures the store from here.\n"
    "\n"
    "  --mode MODE    pair        one worker that nobody disturbs (the default)\n"
    "                 throughput  each worker takes a lock of its own\n"
    "                 contend     all workers want one lock\n"
    "                 handoff     one releases what the other waits for\n"
    "  --workers N    how many, for throughput and contend; 8 if not said\n"
    "  --procs        workers are processes, each with a client of its own, not threads of one client\n"
    "  --seconds S    how long; 5 if not said\n"
    "  --json         one JSON object\n"
    "  --help         this text\n";

/* A worker as this process sees it: one of the two. */
struct hand {
    pid_t pid;       /* 0: not a process, or its end was seen */
    int wait_status; /* of a process that has ended */
    pthread_t thread;
    const struct bench_run *run;
    uint32_t index;
    hf_client *client;
};

/* ---------------------------------------------------------------------------------------------------------- options */

static int parse_mode(struct bench_run *run, const char *text)
{
    for (size_t i = 0; i < MODES; i++) {
        if (strcmp(text, modes[i].name) == 0) {
            run->mode = (enum bench_mode)i;
            return HFC_EXIT_OK;
        }
    }
    return hfc_usage("bench", "--mode %s: it is pair, throughput, contend or handoff", text);
}

static int parse_window(struct bench_run *run, const char *text)
{
    const char *why;

    if (!hfc_duration(text, &run->window_ms, &why))
        return hfc_usage("bench", "--seconds %s %s", text, why);
    if (run->window_ms == 0 || run->window_ms > WINDOW_MAX_MS)
        return hfc_usage("bench", "--seconds %s: more than nothing and at most an hour", text);
    return HFC_EXIT_OK;
}

static int parse_workers(struct bench_run *run, const char *text)
{
    long number;

    if (!hfc_number(text, 1, BENCH_WORKERS_MAX, &number))
        return hfc_usage("bench", "--workers %s: a number from 1 to %d", text, BENCH_WORKERS_MAX);
    run->workers = (uint32_t)number;
    return HFC_EXIT_OK;
}

/* The number of workers that the mode wants, against the one that the user gave (0: none). */
static int settle_workers(struct bench_run *run)
{
    uint32_t fixed = modes[run->mode].workers;

    run->mode_name = modes[run->mode].name;
    if (fixed != 0 && run->workers != 0 && run->workers != fixed)
        return hfc_usage("bench", "--workers %u: --mode %s has %u", run->workers, run->mode_name, fixed);
    if (run->workers == 0)
        run->workers = fixed != 0 ? fixed : DEFAULT_WORKERS;
    return HFC_EXIT_OK;
}

enum { OPT_MODE = HFC_OPT_FIRST, OPT_WORKERS, OPT_PROCS, OPT_SECONDS, OPT_JSON };

static const struct option long_options[] = {
    HFC_STORE_OPTIONS,
    { "mode", required_argument, NULL, OPT_MODE },
    { "workers", required_argument, NULL, OPT_WORKERS },
    { "procs", no_argument, NULL, OPT_PROCS },
    { "seconds", required_argument, NULL, OPT_SECONDS },
    { "json", no_argument, NULL, OPT_JSON },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

/* HFC_EXIT_OK: go on. *stop: the answer was given (--help). */
static int parse(struct bench_run *run, int argc, char **argv, bool *stop)
{
    int option;
    int code = HFC_EXIT_OK;

    while (code == HFC_EXIT_OK &&
           (option = getopt_long(argc, argv, "+:h" HFC_STORE_LETTERS, long_options, NULL)) != -1) {
        switch (option) {
        case OPT_MODE:
            code = parse_mode(run, optarg);
            break;
        case OPT_WORKERS:
            code = parse_workers(run, optarg);
            break;
        case OPT_PROCS:
            run->procs = true;
            break;
        case OPT_SECONDS:
            code = parse_window(run, optarg);
            break;
        case OPT_JSON:
            run->json = true;
            break;
        case 'u':
        case HFC_OPT_REACH:
            code = hfc_store_option(&run->globals, "bench", option);
            code = code == -1 ? HFC_EXIT_OK : code;
            break;
        case 'h':
            *stop = true;
            fputs(help, stdout);
            return hfc_finish_output();
        default:
            return hfc_bad_option("bench", argv);
        }
    }
    if (code == HFC_EXIT_OK && optind < argc)
        return hfc_usage("bench", "too many arguments: %s", argv[optind]);
    return code == HFC_EXIT_OK ? settle_workers(run) : code;
}

/* ---------------------------------------------------------------------------------------------------------- workers */

static void *thread_main(void *arg)
{
    struct hand *hand = arg;

    bench_work(hand->run, hand->index, hand->client);
    return NULL;
}

static int start_process(struct hand *hand)
{
    pid_t parent = getpid();

    hand->pid = fork();
    if (hand->pid == 0) {
        /* Nobody is left measuring after a bench that was killed. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(HFC_EXIT_INTERNAL);
        bench_work(hand->run, hand->index, NULL);
        _exit(HFC_EXIT_OK);
    }
    return hand->pid < 0 ? errno : 0;
}

/* Starts all workers. On failure *started says how many there are. */
static int start(struct bench_run *run, struct hand *hands, hf_client *client, uint32_t *started)
{
    for (*started = 0; *started < run->workers; (*started)++) {
        struct hand *hand = &hands[*started];
        int error;

        hand->run = run;
        hand->index = *started;
        hand->client = client;
        error = run->procs ? start_process(hand) : pthread_create(&hand->thread, NULL, thread_main, hand);
        if (error != 0) {
            hfc_say("cannot start worker %u of %u: %s", *started + 1, run->workers, strerror(error));
            return HFC_EXIT_INTERNAL;
        }
    }
    return HFC_EXIT_OK;
}

/* Sees to a process that has ended, or waits for its end. True: it is gone, and did not end well. */
static bool died(struct hand *hand, int options)
{
    pid_t ended;

    if (hand->pid > 0) {
        do
            ended = waitpid(hand->pid, &hand->wait_status, options);
        while (ended < 0 && errno == EINTR);
        if (ended == hand->pid)
            hand->pid = 0;
    }
    return hand->pid == 0 && hand->wait_status != 0;
}

static bool any_died(struct hand *hands, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (died(&hands[i], WNOHANG))
            return true;
    return false;
}

/* Waits for the end of `count` workers. One that hangs is ended if it is a process and left behind if it is a thread:
 * this process is about to end, and takes it along. */
static int finish(const struct bench_run *run, struct hand *hands, uint32_t count, bool all_done)
{
    int code = HFC_EXIT_OK;

    for (uint32_t i = 0; i < count; i++) {
        bool was_dead = run->procs && died(&hands[i], WNOHANG);

        if (!run->procs && all_done)
            pthread_join(hands[i].thread, NULL);
        if (run->procs && !all_done && hands[i].pid > 0)
            kill(hands[i].pid, SIGKILL);
        if (run->procs && (was_dead || (died(&hands[i], 0) && all_done))) {
            hfc_say("worker %u died: wait status %d", i, hands[i].wait_status);
            code = HFC_EXIT_INTERNAL;
        }
    }
    return code;
}

/* -------------------------------------------------------------------------------------------------------------- run */

static void show_progress(const struct bench_run *run, int64_t now)
{
    double elapsed = (double)(now - atomic_load(&run->board->start_ns)) / 1e9;
    uint64_t pairs = 0;

    for (uint32_t i = 0; i < run->workers; i++)
        pairs += atomic_load_explicit(&run->board->slot[i].pairs, memory_order_relaxed);
    fprintf(stderr, "\r%s: %.1f of %.1f s, %llu %s ", run->mode_name, elapsed < 0 ? 0 : elapsed,
            (double)run->window_ms / 1e3, (unsigned long long)pairs,
            run->mode == BENCH_HANDOFF ? "hand-offs" : "pairs");
}

/* Waits for a post from each of `count` workers. False: `deadline_ns` came first, or one of them died. */
static bool collect(const struct bench_run *run, sem_t *semaphore, struct hand *hands, uint32_t count,
                    int64_t deadline_ns, bool progress)
{
    uint32_t seen = 0;
    bool hope = true;

    while (hope && seen < count) {
        int64_t step = bench_now() + PROGRESS_NS;

        if (bench_sem_wait(semaphore, step < deadline_ns ? step : deadline_ns))
            seen++;
        else
            hope = step < deadline_ns && !any_died(hands, count);
        if (progress)
            show_progress(run, bench_now());
    }
    if (progress)
        fprintf(stderr, "\r\033[K");
    return hope;
}

static int worst_failure(const struct bench_run *run, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (run->board->slot[i].failed)
            return hfc_fail(&run->board->slot[i].error);
    return HFC_EXIT_OK;
}

/* Lets `count` workers go, waits for them, and sees them out. `broken`: they are only to go home. */
static int conduct(struct bench_run *run, struct hand *hands, uint32_t count, bool broken)
{
    struct bench_board *board = run->board;
    int64_t window_ns = (int64_t)run->window_ms * 1000000;
    bool ready = collect(run, &board->ready, hands, count, bench_now() + BENCH_PATIENCE_NS, false);
    double cpu_before = bench_cpu_seconds();
    int64_t began = bench_now();
    bool done;
    int code;

    if (broken || !ready)
        atomic_store(&board->stop, true);
    atomic_store(&board->start_ns, began + BENCH_WARM_UP_NS);
    atomic_store(&board->end_ns, began + BENCH_WARM_UP_NS + window_ns);
    for (uint32_t i = 0; i < count; i++)
        sem_post(&board->go);
    done = collect(run, &board->done, hands, count, atomic_load(&board->end_ns) + 2 * BENCH_PATIENCE_NS,
                   ready && isatty(STDERR_FILENO));
    run->cpu_pct = 100.0 * (bench_cpu_seconds() - cpu_before) / ((double)(bench_now() - began) / 1e9);
    code = finish(run, hands, count, done);
    if (code == HFC_EXIT_OK && (!ready || !done)) {
        hfc_say("a worker hangs: %s",
                ready ? "it did not come back from its last call" : "it could not open the store");
        return HFC_EXIT_INTERNAL;
    }
    return code != HFC_EXIT_OK ? code : worst_failure(run, count);
}

static int take_guard(hf_client *client, hf_lock **guard)
{
    hf_error err = { 0 };

    if (hf_try_acquire(guard, client, GUARD_NAME, NULL, &err) == HF_OK)
        return HFC_EXIT_OK;
    if (err.status == HF_BUSY)
        hfc_say("another bench is running on this store");
    return hfc_fail(&err);
}

/* The client of this process: for the threads, and for the guard. With processes it is opened once they are forked. */
static int perform(struct bench_run *run, struct hand *hands, hf_client *client)
{
    hf_lock *guard = NULL;
    uint32_t started = 0;
    int code, conducted;

    if (!run->procs) {
        code = take_guard(client, &guard);
        if (code == HFC_EXIT_OK)
            code = start(run, hands, client, &started);
    } else {
        code = start(run, hands, NULL, &started);
        if (code == HFC_EXIT_OK)
            code = hfc_open(&client, &run->globals);
        if (code == HFC_EXIT_OK)
            code = take_guard(client, &guard);
    }
    conducted = conduct(run, hands, started, code != HFC_EXIT_OK);
    hf_release(guard, NULL);
    if (run->procs)
        hf_close(client);
    return code != HFC_EXIT_OK ? code : conducted;
}

static int announce(const struct bench_run *run)
{
    uint64_t overlaps = atomic_load(&run->board->overlaps);
    int code;

    bench_report(run, stdout);
    code = hfc_finish_output();
    if (overlaps == 0)
        return code;
    hfc_say("OVERLAP: two workers held the lock at once, %llu times", (unsigned long long)overlaps);
    return HFC_EXIT_INTERNAL;
}

static struct bench_board *make_board(uint32_t workers)
{
    size_t size = sizeof(struct bench_board) + workers * sizeof(struct bench_slot);
    struct bench_board *board = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (board == MAP_FAILED)
        return NULL;
    sem_init(&board->ready, 1, 0);
    sem_init(&board->go, 1, 0);
    sem_init(&board->done, 1, 0);
    sem_init(&board->turn[0], 1, 0);
    sem_init(&board->turn[1], 1, 0);
    return board;
}

/* Opens the store to see what it is. *client stays open for threads and is closed again for processes. */
static int look_at_store(struct bench_run *run, hf_client **client)
{
    int code = hfc_open(client, &run->globals);

    if (code != HFC_EXIT_OK)
        return code;
    snprintf(run->url, sizeof run->url, "%s", hf_url(*client));
    if (run->procs && !(hf_capabilities(*client) & HF_CAP_PROCESSES))
        code = hfc_usage("bench", "--procs: a lock of %s is not seen by other processes", run->url);
    if (run->procs) {
        hf_close(*client);
        *client = NULL;
    }
    return code;
}

int hfc_bench_main(struct hfc_globals *globals, int argc, char **argv)
{
    struct bench_run run = { .globals = *globals, .json = globals->json, .window_ms = DEFAULT_WINDOW_MS };
    hf_client *client = NULL;
    struct hand *hands;
    bool stop = false;
    int code = parse(&run, argc, argv, &stop);

    if (code != HFC_EXIT_OK || stop)
        return code;
    run.globals.mem_allowed = true;
    code = hfc_configure(&run.globals);
    if (code == HFC_EXIT_OK)
        code = look_at_store(&run, &client);
    if (code != HFC_EXIT_OK)
        return code;
    hands = calloc(run.workers, sizeof *hands);
    run.board = make_board(run.workers);
    if (hands == NULL || run.board == NULL) {
        hfc_say("no memory for %u workers", run.workers);
        code = HFC_EXIT_INTERNAL;
    } else {
        code = perform(&run, hands, client);
        if (code == HFC_EXIT_OK)
            code = announce(&run);
    }
    hf_close(client);
    free(hands);
    return code;
}
