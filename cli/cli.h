/* SPDX-License-Identifier: MIT
 *
 * cli.h: what the commands of `holdfast` share. Each command lives in a file of its own and has one entry point, listed
 * in the table of main.c; it uses the public library alone.
 */
#ifndef HFC_CLI_H
#define HFC_CLI_H

#include <holdfast.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The exit codes of sysexits.h that scripts may rely on. Everything else is the child's own. */
enum {
    HFC_EXIT_OK = 0,
    HFC_EXIT_FREE = 1,         /* `status`: nobody holds it */
    HFC_EXIT_USAGE = 64,       /* the command line, the URL or the name makes no sense */
    HFC_EXIT_UNAVAILABLE = 69, /* the store could not be reached */
    HFC_EXIT_INTERNAL = 70,    /* a bug, no memory, no descriptors left */
    HFC_EXIT_BUSY = 75,        /* not acquired; `run -E` changes it */
    HFC_EXIT_LOST = 76,        /* acquired, and lost before the command had ended */
    HFC_EXIT_DENIED = 77,      /* the store or the system refuses this user */
    HFC_EXIT_CANNOT_RUN = 126, /* found, but not executable: as the shell */
    HFC_EXIT_NOT_FOUND = 127,  /* no such command: as the shell */
    HFC_EXIT_SIGNAL = 128      /* plus the number of the signal that ended the child */
};

/* Where a setting can come from; the first that has it wins. */
enum hfc_place { HFC_OPTION, HFC_ENVIRONMENT, HFC_USER_FILE, HFC_SYSTEM_FILE, HFC_DEFAULT };
enum hfc_setting_id { HFC_URL, HFC_PASSWORD_FILE, HFC_TTL, HFC_REACH, HFC_SETTINGS };

struct hfc_setting {
    const char *value; /* NULL: nobody has said anything */
    enum hfc_place place;
    int line; /* in a file */
};

/* What stands before the command's name, `holdfast [-u URL] [--reach WHOM] [--json] COMMAND`, or among its options; and
 * what hfc_configure() adds to that. */
struct hfc_globals {
    bool json;
    bool mem_allowed; /* `bench` alone */
    /* Asked, unless it is NULL, when the store cannot be reached: true, after a pause, if it is to be tried again. */
    bool (*open_again)(void *arg, const hf_error *err);
    void *open_arg;
    struct hfc_setting settings[HFC_SETTINGS];
    /* From here on: known after hfc_configure(). */
    const char *url;
    uint32_t ttl_ms;    /* 0: the library's default */
    bool machines_only; /* refuse a store that does not exclude other machines */
};

/* argv[0] is the command's own name, and getopt_long() starts afresh. Use a leading '+' in the option string, and the
 * value of HFC_OPT_ for long options without a letter. Returns the exit code. */
typedef int (*hfc_main_fn)(struct hfc_globals *globals, int argc, char **argv);

int hfc_run_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_ls_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_status_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_break_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_forget_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_engines_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_hold_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_guard_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_bench_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_doctor_main(struct hfc_globals *globals, int argc, char **argv);
int hfc_verify_main(struct hfc_globals *globals, int argc, char **argv);

/* Above every character, so that a long option cannot be mistaken for a letter. */
enum { HFC_OPT_REACH = 256, HFC_OPT_FIRST };

/* The options that every command with a store takes too: for its table, and for the string of letters. */
#define HFC_STORE_OPTIONS                                                                                              \
    { "url", required_argument, NULL, 'u' },                                                                           \
    {                                                                                                                  \
        "reach", required_argument, NULL, HFC_OPT_REACH                                                                \
    }
#define HFC_STORE_LETTERS "u:"

/* --- words (message.c) --- */

/* One line on stderr: "holdfast: …". Control characters in it are shown as escapes. */
void hfc_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, followed by where to find help. Returns HFC_EXIT_USAGE. */
int hfc_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The exit code that a status stands for. */
int hfc_exit_code(hf_status status);
/* Says err->message and returns the exit code of err->status. */
int hfc_fail(const hf_error *err);
/* What getopt_long() did not understand; call it when that returned '?' or ':' (the option string starts with "+:",
 * or with ":" where options may follow names). Returns HFC_EXIT_USAGE. */
int hfc_bad_option(const char *command, char **argv);
/* Flushes stdout: HFC_EXIT_OK, or HFC_EXIT_INTERNAL with a sentence if that could not be written (a full disk). */
int hfc_finish_output(void);

/* --- arguments (duration.c) --- */

/* "500ms", "2s", "5m", "1h", "7d", or plain seconds; fractions allowed. False, with `why` set to the end of a sentence
 * such as "is negative", if `text` is no duration or does not fit in 32 bits of milliseconds. A duration that is not
 * zero is never rounded to zero. */
bool hfc_duration(const char *text, uint32_t *ms, const char **why);
/* The same for a time-to-live, which the library wants to be 100ms at least. */
bool hfc_ttl(const char *text, uint32_t *ms, const char **why);
/* A whole number from `min` to `max`; false if it is anything else. */
bool hfc_number(const char *text, long min, long max, long *out);

/* --- settings (config.c) --- */

/* Takes `option` with optarg if it is one of HFC_STORE_OPTIONS. -1: taken; -2: it is another; else the exit code. */
int hfc_store_option(struct hfc_globals *globals, const char *command, int option);
/* Settles where the lock is kept: option, environment, the user's file, the system's, file:. Says why not and returns
 * the exit code if that makes no sense; HFC_EXIT_OK. */
int hfc_configure(struct hfc_globals *globals);
/* Where a setting comes from, in words. */
const char *hfc_setting_from(char *buffer, size_t size, const struct hfc_globals *globals, enum hfc_setting_id id);
/* Where HFC_USER_FILE and HFC_SYSTEM_FILE are looked for, whether they are there or not; "": nowhere. */
const char *hfc_settings_path(enum hfc_place place);
/* `url` without passwords, cut if need be. */
const char *hfc_shown_url(char *buffer, size_t size, const char *url);
/* Opens the store of globals->url with the default options. HFC_EXIT_OK, or says why not and returns the exit code. */
int hfc_open(hf_client **out, const struct hfc_globals *globals);
/* The same, but leaves what hf_open() says to the caller: err->status is HF_OK if there is nothing left to say. */
int hfc_open_quietly(hf_client **out, const struct hfc_globals *globals, hf_error *err);
/* For the command that is run: the path of the password file instead of the password. */
bool hfc_export_password_file(void);

/* --- output (output.c) --- */

/* A JSON string, quoted; bytes that are not UTF-8 become U+FFFD, so that it is always valid. NULL: null. */
void hfc_json_string(FILE *out, const char *text);
/* `"key": ` of a JSON object, with a comma before it unless *first; clears *first. */
void hfc_json_key(FILE *out, const char *key, bool *first);
/* `text` without anything that a terminal would obey: control characters, and bytes that are not UTF-8, become \xNN.
 * Returns a pointer to `buffer`, cut if need be, always terminated. */
const char *hfc_printable(char *buffer, size_t size, const char *text);
/* How many columns `text` takes in a terminal, near enough: one for each character, two for wide ones. */
int hfc_columns(const char *text);
/* "950ms", "12s", "3m05s", "2h07m", "3d04h"; "-" if negative. */
const char *hfc_short_time(char *buffer, size_t size, int64_t ms);

#endif
