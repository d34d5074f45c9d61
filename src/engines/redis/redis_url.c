/* SPDX-License-Identifier: MIT
 *
 * redis_url.c: redis://[user:password@]host[:port][/database][?options], rediss:// and redis+unix:///socket;
 * redis+sentinel://…host,host,…/master, redis+cluster://…host,host,… and redlock://…host,host,…
 */
#include "redis.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* redlock: leaves no connection for want of an answer, as releases may be on it. */
#define REDLOCK_SILENCE_MS 10000

/* --- options --- */

static hf_status read_dialect(struct redis_config *config, const char *value, hf_error *err)
{
    static const struct redis_dialect *const dialects[] = { &hfi_redis_native, &hfi_redis_plain, &hfi_redis_tair,
                                                            &hfi_redis_redisson };
    for (size_t i = 0; i < sizeof dialects / sizeof dialects[0]; i++) {
        if (strcmp(value, dialects[i]->name) == 0) {
            config->dialect = dialects[i];
            return HF_OK;
        }
    }
    return hfi_fail(err, HF_INVALID, 0, "a dialect is native, plain, tair or redisson");
}

struct number_option {
    const char *name;
    long least, most;
    int *plain;
    hfi_time *milliseconds;
};

static hf_status read_number_option(const struct number_option *option, const char *value, hf_error *err)
{
    long number;
    const hf_status status = hfi_url_read_number(&number, value, option->least, option->most, option->name, err);
    if (option->plain)
        *option->plain = (int)number;
    else
        *option->milliseconds = number * HFI_MS;
    return status;
}

static hf_status read_option(struct redis_config *config, const char *name, const char *value, hf_error *err)
{
    const struct {
        const char *name;
        char **field;
    } texts[] = { { "prefix", &config->prefix },
                  { "cafile", &config->ca_file },
                  { "cert", &config->cert_file },
                  { "key", &config->key_file },
                  { "sentinel_user", &config->sentinel.user } };
    const struct {
        const char *name;
        bool *field;
    } switches[] = { { "verify", &config->verify },
                     { "fsync", &config->fsync },
                     { "module", &config->module },
                     { "tls", &config->tls },
                     { "sentinel_tls", &config->sentinel_tls } };
    const struct number_option numbers[] = { { "replicas", 0, 1000, &config->replicas, NULL },
                                             { "replica_timeout", 1, 60000, &config->replica_ms, NULL },
                                             { "db", 0, 1000000, &config->access.database, NULL },
                                             { "connect_timeout", 1, 600000, NULL, &config->access.connect_ns },
                                             { "timeout", 1, 600000, NULL, &config->timeout_ns } };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(name, texts[i].name) == 0)
            return hfi_url_keep(texts[i].field, value, err);
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (strcmp(name, switches[i].name) == 0) {
            config->sentinel_tls_given = config->sentinel_tls_given || switches[i].field == &config->sentinel_tls;
            return hfi_url_read_switch(switches[i].field, name, value, err);
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(name, numbers[i].name) == 0)
            return read_number_option(&numbers[i], value, err);
    }
    if (strcmp(name, "dialect") == 0)
        return read_dialect(config, value, err);
    if (strcmp(name, "password_file") == 0)
        return hfi_url_keep_secret(&config->access.password, "read password file", value, err);
    if (strcmp(name, "sentinel_password_file") == 0)
        return hfi_url_keep_secret(&config->sentinel.password, "read password file", value, err);
    return hfi_fail(err, HF_INVALID, 0,
                    "unknown option %.40s; there are dialect, prefix, db, timeout, connect_timeout, replicas, "
                    "replica_timeout, fsync, module, tls, cafile, cert, key, verify, password_file, sentinel_user, "
                    "sentinel_password_file, sentinel_tls",
                    name);
}

