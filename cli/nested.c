/* SPDX-License-Identifier: MIT
 *
 * nested.c: `holdfast run NAME` inside of `holdfast run NAME`.
 *
 * HOLDFAST_HELD lists what the outer runs hold, as entries of the form token:pid:url:name, percent-encoded and
 * separated by blanks. An entry counts only if the process that holds the lock is an ancestor of this one: then it
 * waits for us, and ends us if the lock is lost. The variable alone proves nothing, because it is also inherited by
 * what outlives the outer run.
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VARIABLE "HOLDFAST_HELD"

/* Writes `text` so that it contains neither blank nor colon; returns what follows it. Three bytes for each may be
 * needed. */
static char *encode(char *out, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";

    for (; *text != '\0'; text++) {
        if (strchr(plain, *text) != NULL) {
            *out++ = *text;
        } else {
            *out++ = '%';
            *out++ = digits[(unsigned char)*text >> 4];
            *out++ = digits[(unsigned char)*text & 15];
        }
    }
    *out = '\0';
    return out;
}

/* ":url:name", how the entry for this lock ends. NULL if there is no memory. An empty url: ":name". */
static char *entry_end(const char *url, const char *name)
{
    char *end = malloc(3 * (strlen(url) + strlen(name)) + 3);

    if (end != NULL) {
        char *at = end;

        if (*url != '\0') {
            *at++ = ':';
            at = encode(at, url);
        }
        *at++ = ':';
        encode(at, name);
    }
    return end;
}

/* Finds the last entry with that end. */
static const char *find_entry(const char *end)
{
    const char *found = NULL;
    const char *at = getenv(VARIABLE);

    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, " ");

        if (length > strlen(end) && memcmp(at + length - strlen(end), end, strlen(end)) == 0)
            found = at;
        at += length + (at[length] == ' ');
    }
    return found;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    long parent = 0;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    /* The name of the program, in parentheses, may itself contain anything. */
    const char *after = strrchr(text, ')');
    return after != NULL && sscanf(after, ") %*c %ld", &parent) == 1 ? (pid_t)parent : 0;
}

static bool is_ancestor(pid_t ancestor)
{
    pid_t pid = getppid();

    for (int level = 0; level < 10000 && pid > 0; level++) {
        if (pid == ancestor)
            return true;
        pid = parent_of(pid);
    }
    return false;
}

bool hfc_nested_maybe(const char *name)
{
    char *end = getenv(VARIABLE) != NULL ? entry_end("", name) : NULL;
    bool found = end != NULL && find_entry(end) != NULL;

    free(end);
    return found;
}

bool hfc_nested_find(const char *url, const char *name, uint64_t *token, int *holder_fd)
{
    char *end = entry_end(url, name);
    const char *entry = end != NULL ? find_entry(end) : NULL;
    unsigned long long number;
    long pid;

    free(end);
    if (entry == NULL || sscanf(entry, "%llu:%ld:", &number, &pid) != 2 || pid <= 0)
        return false;
    /* First the descriptor, then the question: whatever has that number now, if it is an ancestor it is the holder,
     * because it was there before us. */
    *holder_fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    if (*holder_fd < 0)
        return false;
    if (!is_ancestor((pid_t)pid)) {
        close(*holder_fd);
        return false;
    }
    *token = number;
    return true;
}

static bool append_held(const char *url, const char *name, const char *token)
{
    const char *before = getenv(VARIABLE);
    char *end = entry_end(url, name);
    char *all = NULL;
    bool done = end != NULL && asprintf(&all, "%s%s%s:%ld%s", before != NULL ? before : "",
                                        before != NULL && *before != '\0' ? " " : "", token, (long)getpid(), end) >= 0;

    done = done && setenv(VARIABLE, all, 1) == 0;
    free(all);
    free(end);
    return done;
}

bool hfc_nested_export(const char *url, const char *name, uint64_t token, bool held_by_us)
{
    char number[24];

    snprintf(number, sizeof number, "%llu", (unsigned long long)token);
    if (setenv("HOLDFAST_NAME", name, 1) != 0 || setenv("HOLDFAST_TOKEN", number, 1) != 0 ||
        setenv("HOLDFAST_URL", url, 1) != 0 || (held_by_us && !append_held(url, name, number))) {
        hfc_say("no memory for the environment");
        return false;
    }
    return true;
}
