/* SPDX-License-Identifier: MIT
 *
 * postgres_address.c: where the server may be. libpq could go through a list of hosts by itself, but would look up
 * their names while no process may fork, and would wait for one that swallows everything until there is no time left
 * for the others.
 */
#include "postgres_connection.h"
#include "resolve.h"
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

/* What the options name, and what is found of it. */
struct places {
    struct postgres_address list[HFI_POSTGRES_ADDRESSES_MOST];
    size_t count;
    const char *names[HFI_POSTGRES_ADDRESSES_MOST]; /* of those that must be looked up */
    struct hfi_addresses found[HFI_POSTGRES_ADDRESSES_MOST];
    size_t name_count;
};

static bool is_name(const struct postgres_address *one)
{
    return !*one->address && *one->host && one->host[0] != '/' && one->host[0] != '@';
}

static void read_places(struct places *places, const struct postgres_config *config)
{
    const char *hosts = hfi_postgres_option(config, "host"), *numbers = hfi_postgres_option(config, "hostaddr");
    const char *ports = hfi_postgres_option(config, "port"), *list = *numbers ? numbers : hosts;
    char ignored[256];
    for (size_t i = 0; i < HFI_POSTGRES_ADDRESSES_MOST && pick(ignored, sizeof ignored, list, i); i++) {
        struct postgres_address *one = &places->list[places->count++];
        pick(one->host, sizeof one->host, hosts, i);
        pick(one->address, sizeof one->address, numbers, i);
        pick(one->port, sizeof one->port, ports, i);
        if (is_name(one))
            places->names[places->name_count++] = one->host;
    }
}

/* All addresses of one host. */
static void add_found(struct postgres_addresses *addresses, struct postgres_address *one,
                      const struct hfi_addresses *found)
{
    for (size_t i = 0; i < found->count; i++) {
        if (hfi_address_print(one->address, sizeof one->address, &found->list[i]))
            add(addresses, one);
    }
}

hf_status hfi_postgres_look_up(struct postgres_addresses *addresses, const struct postgres_config *config, bool again,
                               hfi_time deadline_ns, hf_error *err)
{
    struct places *places = hfi_alloc(sizeof *places);
    if (!places)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a connection");
    read_places(places, config);
    hf_status status = HF_OK;
    if (places->name_count)
        status = hfi_resolve(places->found, places->names, places->name_count, again, deadline_ns, err);
    addresses->again = hfi_resolve_is_worth(places->found, places->name_count, deadline_ns);
    addresses->count = 0;
    for (size_t i = 0, name = 0; i < places->count; i++) {
        if (is_name(&places->list[i]))
            add_found(addresses, &places->list[i], &places->found[name++]);
        else
            add(addresses, &places->list[i]);
    }
    hfi_free(places);
    return addresses->count ? HF_OK : status;
}