static hf_status read_options(struct redis_config *config, const char *text, hf_error *err)
{
    while (*text) {
        const size_t length = strcspn(text, "&");
        const char *equals = memchr(text, '=', length);
        if (!equals)
            return hfi_fail(err, HF_INVALID, 0, "an option in a URL is name=value");
        char *name = NULL, *value = NULL;
        hf_status status = hfi_url_keep_decoded(&name, text, (size_t)(equals - text), err);
        if (status == HF_OK)
            status = hfi_url_keep_decoded(&value, equals + 1, length - (size_t)(equals + 1 - text), err);
        if (status == HF_OK)
            status = read_option(config, name, value, err);
        hfi_free(name);
        hfi_free(value);
        if (status != HF_OK)
            return status;
        text += length + (text[length] == '&');
    }
    return HF_OK;
}

/* --- the rest --- */

static hf_status read_user(struct redis_config *config, const char *text, size_t length, hf_error *err)
{
    const char *colon = memchr(text, ':', length);
    const size_t user = colon ? (size_t)(colon - text) : length;
    hf_status status = hfi_url_keep_decoded(&config->access.user, text, user, err);
    if (status == HF_OK && colon)
        status = hfi_url_keep_decoded(&config->access.password, colon + 1, length - user - 1, err);
    return status;
}

bool hfi_redis_address_read(struct redis_address *address, const char *host, size_t length, const char *port)
{
    char *end;
    const long number = strtol(port, &end, 10);
    if (length == 0 || length >= sizeof address->host || memchr(host, 0, length) || *end || number < 1 ||
        number > 65535)
        return false;
    memcpy(address->host, host, length);
    address->host[length] = 0;
    snprintf(address->port, sizeof address->port, "%ld", number);
    return true;
}

/* "host", "host:port" or "[host]:port" */
static hf_status read_host(struct redis_address *address, const char *text, size_t length, const char *usual_port,
                           hf_error *err)
{
    const char *host = text, *end = text + length;
    const char *colon = memchr(text, ':', length);
    if (length && *text == '[') {
        host++;
        end = memchr(text, ']', length);
        if (!end)
            return hfi_fail(err, HF_INVALID, 0, "an IPv6 address in a URL ends with ]");
        colon = end + 1 < text + length ? end + 1 : NULL;
        if (colon && *colon != ':')
            return hfi_fail(err, HF_INVALID, 0, "there is something behind the host that is no port");
    } else if (colon) {
        end = colon;
    }
    char *name = NULL, *port = NULL;
    hf_status status =
        hfi_url_keep_decoded(&name, end > host ? host : "127.0.0.1", end > host ? (size_t)(end - host) : 9, err);
    if (status == HF_OK && colon)
        status = hfi_url_keep_decoded(&port, colon + 1, (size_t)(text + length - colon - 1), err);
    long number;
    if (status == HF_OK)
        status = hfi_url_read_number(&number, port ? port : usual_port, 1, 65535, "the port", err);
    if (status == HF_OK && (!name || !hfi_redis_address_read(address, name, strlen(name), port ? port : usual_port)))
        status = hfi_fail(err, HF_INVALID, 0, "the host in the URL is too long");
    hfi_free(name);
    hfi_free(port);
    return status;
}

/* "host,host,…", of which only some kinds of stores have several. */
static hf_status read_hosts(struct redis_config *config, const char *text, size_t length, hf_error *err)
{
    size_t count = 1;
    for (size_t i = 0; i < length; i++)
        count += text[i] == ',';
    if (count > HFI_REDIS_HOSTS_MOST || (count > 1 && config->kind == REDIS_ONE))
        return hfi_fail(err, HF_INVALID, 0,
                        "there are too many hosts in the URL; redis+sentinel, redis+cluster and redlock take several");
    config->addresses = hfi_alloc(count * sizeof *config->addresses);
    if (!config->addresses)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    hf_status status = HF_OK;
    while (config->address_count < count && status == HF_OK) {
        const char *comma = memchr(text, ',', length);
        const size_t one = comma ? (size_t)(comma - text) : length;
        status = read_host(&config->addresses[config->address_count++], text, one,
                           config->kind == REDIS_SENTINEL ? "26379" : "6379", err);
        text += one + (comma ? 1 : 0);
        length -= one + (comma ? 1 : 0);
    }
    return status;
}

