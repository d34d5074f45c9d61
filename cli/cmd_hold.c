/* SPDX-License-Identifier: MIT
 *
 * cmd_hold.c: `holdfast hold`: a lock for the rest of a script. The script starts it with a pipe to its standard input;
 * the end of that, when the script closes its side or dies, gives the lock back. A loss ends this process, so that the
 * script reads the end of its standard output.
 */
#include "run.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int print_help(void)
{
    fputs("usage: holdfast hold [OPTION ...] NAME\n"
          "\n"
          "Takes the lock NAME, prints \"held NAME token N\" and holds it until its standard input, a pipe, ends or\n"
          "SIGTERM comes; then gives it back and exits with 0. If the lock is lost before, it says so and exits with "
          "76.\n"
          "\n" HFC_REQUEST_HELP "      --no-renew                  end the lock after its time-to-live\n"
          "      --max-hold DURATION         end the lock after this long\n"
          "      --note TEXT                 shown by `holdfast ls`; default: the user\n" HFC_REQUEST_HELP_2 "\n"
          "Durations and exit codes are those of `holdfast run`.\n",
          stdout);
    return hfc_finish_output();
}

/* -1: go on; else the exit code. */
static int parse(struct hfc_acquire *request, struct hfc_globals *globals, int argc, char **argv)
{
    static const struct option options[] = {
        HFC_STORE_OPTIONS,
        HFC_REQUEST_OPTIONS,
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    char typed[HFC_TYPED];
    int option, index = -1;

    while ((option = getopt_long(argc, argv, ":h" HFC_STORE_LETTERS HFC_REQUEST_LETTERS, options, &index)) != -1) {
        int code = hfc_request_option(request, "hold", hfc_typed(typed, options, index, option), option);
        if (code == -2)
            code = hfc_store_option(globals, "hold", option);
        if (code == -2)
            code = option == 'h' ? print_help() : hfc_bad_option("hold", argv);
        if (code >= 0)
            return code;
        index = -1;
    }
    if (argc - optind != 1)
        return hfc_usage("hold", optind == argc ? "the name of a lock is missing" : "one name at a time");
    request->name = argv[optind];
    return -1;
}

/* A file and /dev/null, which a shell gives to its background jobs, end at once, and the lock with them. */
static bool can_wait_for_end(void)
{
    struct stat stat;

    return fstat(STDIN_FILENO, &stat) == 0 && !S_ISREG(stat.st_mode) && !S_ISDIR(stat.st_mode) &&
           !(S_ISCHR(stat.st_mode) && stat.st_rdev == makedev(1, 3));
}

/* Whatever comes is thrown away. */
static bool input_ended(void)
{
    char sink[4096];
    const ssize_t length = read(STDIN_FILENO, sink, sizeof sink);

    return length == 0 || (length < 0 && errno != EINTR && errno != EAGAIN);
}

/* Returns the signal that ended it; 0: the input has ended, or the lock. */
static int attend(const hf_lock *lock, const struct hfc_signals *signals)
{
    struct pollfd fds[] = { { .fd = signals->fd, .events = POLLIN },
                            { .fd = STDIN_FILENO, .events = POLLIN },
                            { .fd = hf_lost_fd(lock), .events = POLLIN } };
    int deadly = 0;

    /* Each turn is an event; where a lock could make no descriptor for its loss, it is asked once in a while. */
    while (hf_remaining_ms(lock) > 0) {
        if (poll(fds, 3, fds[2].fd < 0 ? 1000 : -1) <= 0)
            continue;
        if (fds[2].revents != 0)
            return 0;
        if (fds[0].revents != 0 && (deadly = hfc_signals_next_deadly(signals)) != 0)
            return deadly;
        if (fds[1].revents != 0 && input_ended())
            return 0;
    }
    return 0;
}

static _Noreturn void die(hf_client *client, int deadly)
{
    hf_close(client);
    hfc_signals_die(deadly);
}

static int give_back(hf_lock *lock, const struct hfc_acquire *request, const struct hfc_signals *signals, int code)
{
    hf_error err;
    hf_status status = hf_release(lock, &err);

    if (status == HF_LOST) {
        hfc_event_lost(&request->events, signals, hfc_now_ms(), err.message);
        return HFC_EXIT_LOST;
    }
    hfc_event_released(&request->events);
    if (status != HF_OK)
        hfc_say("the lock '%s' may stay until its time is over: %s", request->name, err.message);
    return code;
}

static int hold(struct hfc_acquire *request, hf_client *client, const struct hfc_signals *signals)
{
    hf_lock *lock;
    int deadly;
    hf_error err;

    hfc_event_asked(&request->events, request, hf_url(client));
    hf_status status = hfc_acquire(&lock, client, request, signals, &deadly, &err);

    if (deadly != 0) {
        hf_release(lock, NULL);
        die(client, deadly);
    }
    if (status == HF_BUSY || status == HF_TIMEOUT)
        return hfc_not_acquired(request, client, &err);
    if (status != HF_OK)
        return hfc_fail(&err);
    hfc_event_acquired(&request->events, hf_token(lock));
    hfc_say_held(request, client);
    printf("held %s token %llu\n", request->name, (unsigned long long)hf_token(lock));
    int code = hfc_finish_output();
    if (code == HFC_EXIT_OK)
        deadly = attend(lock, signals);
    code = give_back(lock, request, signals, code);
    if (deadly != 0 && deadly != SIGTERM && code == HFC_EXIT_OK)
        die(client, deadly);
    return code;
}

int hfc_hold_main(struct hfc_globals *globals, int argc, char **argv)
{
    struct hfc_acquire request = { .wait = true, .options = HF_OPTIONS_INIT, .conflict_code = -1, .leash = -1 };
    struct hfc_signals signals;
    static struct hfc_patience patience; /* `globals` points to it */
    hf_client *client;
    int code = parse(&request, globals, argc, argv);

    if (code >= 0)
        return code;
    if (!can_wait_for_end())
        return hfc_usage("hold", "standard input must be a pipe (or a terminal): its end gives the lock back");
    code = hfc_configure(globals);
    if (code != HFC_EXIT_OK)
        return code;
    if (request.options.ttl_ms == 0)
        request.options.ttl_ms = globals->ttl_ms;
    request.options.owner = HF_OWNER_HANDLE;
    hfc_default_note(&request, NULL);
    if (!hfc_signals_take(&signals))
        return HFC_EXIT_INTERNAL;
    if (!isatty(STDIN_FILENO)) {
        /* ^Z stops the script, and must not stop the renewing. */
        hfc_front_ignore_stops();
        /* A script that dies waits no longer. */
        request.leash = STDIN_FILENO;
    }
    hfc_patience_start(&patience, &request, &signals);
    globals->open_again = hfc_patience_again;
    globals->open_arg = &patience;
    code = hfc_open(&client, globals);
    if (code != HFC_EXIT_OK)
        return code;
    hfc_patience_end(&patience);
    code = hold(&request, client, &signals);
    hf_close(client);
    return code;
}
