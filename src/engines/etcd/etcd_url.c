/* SPDX-License-Identifier: MIT
 *
 * etcd_url.c: etcd://[user:password@]host[:port][,host[:port]…][/prefix][?options], and etcds:// for TLS.
 */
#include "etcd.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USUAL_PORT "2379"
#define USUAL_PREFIX "holdfast"

/* --- options --- */

static hf_status read_option(struct etcd_config *config, const char *name, const char *value, hf_error *err)
{
    if (strcmp(name, "cafile") == 0)
        return hfi_url_keep(&config->ca_file, value, err);
    if (strcmp(name, "cert") == 0)
        return hfi_url_keep(&config->cert_file, value, err);
    if (strcmp(name, "key") == 0)
        return hfi_url_keep(&config->key_file, value, err);
    if (strcmp(name, "tls") == 0)
        return hfi_url_read_switch(&config->tls, name, value, err);
    if (strcmp(name, "verify") == 0)
        return hfi_url_read_switch(&config->verify, name, value, err);
    if (strcmp(name, "password_file") == 0)
        return hfi_url_keep_secret(&config->password, "read password file", value, err);
    if (strcmp(name, "timeout") == 0) {
        long number;
        const hf_status status = hfi_url_read_number(&number, value, 1, 600000, name, err);
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
        status = hfi_url_keep_decoded(&name, text, (size_t)(equals - text), err);
        if (status == HF_OK)
            status = hfi_url_keep_decoded(&value, equals + 1, length - (size_t)(equals + 1 - text), err);
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
    hf_status status = hfi_url_keep_decoded(&config->user, text, user, err);
    if (status == HF_OK && colon)
        status = hfi_url_keep_decoded(&config->password, colon + 1, length - user - 1, err);
    return status;
}

static hf_status keep_host(struct etcd_address *address, const char *host, const char *port, hf_error *err)
{
    long number;
    const hf_status status = hfi_url_read_number(&number, port, 1, 65535, "the port", err);
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
    hf_status status = end > host ? hfi_url_keep_decoded(&name, host, (size_t)(end - host), err)
                                  : hfi_url_keep(&name, "127.0.0.1", err);
    if (status == HF_OK)
        status = colon ? hfi_url_keep_decoded(&port, colon + 1, (size_t)(text + length - colon - 1), err)
                       : hfi_url_keep(&port, USUAL_PORT, err);
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
    const hf_status status = hfi_url_keep_decoded(&config->prefix, path + 1, length - 1, err);
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
    const char *password = secure_getenv("HOLDFAST_PASSWORD");
    if (*config->user && !*config->password && password && *password &&
        hfi_url_keep(&config->password, password, err) != HF_OK)
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
    hf_status status = hfi_url_keep(&config->user, "", err);
    if (status == HF_OK)
        status = hfi_url_keep(&config->password, "", err);
    if (status == HF_OK)
        status = hfi_url_keep(&config->prefix, USUAL_PREFIX, err);
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
