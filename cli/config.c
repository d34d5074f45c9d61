/* SPDX-License-Identifier: MIT
 *
 * config.c: which store is meant. An option comes first, then the environment, the user's holdfast.conf, the system's,
 * and file: last. Whatever of these cannot be understood is refused: the next one, or a file on this machine, would
 * exclude nobody whom the user had in mind. The library knows no such files: whoever links it chooses the URL.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define FILE_MOST 65536
#define SECRET_MOST 4096

static const struct {
    const char *key;
    const char *option;
    const char *variable; /* NULL: there is none */
} settings[HFC_SETTINGS] = {
    [HFC_URL] = { "url", "--url", "HOLDFAST_URL" },
    [HFC_PASSWORD_FILE] = { "password_file", NULL, "HOLDFAST_PASSWORD_FILE" },
    [HFC_TTL] = { "ttl", "--ttl", NULL },
    [HFC_REACH] = { "reach", "--reach", NULL },
};

/* One of each per process: settings point into them. */
static char paths[HFC_DEFAULT][4096], texts[HFC_DEFAULT][FILE_MOST];
/* What HOLDFAST_PASSWORD was read from; NULL: it was not. */
static const char *password_from;

const char *hfc_setting_from(char *buffer, size_t size, const struct hfc_globals *globals, enum hfc_setting_id id)
{
    const struct hfc_setting *setting = &globals->settings[id];
    const char *option = settings[id].option, *variable = settings[id].variable; /* NULL: it comes from elsewhere */

    switch (setting->place) {
    case HFC_OPTION:
        snprintf(buffer, size, "%s", option != NULL ? option : "");
        break;
    case HFC_ENVIRONMENT:
        snprintf(buffer, size, "%s", variable != NULL ? variable : "");
        break;
    case HFC_USER_FILE:
    case HFC_SYSTEM_FILE:
        snprintf(buffer, size, "%s, line %d", paths[setting->place], setting->line);
        break;
    case HFC_DEFAULT:
        snprintf(buffer, size, "default");
    }
    return buffer;
}

const char *hfc_settings_path(enum hfc_place place)
{
    return paths[place];
}

/* --- files --- */

static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    for (size_t length = strlen(text); length > 0 && strchr(" \t\r", text[length - 1]) != NULL; length--)
        text[length - 1] = '\0';
    return text;
}

static int read_line(struct hfc_globals *globals, char *text, enum hfc_place place, int line)
{
    char *equals = strchr(text, '=');

    if (*text == '\0' || *text == '#')
        return HFC_EXIT_OK;
    if (equals == NULL)
        return hfc_usage(NULL, "%s, line %d: it is not KEY = VALUE", paths[place], line);
    *equals = '\0';
    const char *key = trim(text), *value = trim(equals + 1);
    for (int id = 0; id < HFC_SETTINGS; id++) {
        struct hfc_setting *setting = &globals->settings[id];
        if (strcmp(key, settings[id].key) != 0)
            continue;
        if (*value == '\0')
            return hfc_usage(NULL, "%s, line %d: %s is empty", paths[place], line, key);
        if (setting->value != NULL && setting->place == place)
            return hfc_usage(NULL, "%s, line %d: %s stands there twice", paths[place], line, key);
        if (id == HFC_PASSWORD_FILE && *value != '/')
            return hfc_usage(NULL, "%s, line %d: %s must be an absolute path", paths[place], line, key);
        if (setting->value == NULL)
            *setting = (struct hfc_setting){ value, place, line };
        return HFC_EXIT_OK;
    }
    return hfc_usage(NULL, "%s, line %d: '%s' is none of url, password_file, ttl and reach", paths[place], line, key);
}

/* At most `size` - 1 bytes of the file, terminated. -1: see errno. */
static ssize_t read_file(char *out, size_t size, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t length = fd >= 0 ? 1 : -1;

    while (fd >= 0 && length > 0 && used < size - 1) {
        length = read(fd, out + used, size - 1 - used);
        used += length > 0 ? (size_t)length : 0;
    }
    const int failure = errno;
    if (fd >= 0)
        close(fd);
    out[used] = '\0';
    errno = failure;
    return length < 0 ? -1 : (ssize_t)used;
}

static int cannot_read(const char *path)
{
    const int failure = errno;

    hfc_say("cannot read %s: %s", path, strerror(failure));
    if (failure == EACCES || failure == EPERM)
        return HFC_EXIT_DENIED;
    return failure == EMFILE || failure == ENFILE || failure == ENOMEM ? HFC_EXIT_INTERNAL : HFC_EXIT_USAGE;
}

