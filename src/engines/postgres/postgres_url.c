/* SPDX-License-Identifier: MIT
 *
 * postgres_url.c: postgres://[user[:password]@][host][:port][,…][/database][?options]. All that is not an option of
 * ours goes to libpq, with its environment variables, password and service files.
 */
#include "engines/sql/sql_common.h"
#include "postgres_sql.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URL_MOST 4000
#define OPTIONS_MOST 80
#define DEFAULT_TABLE "holdfast_locks"
#define SHAPE "postgres://[user[:password]@][host][:port][/database][?option=value&...]"

struct own_options {
    char strategy[32], table[HFI_POSTGRES_TABLE_MAX], create[8], pooler[16];
};

static hf_status no_memory(hf_error *err)
{
    return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

/* Frees options, which may hold a password. */
static void wipe(PQconninfoOption *options)
{
    for (PQconninfoOption *one = options; one && one->keyword; one++) {
        if (one->val)
            explicit_bzero(one->val, strlen(one->val));
    }
    PQconninfoFree(options);
}

/* --- options --- */

static bool is_option(const char *text, size_t length, const char *name)
{
    return strlen(name) == length && strncmp(text, name, length) == 0;
}

/* Whether libpq knows it; those that it reads from URLs under another name too. */
static bool is_known(const PQconninfoOption *defaults, const char *text, size_t length)
{
    if (is_option(text, length, "ssl"))
        return true;
    for (const PQconninfoOption *one = defaults; one->keyword; one++) {
        if (is_option(text, length, one->keyword))
            return true;
    }
    return false;
}

/* One "name=value" of the query. Ours are kept in `own`, those of libpq appended to `rest`. */
static hf_status take_option(struct own_options *own, char *rest, const PQconninfoOption *defaults, const char *text,
                             size_t length, hf_error *err)
{
    const char *equals = memchr(text, '=', length);
    const size_t name = equals ? (size_t)(equals - text) : length;
    const struct {
        const char *name;
        char *value;
        size_t size;
    } ours[] = { { "strategy", own->strategy, sizeof own->strategy },
                 { "table", own->table, sizeof own->table },
                 { "create", own->create, sizeof own->create },
                 { "pooler", own->pooler, sizeof own->pooler } };
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (!is_option(text, name, ours[i].name))
            continue;
        const size_t value = equals ? length - name - 1 : 0;
        if (value == 0 || value >= ours[i].size)
            return hfi_fail(err, HF_INVALID, 0, "the option \"%s\" of the URL is empty or too long", ours[i].name);
        memcpy(ours[i].value, equals + 1, value);
        ours[i].value[value] = 0;
        return HF_OK;
    }
    if (!equals || !is_known(defaults, text, name))
        return hfi_fail(err, HF_INVALID, 0, "unknown option \"%.*s\" in the URL", name < 40 ? (int)name : 40, text);
    const size_t used = strlen(rest);
    snprintf(rest + used, URL_MOST - used, "%c%.*s", strchr(rest, '?') ? '&' : '?', (int)length, text);
    return HF_OK;
}

static hf_status split_options(struct own_options *own, char *rest, const char *url, hf_error *err)
{
    const size_t length = strcspn(url, "?");
    const char *query = url[length] ? url + length + 1 : url + length;
    PQconninfoOption *defaults = PQconndefaults();
    if (!defaults)
        return no_memory(err);
    snprintf(rest, URL_MOST, "postgresql:%s%.*s", length ? "" : "//", (int)length, url);
    hf_status status = HF_OK;
    while (*query && status == HF_OK) {
        const size_t one = strcspn(query, "&");
        if (one)
            status = take_option(own, rest, defaults, query, one, err);
        query += query[one] ? one + 1 : one;
    }
    PQconninfoFree(defaults);
    return status;
}

/* --- tables --- */

static hf_status split_table(struct postgres_config *config, const char *table, hf_error *err)
{
    const char *dot = strchr(table, '.');
    const char *last = dot ? dot + 1 : table;
    const size_t schema = dot ? (size_t)(dot - table) : 0;
    if (!hfi_sql_is_identifier(last, strlen(last)) || (dot && !hfi_sql_is_identifier(table, schema)))
        return hfi_fail(err, HF_INVALID, 0, "table is a name, or schema.name, of up to 50 letters, digits and _ each");
    if (dot)
        snprintf(config->schema, sizeof config->schema, "\"%.*s\"", (int)schema, table);
    snprintf(config->table, sizeof config->table, "%.50s", last);
    return HF_OK;
}

/* The quoted names of the tables and of the guard. */
static void name_tables(struct postgres_names *names, const char *schema, const char *table)
{
    snprintf(names->locks, sizeof names->locks, "%s.\"%s\"", schema, table);
    snprintf(names->waiters, sizeof names->waiters, "%s.\"%s_waiters\"", schema, table);
    snprintf(names->grants, sizeof names->grants, "%s.\"%s_grants\"", schema, table);
    snprintf(names->fences, sizeof names->fences, "%s.\"%s_fences\"", schema, table);
    snprintf(names->done, sizeof names->done, "%s.\"%s_done\"", schema, table);
    snprintf(names->guard, sizeof names->guard, "%s.\"%s_guard\"", schema,
             strcmp(table, DEFAULT_TABLE) == 0 ? "holdfast" : table);
}

