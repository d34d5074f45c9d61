/* SPDX-License-Identifier: MIT
 *
 * redis_url.c: redis://[user:password@]host[:port][/database][?options], rediss:// and redis+unix:///socket.
 */
#include "redis.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MOST 1024

static int digit(char c)
{
    const char *digits = "0123456789abcdefABCDEF";
    const char *place = c ? strchr(digits, c) : NULL;
    const int value = place ? (int)(place - digits) : -1;
    return value > 15 ? value - 6 : value;
}

/* A decoded copy of the `length` bytes at `text`. */
static hf_status decode(char **out, const char *text, size_t length, hf_error *err)
{
    size_t used = 0;
    *out = NULL;
    if (length >= TEXT_MOST)
        return hfi_fail(err, HF_INVALID, 0, "a part of the URL is too long");
    char *copy = hfi_alloc(length + 1);
    if (!copy)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (c == '%') {
            const int high = i + 2 < length ? digit(text[i + 1]) : -1;
            const int low = high >= 0 ? digit(text[i + 2]) : -1;
            if (low < 0 || (high == 0 && low == 0)) {
                hfi_free(copy);
                return hfi_fail(err, HF_INVALID, 0, "%% must be followed by two hexadecimal digits in a URL, not 00");
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        copy[used++] = c;
    }
    *out = copy;
    return HF_OK;
}

/* A copy of what is decoded already. */
static hf_status keep(char **field, const char *text, hf_error *err)
{
    hfi_free(*field);
    *field = hfi_strdup(text);
    return *field ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

static hf_status set(char **field, const char *text, size_t length, hf_error *err)
{
    char *copy;
    const hf_status status = decode(&copy, text, length, err);
    if (status == HF_OK) {
        hfi_free(*field);
        *field = copy;
    }
    return status;
}

static hf_status read_number(long *out, const char *text, long least, long most, const char *what, hf_error *err)
{
    char *end;
    assert(text);
    errno = 0;
    *out = strtol(text, &end, 10);
    if (errno || end == text || *end || *out < least || *out > most) {
        *out = least; /* callers reckon with it before they look at the status */
        /* Without the text: it may be a part of a password that should have been percent-encoded. */
        return hfi_fail(err, HF_INVALID, 0, "%s is a number from %ld to %ld", what, least, most);
    }
    return HF_OK;
}

/* --- options --- */

static hf_status read_password_file(struct redis_config *config, const char *path, hf_error *err)
{
    char text[TEXT_MOST];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    const int failure = errno;
    if (fd >= 0)
        close(fd);
    if (length < 0)
        return hfi_fail_errno(err, failure, "read password file", path);
    text[length] = 0;
    text[strcspn(text, "\r\n")] = 0;
    return keep(&config->password, text, err);
}

static hf_status read_option(struct redis_config *config, const char *name, const char *value, hf_error *err)
{
    long number = 0;
    hf_status status = HF_OK;
    char **const texts[] = { &config->prefix, &config->ca_file, &config->cert_file, &config->key_file };
    static const char *const names[] = { "prefix", "cafile", "cert", "key" };
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0)
            return keep(texts[i], value, err);
    }
    if (strcmp(name, "password_file") == 0)
        return read_password_file(config, value, err);
    if (strcmp(name, "verify") == 0) {
        if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
            return hfi_fail(err, HF_INVALID, 0, "verify is yes or no");
        config->verify = value[0] == 'y';
        return HF_OK;
    }
    if (strcmp(name, "fsync") == 0) {
        config->fsync = strcmp(value, "yes") == 0;
        return config->fsync || strcmp(value, "no") == 0 ? HF_OK : hfi_fail(err, HF_INVALID, 0, "fsync is yes or no");
    }
    if (strcmp(name, "replicas") == 0) {
        status = read_number(&number, value, 0, 1000, name, err);
        config->replicas = (int)number;
    } else if (strcmp(name, "replica_timeout") == 0) {
        status = read_number(&number, value, 1, 60000, name, err);
        config->replica_ms = (int)number;
    } else if (strcmp(name, "connect_timeout") == 0) {
        status = read_number(&number, value, 1, 600000, name, err);
        config->connect_ns = number * HFI_MS;
    } else if (strcmp(name, "timeout") == 0) {
        status = read_number(&number, value, 1, 600000, name, err);
        config->timeout_ns = number * HFI_MS;
    } else if (strcmp(name, "db") == 0) {
        status = read_number(&number, value, 0, 1000000, name, err);
        config->database = (int)number;
    } else {
        return hfi_fail(
            err, HF_INVALID, 0,
            "unknown option %.40s; there are prefix, db, timeout, connect_timeout, replicas, replica_timeout, "
            "fsync, cafile, cert, key, verify, password_file",
            name);
    }
    return status;
}

