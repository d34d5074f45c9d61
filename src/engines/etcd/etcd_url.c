/* SPDX-License-Identifier: MIT
 *
 * etcd_url.c: etcd://[user:password@]host[:port][,host[:port]…][/prefix][?options], and etcds:// for TLS.
 */
#include "etcd.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MOST 1024
#define USUAL_PORT "2379"
#define USUAL_PREFIX "holdfast"

static int digit(char c)
{
    const char *digits = "0123456789abcdefABCDEF";
    const char *place = c ? strchr(digits, c) : NULL;
    const int value = place ? (int)(place - digits) : -1;
    return value > 15 ? value - 6 : value;
}

/* A decoded copy of the `length` bytes at `text`, instead of what *field is. */
static hf_status set(char **field, const char *text, size_t length, hf_error *err)
{
    size_t used = 0;
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
    hfi_free(*field);
    *field = copy;
    return HF_OK;
}

static hf_status keep(char **field, const char *text, hf_error *err)
{
    hfi_free(*field);
    *field = hfi_strdup(text);
    return *field ? HF_OK : hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
}

static hf_status read_number(long *out, const char *text, long least, long most, const char *what, hf_error *err)
{
    char *end;
    errno = 0;
    *out = strtol(text, &end, 10);
    if (errno == 0 && end != text && !*end && *out >= least && *out <= most)
        return HF_OK;
    *out = least;
    /* Without the text: it may be a part of a password that should have been percent-encoded. */
    return hfi_fail(err, HF_INVALID, 0, "%s is a number from %ld to %ld", what, least, most);
}

/* --- options --- */

static hf_status read_password_file(char **password, const char *path, hf_error *err)
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
    return keep(password, text, err);
}

static hf_status read_switch(bool *out, const char *name, const char *value, hf_error *err)
{
    *out = strcmp(value, "yes") == 0;
    return *out || strcmp(value, "no") == 0 ? HF_OK : hfi_fail(err, HF_INVALID, 0, "%s is yes or no", name);
}

static hf_status read_option(struct etcd_config *config, const char *name, const char *value, hf_error *err)
{
    if (strcmp(name, "cafile") == 0)
        return keep(&config->ca_file, value, err);
    if (strcmp(name, "cert") == 0)
        return keep(&config->cert_file, value, err);
    if (strcmp(name, "key") == 0)
        return keep(&config->key_file, value, err);
    if (strcmp(name, "tls") == 0)
        return read_switch(&config->tls, name, value, err);
    if (strcmp(name, "verify") == 0)
        return read_switch(&config->verify, name, value, err);
    if (strcmp(name, "password_file") == 0)
        return read_password_file(&config->password, value, err);
    if (strcmp(name, "timeout") == 0) {
        long number;
        const hf_status status = read_number(&number, value, 1, 600000, name, err);
        config->timeout_ns = number * HFI_MS;
        return status;
    }
    return hfi_fail(err, HF_INVALID, 0,
                    "unknown option %.40s; there are timeout, tls, cafile, cert, key, verify, password_file", name);
}

static hf_status read_options(struct etcd_config *config, const char *text, hf_error *err)
{
    hf_status status = HF_OK;
    while (*text && status == HF_OK) {
        const size_t length = strcspn(text, "&");
        const char *equals = memchr(text, '=', length);
        if (!equals)
            return hfi_fail(err, HF_INVALID, 0, "an option in a URL is name=value");
        char *name = NULL, *value = NULL;
        status = set(&name, text, (size_t)(equals - text), err);
        if (status == HF_OK)
            status = set(&value, equals + 1, length - (size_t)(equals + 1 - text), err);
        if (status == HF_OK && name && value)
            status = read_option(config, name, value, err);
        hfi_free(name);
        hfi_free(value);
        text += length + (text[length] == '&');
    }
    return status;
}

/* --- user, hosts, prefix --- */

static hf_status read_user(struct etcd_config *config, const char *text, size_t length, hf_error *err)
{
    const char *colon = memchr(text, ':', length);
    const size_t user = colon ? (size_t)(colon - text) : length;
    hf_status status = set(&config->user, text, user, err);
    if (status == HF_OK && colon)
        status = set(&config->password, colon + 1, length - user - 1, err);
    return status;
}

static hf_status keep_host(struct etcd_address *address, const char *host, const char *port, hf_error *err)
{
    long number;
    const hf_status status = read_number(&number, port, 1, 65535, "the port", err);
    if (status != HF_OK)
        return status;
    if (snprintf(address->host, sizeof address->host, "%s", host) >= (int)sizeof address->host)
        return hfi_fail(err, HF_INVALID, 0, "the host in the URL is too long");
    snprintf(address->port, sizeof address->port, "%ld", number);
    return HF_OK;
}