static int read_settings(struct hfc_globals *globals, enum hfc_place place)
{
    char *const text = texts[place];
    const ssize_t length = read_file(text, FILE_MOST, paths[place]);

    if (length < 0) {
        /* One that is another user's own cannot be meant if the store is known without it. */
        const bool not_needed = errno == EACCES && globals->settings[HFC_URL].value != NULL;
        return errno == ENOENT || errno == ENOTDIR || not_needed ? HFC_EXIT_OK : cannot_read(paths[place]);
    }
    if (length == FILE_MOST - 1 || strlen(text) != (size_t)length)
        return hfc_usage(NULL, "%s is too long, or not a text", paths[place]);
    int code = HFC_EXIT_OK, number = 1;
    for (char *line = text, *next = text; code == HFC_EXIT_OK && next != NULL; line = next, number++) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        code = read_line(globals, trim(line), place, number);
    }
    return code;
}

static int read_files(struct hfc_globals *globals)
{
    /* secure_getenv(): a set-user-ID command is not told by its caller where to look. */
    const char *config = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
    const char *system = secure_getenv("HOLDFAST_SYSCONFDIR");
    int code = HFC_EXIT_OK;

    if (config != NULL && *config == '/')
        snprintf(paths[HFC_USER_FILE], sizeof paths[0], "%s/holdfast.conf", config);
    else if (home != NULL && *home == '/')
        snprintf(paths[HFC_USER_FILE], sizeof paths[0], "%s/.config/holdfast.conf", home);
    snprintf(paths[HFC_SYSTEM_FILE], sizeof paths[0], "%s/holdfast.conf", system != NULL ? system : HFC_SYSCONFDIR);
    if (paths[HFC_USER_FILE][0] != '\0')
        code = read_settings(globals, HFC_USER_FILE);
    return code == HFC_EXIT_OK ? read_settings(globals, HFC_SYSTEM_FILE) : code;
}

/* --- what they mean --- */

static int set_reach(struct hfc_globals *globals)
{
    const char *reach = globals->settings[HFC_REACH].value;
    char from[4200];

    globals->machines_only = reach != NULL && strcmp(reach, "machines") == 0;
    if (reach == NULL || globals->machines_only || strcmp(reach, "processes") == 0)
        return HFC_EXIT_OK;
    return hfc_usage(NULL, "%s: '%s' is neither processes nor machines",
                     hfc_setting_from(from, sizeof from, globals, HFC_REACH), reach);
}

static int set_ttl(struct hfc_globals *globals)
{
    const char *ttl = globals->settings[HFC_TTL].value, *why;
    char from[4200];

    if (ttl == NULL || hfc_ttl(ttl, &globals->ttl_ms, &why))
        return HFC_EXIT_OK;
    return hfc_usage(NULL, "%s: ttl '%s' %s", hfc_setting_from(from, sizeof from, globals, HFC_TTL), ttl, why);
}

static int set_url(struct hfc_globals *globals)
{
    struct hfc_setting *url = &globals->settings[HFC_URL];
    struct hfc_setting *password = &globals->settings[HFC_PASSWORD_FILE];

    if (url->value == NULL)
        *url = (struct hfc_setting){ "file:", HFC_DEFAULT, 0 };
    /* A password must not be sent to a server that somebody nearer has chosen. */
    if (password->value != NULL && password->place > url->place)
        password->value = NULL;
    globals->url = url->value;
    if (strncasecmp(globals->url, "mem:", 4) == 0 && !globals->mem_allowed)
        return hfc_usage(NULL, "a lock in mem: is known to this one process, and would exclude nobody");
    return HFC_EXIT_OK;
}

int hfc_configure(struct hfc_globals *globals)
{
    /* secure_getenv(): as in the library. */
    for (int id = 0; id < HFC_SETTINGS; id++) {
        const char *value = settings[id].variable != NULL ? secure_getenv(settings[id].variable) : NULL;
        if (value == NULL || globals->settings[id].value != NULL)
            continue;
        /* Most likely an unset variable of a script: the default would be the wrong one. */
        if (*value == '\0')
            return hfc_usage(NULL, "%s is empty", settings[id].variable);
        globals->settings[id] = (struct hfc_setting){ value, HFC_ENVIRONMENT, 0 };
    }
    int code = read_files(globals);
    if (code == HFC_EXIT_OK)
        code = set_url(globals);
    if (code == HFC_EXIT_OK)
        code = set_ttl(globals);
    return code == HFC_EXIT_OK ? set_reach(globals) : code;
}