static hf_status read_options(struct redis_config *config, const char *text, hf_error *err)
{
    while (*text) {
        const size_t length = strcspn(text, "&");
        const char *equals = memchr(text, '=', length);
        if (!equals)
            return hfi_fail(err, HF_INVALID, 0, "an option in a URL is name=value");
        char *name, *value = NULL;
        hf_status status = decode(&name, text, (size_t)(equals - text), err);
        if (status == HF_OK)
            status = decode(&value, equals + 1, length - (size_t)(equals + 1 - text), err);
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
    hf_status status = set(&config->user, text, user, err);
    if (status == HF_OK && colon)
        status = set(&config->password, colon + 1, length - user - 1, err);
    return status;
}

static hf_status read_host(struct redis_config *config, const char *text, size_t length, hf_error *err)
{
    const char *host = text;
    size_t host_length = length;
    const char *rest = text + length;
    if (length && *text == '[') {
        const char *bracket = memchr(text, ']', length);
        if (!bracket)
            return hfi_fail(err, HF_INVALID, 0, "an IPv6 address in a URL ends with ]");
        host++;
        host_length = (size_t)(bracket - host);
        rest = bracket + 1;
    } else if (memchr(text, ':', length)) {
        rest = memchr(text, ':', length);
        host_length = (size_t)(rest - text);
    }
    const size_t rest_length = (size_t)(text + length - rest);
    hf_status status = host_length ? set(&config->host, host, host_length, err) : HF_OK;
    if (status != HF_OK || rest_length == 0)
        return status;
    if (*rest != ':')
        return hfi_fail(err, HF_INVALID, 0, "there is something behind the host that is no port");
    status = set(&config->port, rest + 1, rest_length - 1, err);
    long port;
    return status == HF_OK ? read_number(&port, config->port, 1, 65535, "the port", err) : status;
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
                     ? set(&config->host, path, path_length, err)
                     : hfi_fail(err, HF_INVALID, 0, "a Unix socket's URL is redis+unix:///PATH");
        if (status == HF_OK)
            status = set(&config->port, "", 0, err);
    } else if (status == HF_OK) {
        status = read_host(config, host, (size_t)(path - host), err);
        if (status == HF_OK && path_length > 1) {
            char database[16] = "";
            if (path_length <= sizeof database) /* a longer one stays "", which is no number */
                memcpy(database, path + 1, path_length - 1);
            long number;
            status = read_number(&number, database, 0, 1000000, "the database", err);
            config->database = (int)number;
        }
    }
    if (status == HF_OK && path[path_length] == '?')
        status = read_options(config, path + path_length + 1, err);
    return status;
}

static hf_status check(struct redis_config *config, hf_error *err)
{
    const char *password = getenv("HOLDFAST_PASSWORD");
    if (!*config->password && password && *password && keep(&config->password, password, err) != HF_OK)
        return HF_NOMEM;
    if (strlen(config->prefix) > 64)
        return hfi_fail(err, HF_INVALID, 0, "a prefix has at most 64 bytes");
    if (!config->tls && (config->ca_file || config->cert_file || config->key_file))
        return hfi_fail(err, HF_INVALID, 0, "cafile, cert and key are for rediss:// URLs");
    return HF_OK;
}

hf_status hfi_redis_config_read(struct redis_config *config, const struct hfi_url *url, hf_error *err)
{
    config->verify = true;
    config->replica_ms = 1000;
    config->tls = strcmp(url->scheme, "rediss") == 0;
    hf_status status = HF_OK;
    const char *const defaults[] = { "127.0.0.1", "6379", "", "", "hf:" };
    char **const fields[] = { &config->host, &config->port, &config->user, &config->password, &config->prefix };
    for (size_t i = 0; i < 5 && status == HF_OK; i++) {
        *fields[i] = hfi_strdup(defaults[i]);
        if (!*fields[i])
            status = hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    }
    if (strncmp(url->scheme, "redis", 5) != 0 || strchr(url->scheme, '+') != strstr(url->scheme, "+unix"))
        status = hfi_fail(err, HF_UNSUPPORTED, 0, "%s: URLs are not supported by this version", url->scheme);
    if (status == HF_OK)
        status = read_address(config, url->rest, strcmp(url->scheme, "redis+unix") == 0, err);
    return status == HF_OK ? check(config, err) : status;
}

void hfi_redis_config_free(struct redis_config *config)
{
    char *const all[] = { config->host,   config->port,    config->user,      config->password,
                          config->prefix, config->ca_file, config->cert_file, config->key_file };
    if (config->password)
        OPENSSL_cleanse(config->password, strlen(config->password));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        hfi_free(all[i]);
}
