/* SPDX-License-Identifier: MIT
 *
 * cmd_verify.c: `holdfast verify` tries on a store of the user's, with nothing but its URL, what Holdfast promises:
 * workers that compete, are stopped and killed, a witness that knows what each of them believed when, and a verdict.
 */
#include "verify.h"

#include "run.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_WORKERS 4
#define DEFAULT_WINDOW_MS 10000
#define DEFAULT_TTL_MS 2000
#define WINDOW_MAX_MS (3600 * 1000)
#define REST_US 4000        /* between two rounds of a worker, at least: the load is bounded */
#define RECORDS_MOST 500000 /* of all; of longer runs with more workers, these rest for longer */
#define PREFIX_MOST 200     /* of the 255 bytes of a name */

static const char help[] =
    "usage: holdfast verify [-u URL | URL] [--seconds S] [--workers N] [--ttl DURATION] [--pause] [--kill]\n"
    "                       [--during CMD] [--prefix NAME] [--html FILE] [--json]\n"
    "\n"
    "Tries on this very store what Holdfast promises. Processes compete for two locks; what each of them believed when "
    "is\n"
    "written down and judged, promise by promise.\n"
    "\n"
    "  --seconds S     how long; 10 if not said, and some more to send everybody home\n"
    "  --workers N     how many; 4 if not said\n"
    "  --ttl DURATION  time-to-live of their locks; 2s if not said\n"
    "  --pause         stop workers for longer than their locks last\n"
    "  --kill          kill workers at any moment, and start others\n"
    "  --during CMD    run CMD by `sh -c` after a third of the time: a restart, a failover, a cut\n"
    "  --prefix NAME   of the locks; a new one each time if not said\n"
    "  --html FILE     write a page with the timeline\n"
    "  --json          one JSON object, with the whole history\n"
    "  --help          this text\n"
    "\n"
    "Exit codes: 0 every promise that could be tried was kept, 70 one was broken, 69 the store could not be reached, "
    "75\n"
    "a lock of that name is held by others.\n";

enum {
    OPT_SECONDS = HFC_OPT_FIRST,
    OPT_WORKERS,
    OPT_TTL,
    OPT_PAUSE,
    OPT_KILL,
    OPT_DURING,
    OPT_PREFIX,
    OPT_HTML,
    OPT_JSON
};

