/* SPDX-License-Identifier: MIT
 *
 * mysql_url.c: mysql://[user[:password]@][host][:port][/database][?options].
 */
#include "mysql_engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE "mysql://[user[:password]@][host][:port][/database][?option=value&...]"

static const char *const setting_names[MYSQL_SETTINGS] = {
    [SET_SOCKET] = "socket",
    [SET_DEFAULT_FILE] = "default-file",
    [SET_GROUP] = "group",
    [SET_SSL] = "ssl",
    [SET_PASSWORD_FILE] = "password_file",
    [SET_SSL_VERIFY] = "ssl-verify",
    [SET_SSL_CA] = "ssl-ca",
    [SET_SSL_CAPATH] = "ssl-capath",
    [SET_SSL_CERT] = "ssl-cert",
    [SET_SSL_KEY] = "ssl-key",
    [SET_SSL_CRL] = "ssl-crl",
    [SET_SSL_CIPHER] = "ssl-cipher",
    [SET_TLS_VERSION] = "tls-version",
    [SET_STRATEGY] = "strategy",
    [SET_TABLE] = "table",
    [SET_CREATE] = "create",
    [SET_POOLER] = "pooler",
};

static hf_status no_memory(hf_error *err)
{
    return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

static hf_status keep_unless_empty(char **field, const char *text, size_t length, hf_error *err)
{
    return length ? hfi_url_keep_decoded(field, text, length, err) : HF_OK;
}

/* --- authority and path --- */

static hf_status read_host(struct mysql_config *config, const char *text, size_t length, hf_error *err)
{
    const bool bracketed = length && text[0] == '[';
    const char *close = bracketed ? memchr(text, ']', length) : NULL;
    const char *colon = memrchr(close ? close : text, ':', length - (size_t)(close ? close - text : 0));
    const char *end = colon ? colon : text + length;
    if (bracketed && (!close || close + 1 != end))
        return hfi_fail(err, HF_INVALID, 0, "an address in [] of the URL is not closed");
    char digits[HFI_URL_TEXT_MAX];
    long port = 0;
    hf_status status = HF_OK;
    if (colon) {
        status = hfi_url_decode(digits, colon + 1, (size_t)(text + length - colon - 1), err);
        if (status == HF_OK)
            status = hfi_url_read_number(&port, digits, 1, 65535, "a port", err);
    }
    if (status != HF_OK)
        return status;
    config->port = (unsigned)port;
    const size_t brackets = bracketed ? 1 : 0;
    return keep_unless_empty(&config->host, text + brackets, (size_t)(end - text) - 2 * brackets, err);
}

static hf_status read_authority(struct mysql_config *config, const char *text, size_t length, hf_error *err)
{
    const char *at = memrchr(text, '@', length);
    const size_t login = at ? (size_t)(at - text) : 0;
    const char *colon = at ? memchr(text, ':', login) : NULL;
    const size_t user = colon ? (size_t)(colon - text) : login;
    hf_status status = keep_unless_empty(&config->user, text, user, err);
    if (status == HF_OK && colon)
        status = hfi_url_keep_decoded(&config->password, colon + 1, login - user - 1, err);
    if (status == HF_OK)
        status = at ? read_host(config, at + 1, length - login - 1, err) : read_host(config, text, length, err);
    return status;
}

/* --- options --- */

static char with_dash(char c)
{
    return c == '_' ? '-' : c;
}

/* libmariadb spells its own options both ways, with '-' and with '_'. */
static bool is_setting(const char *setting, const char *text, size_t length)
{
    size_t i = 0;
    while (i < length && with_dash(text[i]) == with_dash(setting[i]))
        i++;
    return i == length && !setting[i];
}

static hf_status take_option(struct mysql_config *config, const char *text, size_t length, hf_error *err)
{
    const char *equals = memchr(text, '=', length);
    const size_t name = equals ? (size_t)(equals - text) : length;
    size_t i = 0;
    while (i < MYSQL_SETTINGS && !is_setting(setting_names[i], text, name))
        i++;
    if (i == MYSQL_SETTINGS)
        return hfi_fail(err, HF_INVALID, 0, "unknown option \"%.*s\" in the URL", name < 40 ? (int)name : 40, text);
    if (!equals || name + 1 == length)
        return hfi_fail(err, HF_INVALID, 0, "the option \"%s\" of the URL is empty", setting_names[i]);
    return hfi_url_keep_decoded(&config->settings[i], equals + 1, length - name - 1, err);
}

static hf_status read_url(struct mysql_config *config, const char *text, hf_error *err)
{
    if (*text && strncmp(text, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "a URL of this engine looks like this: " SHAPE);
    text += *text ? 2 : 0;
    const size_t authority = strcspn(text, "/?");
    const char *path = text[authority] == '/' ? text + authority + 1 : text + authority;
    const size_t database = strcspn(path, "?");
    const char *query = path[database] ? path + database + 1 : "";
    hf_status status = read_authority(config, text, authority, err);
    if (status == HF_OK)
        status = keep_unless_empty(&config->database, path, database, err);
    while (*query && status == HF_OK) {
        const size_t one = strcspn(query, "&");
        if (one)
            status = take_option(config, query, one, err);
        query += query[one] ? one + 1 : one;
    }
    return status;
}

/* --- tables --- */

/* [database.]table becomes quoted names. */
static hf_status name_tables(struct mysql_config *config, const char *table, hf_error *err)
{
    const char *dot = strchr(table, '.');
    const char *last = dot ? dot + 1 : table;
    const size_t schema = dot ? (size_t)(dot - table) : 0;
    if (!hfi_sql_is_identifier(last, strlen(last)) || (dot && !hfi_sql_is_identifier(table, schema)))
        return hfi_fail(err, HF_INVALID, 0,
                        "table is a name, or database.name, of up to 50 letters, digits and _ each");
    if (!dot && !config->database && !config->settings[SET_GROUP] && !config->settings[SET_DEFAULT_FILE])
        return hfi_fail(err, HF_INVALID, 0, "the URL names no database; it looks like this: " SHAPE);
    char prefix[HFI_MYSQL_IDENTIFIER_MAX + 4] = "";
    if (dot)
        snprintf(prefix, sizeof prefix, "`%.*s`.", (int)schema, table);
    const bool usual = strcmp(last, "holdfast_locks") == 0;
    snprintf(config->locks, sizeof config->locks, "%s`%s`", prefix, last);
    snprintf(config->grants, sizeof config->grants, "%s`%s_grants`", prefix, last);
    snprintf(config->waiters, sizeof config->waiters, "%s`%s_waiters`", prefix, last);
    snprintf(config->fences, sizeof config->fences, "%s`%s_fences`", prefix, last);
    snprintf(config->marks, sizeof config->marks, "%s`%s_done`", prefix, last);
    snprintf(config->guard, sizeof config->guard, "%s`%s_guard`", prefix, usual ? "holdfast" : last);
    snprintf(config->schema, sizeof config->schema, dot ? "'%.*s'" : "DATABASE()", (int)schema, table);
    snprintf(config->table, sizeof config->table, "%s", last);
    return HF_OK;
}

static const char *meaning(const struct mysql_config *config, char letter)
{
    switch (letter) {
    case 'L':
        return config->locks;
    case 'G':
        return config->grants;
    case 'W':
        return config->waiters;
    case 'F':
        return config->fences;
    case 'N':
        return config->marks;
    case 'P':
        return config->guard;
    case 'D':
        return config->schema;
    default:
        return config->table;
    }
}

static char *put_many(char *end)
{
    for (int i = 0; i < HFI_MYSQL_MANY; i++)
        end = stpcpy(end, i ? ",?" : "?");
    return end;
}

char *hfi_mysql_expand(const struct mysql_config *config, const char *text)
{
    size_t braces = 0;
    for (const char *at = text; *at; at++)
        braces += *at == '{';
    char *out = hfi_alloc(strlen(text) + braces * (sizeof config->grants + 2 * HFI_MYSQL_MANY) + 1);
    char *end = out;
    for (const char *at = text; out && *at;) {
        if (at[0] != '{' || !at[1] || at[2] != '}') {
            *end++ = *at++;
            continue;
        }
        if (at[1] == 'M')
            end = put_many(end);
        else if (at[1] == 'T')
            end = stpcpy(stpcpy(stpcpy(end, "'"), config->table), "'");
        else
            end = stpcpy(end, meaning(config, at[1]));
        at += 3;
    }
    return out;
}

/* --- all of it --- */

static hf_status read_choice(const char *given, const char *name, bool otherwise, bool *out, hf_error *err)
{
    return hfi_url_read_switch(out, name, given ? given : otherwise ? "yes" : "no", err);
}

/* The environment comes last, so that it changes nothing for whom the client library's own ways work: libmariadb would
 * rather take a password that it is given than the one of an option file or of its own variable. */
static hf_status read_password(struct mysql_config *config, hf_error *err)
{
    char *const *given = config->settings;
    const char *password = secure_getenv("HOLDFAST_PASSWORD");
    if (config->password)
        return HF_OK;
    if (given[SET_PASSWORD_FILE])
        return hfi_url_keep_secret(&config->password, "read", given[SET_PASSWORD_FILE], err);
    if (!password || !*password || given[SET_DEFAULT_FILE] || given[SET_GROUP] || secure_getenv("MYSQL_PWD"))
        return HF_OK;
    return hfi_url_keep(&config->password, password, err);
}

static hf_status read_settings(struct mysql_config *config, hf_error *err)
{
    char *const *given = config->settings;
    config->strategy = hfi_mysql_strategy(given[SET_STRATEGY] ? given[SET_STRATEGY] : "lease");
    if (!config->strategy)
        return hfi_fail(err, HF_INVALID, 0, "a strategy is lease, insert, version, for-update or get-lock");
    hf_status status = read_choice(given[SET_CREATE], "create", true, &config->create, err);
    if (status == HF_OK)
        status = read_choice(given[SET_SSL_VERIFY], "ssl-verify", given[SET_SSL_CA] || given[SET_SSL_CAPATH],
                             &config->by_name, err);
    if (status == HF_OK)
        status = read_choice(given[SET_SSL], "ssl", config->by_name, &config->tls, err);
    if (status != HF_OK)
        return status;
    config->session_pooler = given[SET_POOLER] && strcmp(given[SET_POOLER], "session") == 0;
    if (given[SET_POOLER] && !config->session_pooler)
        return hfi_fail(err, HF_INVALID, 0, "pooler is session, or left out");
    status = read_password(config, err);
    if (status == HF_OK)
        status = name_tables(config, given[SET_TABLE] ? given[SET_TABLE] : "holdfast_locks", err);
    return status;
}

static void name_place(struct mysql_config *config)
{
    const char *socket = config->settings[SET_SOCKET];
    if (config->host && config->port)
        snprintf(config->where, sizeof config->where, "%.100s:%u", config->host, config->port);
    else
        snprintf(config->where, sizeof config->where, "%.150s",
                 config->host ? config->host
                 : socket     ? socket
                              : "the MySQL server");
}

hf_status hfi_mysql_config_read(struct mysql_config *config, const struct hfi_url *url, hf_error *err)
{
    hf_status status = read_url(config, url->rest, err);
    if (status == HF_OK)
        status = read_settings(config, err);
    if (status != HF_OK)
        return status;
    name_place(config);
    for (size_t i = 0; i < SQL_STATEMENTS; i++) {
        const char *text = config->strategy->sql[i].text;
        config->sql[i] = text ? hfi_mysql_expand(config, text) : NULL;
        if (text && !config->sql[i])
            return no_memory(err);
    }
    return HF_OK;
}

void hfi_mysql_config_free(struct mysql_config *config)
{
    if (config->password)
        explicit_bzero(config->password, strlen(config->password));
    hfi_free(config->password);
    hfi_free(config->user);
    hfi_free(config->host);
    hfi_free(config->database);
    for (size_t i = 0; i < MYSQL_SETTINGS; i++)
        hfi_free(config->settings[i]);
    for (size_t i = 0; i < SQL_STATEMENTS; i++)
        hfi_free(config->sql[i]);
}
