/* SPDX-License-Identifier: MIT
 *
 * consul_url.c: consul://[host[:port][,host…]][/prefix][?options], and consuls:// for TLS. The ACL token is never part
 * of it: token_file, or the variables that Consul's own commands read.
 */
#include "consul.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE "consul://HOST:PORT/PREFIX?option=value&..."
#define LOCK_DELAY_MOST_MS 60000

/* --- options --- */

/* "500ms", "15s" or "15" */
static hf_status read_lock_delay(uint32_t *out, const char *value, hf_error *err)
{
    char *end;
    const unsigned long number = strtoul(value, &end, 10);
    const bool milliseconds = strcmp(end, "ms") == 0;
    const unsigned long most = milliseconds ? LOCK_DELAY_MOST_MS : LOCK_DELAY_MOST_MS / 1000;
    if (end == value || *value == '-' || number > most || !(milliseconds || *end == 0 || strcmp(end, "s") == 0))
        return hfi_fail(err, HF_INVALID, 0, "lock_delay is 0s to 60s");
    *out = (uint32_t)number * (milliseconds ? 1 : 1000);
    return HF_OK;
}

static hf_status read_option(struct consul_config *config, const char *name, const char *value, hf_error *err)
{
    const struct {
        const char *name;
        char **field;
    } texts[] = { { "datacenter", &config->datacenter },
                  { "cafile", &config->ca_file },
                  { "cert", &config->cert_file },
                  { "key", &config->key_file } };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(name, texts[i].name) == 0)
            return hfi_url_keep(texts[i].field, value, err);
    }
    if (strcmp(name, "tls") == 0)
        return hfi_url_read_switch(&config->tls, name, value, err);
    if (strcmp(name, "verify") == 0)
        return hfi_url_read_switch(&config->verify, name, value, err);
    if (strcmp(name, "token_file") == 0)
        return hfi_url_keep_secret(&config->token, "read token file", value, err);
    if (strcmp(name, "lock_delay") == 0)
        return read_lock_delay(&config->lock_delay_ms, value, err);
    return hfi_fail(
        err, HF_INVALID, 0,
        "unknown option %.40s; there are token_file, datacenter, lock_delay, tls, cafile, cert, key, verify", name);
}

static hf_status read_options(struct consul_config *config, const char *text, hf_error *err)
{
    while (*text) {
        char name[HFI_URL_TEXT_MAX], value[HFI_URL_TEXT_MAX];
        const size_t length = strcspn(text, "&");
        const char *equals = memchr(text, '=', length);
        if (!equals)
            return hfi_fail(err, HF_INVALID, 0, "an option in a URL is name=value");
        hf_status status = hfi_url_decode(name, text, (size_t)(equals - text), err);
        if (status == HF_OK)
            status = hfi_url_decode(value, equals + 1, length - (size_t)(equals + 1 - text), err);
        if (status == HF_OK)
            status = read_option(config, name, value, err);
        if (status != HF_OK)
            return status;
        text += length + (text[length] == '&');
    }
    return HF_OK;
}

/* --- hosts and prefix --- */

/* "host", "host:port" or "[host]:port" */
static hf_status read_host(struct consul_address *address, const char *text, size_t length, hf_error *err)
{
    char host[HFI_URL_TEXT_MAX], port[HFI_URL_TEXT_MAX] = "8500", *rest;
    const bool bracket = length && *text == '[';
    const char *end = bracket ? memchr(text, ']', length) : memchr(text, ':', length);
    if (bracket && !end)
        return hfi_fail(err, HF_INVALID, 0, "an IPv6 address in a URL ends with ]");
    const char *start = bracket ? text + 1 : text;
    if (!end)
        end = text + length;
    const char *colon = bracket ? end + 1 : end;
    hf_status status = hfi_url_decode(host, start, (size_t)(end - start), err);
    if (status == HF_OK && colon < text + length)
        status = *colon == ':' ? hfi_url_decode(port, colon + 1, (size_t)(text + length - colon - 1), err)
                               : hfi_fail(err, HF_INVALID, 0, "there is something behind the host that is no port");
    if (status != HF_OK)
        return status;
    const unsigned long number = strtoul(port, &rest, 10);
    if (rest == port || *rest || *port == '-' || number < 1 || number > 65535)
        return hfi_fail(err, HF_INVALID, 0, "the port is a number from 1 to 65535");
    if (strlen(host) >= sizeof address->host || strpbrk(host, " \r\n"))
        return hfi_fail(err, HF_INVALID, 0, "the host in the URL is too long, or none");
    snprintf(address->host, sizeof address->host, "%.255s", *host ? host : "127.0.0.1");
    snprintf(address->port, sizeof address->port, "%lu", number);
    return HF_OK;
}