static hf_status read_socket(struct redis_config *config, const char *path, size_t length, hf_error *err)
{
    char *decoded = NULL;
    config->addresses = hfi_alloc(sizeof *config->addresses);
    if (!config->addresses)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    config->address_count = 1;
    hf_status status = hfi_url_keep_decoded(&decoded, path, length, err);
    const size_t room = sizeof config->addresses->host;
    if (status == HF_OK && snprintf(config->addresses->host, room, "%s", decoded) >= (int)room)
        status = hfi_fail(err, HF_INVALID, 0, "the path of a Unix socket is too long");
    hfi_free(decoded);
    return status;
}

/* What stands between the hosts and the options: the database, or the name of a master. */
static hf_status read_path(struct redis_config *config, const char *path, size_t length, hf_error *err)
{
    if (config->kind == REDIS_SENTINEL)
        return length > 1 ? hfi_url_keep_decoded(&config->master, path + 1, length - 1, err)
                          : hfi_fail(err, HF_INVALID, 0,
                                     "the URL of Sentinels names the master: redis+sentinel://HOST,HOST/MASTER");
    if (length <= 1)
        return HF_OK;
    char database[16] = "";
    if (length <= sizeof database) /* a longer one stays "", which is no number */
        memcpy(database, path + 1, length - 1);
    long number;
    const hf_status status = hfi_url_read_number(&number, database, 0, 1000000, "the database", err);
    config->access.database = (int)number;
    return status;
}

static hf_status read_address(struct redis_config *config, const char *rest, bool socket_file, hf_error *err)
{
    if (strncmp(rest, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "a redis URL is redis://HOST:PORT/DATABASE or redis+unix:///SOCKET");
    rest += 2;
    /* A password with a bare '?' in it would be taken for options, and end up in a message. */
    const char *query = strchr(rest, '?');
    if (query && strchr(query, '@'))
        return hfi_fail(err, HF_INVALID, 0,
                        "a '?' or '@' in a user name, password or option must be written %%3F or %%40");
    const size_t authority = strcspn(rest, "/?");
    const char *path = rest + authority;
    const size_t path_length = strcspn(path, "?");
    const char *at = memrchr(rest, '@', authority); /* the last one: a password may contain one */
    hf_status status = at ? read_user(config, rest, (size_t)(at - rest), err) : HF_OK;
    const char *host = at ? at + 1 : rest;
    if (status == HF_OK && socket_file) {
        status = path_length > 1 && host == path
                     ? read_socket(config, path, path_length, err)
                     : hfi_fail(err, HF_INVALID, 0, "a Unix socket's URL is redis+unix:///PATH");
    } else if (status == HF_OK) {
        status = read_hosts(config, host, (size_t)(path - host), err);
        if (status == HF_OK)
            status = read_path(config, path, path_length, err);
    }
    if (status == HF_OK && path[path_length] == '?')
        status = read_options(config, path + path_length + 1, err);
    return status;
}

/* --- what does not go together --- */

static hf_status check_redlock(const struct redis_config *config, hf_error *err)
{
    if (config->address_count < 3 || config->address_count > 15 || config->address_count % 2 == 0)
        return hfi_fail(err, HF_INVALID, 0, "redlock needs an odd number of masters from 3 to 15; the URL has %zu",
                        config->address_count);
    for (size_t i = 0; i < config->address_count; i++) {
        for (size_t j = 0; j < i; j++) {
            const struct redis_address *a = &config->addresses[i], *b = &config->addresses[j];
            if (strcmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0)
                return hfi_fail(err, HF_INVALID, 0, "the URL names %.100s:%s twice, which would have two votes",
                                a->host, a->port);
        }
    }
    if (config->replicas || config->fsync)
        return hfi_fail(err, HF_INVALID, 0, "replicas and fsync are not for redlock, whose masters are independent");
    return HF_OK;
}

static hf_status check(struct redis_config *config, hf_error *err)
{
    const struct {
        const char *variable;
        char **password;
    } secrets[] = { { "HOLDFAST_PASSWORD", &config->access.password },
                    { "HOLDFAST_SENTINEL_PASSWORD", &config->sentinel.password } };
    for (size_t i = 0; i < 2; i++) {
        const char *password = secure_getenv(secrets[i].variable);
        if (!**secrets[i].password && password && *password &&
            hfi_url_keep(secrets[i].password, password, err) != HF_OK)
            return HF_NOMEM;
    }
    if (!config->dialect)
        config->dialect = config->kind == REDIS_REDLOCK ? &hfi_redis_plain : &hfi_redis_native;
    if (config->kind == REDIS_REDLOCK && config->dialect != &hfi_redis_plain)
        return hfi_fail(err, HF_INVALID, 0, "redlock speaks the plain dialect and no other");
    if (!config->prefix && hfi_url_keep(&config->prefix, config->dialect->prefix, err) != HF_OK)
        return HF_NOMEM;
    if (strlen(config->prefix) > HFI_REDIS_PREFIX_MAX)
        return hfi_fail(err, HF_INVALID, 0, "a prefix has at most %d bytes", HFI_REDIS_PREFIX_MAX);
    if (!config->sentinel_tls_given)
        config->sentinel_tls = config->tls;
    if (!config->tls && !config->sentinel_tls && (config->ca_file || config->cert_file || config->key_file))
        return hfi_fail(err, HF_INVALID, 0, "cafile, cert and key are for rediss:// URLs and for tls=yes");
    if (config->kind == REDIS_CLUSTER && config->access.database)
        return hfi_fail(err, HF_INVALID, 0, "a cluster has only the database 0");
    config->access.master = config->kind == REDIS_SENTINEL;
    config->access.alone = config->kind == REDIS_ONE;
    config->access.asks_modules = config->dialect == &hfi_redis_native && config->module;
    config->access.silence_ms = config->kind == REDIS_REDLOCK ? REDLOCK_SILENCE_MS : 0;
    config->sentinel.connect_ns = config->access.connect_ns;
    return config->kind == REDIS_REDLOCK ? check_redlock(config, err) : HF_OK;
}

static bool read_scheme(struct redis_config *config, const char *scheme)
{
    static const struct {
        const char *scheme;
        enum redis_kind kind;
    } kinds[] = { { "redis", REDIS_ONE },
                  { "rediss", REDIS_ONE },
                  { "redis+unix", REDIS_ONE },
                  { "redis+sentinel", REDIS_SENTINEL },
                  { "redis+cluster", REDIS_CLUSTER },
                  { "redlock", REDIS_REDLOCK } };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        config->kind = kinds[i].kind;
        if (strcmp(scheme, kinds[i].scheme) == 0)
            return true;
    }
    return false;
}

