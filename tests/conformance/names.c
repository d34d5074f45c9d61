/* SPDX-License-Identifier: MIT
 *
 * Names: 1 to 255 bytes of UTF-8 without control characters, and any two of them are different locks, whatever
 * characters the store gives a meaning to.
 */
#include "conformance.h"

#include <stdio.h>
#include <string.h>

extern uint32_t run_tag;

/* Beside these, which carry the run's tag, "." and ".." are tried as they are: with a tag they would be harmless. */
static const char *const hostile[] = {
    "a",
    "A",
    "a/b",
    "a//b",
    "../x",
    "../../../../x",
    "/etc/passwd",
    "/",
    "a/",
    "锁",
    "%00",
    "%2F",
    "%",
    "%%",
    "a%2Fb",
    "a b",
    " ",
    "'",
    "\"",
    "\\",
    "`id`",
    "$(id)",
    "; --",
    "' OR ''='",
    "{a}",
    "}{",
    "[a]*?",
    "a:q",
    "a:t",
    "hf:{a}",
    "~",
    "-rf",
    ".lock",
    "a.lock",
    "#",
    "?prefix=x",
    "a&b=c",
    "é",
    "e\xcc\x81",
    "\xf0\x9f\x94\x92",
    "a\xc2\xa0",
    "NUL",
    "con",
    "\xef\xbb\xbf",
    "\xe2\x80\xae",
};
#define HOSTILE (sizeof hostile / sizeof *hostile)
#define LONG 4
#define BARE 2
#define ALL (HOSTILE + LONG + BARE)

/* A name that begins with the hostile part and ends with the tag. */
static struct name tagged(const char *text)
{
    struct name name;
    snprintf(name.text, sizeof name.text, "%s~%08x", text, run_tag);
    return name;
}

/* `unit` as often as it fits, then `last` and the tag: 255 bytes. */
static struct name filled(const char *unit, const char *last)
{
    struct name name;
    char tail[20];
    size_t tail_length = (size_t)snprintf(tail, sizeof tail, "%s~%08x", last, run_tag);
    size_t used = 0;
    while (used + strlen(unit) + tail_length <= 255) {
        memcpy(name.text + used, unit, strlen(unit));
        used += strlen(unit);
    }
    /* What does not divide evenly is filled up with one-byte letters. */
    while (used + tail_length < 255)
        name.text[used++] = 'y';
    memcpy(name.text + used, tail, tail_length + 1);
    return name;
}

static void all_names(struct name *names)
{
    size_t count = 0;
    for (size_t i = 0; i < HOSTILE; i++)
        names[count++] = tagged(hostile[i]);
    names[count++] = filled("x", "1");
    names[count++] = filled("x", "2");
    names[count++] = filled("/", "");
    names[count++] = filled("锁", "");
    names[count++] = (struct name){ "." };
    names[count++] = (struct name){ ".." };
    REQUIRE_INT(ALL, count);
}

PROMISE(names_that_are_hostile_are_different_locks, 0)
{
    struct name names[ALL];
    hf_lock *locks[ALL];
    hf_client *client = open_client(), *other = open_client();
    all_names(names);
    for (size_t i = 0; i < ALL; i++) {
        hf_error err = { 0 };
        hf_options options = HF_OPTIONS_INIT;
        options.owner = HF_OWNER_HANDLE;
        /* Were two of them one lock, the second would be busy for ever. */
        if (i < HOSTILE + LONG)
            CHECK_STATUS(HF_OK, hf_try_acquire(&locks[i], client, names[i].text, &options, &err), &err);
        else
            locks[i] = must_acquire(client, names[i].text, &options);
        if (!locks[i])
            test_note("for the name \"%s\"", names[i].text);
    }
    for (size_t i = 0; i < ALL; i++) {
        check_busy(other, names[i].text);
        must_release(locks[i]);
    }
    for (size_t i = 0; i < HOSTILE + LONG; i++)
        check_free(other, names[i].text);
    hf_close(client);
    hf_close(other);
}