static const struct option long_options[] = {
    HFC_STORE_OPTIONS,
    { "seconds", required_argument, NULL, OPT_SECONDS },
    { "workers", required_argument, NULL, OPT_WORKERS },
    { "ttl", required_argument, NULL, OPT_TTL },
    { "pause", no_argument, NULL, OPT_PAUSE },
    { "kill", no_argument, NULL, OPT_KILL },
    { "during", required_argument, NULL, OPT_DURING },
    { "prefix", required_argument, NULL, OPT_PREFIX },
    { "html", required_argument, NULL, OPT_HTML },
    { "json", no_argument, NULL, OPT_JSON },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

struct arguments {
    struct hfc_globals globals;
    const char *prefix;
    bool stop; /* the answer was given: --help */
};

/* ---------------------------------------------------------------------------------------------------------- options */

static int parse_number(struct verify_run *run, int option)
{
    long number;
    const char *why;

    if (option == OPT_WORKERS) {
        if (!hfc_number(optarg, 1, VERIFY_WORKERS_MAX, &number))
            return hfc_usage("verify", "--workers %s: a number from 1 to %d", optarg, VERIFY_WORKERS_MAX);
        run->history.workers = (uint32_t)number;
    } else if (option == OPT_SECONDS) {
        if (!hfc_duration(optarg, &run->window_ms, &why))
            return hfc_usage("verify", "--seconds %s %s", optarg, why);
        if (run->window_ms < 100 || run->window_ms > WINDOW_MAX_MS)
            return hfc_usage("verify", "--seconds %s: from a tenth of a second to an hour", optarg);
    } else if (!hfc_ttl(optarg, &run->history.ttl_ms, &why)) {
        return hfc_usage("verify", "--ttl %s %s", optarg, why);
    } else if (run->history.ttl_ms > WINDOW_MAX_MS) {
        return hfc_usage("verify", "--ttl %s: at most an hour", optarg);
    }
    return HFC_EXIT_OK;
}

/* -1: it is another one; else as parse(). */
static int parse_text(struct verify_run *run, struct arguments *arguments, int option)
{
    if (option != OPT_DURING && option != OPT_PREFIX && option != OPT_HTML)
        return -1;
    if (*optarg == '\0')
        return hfc_usage("verify", "--during, --prefix and --html want something that is not empty");
    if (option == OPT_PREFIX && strlen(optarg) > PREFIX_MOST)
        return hfc_usage("verify", "--prefix: it has more than %d bytes", PREFIX_MOST);
    if (option == OPT_DURING)
        run->during = optarg;
    else if (option == OPT_HTML)
        run->html = optarg;
    else
        arguments->prefix = optarg;
    return HFC_EXIT_OK;
}

static int parse_option(struct verify_run *run, struct arguments *arguments, int option, char **argv)
{
    int code = parse_text(run, arguments, option);

    if (code != -1)
        return code;
    switch (option) {
    case OPT_SECONDS:
    case OPT_WORKERS:
    case OPT_TTL:
        return parse_number(run, option);
    case OPT_PAUSE:
        run->pause = true;
        return HFC_EXIT_OK;
    case OPT_KILL:
        run->kill = true;
        return HFC_EXIT_OK;
    case OPT_JSON:
        run->json = true;
        return HFC_EXIT_OK;
    case 'h':
        arguments->stop = true;
        fputs(help, stdout);
        return hfc_finish_output();
    default:
        code = hfc_store_option(&arguments->globals, "verify", option);
        return code == -2 ? hfc_bad_option("verify", argv) : code == -1 ? HFC_EXIT_OK : code;
    }
}

static int parse(struct verify_run *run, struct arguments *arguments, int argc, char **argv)
{
    int option, code = HFC_EXIT_OK;

    while (code == HFC_EXIT_OK && !arguments->stop &&
           (option = getopt_long(argc, argv, ":h" HFC_STORE_LETTERS, long_options, NULL)) != -1)
        code = parse_option(run, arguments, option, argv);
    if (code != HFC_EXIT_OK || arguments->stop || optind == argc)
        return code;
    if (optind + 1 < argc)
        return hfc_usage("verify", "too many arguments: %s", argv[optind + 1]);
    if (arguments->globals.settings[HFC_URL].place == HFC_OPTION && arguments->globals.settings[HFC_URL].value != NULL)
        return hfc_usage("verify", "the URL stands there twice: %s", argv[optind]);
    if (*argv[optind] == '\0')
        return hfc_usage("verify", "the URL is empty");
    arguments->globals.settings[HFC_URL] = (struct hfc_setting){ argv[optind], HFC_OPTION, 0 };
    return HFC_EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------------------ terms */

/* How long a store may take to end what is not renewed, as the manual page of each says; and how long somebody who is
 * first in line and does not come may hold up the others. What was handed over lasts for the claim time, 2 s, until it
 * is renewed, though its time-to-live be shorter. */
static void set_terms(struct verify_history *history, const char *url)
{
    static const struct {
        const char *scheme;
        uint32_t least_ms, percent, more_ms, claim_ms;
    } terms[] = {
        { "consul", 10000, 200, 0, 2000 },      /* between one and two times its session, which lasts 10 s at least */
        { "zookeeper", 2700, 150, 2000, 2000 }, /* half as long again, at least two ticks, and a tick */
        { "etcd", 2000, 100, 1000, 2000 },      /* whole seconds, and more than an election takes */
        { "memcached", 0, 100, 4000, 2000 },    /* whole seconds, by a timer that may be late */
        { "mysql", 2000, 100, 0, 12000 },       { "mariadb", 2000, 100, 0, 12000 }, { "", 2000, 100, 0, 2000 },
    };
    size_t i = 0;

    while (strncmp(url, terms[i].scheme, strlen(terms[i].scheme)) != 0)
        i++;
    const uint32_t ttl_ms = history->ttl_ms > terms[i].least_ms ? history->ttl_ms : terms[i].least_ms;
    const bool expires = history->caps & HF_CAP_EXPIRY;
    history->end_ms = expires ? (uint32_t)((uint64_t)ttl_ms * terms[i].percent / 100 + terms[i].more_ms) : 0;
    history->claim_ms = terms[i].claim_ms > history->end_ms ? terms[i].claim_ms : history->end_ms;
}

static int first_held(const hf_info *info, void *arg)
{
    char *held = arg;

    snprintf(held, 600, "%.255s, by %.255s:%lld", info->name, info->host[0] != '\0' ? info->host : "?",
             (long long)info->pid);
    return 1;
}

/* Whoever has locks with such names does not want them to be tortured. */
static int refuse_names_in_use(hf_client *client, const struct verify_run *run)
{
    char held[600] = "";
    hf_error err = { 0 };

    if (!(hf_capabilities(client) & HF_CAP_INSPECT))
        return HFC_EXIT_OK;
    for (int i = 0; i < VERIFY_LOCKS && held[0] == '\0'; i++)
        if (hf_inspect_one(client, run->name[i], first_held, held, &err) != HF_OK)
            return hfc_fail(&err);
    if (held[0] == '\0')
        return HFC_EXIT_OK;
    hfc_say("a lock of this prefix is held: %s", held);
    return HFC_EXIT_BUSY;
}

static int look_at_store(struct verify_run *run, const struct arguments *arguments)
{
    static const char *const suffix[VERIFY_LOCKS] = { "1", "2", "probe" };
    char fresh[64];
    hf_client *client;
    int code = hfc_open(&client, &arguments->globals);

    if (code != HFC_EXIT_OK)
        return code;
    snprintf(run->shown, sizeof run->shown, "%s", hf_url(client));
    run->history.caps = hf_capabilities(client);
    run->guard = run->history.caps & HF_CAP_GUARD;
    set_terms(&run->history, run->shown);
    uint64_t random = (uint64_t)verify_now();
    if (getentropy(&random, sizeof random) != 0)
        random ^= (uint64_t)getpid() << 40;
    snprintf(fresh, sizeof fresh, "holdfast-verify-%08x", (uint32_t)random);
    const char *prefix = arguments->prefix != NULL ? arguments->prefix : fresh;
    for (int i = 0; i < VERIFY_LOCKS; i++)
        snprintf(run->name[i], sizeof run->name[i], "%s-%s", prefix, suffix[i]);
    code = refuse_names_in_use(client, run);
    hf_close(client);
    return code;
}

/* -------------------------------------------------------------------------------------------------------------- run */

static void *shared_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    return memory;
}

/* Room for as many records as the rests between them allow. */
static bool make_room(struct verify_run *run)
{
    const uint64_t rows = run->history.workers + 1, window_us = (uint64_t)run->window_ms * 1000;
    const uint64_t rest_us = rows * window_us / RECORDS_MOST;

    run->rest_us = (uint32_t)(rest_us > REST_US ? rest_us : REST_US);
    run->room = window_us / run->rest_us + 1000; /* and those of workers that were killed, and of the last seconds */
    run->board = shared_memory(sizeof *run->board);
    run->records = shared_memory(rows * run->room * sizeof *run->records);
    run->history.event = calloc(VERIFY_EVENTS_MAX, sizeof *run->history.event);
    if (run->board != NULL && run->records != NULL && run->history.event != NULL)
        return true;
    hfc_say("no memory for the history of %u workers", run->history.workers);
    return false;
}

static int is_listed(const hf_info *info, void *arg)
{
    (void)info;
    *(bool *)arg = true;
    return 1;
}

/* As a stranger: each of the locks can be taken, and is not held after that. */
static int look_at_what_is_left(struct verify_run *run, const struct arguments *arguments)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_error err = { 0 };
    hf_client *client = NULL;
    hf_status status = run->hurried ? HF_CANCELED : hf_open(&client, arguments->globals.url, NULL, &err);
    int code = HFC_EXIT_OK;

    options.ttl_ms = run->history.ttl_ms;
    options.wait_ms = run->history.end_ms + run->history.claim_ms + (uint32_t)(VERIFY_SLACK_NS / VERIFY_MS);
    for (int i = 0; i < VERIFY_LOCKS; i++) {
        struct verify_left *left = &run->history.left[i];
        hf_lock *lock = NULL;
        if (client != NULL)
            status = hf_acquire(&lock, client, run->name[i], &options, &err);
        left->status = (int32_t)status;
        if (status >= HF_UNAVAILABLE && code == HFC_EXIT_OK)
            code = hfc_fail(&err);
        const bool released = hf_release(lock, NULL) == HF_OK;
        if (status == HF_OK && released && (run->history.caps & HF_CAP_INSPECT))
            left->status = (int32_t)hf_inspect_one(client, run->name[i], is_listed, &left->listed, NULL);
    }
    hf_close(client);
    return code;
}

