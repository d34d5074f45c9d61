/* SPDX-License-Identifier: MIT
 *
 * cmd_run.c: `holdfast run`: a command under a lock. See run.h for the parts.
 */
#include "run.h"

#include <getopt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_GRACE_MS 10000
#define DEFAULT_TTL_MS 30000 /* of the library */
#define KILLING_MS 2000      /* what --max-hold leaves for the killing itself */

struct run_options {
    struct hfc_acquire acquire;
    enum hfc_on_lost on_lost;
    uint32_t grace_ms;
    uint32_t hold_at_least_ms;
    bool even_if_failed; /* --once-per: whatever the command says, it is done */
    char *shell[4];      /* for -c */
    char **command;
};

static int print_help(void)
{
    fputs("usage: holdfast run [OPTION ...] NAME [--] COMMAND [ARGUMENT ...]\n"
          "       holdfast run [OPTION ...] NAME -c TEXT\n"
          "\n"
          "Runs COMMAND while holding the lock NAME, and exits as it does.\n"
          "\n" HFC_REQUEST_HELP "  -c, --command TEXT              run TEXT by `sh -c`; may also stand behind NAME\n"
          "      --no-renew                  end the lock after its time-to-live\n"
          "      --max-hold DURATION         end COMMAND, and then the lock, after this long\n"
          "      --on-lost term|kill|ignore  what to do with COMMAND when the lock ends; default: term\n"
          "      --grace DURATION            time between SIGTERM and SIGKILL; default: 10s, but before the end\n"
          "                                  of a lease at most a third of it\n"
          "      --once-per DURATION         only if nobody has done it within this time, by the store's clock; else\n"
          "                                  exit with 0, or with what -E says; done is what has exited with 0\n"
          "      --even-if-failed            with --once-per: done is also what fails\n"
          "      --hold-at-least DURATION    keep the lock for so long even if COMMAND ends sooner\n"
          "      --note TEXT                 shown by `holdfast ls`; default: the user and COMMAND\n" HFC_REQUEST_HELP_2
          "\n"
          "Durations: 500ms, 2s, 5m, 1h, 7d, or plain seconds.\n"
          "COMMAND finds HOLDFAST_NAME, HOLDFAST_TOKEN and HOLDFAST_URL in its environment.\n"
          "Exit codes: COMMAND's own; 128+n if signal n ended it; 75 not acquired; 76 lost while running;\n"
          "69 store not reachable; 77 refused; 64 usage; 126 and 127 as the shell.\n",
          stdout);
    return hfc_finish_output();
}

enum { OPT_ON_LOST = HFC_OPT_RUN_FIRST, OPT_GRACE, OPT_ONCE_PER, OPT_EVEN_IF_FAILED, OPT_HOLD_AT_LEAST };