struct inspected {
    struct name names[ALL];
    unsigned found[ALL];
};

static int find_name(const hf_info *info, void *arg)
{
    struct inspected *all = arg;
    for (size_t i = 0; i < ALL; i++)
        all->found[i] += strcmp(all->names[i].text, info->name) == 0;
    return 0;
}

PROMISE(names_that_are_hostile_are_inspected_as_they_are, HF_CAP_INSPECT)
{
    struct inspected all = { 0 };
    hf_lock *locks[ALL];
    hf_error err = { 0 };
    hf_client *client = open_client();
    all_names(all.names);
    for (size_t i = 0; i < ALL; i++)
        locks[i] = must_acquire(client, all.names[i].text, NULL);
    CHECK_STATUS(HF_OK, hf_inspect(client, NULL, find_name, &all, &err), &err);
    for (size_t i = 0; i < ALL; i++) {
        if (!CHECK_INT(1, all.found[i]))
            test_note("for the name \"%s\"", all.names[i].text);
        must_release(locks[i]);
    }
    hf_close(client);
}

/* Not "." and "..", whose tokens earlier runs have left behind. */
PROMISE(names_that_are_hostile_are_different_resources, HF_CAP_GUARD)
{
    struct name names[ALL];
    hf_client *client = open_client();
    hf_error err = { 0 };
    all_names(names);
    /* Were two of them one resource, the later token would refuse the earlier one when it is shown again. */
    for (size_t i = 0; i < 2 * (HOSTILE + LONG); i++) {
        const size_t which = i % (HOSTILE + LONG);
        if (!CHECK_STATUS(HF_OK, hf_guard(client, names[which].text, which + 2, &err), &err))
            test_note("for the name \"%s\"", names[which].text);
    }
    for (size_t i = 0; i < HOSTILE + LONG; i++)
        CHECK_STATUS(HF_LOST, hf_guard(client, names[i].text, i + 1, &err), NULL);
    hf_close(client);
}

static void check_no_name(hf_client *client, const char *name, const char *what)
{
    hf_lock *lock = NULL;
    hf_error err = { 0 };
    if (!CHECK_STATUS(HF_INVALID, hf_acquire(&lock, client, name, NULL, &err), &err))
        test_note("for %s", what);
    CHECK(lock == NULL);
    CHECK(*err.message != '\0' && strchr(err.message, '\n') == NULL);
    CHECK_STATUS(HF_INVALID, hf_try_acquire(&lock, client, name, NULL, NULL), NULL);
    CHECK_STATUS(HF_INVALID, hf_cancel(client, name), NULL);
    if (store_can(HF_CAP_BREAK))
        CHECK_STATUS(HF_INVALID, hf_break(client, name, NULL), NULL);
    if (store_can(HF_CAP_GUARD))
        CHECK_STATUS(HF_INVALID, hf_guard(client, name, 1, NULL), NULL);
}

PROMISE(names_that_are_none_are_refused, 0)
{
    char too_long[257];
    hf_client *client = open_client();
    memset(too_long, 'x', 256);
    too_long[256] = '\0';
    check_no_name(client, "", "the empty name");
    check_no_name(client, too_long, "256 bytes");
    check_no_name(client, "two\nlines", "a newline");
    check_no_name(client, "tab\t", "a tab");
    check_no_name(client, "\x1b[2J", "an escape");
    check_no_name(client, "\x7f", "a delete");
    check_no_name(client, "\xff\xfe", "bytes that are not UTF-8");
    check_no_name(client, "\x80", "a lone continuation byte");
    check_no_name(client, "ab\xe9", "a character that is cut off");
    check_no_name(client, "\xc0\xaf", "an overlong form");
    check_no_name(client, "\xed\xa0\x80", "a surrogate");
    check_no_name(client, "\xf4\x90\x80\x80", "a character beyond Unicode");
    hf_close(client);
}