static int write_page(const struct verify_run *run)
{
    FILE *out = fopen(run->html, "we");

    if (out != NULL) {
        verify_report_html(run, out);
        const bool failed = fflush(out) != 0 || ferror(out);
        if (fclose(out) == 0 && !failed)
            return HFC_EXIT_OK;
    }
    hfc_say("cannot write %s: %s", run->html, strerror(errno));
    return HFC_EXIT_INTERNAL;
}

static int announce(struct verify_run *run)
{
    int code = HFC_EXIT_OK;

    if (run->json)
        verify_report_json(run, stdout);
    else
        verify_report_table(run, stdout);
    code = hfc_finish_output();
    if (run->html != NULL && code == HFC_EXIT_OK)
        code = write_page(run);
    for (int i = 0; i < VERIFY_PROMISES; i++) {
        if (run->result.verdict[i].outcome != VERIFY_BROKEN)
            continue;
        hfc_say("BROKEN: promise %s, %s", verify_number((enum verify_promise)i), verify_words((enum verify_promise)i));
        code = HFC_EXIT_INTERNAL;
    }
    return code;
}

static int perform(struct verify_run *run, const struct arguments *arguments)
{
    struct hfc_signals signals;

    if (!make_room(run) || !hfc_signals_take(&signals))
        return HFC_EXIT_INTERNAL;
    int code = verify_crew(run, &signals);
    const int reached = look_at_what_is_left(run, arguments);
    if (!verify_check(&run->history, &run->result)) {
        hfc_say("no memory to judge %zu records", run->history.records);
        return HFC_EXIT_INTERNAL;
    }
    const int judged = announce(run);
    const bool nothing = run->result.figures.granted == 0 && run->signal == 0;
    verify_result_free(&run->result);
    code = code != HFC_EXIT_OK ? code : judged != HFC_EXIT_OK ? judged : reached;
    if (nothing && code == HFC_EXIT_OK && run->board->why.status != HF_OK)
        return hfc_fail(&run->board->why);
    if (nothing && code == HFC_EXIT_OK) {
        hfc_say("nobody was given a lock: nothing was tried");
        return HFC_EXIT_UNAVAILABLE;
    }
    if (run->signal != 0 && code == HFC_EXIT_OK)
        hfc_signals_die(run->signal);
    return code;
}

int hfc_verify_main(struct hfc_globals *globals, int argc, char **argv)
{
    struct arguments arguments = { .globals = *globals };
    struct verify_run run = { .window_ms = DEFAULT_WINDOW_MS, .json = globals->json };
    int code;

    run.history.workers = DEFAULT_WORKERS;
    run.history.ttl_ms = DEFAULT_TTL_MS;
    code = parse(&run, &arguments, argc, argv);
    if (code != HFC_EXIT_OK || arguments.stop)
        return code;
    arguments.globals.mem_allowed = false;
    code = hfc_configure(&arguments.globals);
    run.url = arguments.globals.url;
    if (code == HFC_EXIT_OK)
        code = look_at_store(&run, &arguments);
    if (code == HFC_EXIT_OK)
        code = perform(&run, &arguments);
    free(run.history.event);
    return code;
}