static const char *name_of(const struct postgres_names *names, char letter)
{
    switch (letter) {
    case 'L':
        return names->locks;
    case 'W':
        return names->waiters;
    case 'G':
        return names->grants;
    case 'F':
        return names->fences;
    case 'D':
        return names->done;
    default:
        return names->guard;
    }
}

char *hfi_postgres_expand(const struct postgres_names *names, const char *text)
{
    size_t braces = 0;
    for (const char *at = text; *at; at++)
        braces += *at == '{';
    char *out = hfi_alloc(strlen(text) + braces * HFI_POSTGRES_TABLE_MAX + 1);
    char *end = out;
    for (const char *at = text; out && *at;) {
        if (at[0] == '{' && at[1] && at[2] == '}') {
            end = stpcpy(end, name_of(names, at[1]));
            at += 3;
        } else {
            *end++ = *at++;
        }
    }
    return out;
}

static hf_status expand_all(struct postgres_config *config, hf_error *err)
{
    for (size_t i = 0; i < POSTGRES_STATEMENTS; i++) {
        const char *text = config->strategy->sql[i].text;
        snprintf(config->prepared[i], sizeof config->prepared[i], "holdfast%zu", i);
        config->sql[i] = text ? hfi_postgres_expand(&config->names, text) : NULL;
        if (text && !config->sql[i])
            return no_memory(err);
    }
    return HF_OK;
}

hf_status hfi_postgres_config_use_schema(struct postgres_config *config, const char *schema, hf_error *err)
{
    if (*config->schema)
        schema = config->schema;
    if (!*schema)
        return hfi_fail(err, HF_INVALID, 0, "the search_path leads to no schema; name one: table=schema.%s",
                        config->table);
    if (strlen(schema) >= HFI_POSTGRES_SCHEMA_MAX || strstr(schema, HFI_POSTGRES_QUOTE))
        return hfi_fail(err, HF_INVALID, 0, "the schema to which the search_path leads has a name that is not usable");
    name_tables(&config->names, schema, config->table);
    return expand_all(config, err);
}

/* --- what libpq makes of it --- */

static PQconninfoOption *find(PQconninfoOption *options, const char *keyword)
{
    while (options->keyword && strcmp(options->keyword, keyword) != 0)
        options++;
    return options;
}

const char *hfi_postgres_option(const struct postgres_config *config, const char *keyword)
{
    const char *value = find(config->options, keyword)->val;
    return value ? value : "";
}

static void swap_values(PQconninfoOption *a, PQconninfoOption *b)
{
    char *value = a->val;
    a->val = b->val;
    b->val = value;
}

/* What libpq adds to the URL from its environment variables and its service file. It reads those only on the way to
 * connect, so it is given a value that stops it there; by then it has looked for a password in its file, too. */
#define STOP "ssl_max_protocol_version"
static PQconninfoOption *complete(PQconninfoOption *given, bool *password, hf_error *err)
{
    const char *keywords[OPTIONS_MOST] = { NULL }, *values[OPTIONS_MOST] = { NULL };
    size_t count = 0;
    for (const PQconninfoOption *one = given; one->keyword && count + 2 < OPTIONS_MOST; one++) {
        if (one->val && strcmp(one->keyword, STOP) != 0) {
            keywords[count] = one->keyword;
            values[count++] = one->val;
        }
    }
    keywords[count] = STOP;
    values[count] = "stop";
    hfi_fd_begin(); /* it opens files */
    PGconn *pq = PQconnectStartParams(keywords, values, 0);
    hfi_fd_end(-1);
    PQconninfoOption *all = pq ? PQconninfo(pq) : NULL;
    const char *words = pq ? PQerrorMessage(pq) : "";
    *password = pq && *PQpass(pq);
    if (!all) {
        no_memory(err);
    } else if (strstr(words, STOP)) {
        /* Its own value is that of the URL; or what libpq finds when it does connect, so it must know the service. */
        swap_values(find(all, STOP), find(given, STOP));
        swap_values(find(all, "service"), find(given, "service"));
    } else {
        hfi_fail(err, HF_INVALID, 0, "libpq refuses: %.*s", (int)strcspn(words, "\r\n"), words);
        wipe(all);
        all = NULL;
    }
    PQfinish(pq);
    return all;
}

