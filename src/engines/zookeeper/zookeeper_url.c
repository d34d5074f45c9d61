/* SPDX-License-Identifier: MIT
 *
 * zookeeper_url.c: zookeeper://[user:password@]host[:port][,host…][/prefix][?options].
 */
#include "zookeeper.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USUAL_PORT "2181"
#define SESSION_LEAST 100

/* --- hosts --- */

static bool is_port(const char *text)
{
    char *end;
    const long number = strtol(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == 0 && number >= 1 && number <= 65535;
}

/* "host", "host:port", "[address]" or "[address]:port", as "host port" behind what is in `out` already. */
static hf_status add_host(char *out, size_t room, const char *text, hf_error *err)
{
    char host[256] = "127.0.0.1";
    const char *end = text[0] == '[' ? strchr(text, ']') : text + strcspn(text, ":");
    const char *start = text[0] == '[' ? text + 1 : text;
    if (!end)
        return hfi_fail(err, HF_INVALID, 0, "an IPv6 address in a URL ends with ]");
    const char *colon = *end == ']' ? end + 1 : end;
    if (*colon && *colon != ':')
        return hfi_fail(err, HF_INVALID, 0, "there is something behind a host that is no port");
    if ((size_t)(end - start) >= sizeof host)
        return hfi_fail(err, HF_INVALID, 0, "a host in the URL is too long");
    if (end > start)
        snprintf(host, sizeof host, "%.*s", (int)(end - start), start);
    const char *port = *colon ? colon + 1 : USUAL_PORT;
    if (!is_port(port)) /* without the text: it may be a part of a password */
        return hfi_fail(err, HF_INVALID, 0, "a port in the URL is no number from 1 to 65535");
    const size_t used = strlen(out);
    if ((size_t)snprintf(out + used, room - used, "%s%s:%s", used ? "," : "", host, port) >= room - used)
        return hfi_fail(err, HF_INVALID, 0, "there are too many hosts in the URL");
    return HF_OK;
}

static hf_status read_hosts(struct zookeeper_config *config, const char *text, size_t length, hf_error *err)
{
    char hosts[HFI_URL_TEXT_MAX] = "", all[2 * HFI_URL_TEXT_MAX] = "";
    hf_status status = hfi_url_decode(hosts, text, length, err);
    char *one = hosts;
    while (status == HF_OK && one) {
        char *comma = strchr(one, ',');
        if (comma)
            *comma = 0;
        status = add_host(all, sizeof all, one, err);
        one = comma ? comma + 1 : NULL;
    }
    return status == HF_OK ? hfi_url_keep(&config->hosts, all, err) : status;
}

/* --- the rest --- */

static hf_status read_prefix(struct zookeeper_config *config, const char *text, size_t length, hf_error *err)
{
    char prefix[HFI_URL_TEXT_MAX] = "";
    while (length > 0 && text[length - 1] == '/')
        length--;
    if (length == 0)
        return HF_OK;
    hf_status status = hfi_url_decode(prefix, text, length, err);
    if (status != HF_OK)
        return status;
    const size_t size = strlen(prefix);
    if (size >= sizeof config->prefix)
        return hfi_fail(err, HF_INVALID, 0, "the path in the URL is too long");
    for (const char *part = prefix; *part;) {
        const size_t length_of_part = strcspn(part + 1, "/");
        const bool reserved = part == prefix && length_of_part == 9 && strncmp(part + 1, "zookeeper", 9) == 0;
        if (reserved || !hfi_zookeeper_component_check(part + 1, length_of_part))
            return hfi_fail(err, HF_INVALID, 0, "the path in the URL is none that ZooKeeper would take");
        part += 1 + length_of_part;
    }
    memcpy(config->prefix, prefix, size + 1);
    return HF_OK;
}

static hf_status read_credentials(struct zookeeper_config *config, const char *text, size_t length, hf_error *err)
{
    char both[HFI_URL_TEXT_MAX] = "";
    if (length == 0)
        return HF_OK;
    hf_status status = hfi_url_decode(both, text, length, err);
    if (status == HF_OK)
        status = hfi_url_keep(&config->credentials, both, err);
    explicit_bzero(both, sizeof both);
    return status;
}

/* "user" becomes "user:password". */
static hf_status add_password(struct zookeeper_config *config, const char *password, hf_error *err)
{
    char both[2 * HFI_URL_TEXT_MAX];
    if (!config->credentials || strchr(config->credentials, ':'))
        return HF_OK;
    snprintf(both, sizeof both, "%s:%s", config->credentials, password);
    const hf_status status = hfi_url_keep(&config->credentials, both, err);
    explicit_bzero(both, sizeof both);
    return status;
}

static hf_status read_password_file(struct zookeeper_config *config, const char *path, hf_error *err)
{
    char text[HFI_URL_TEXT_MAX];
    hf_status status = hfi_url_read_secret(text, "read password file", path, err);
    if (status == HF_OK)
        status = add_password(config, text, err);
    explicit_bzero(text, sizeof text);
    return status;
}

/* A word out of two; `second`: it is the second. */
static hf_status read_word(bool *second, const char *name, const char *value, const char *one, const char *two,
                           hf_error *err)
{
    *second = strcmp(value, two) == 0;
    return *second || strcmp(value, one) == 0 ? HF_OK : hfi_fail(err, HF_INVALID, 0, "%s is %s or %s", name, one, two);
}

struct given {
    bool acl;
};

static hf_status read_option(struct zookeeper_config *config, struct given *given, const char *name, const char *value,
                             hf_error *err)
{
    if (strcmp(name, "style") == 0)
        return read_word(&config->kazoo, name, value, "curator", "kazoo", err);
    if (strcmp(name, "acl") == 0) {
        given->acl = true;
        return read_word(&config->creator_only, name, value, "open", "creator", err);
    }
    if (strcmp(name, "auth") == 0)
        return strcmp(value, "digest") == 0 ? HF_OK : hfi_fail(err, HF_INVALID, 0, "auth is digest");
    if (strcmp(name, "password_file") == 0)
        return read_password_file(config, value, err);
    if (strcmp(name, "session_timeout") == 0) {
        char *end;
        const long number = strtol(value, &end, 10);
        if (end == value || *end || number < SESSION_LEAST || number > HFI_ZOOKEEPER_SESSION_MOST_MS)
            return hfi_fail(err, HF_INVALID, 0, "session_timeout is a number of milliseconds from %d to %d",
                            SESSION_LEAST, HFI_ZOOKEEPER_SESSION_MOST_MS);
        config->session_ms = (uint32_t)number;
        return HF_OK;
    }
    return hfi_fail(err, HF_INVALID, 0,
                    "unknown option %.40s; there are style, acl, auth, password_file and session_timeout", name);
}

static hf_status read_options(struct zookeeper_config *config, struct given *given, const char *text, hf_error *err)
{
    while (*text) {
        char name[HFI_URL_TEXT_MAX] = "", value[HFI_URL_TEXT_MAX] = "";
        const size_t length = strcspn(text, "&");
        const char *equals = memchr(text, '=', length);
        if (!equals)
            return hfi_fail(err, HF_INVALID, 0, "an option in a URL is name=value");
        hf_status status = hfi_url_decode(name, text, (size_t)(equals - text), err);
        if (status == HF_OK)
            status = hfi_url_decode(value, equals + 1, length - (size_t)(equals + 1 - text), err);
        if (status == HF_OK)
            status = read_option(config, given, name, value, err);
        if (status != HF_OK)
            return status;
        text += length + (text[length] == '&');
    }
    return HF_OK;
}

hf_status hfi_zookeeper_config_read(struct zookeeper_config *config, const struct hfi_url *url, hf_error *err)
{
    snprintf(config->prefix, sizeof config->prefix, "/holdfast");
    if (strncmp(url->rest, "//", 2) != 0)
        return hfi_fail(err, HF_INVALID, 0, "a zookeeper URL is zookeeper://HOST:PORT,HOST:PORT/PREFIX");
    const char *rest = url->rest + 2;
    /* A password with a bare '?' in it would be taken for options, and end up in a message. */
    const char *query = strchr(rest, '?');
    if (query && strchr(query, '@'))
        return hfi_fail(err, HF_INVALID, 0,
                        "a '?' or '@' in a user name, password or option must be written %%3F or %%40");
    const size_t authority = strcspn(rest, "/?");
    const char *path = rest + authority;
    const size_t path_length = strcspn(path, "?");
    const char *at = memrchr(rest, '@', authority); /* the last one: a password may contain one */
    const char *host = at ? at + 1 : rest;
    struct given given = { .acl = false };
    hf_status status = at ? read_credentials(config, rest, (size_t)(at - rest), err) : HF_OK;
    if (status == HF_OK)
        status = read_hosts(config, host, (size_t)(path - host), err);
    if (status == HF_OK)
        status = read_prefix(config, path, path_length, err);
    if (status == HF_OK && path[path_length] == '?')
        status = read_options(config, &given, path + path_length + 1, err);
    const char *password = secure_getenv("HOLDFAST_PASSWORD");
    if (status == HF_OK)
        status = add_password(config, password ? password : "", err);
    if (status == HF_OK && !given.acl)
        config->creator_only = config->credentials != NULL;
    if (status == HF_OK && config->creator_only && !config->credentials)
        return hfi_fail(err, HF_INVALID, 0, "acl=creator needs a user and a password");
    return status;
}

void hfi_zookeeper_config_free(struct zookeeper_config *config)
{
    if (config->credentials)
        explicit_bzero(config->credentials, strlen(config->credentials));
    hfi_free(config->credentials);
    hfi_free(config->hosts);
}