hf_status hfi_redis_config_read(struct redis_config *config, const struct hfi_url *url, hf_error *err)
{
    config->verify = true;
    config->module = true;
    config->replica_ms = 1000;
    config->tls = strcmp(url->scheme, "rediss") == 0;
    hf_status status = HF_OK;
    char **const fields[] = { &config->access.user, &config->access.password, &config->sentinel.user,
                              &config->sentinel.password };
    for (size_t i = 0; i < 4 && status == HF_OK; i++)
        status = hfi_url_keep(fields[i], "", err);
    if (status == HF_OK && !read_scheme(config, url->scheme))
        status = hfi_fail(err, HF_UNSUPPORTED, 0, "%s: URLs are not supported by this version", url->scheme);
    if (status == HF_OK)
        status = read_address(config, url->rest, strcmp(url->scheme, "redis+unix") == 0, err);
    return status == HF_OK ? check(config, err) : status;
}

void hfi_redis_config_free(struct redis_config *config)
{
    char *const secrets[] = { config->access.password, config->sentinel.password };
    char *const all[] = { config->access.user,       config->access.password, config->sentinel.user,
                          config->sentinel.password, config->master,          config->prefix,
                          config->ca_file,           config->cert_file,       config->key_file };
    for (size_t i = 0; i < 2; i++) {
        if (secrets[i])
            OPENSSL_cleanse(secrets[i], strlen(secrets[i]));
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        hfi_free(all[i]);
    hfi_free(config->addresses);
}