static hf_status read_libpq(struct postgres_config *config, const char *url, hf_error *err)
{
    hf_error trouble = { .status = HF_OK };
    char *why = NULL;
    bool found_password = false;
    const char *password = secure_getenv("HOLDFAST_PASSWORD");
    PQconninfoOption *given = PQconninfoParse(url, &why);
    PQfreemem(why); /* unread: it may quote a password that should have been percent-encoded */
    if (!given)
        return hfi_fail(err, HF_INVALID, 0, "libpq cannot read the URL; it looks like this: " SHAPE);
    config->options = complete(given, &found_password, &trouble);
    const bool chose_gss = find(given, "gssencmode")->val != NULL;
    wipe(given);
    if (!config->options) {
        if (err)
            *err = trouble;
        return trouble.status;
    }
    if (strchr(hfi_postgres_option(config, "host"), ',') &&
        strcmp(hfi_postgres_option(config, "target_session_attrs"), "any") == 0)
        config->session_attributes = "read-write";
    /* A handshake that may wait for other servers, if nobody has asked for it. */
    if (!chose_gss && strcmp(hfi_postgres_option(config, "gssencmode"), "prefer") == 0)
        config->gss_mode = "disable";
    /* Last of all, so that it changes nothing for whom libpq's own ways work. */
    return !found_password && password && *password ? hfi_url_keep(&config->password, password, err) : HF_OK;
}

/* --- what is shown --- */

/* The URL without passwords, wherever they stand: libpq also takes them as options. */
static char *without_passwords(const char *rest)
{
    const size_t room = strlen(rest) + 20;
    char *shown = hfi_alloc(room);
    if (!shown)
        return NULL;
    const size_t base = strcspn(rest, "?");
    const char *authority = strncmp(rest, "//", 2) == 0 ? rest + 2 : rest;
    const size_t length = strcspn(authority, "/?");
    const char *at = memrchr(authority, '@', length);
    const char *colon = at ? memchr(authority, ':', (size_t)(at - authority)) : NULL;
    if (colon)
        snprintf(shown, room, "postgres:%.*s%.*s", (int)(colon - rest), rest, (int)(rest + base - at), at);
    else
        snprintf(shown, room, "postgres:%.*s", (int)base, rest);
    char separator = '?';
    for (const char *one = rest[base] ? rest + base + 1 : ""; *one;) {
        const size_t size = strcspn(one, "&");
        const size_t name = strcspn(one, "=&");
        if (size && !is_option(one, name, "password") && !is_option(one, name, "sslpassword")) {
            snprintf(shown + strlen(shown), room - strlen(shown), "%c%.*s", separator, (int)size, one);
            separator = '&';
        }
        one += one[size] ? size + 1 : size;
    }
    return shown;
}

/* --- all of it --- */

static hf_status read_own(struct postgres_config *config, const struct own_options *own, hf_error *err)
{
    config->strategy = hfi_postgres_strategy(own->strategy);
    config->create = strcmp(own->create, "yes") == 0;
    config->session_pooler = strcmp(own->pooler, "session") == 0;
    if (!config->strategy)
        return hfi_fail(err, HF_INVALID, 0, "a strategy is lease, insert, version, for-update or advisory");
    if (!config->create && strcmp(own->create, "no") != 0)
        return hfi_fail(err, HF_INVALID, 0, "create is yes or no");
    if (!config->session_pooler && *own->pooler)
        return hfi_fail(err, HF_INVALID, 0, "pooler is session, or left out");
    return split_table(config, own->table, err);
}

static void write_remedy(struct postgres_config *config, const char *table)
{
    const char *dot = strchr(table, '.'), *user = hfi_postgres_option(config, "user");
    const bool plain = hfi_sql_is_identifier(user, strlen(user)); /* or it would have to be quoted */
    char script[HFI_DATA_FILE_MAX];
    hfi_data_file(script, "holdfast-postgres.sql");
    snprintf(config->remedy, sizeof config->remedy, "psql%s%.*s -v table=%.50s%s%.50s -f %s", dot ? " -v schema=" : "",
             dot ? (int)(dot - table) : 0, table, dot ? dot + 1 : table, plain ? " -v role=" : "", plain ? user : "",
             script);
}

hf_status hfi_postgres_config_read(struct postgres_config *config, const struct hfi_url *url, char **shown,
                                   hf_error *err)
{
    struct own_options own = { .strategy = "lease", .table = DEFAULT_TABLE, .create = "yes" };
    char rest[URL_MOST];
    if (strlen(url->rest) > URL_MOST - 100)
        return hfi_fail(err, HF_INVALID, 0, "the URL is too long");
    if (*url->rest && strncmp(url->rest, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "a URL of this engine looks like this: " SHAPE);
    hf_status status = split_options(&own, rest, url->rest, err);
    if (status == HF_OK)
        status = read_own(config, &own, err);
    if (status != HF_OK)
        return status;
    status = read_libpq(config, rest, err);
    explicit_bzero(rest, sizeof rest);
    if (status != HF_OK)
        return status;
    write_remedy(config, own.table);
    const char *host = hfi_postgres_option(config, "host"), *address = hfi_postgres_option(config, "hostaddr");
    const char *port = hfi_postgres_option(config, "port");
    snprintf(config->where, sizeof config->where, "%.100s:%.20s",
             *host      ? host
             : *address ? address
                        : "localhost",
             port);
    *shown = without_passwords(url->rest);
    return *shown ? HF_OK : no_memory(err);
}

void hfi_postgres_config_free(struct postgres_config *config)
{
    for (size_t i = 0; i < POSTGRES_STATEMENTS; i++)
        hfi_free(config->sql[i]);
    if (config->password)
        explicit_bzero(config->password, strlen(config->password));
    hfi_free(config->password);
    wipe(config->options);
}
