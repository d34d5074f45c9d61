/* SPDX-License-Identifier: MIT
 *
 * postgres_address.c: where the server may be. libpq could go through a list of hosts by itself, but would look up
 * their names while no process may fork, and would wait for one that swallows everything until there is no time left
 * for the others.
 */
#include "postgres_connection.h"
#include <netdb.h>
#include <stdio.h>
#include <string.h>

/* Item `index` of a list that is separated by commas; the only one, if there is one for all. False: there is none. */
static bool pick(char *out, size_t size, const char *list, size_t index)
{
    const char *at = list;
    const bool one_for_all = !strchr(list, ',');
    for (size_t i = 0; i < index && !one_for_all; i++) {
        at = strchr(at, ',');
        if (!at)
            return false;
        at++;
    }
    snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
    return index == 0 || !one_for_all;
}

static void add(struct postgres_addresses *addresses, const struct postgres_address *one)
{
    if (addresses->count < HFI_POSTGRES_ADDRESSES_MOST)
        addresses->list[addresses->count++] = *one;
}

/* All addresses of one host. */
static void look_up(struct postgres_addresses *addresses, struct postgres_address *one)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *found = NULL;
    if (getaddrinfo(one->host, NULL, &hints, &found) != 0)
        return;
    for (const struct addrinfo *each = found; each; each = each->ai_next) {
        if (getnameinfo(each->ai_addr, each->ai_addrlen, one->address, sizeof one->address, NULL, 0, NI_NUMERICHOST) ==
            0)
            add(addresses, one);
    }
    freeaddrinfo(found);
}

hf_status hfi_postgres_look_up(struct postgres_addresses *addresses, const struct postgres_config *config,
                               hf_error *err)
{
    const char *hosts = hfi_postgres_option(config, "host"), *numbers = hfi_postgres_option(config, "hostaddr");
    const char *ports = hfi_postgres_option(config, "port"), *list = *numbers ? numbers : hosts;
    struct postgres_address one;
    char ignored[256];
    addresses->count = 0;
    for (size_t i = 0; pick(ignored, sizeof ignored, list, i); i++) {
        pick(one.host, sizeof one.host, hosts, i);
        pick(one.address, sizeof one.address, numbers, i);
        pick(one.port, sizeof one.port, ports, i);
        if (*one.address || !*one.host || one.host[0] == '/' || one.host[0] == '@')
            add(addresses, &one);
        else
            look_up(addresses, &one);
    }
    return addresses->count ? HF_OK : hfi_fail(err, HF_UNAVAILABLE, 0, "cannot find host %.120s", hosts);
}
