/* SPDX-License-Identifier: MIT
 *
 * sqlite_url.c: sqlite:///absolute/path.db[?option=value&…].
 */
#include "sqlite.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE "sqlite:///ABSOLUTE/PATH[?option=value&...]"
/* What SQLite and we put behind the path: "-holdfast", "-journal". */
#define SUFFIX_MOST 10

struct option {
    const char *name;
    char *value;
    size_t size;
};

static hf_status no_memory(hf_error *err)
{
    return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

/* --- the path --- */

static hf_status read_path(char *out, const char *text, size_t length, hf_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '%') {
            if (i + 2 >= length || !isxdigit((unsigned char)text[i + 1]) || !isxdigit((unsigned char)text[i + 2]))
                return hfi_fail(err, HF_INVALID, 0, "%% must be followed by two hexadecimal digits in a URL");
            const char digits[3] = { text[i + 1], text[i + 2], 0 };
            c = (char)strtol(digits, NULL, 16);
            i += 2;
        }
        if (!c || used + 1 + SUFFIX_MOST >= PATH_MAX)
            return hfi_fail(err, HF_INVALID, 0, "the URL's path is too long or contains %%00");
        out[used++] = c;
    }
    out[used] = 0;
    return HF_OK;
}

/* "///path", "//localhost/path" or "/path". */
static hf_status take_path(struct sqlite_config *config, const char *rest, size_t length, hf_error *err)
{
    size_t skip = 0;
    if (length > 12 && strncmp(rest, "//localhost/", 12) == 0)
        skip = 11;
    else if (length > 3 && strncmp(rest, "///", 3) == 0)
        skip = 2;
    if (length - skip < 2 || rest[skip] != '/' || rest[skip + 1] == '/')
        return hfi_fail(err, HF_INVALID, 0, "a URL of this engine looks like this: " SHAPE);
    return read_path(config->path, rest + skip, length - skip, err);
}

/* --- options --- */

static hf_status take_option(const struct option *known, size_t count, const char *text, size_t length, hf_error *err)
{
    const size_t name = strcspn(text, "=&");
    for (size_t i = 0; i < count; i++) {
        if (strlen(known[i].name) != name || strncmp(known[i].name, text, name) != 0)
            continue;
        const size_t value = name < length ? length - name - 1 : 0;
        if (value == 0 || value >= known[i].size)
            return hfi_fail(err, HF_INVALID, 0, "the option \"%s\" of the URL is empty or too long", known[i].name);
        memcpy(known[i].value, text + name + 1, value);
        known[i].value[value] = 0;
        return HF_OK;
    }
    return hfi_fail(err, HF_INVALID, 0, "unknown option \"%.*s\" in the URL", name < 40 ? (int)name : 40, text);
}

static bool is_one_of(const char *value, const char *const *words)
{
    while (*words && strcmp(*words, value) != 0)
        words++;
    return *words != NULL;
}

static hf_status choose_strategy(struct sqlite_config *config, const char *name, hf_error *err)
{
    static const char *const bound[] = { "for-update", "advisory", "get-lock", NULL };
    config->strategy = hfi_sqlite_strategy(name);
    if (config->strategy)
        return HF_OK;
    if (is_one_of(name, bound))
        return hfi_fail(err, HF_UNSUPPORTED, 0,
                        "SQLite has no %s locks: a transaction left open would lock the whole file for everybody; "
                        "a strategy is lease, insert or version",
                        strcmp(name, "for-update") == 0 ? "row" : "session's");
    return hfi_fail(err, HF_INVALID, 0, "a strategy is lease, insert or version");
}

static hf_status check_options(struct sqlite_config *config, const char *strategy, const char *create, hf_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    static const char *const journals[] = { "", "wal", "delete", "truncate", "persist", NULL };
    static const char *const syncs[] = { "", "off", "normal", "full", "extra", NULL };
    const char *table = config->table;
    config->create = strcmp(create, "yes") == 0;
    if (!config->create && strcmp(create, "no") != 0)
        return hfi_fail(err, HF_INVALID, 0, "create is yes or no");
    if (table[strspn(table, letters)] || isdigit((unsigned char)*table) || strncasecmp(table, "sqlite_", 7) == 0)
        return hfi_fail(err, HF_INVALID, 0, "table is a name of up to %d letters, digits and _", HFI_SQLITE_TABLE_MAX);
    if (!is_one_of(config->journal, journals))
        return hfi_fail(err, HF_INVALID, 0, "journal is wal, delete, truncate or persist");
    if (!is_one_of(config->synchronous, syncs))
        return hfi_fail(err, HF_INVALID, 0, "synchronous is off, normal, full or extra");
    return choose_strategy(config, strategy, err);
}

/* --- statements --- */

char *hfi_sqlite_expand(const struct sqlite_config *config, const char *text)
{
    size_t braces = 0;
    for (const char *at = text; *at; at++)
        braces += *at == '{';
    char *out = hfi_alloc(strlen(text) + braces * (HFI_SQLITE_TABLE_MAX + sizeof "_waiters") + 1);
    char *end = out;
    for (const char *at = text; out && *at;) {
        if (at[0] == '{' && at[1] && at[2] == '}') {
            end = stpcpy(end, config->table);
            end = stpcpy(end, at[1] == 'L' ? "" : at[1] == 'W' ? "_waiters" : at[1] == 'D' ? "_done" : "_grants");
            at += 3;
        } else {
            *end++ = *at++;
        }
    }
    return out;
}

static hf_status expand_all(struct sqlite_config *config, hf_error *err)
{
    for (size_t i = 0; i < LITE_STATEMENTS; i++) {
        const char *text = config->strategy->sql[i];
        config->sql[i] = text ? hfi_sqlite_expand(config, text) : NULL;
        if (text && !config->sql[i])
            return no_memory(err);
    }
    return HF_OK;
}

hf_status hfi_sqlite_config_read(struct sqlite_config *config, const struct hfi_url *url, hf_error *err)
{
    char strategy[16] = "lease", create[8] = "yes";
    const struct option known[] = { { "strategy", strategy, sizeof strategy },
                                    { "table", config->table, sizeof config->table },
                                    { "create", create, sizeof create },
                                    { "journal", config->journal, sizeof config->journal },
                                    { "synchronous", config->synchronous, sizeof config->synchronous } };
    const size_t length = strcspn(url->rest, "?#");
    const char *query = url->rest + length;
    snprintf(config->table, sizeof config->table, "holdfast_locks");
    if (*query == '#')
        return hfi_fail(err, HF_INVALID, 0, "write %%23 for '#' in a URL");
    hf_status status = take_path(config, url->rest, length, err);
    query += *query == '?';
    while (*query && status == HF_OK) {
        const size_t one = strcspn(query, "&");
        if (one)
            status = take_option(known, sizeof known / sizeof known[0], query, one, err);
        query += query[one] ? one + 1 : one;
    }
    if (status == HF_OK)
        status = check_options(config, strategy, create, err);
    return status == HF_OK ? expand_all(config, err) : status;
}

void hfi_sqlite_config_free(struct sqlite_config *config)
{
    for (size_t i = 0; i < LITE_STATEMENTS; i++)
        hfi_free(config->sql[i]);
}