int hfc_store_option(struct hfc_globals *globals, const char *command, int option)
{
    if (option != 'u' && option != HFC_OPT_REACH)
        return -2;
    if (*optarg == '\0')
        return hfc_usage(command, option == 'u' ? "--url: the URL is empty" : "--reach: it is empty");
    globals->settings[option == 'u' ? HFC_URL : HFC_REACH] = (struct hfc_setting){ optarg, HFC_OPTION, 0 };
    return -1;
}

/* --- the store --- */

static bool is_secret(const char *option, size_t length)
{
    return (length == 8 && strncasecmp(option, "password", 8) == 0) ||
           (length == 11 && strncasecmp(option, "sslpassword", 11) == 0);
}

const char *hfc_shown_url(char *buffer, size_t size, const char *url)
{
    const char *authority = strstr(url, "://");
    const size_t host = authority != NULL ? (size_t)(authority - url) + 3 : 0;
    /* Up to the last '@' before the path: a password may contain one. */
    const char *at = authority != NULL ? memrchr(url + host, '@', strcspn(url + host, "/?")) : NULL;
    const char *colon = at != NULL ? memchr(url + host, ':', (size_t)(at - url) - host) : NULL;
    const char *rest = colon != NULL ? at : url;
    size_t base = strcspn(rest, "?");
    char separator = '?';
    int used = snprintf(buffer, size, "%.*s%.*s", colon != NULL ? (int)(colon - url) : 0, url, (int)base, rest);

    for (const char *option = rest + base; *option != '\0' && used >= 0 && (size_t)used < size; option += base) {
        option++;
        base = strcspn(option, "&");
        if (is_secret(option, strcspn(option, "=&")))
            continue;
        used += snprintf(buffer + used, size - (size_t)used, "%c%.*s", separator, (int)base, option);
        separator = '&';
    }
    return buffer;
}

/* The engines know HOLDFAST_PASSWORD; one that is set already comes first. */
static int set_password(const struct hfc_globals *globals)
{
    const char *path = globals->settings[HFC_PASSWORD_FILE].value;
    char secret[SECRET_MOST];

    if (path == NULL || getenv("HOLDFAST_PASSWORD") != NULL)
        return HFC_EXIT_OK;
    if (read_file(secret, sizeof secret, path) < 0)
        return cannot_read(path);
    secret[strcspn(secret, "\r\n")] = '\0';
    const bool done = setenv("HOLDFAST_PASSWORD", secret, 1) == 0;
    explicit_bzero(secret, sizeof secret);
    if (!done) {
        hfc_say("no memory for the password");
        return HFC_EXIT_INTERNAL;
    }
    password_from = path;
    return HFC_EXIT_OK;
}

bool hfc_export_password_file(void)
{
    return password_from == NULL ||
           (unsetenv("HOLDFAST_PASSWORD") == 0 && setenv("HOLDFAST_PASSWORD_FILE", password_from, 1) == 0);
}

int hfc_open_quietly(hf_client **out, const struct hfc_globals *globals, hf_error *err)
{
    char from[4200];
    int code = set_password(globals);

    *out = NULL;
    err->status = HF_OK;

    if (code != HFC_EXIT_OK)
        return code;
    hf_status status;
    do
        status = hf_open(out, globals->url, NULL, err);
    while (status == HF_UNAVAILABLE && globals->open_again != NULL && globals->open_again(globals->open_arg, err));
    /* An engine that is not installed is a store out of reach; an option that an engine lacks is a mistake in the
     * command. */
    if (status != HF_OK)
        return status == HF_UNSUPPORTED ? HFC_EXIT_UNAVAILABLE : hfc_exit_code(status);
    err->status = HF_OK; /* of an earlier try */
    if (!globals->machines_only || (hf_capabilities(*out) & HF_CAP_MACHINES) != 0)
        return HFC_EXIT_OK;
    hfc_say("%s does not exclude other machines, and that is wanted (%s)", hf_url(*out),
            hfc_setting_from(from, sizeof from, globals, HFC_REACH));
    hf_close(*out);
    *out = NULL;
    return HFC_EXIT_USAGE;
}

int hfc_open(hf_client **out, const struct hfc_globals *globals)
{
    hf_error err;
    const int code = hfc_open_quietly(out, globals, &err);

    if (code != HFC_EXIT_OK && err.status != HF_OK)
        hfc_say("%s", err.message);
    return code;
}