/* "host", "host:port" or "[host]:port" */
static hf_status read_host(struct etcd_address *address, const char *text, size_t length, hf_error *err)
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
    hf_status status = end > host ? set(&name, host, (size_t)(end - host), err) : keep(&name, "127.0.0.1", err);
    if (status == HF_OK)
        status = colon ? set(&port, colon + 1, (size_t)(text + length - colon - 1), err) : keep(&port, USUAL_PORT, err);
    if (status == HF_OK && name && port)
        status = keep_host(address, name, port, err);
    hfi_free(name);
    hfi_free(port);
    return status;
}

static hf_status read_hosts(struct etcd_config *config, const char *text, size_t length, hf_error *err)
{
    size_t count = 1;
    for (size_t i = 0; i < length; i++)
        count += text[i] == ',';
    if (count > HFI_ETCD_HOSTS_MOST)
        return hfi_fail(err, HF_INVALID, 0, "there are too many hosts in the URL");
    config->addresses = hfi_alloc(count * sizeof *config->addresses);
    if (!config->addresses)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a client");
    hf_status status = HF_OK;
    while (config->address_count < count && status == HF_OK) {
        const char *comma = memchr(text, ',', length);
        const size_t one = comma ? (size_t)(comma - text) : length;
        status = read_host(&config->addresses[config->address_count++], text, one, err);
        text += one + (comma ? 1 : 0);
        length -= one + (comma ? 1 : 0);
    }
    return status;
}

/* A '/' at its end would make "P//NAME", which nobody else looks for. */
static hf_status read_prefix(struct etcd_config *config, const char *path, size_t length, hf_error *err)
{
    if (length <= 1)
        return HF_OK;
    const hf_status status = set(&config->prefix, path + 1, length - 1, err);
    if (status != HF_OK)
        return status;
    size_t used = strlen(config->prefix);
    while (used && config->prefix[used - 1] == '/')
        config->prefix[--used] = 0;
    if (used == 0 || used > HFI_ETCD_PREFIX_MAX)
        return hfi_fail(err, HF_INVALID, 0, "a prefix has 1 to %d bytes", HFI_ETCD_PREFIX_MAX);
    return HF_OK;
}

/* --- all of it --- */

static hf_status read_all(struct etcd_config *config, const char *rest, hf_error *err)
{
    if (strncmp(rest, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "an etcd URL is etcd://HOST:PORT,HOST:PORT/PREFIX");
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
    if (status == HF_OK)
        status = read_hosts(config, host, (size_t)(path - host), err);
    if (status == HF_OK)
        status = read_prefix(config, path, path_length, err);
    if (status == HF_OK && path[path_length] == '?')
        status = read_options(config, path + path_length + 1, err);
    return status;
}

static hf_status check(struct etcd_config *config, hf_error *err)
{
    const char *password = getenv("HOLDFAST_PASSWORD");
    if (*config->user && !*config->password && password && *password && keep(&config->password, password, err) != HF_OK)
        return HF_NOMEM;
    if (*config->password && !*config->user)
        return hfi_fail(err, HF_INVALID, 0, "etcd knows no password without a user name");
    if (!config->tls && (config->ca_file || config->cert_file || config->key_file))
        return hfi_fail(err, HF_INVALID, 0, "cafile, cert and key are for etcds:// URLs and for tls=yes");
    return HF_OK;
}

hf_status hfi_etcd_config_read(struct etcd_config *config, const struct hfi_url *url, hf_error *err)
{
    config->verify = true;
    config->tls = strcmp(url->scheme, "etcds") == 0;
    hf_status status = keep(&config->user, "", err);
    if (status == HF_OK)
        status = keep(&config->password, "", err);
    if (status == HF_OK)
        status = keep(&config->prefix, USUAL_PREFIX, err);
    if (status == HF_OK)
        status = read_all(config, url->rest, err);
    return status == HF_OK ? check(config, err) : status;
}

void hfi_etcd_config_free(struct etcd_config *config)
{
    char *const all[] = { config->user,    config->password,  config->prefix,
                          config->ca_file, config->cert_file, config->key_file };
    if (config->password)
        OPENSSL_cleanse(config->password, strlen(config->password));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        hfi_free(all[i]);
    hfi_free(config->addresses);
}