static hf_status read_hosts(struct consul_config *config, const char *text, size_t length, hf_error *err)
{
    hf_status status = HF_OK;
    for (bool more = true; more && status == HF_OK;) {
        const char *comma = memchr(text, ',', length);
        const size_t one = comma ? (size_t)(comma - text) : length;
        if (config->address_count == HFI_CONSUL_HOSTS_MOST)
            return hfi_fail(err, HF_INVALID, 0, "a URL has at most %d hosts", HFI_CONSUL_HOSTS_MOST);
        status = read_host(&config->addresses[config->address_count++], text, one, err);
        more = comma != NULL;
        text += one + more;
        length -= one + more;
    }
    return status;
}

/* Consul's server would send us elsewhere for a path with empty parts or dots in it. */
static bool is_plain_path(const char *prefix)
{
    for (const char *part = prefix;; part++) {
        const size_t length = strcspn(part, "/");
        if (length == 0 || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part += length;
        if (!*part)
            return strlen(prefix) <= HFI_CONSUL_PREFIX_MAX;
    }
}

static hf_status read_prefix(struct consul_config *config, const char *path, size_t length, hf_error *err)
{
    char prefix[HFI_URL_TEXT_MAX] = "";
    if (length <= 1)
        return hfi_url_keep(&config->prefix, "holdfast", err);
    const hf_status status = hfi_url_decode(prefix, path + 1, length - 1, err);
    if (status != HF_OK)
        return status;
    for (const char *at = prefix; *at; at++) {
        if ((unsigned char)*at < ' ')
            return hfi_fail(err, HF_INVALID, 0, "the prefix of the keys has a control character in it");
    }
    if (!is_plain_path(prefix))
        return hfi_fail(err, HF_INVALID, 0, "the prefix of the keys is a path like a/b of at most %d bytes",
                        HFI_CONSUL_PREFIX_MAX);
    return hfi_url_keep(&config->prefix, prefix, err);
}

static hf_status read_environment(struct consul_config *config, hf_error *err)
{
    const char *token = secure_getenv("CONSUL_HTTP_TOKEN");
    const char *file = secure_getenv("CONSUL_HTTP_TOKEN_FILE");
    if (*config->token)
        return HF_OK;
    if (token && *token)
        return hfi_url_keep(&config->token, token, err);
    return file && *file ? hfi_url_keep_secret(&config->token, "read token file", file, err) : HF_OK;
}

static hf_status check(struct consul_config *config, hf_error *err)
{
    if (!config->tls && (config->ca_file || config->cert_file || config->key_file))
        return hfi_fail(err, HF_INVALID, 0, "cafile, cert and key are for consuls:// URLs and for tls=yes");
    /* Either could end the header and begin another. */
    if (strpbrk(config->token, "\r\n"))
        return hfi_fail(err, HF_INVALID, 0, "the ACL token has a line break in it");
    return HF_OK;
}

hf_status hfi_consul_config_read(struct consul_config *config, const struct hfi_url *url, hf_error *err)
{
    const char *rest = url->rest;
    config->verify = true;
    config->tls = strcmp(url->scheme, "consuls") == 0;
    hf_status status = hfi_url_keep(&config->token, "", err);
    if (status == HF_OK)
        status = hfi_url_keep(&config->datacenter, "", err);
    if (status != HF_OK)
        return status;
    if (*rest && strncmp(rest, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "a URL of this engine looks like this: " SHAPE);
    rest += *rest ? 2 : 0;
    const size_t authority = strcspn(rest, "/?");
    const char *path = rest + authority;
    const size_t path_length = strcspn(path, "?");
    if (strchr(rest, '@'))
        return hfi_fail(err, HF_INVALID, 0,
                        "a Consul URL has no user or token in it; use token_file=PATH or CONSUL_HTTP_TOKEN");
    status = read_hosts(config, rest, authority, err);
    if (status == HF_OK)
        status = read_prefix(config, path, path_length, err);
    if (status == HF_OK && path[path_length] == '?')
        status = read_options(config, path + path_length + 1, err);
    if (status == HF_OK)
        status = read_environment(config, err);
    return status == HF_OK ? check(config, err) : status;
}

void hfi_consul_config_free(struct consul_config *config)
{
    char *const all[] = { config->prefix,  config->token,     config->datacenter,
                          config->ca_file, config->cert_file, config->key_file };
    if (config->token)
        explicit_bzero(config->token, strlen(config->token));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        hfi_free(all[i]);
}