static const struct option long_options[] = {
    HFC_STORE_OPTIONS,
    HFC_REQUEST_OPTIONS,
    { "command", required_argument, NULL, 'c' },
    { "on-lost", required_argument, NULL, OPT_ON_LOST },
    { "grace", required_argument, NULL, OPT_GRACE },
    { "once-per", required_argument, NULL, OPT_ONCE_PER },
    { "even-if-failed", no_argument, NULL, OPT_EVEN_IF_FAILED },
    { "hold-at-least", required_argument, NULL, OPT_HOLD_AT_LEAST },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static int parse_on_lost(const char *text, enum hfc_on_lost *out)
{
    static const char *const words[] = { "term", "kill", "ignore" };

    for (int i = 0; i < 3; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = (enum hfc_on_lost)i;
            return -1;
        }
    return hfc_usage("run", "--on-lost: '%s' is neither term nor kill nor ignore", text);
}

static void set_shell(struct run_options *options, char *text)
{
    options->shell[0] = "sh";
    options->shell[1] = "-c";
    options->shell[2] = text;
    options->command = options->shell;
}

/* -1: go on. Anything else: exit with it. */
static int parse_option(int option, const char *typed, struct run_options *options, struct hfc_globals *globals,
                        char **argv)
{
    uint32_t once_per_ms;
    int code = hfc_request_option(&options->acquire, "run", typed, option);

    if (code == -2)
        code = hfc_store_option(globals, "run", option);
    if (code != -2)
        return code;
    switch (option) {
    case 'c':
        set_shell(options, optarg);
        return -1;
    case OPT_ON_LOST:
        return parse_on_lost(optarg, &options->on_lost);
    case OPT_GRACE:
        return hfc_duration_option("run", typed, true, &options->grace_ms);
    case OPT_ONCE_PER:
        code = hfc_duration_option("run", typed, false, &once_per_ms);
        options->acquire.options.once_per_ms = once_per_ms;
        return code;
    case OPT_EVEN_IF_FAILED:
        options->even_if_failed = true;
        return -1;
    case OPT_HOLD_AT_LEAST:
        return hfc_duration_option("run", typed, true, &options->hold_at_least_ms);
    case 'h':
        return print_help();
    default:
        return hfc_bad_option("run", argv);
    }
}

/* What follows NAME: [--] COMMAND ..., or -c COMMAND as flock takes it. */
static int parse_command(struct run_options *options, int argc, char **argv)
{
    const char *first = optind < argc ? argv[optind] : "";

    if (strcmp(first, "-c") == 0 || strcmp(first, "--command") == 0) {
        if (options->command != NULL || argc - optind != 2)
            return hfc_usage("run", "%s takes one argument, the command for the shell", first);
        set_shell(options, argv[optind + 1]);
        return -1;
    }
    if (strcmp(first, "--") == 0)
        optind++;
    if (options->command != NULL)
        return optind == argc ? -1 : hfc_usage("run", "a command besides that of -c: '%s'", argv[optind]);
    if (optind == argc)
        return hfc_usage("run", "the command to run is missing");
    options->command = argv + optind;
    return -1;
}

/* What contradicts itself. As parse_option(). */
static int check(const struct run_options *options)
{
    const hf_options *lock = &options->acquire.options;

    if (options->even_if_failed && lock->once_per_ms == 0)
        return hfc_usage("run", "--even-if-failed means nothing without --once-per");
    if (lock->max_hold_ms != 0 && options->hold_at_least_ms > lock->max_hold_ms)
        return hfc_usage("run", "--hold-at-least is longer than --max-hold");
    if (lock->renew == HF_RENEW_OFF && options->hold_at_least_ms >= (lock->ttl_ms != 0 ? lock->ttl_ms : DEFAULT_TTL_MS))
        return hfc_usage("run",
                         "--hold-at-least is not shorter than the time-to-live, and --no-renew ends the lock then");
    return -1;
}

/* As parse_option(). */
static int parse(struct run_options *options, struct hfc_globals *globals, int argc, char **argv)
{
    char typed[HFC_TYPED];
    int option, index = -1;

    /* '+': what follows NAME is the command's own. */
    while ((option = getopt_long(argc, argv, "+:c:h" HFC_STORE_LETTERS HFC_REQUEST_LETTERS, long_options, &index)) !=
           -1) {
        int code = parse_option(option, hfc_typed(typed, long_options, index, option), options, globals, argv);
        if (code >= 0)
            return code;
        index = -1;
    }
    if (optind == argc)
        return hfc_usage("run", "the name of a lock is missing");
    options->acquire.name = argv[optind++];
    const int code = parse_command(options, argc, argv);
    return code >= 0 ? code : check(options);
}

/* --hold-at-least: until a signal that means us, or the end of the lock. */
static void linger(const struct hfc_guard *guard, int64_t until_ms)
{
    struct pollfd fds[] = { { .fd = guard->signals->fd, .events = POLLIN },
                            { .fd = guard->lost_fd, .events = POLLIN },
                            { .fd = guard->leash, .events = POLLIN } };
    int64_t left;

    if (guard->leash >= 0 && until_ms > hfc_now_ms())
        hfc_front_join_group(); /* the command is gone: what is typed now means us */
    /* Each turn consumes a signal, or is the last. */
    while ((left = until_ms - hfc_now_ms()) > 0 && (guard->lock == NULL || hf_remaining_ms(guard->lock) > 0)) {
        if (poll(fds, 3, left > 1000 ? 1000 : (int)left) <= 0)
            continue;
        if (fds[1].revents != 0 || fds[2].revents != 0 || hfc_signals_next_deadly(guard->signals) != 0)
            return;
    }
}

static int say_outer_lost(const char *name)
{
    hfc_say("the outer run no longer holds the lock '%s'", name);
    return HFC_EXIT_LOST;
}

/* Under the lock of an outer run. */
static int run_nested(const struct run_options *options, struct hfc_guard *guard, const char *url, uint64_t token)
{
    if (!hfc_nested_export(url, options->acquire.name, token, NULL))
        return HFC_EXIT_INTERNAL;
    const int64_t since_ms = hfc_now_ms();
    int code = hfc_child_run(guard, options->command);
    if (guard->lost)
        return say_outer_lost(options->acquire.name);
    if (guard->ended_ms == 0)
        linger(guard, since_ms + options->hold_at_least_ms);
    return code;
}

/* Runs the command under the lock of an outer run, if there is one that holds it. -1: there is none. */
static int run_if_nested(const struct run_options *options, struct hfc_guard *guard, const char *url)
{
    uint64_t token;

    switch (hfc_nested_find(url, options->acquire.name, guard->signals, &token, &guard->lost_fd)) {
    case HFC_NESTED_HELD:
        /* The outer run's release says whether the work is done. */
        if (options->acquire.options.once_per_ms != 0)
            return hfc_usage("run", "--once-per: an outer run holds '%s' already", options->acquire.name);
        return run_nested(options, guard, url, token);
    case HFC_NESTED_LOST:
        return say_outer_lost(options->acquire.name);
    case HFC_NESTED_NOT:
        break;
    }
    return -1;
}

/* Called by the library when the lock is lost, before it gives back what it may still have: a store that took the lock
 * away only in name, as file: does, grants it to nobody before the command is gone. The loss itself is heard from the
 * descriptor. */
static void await_end(hf_lock *lock, const char *why, void *arg)
{
    struct hfc_guard *guard = arg;

    (void)lock;
    (void)why;
    while (sem_wait(&guard->no_command) != 0) /* a signal */
        continue;
    sem_post(&guard->no_command);
}

static int run_command(struct hfc_guard *guard, char **command)
{
    while (sem_wait(&guard->no_command) != 0)
        continue;
    int code = hfc_child_run(guard, command);
    hfc_witness_end(&guard->witness);
    sem_post(&guard->no_command);
    return code;
}

/* Why the command was ended before the library had lost the lock; `status` is what became of its release. */
static void explain(char *why, size_t size, const struct hfc_guard *guard, const struct hfc_acquire *request,
                    hf_status status, const hf_error *err)
{
    const bool silent = status == HF_UNAVAILABLE || status == HF_UNKNOWN;
    char since[16];

    if (guard->held_long) {
        snprintf(why, size, "that is as long as --max-hold allows");
    } else if (request->options.renew == HF_RENEW_OFF) {
        snprintf(why, size, "its time-to-live is over, and it was not to be renewed");
    } else if (status != HF_OK && guard->heard_ms != 0) {
        hfc_wall_clock(since, sizeof since, "%H:%M:%S", guard->heard_ms);
        snprintf(why, size, "the store %s since %s (%s)", silent ? "is silent" : "has refused to renew it", since,
                 err->message);
    } else {
        snprintf(why, size, "it could not be renewed in time");
    }
}

/* --once-per: what was ended, or could not be started, is not done, whatever its exit code. */
static bool is_done(const struct hfc_guard *guard, const struct run_options *options, int code)
{
    const bool ran = guard->started && code != HFC_EXIT_NOT_FOUND && code != HFC_EXIT_CANNOT_RUN;

    if (options->acquire.options.once_per_ms == 0 || guard->ended_ms != 0)
        return false;
    return code == 0 || (options->even_if_failed && ran);
}

static int give_back(const struct hfc_guard *guard, const struct run_options *options, int code)
{
    const struct hfc_acquire *request = &options->acquire;
    const struct hfc_events *events = &request->events;
    const bool done = is_done(guard, options, code);
    char why[400];
    hf_error err;

    if (guard->ended_ms == 0)
        linger(guard, events->since_ms + options->hold_at_least_ms);
    hf_status status = done ? hf_release_done(guard->lock, &err) : hf_release(guard->lock, &err);

    if (status == HF_LOST || guard->held_long || guard->lost) {
        if (status == HF_LOST)
            snprintf(why, sizeof why, "%s", err.message);
        else
            explain(why, sizeof why, guard, request, status, &err);
        hfc_event_lost(events, guard->signals, guard->ended_ms != 0 ? guard->ended_ms : hfc_now_ms(), why);
        return HFC_EXIT_LOST;
    }
    hfc_event_released(events);
    /* The command ran under the lock until its end, and that is what the exit code says. */
    if (done && status != HF_OK)
        hfc_say("'%s' may not be recorded as done: %s", request->name, err.message);
    else if (status != HF_OK)
        hfc_say("the lock '%s' may stay until its time is over: %s", request->name, err.message);
    return code;
}

/* A command that --max-hold ends does so under the lock, which therefore lasts for longer: the library ends it only if
 * that takes too long. */
static void plan_max_hold(struct run_options *options, struct hfc_guard *guard)
{
    uint32_t *max_hold_ms = &options->acquire.options.max_hold_ms;

    if (*max_hold_ms == 0 || options->on_lost == HFC_ON_LOST_IGNORE)
        return;
    guard->max_hold_ms = *max_hold_ms;
    const uint64_t most = (uint64_t)*max_hold_ms + options->grace_ms + KILLING_MS;
    *max_hold_ms = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

/* How long the lock lasts by itself. */
static int64_t lasts_ms(const hf_options *options, uint32_t capabilities)
{
    int64_t lasts = INT64_MAX;

    if ((capabilities & HF_CAP_EXPIRY) != 0 || options->renew == HF_RENEW_OFF)
        lasts = options->ttl_ms != 0 ? options->ttl_ms : DEFAULT_TTL_MS;
    if (options->max_hold_ms != 0 && options->max_hold_ms < lasts)
        lasts = options->max_hold_ms;
    return lasts;
}

/* A lock that was handed over may last for a moment only, until it is renewed for the first time. The command starts
 * after that: the grace that it was promised needs the whole. */
static void make_whole(const struct hfc_guard *guard)
{
    int64_t left;

    /* Ends when the lock does, at the latest. */
    while ((left = hf_remaining_ms(guard->lock)) > 0 && left < guard->lasts_ms - guard->lasts_ms / 10) {
        hf_status status = hf_renew(guard->lock, 0, NULL);
        if (status == HF_OK || status == HF_LOST)
            return;
        poll(NULL, 0, 20);
    }
}

static int run_locked(struct run_options *options, struct hfc_guard *guard, hf_client *client)
{
    const char *name = options->acquire.name;
    int deadly = 0;
    hf_error err;

    hfc_event_asked(&options->acquire.events, &options->acquire, hf_url(client));
    hf_status status = hfc_acquire(&guard->lock, client, &options->acquire, guard->signals, &deadly, &err);
    if (deadly != 0) {
        hf_release(guard->lock, NULL);
        hf_close(client);
        hfc_signals_die(deadly);
    }
    if (status == HF_DONE)
        return hfc_done_before(&options->acquire, client, &err);
    if (status == HF_BUSY || status == HF_TIMEOUT)
        return hfc_not_acquired(&options->acquire, client, &err);
    if (status != HF_OK)
        return hfc_fail(&err);
    hfc_event_acquired(&options->acquire.events, hf_token(guard->lock));
    hfc_say_held(&options->acquire, client);
    int code = HFC_EXIT_INTERNAL;
    guard->lasts_ms = lasts_ms(&options->acquire.options, hf_capabilities(client));
    if (guard->lasts_ms != INT64_MAX)
        make_whole(guard);
    if (hfc_nested_export(hf_url(client), name, hf_token(guard->lock), &guard->witness)) {
        guard->lost_fd = hf_lost_fd(guard->lock);
        code = run_command(guard, options->command);
    }
    return give_back(guard, options, code);
}

/* Opens the store and decides whether it takes a front to keep a lock there. Returns -1 with *client set, or the exit
 * code. */
static int open_store(hf_client **client, const struct hfc_globals *globals, struct hfc_acquire *request,
                      struct hfc_signals *signals, struct hfc_guard *guard)
{
    int code = hfc_front_forced() ? hfc_front(signals, guard) : -1;

    if (code >= 0)
        return code;
    request->leash = guard->leash;
    code = hfc_open(client, globals);
    if (code != HFC_EXIT_OK)
        return code;
    if (guard->leash >= 0 || !hfc_front_wanted(hf_capabilities(*client)))
        return -1;
    /* A client does not survive fork(): the keeper opens its own. */
    hf_close(*client);
    code = hfc_front(signals, guard);
    if (code >= 0)
        return code;
    request->leash = guard->leash;
    code = hfc_open(client, globals);
    return code == HFC_EXIT_OK ? -1 : code;
}

int hfc_run_main(struct hfc_globals *globals, int argc, char **argv)
{
    struct run_options options = { .acquire = { .wait = true, .options = HF_OPTIONS_INIT, .conflict_code = -1 },
                                   .grace_ms = DEFAULT_GRACE_MS };
    struct hfc_signals signals;
    struct hfc_guard guard = {
        .signals = &signals, .lost_fd = -1, .leash = -1, .lasts_ms = INT64_MAX, .witness = { -1, { -1, -1 } }
    };
    static struct hfc_patience patience; /* `globals` points to it */
    hf_client *client;

    int code = parse(&options, globals, argc, argv);
    if (code >= 0)
        return code;
    code = hfc_configure(globals);
    if (code != HFC_EXIT_OK)
        return code;
    if (options.acquire.options.ttl_ms == 0)
        options.acquire.options.ttl_ms = globals->ttl_ms;
    code = -1;
    if (!hfc_signals_take(&signals))
        return HFC_EXIT_INTERNAL;
    sem_init(&guard.no_command, 0, 1);
    options.acquire.options.owner = HF_OWNER_HANDLE;
    hfc_default_note(&options.acquire, options.command != NULL ? options.command[0] : "");
    if (options.on_lost != HFC_ON_LOST_IGNORE) {
        options.acquire.options.on_lost = await_end;
        options.acquire.options.arg = &guard;
    }
    guard.on_lost = options.on_lost;
    guard.grace_ms = options.grace_ms;
    plan_max_hold(&options, &guard);

    hfc_patience_start(&patience, &options.acquire, &signals);
    globals->open_again = hfc_patience_again;
    globals->open_arg = &patience;

    /* An outer run has written the store's URL in its canonical form; mine is that only if it was inherited from
     * there. */
    bool maybe_nested = hfc_nested_maybe(options.acquire.name);
    if (maybe_nested)
        code = run_if_nested(&options, &guard, globals->url);
    if (code < 0)
        code = open_store(&client, globals, &options.acquire, &signals, &guard);
    if (code >= 0)
        return code;
    hfc_patience_end(&patience);
    if (maybe_nested)
        code = run_if_nested(&options, &guard, hf_url(client));
    if (code < 0)
        code = run_locked(&options, &guard, client);
    hf_close(client);
    return code;
}
