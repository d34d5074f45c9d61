/* SPDX-License-Identifier: MIT
 *
 * resolve.h: what the core offers to engines that know a host by its name: looking it up by a deadline, or in steps
 * that never wait. getaddrinfo() can do neither, and blocks for half a minute when the resolver does not answer.
 */
#ifndef HFI_RESOLVE_H
#define HFI_RESOLVE_H

#include "engine.h"
#include <sys/socket.h>

/* The addresses of a host, the two families in turn and without ports. */
#define HFI_ADDRESSES_MOST 8
struct hfi_addresses {
    struct sockaddr_storage list[HFI_ADDRESSES_MOST];
    size_t count;
    bool known;   /* from earlier: the resolver has not answered now */
    bool pending; /* … but may do so yet */
};

/* Looks up `count` hosts at once, which may be numbers. What a name led to the last time is used if the resolver hangs
 * or fails. HF_OK: at least one of them was found, the count of the others is 0; one that hangs is not waited for if
 * there is another. `again`: all of the addresses have failed while some were pending, so wait for these for as long
 * as at first, also if it is known that they hang. */
#define HFI_RESOLVE_MOST 64
#define HFI_RESOLVE_PATIENCE_MS 100
HFI_API hf_status hfi_resolve(struct hfi_addresses *found, const char *const *hosts, size_t count, bool again,
                              hfi_time deadline_ns, hf_error *err);
/* Whether that is worth it. */
HFI_API bool hfi_resolve_is_worth(const struct hfi_addresses *found, size_t count, hfi_time deadline_ns);
/* An address as a number; false: it is none of the internet. */
HFI_API bool hfi_address_print(char *out, size_t size, const struct sockaddr_storage *address);

/* The same for one host, in steps that never wait. It must stay where it is until it is over. */
struct hfi_lookup {
    struct hfi_addresses found;
    int bell; /* readable when the next step is worth it; -1 once it is over */
    struct hfi_name *name;
    struct hfi_lookup *next;
    int failure, number;
    hfi_time since_ns; /* patience begins not before this */
};
/* HF_OK: found. HF_TIMEOUT: under way, take a step when the bell is readable, and after the patience above: from then
 * on, and if it is the `last` step, what was known before is good enough. Any other: failed. `again` as above. */
HFI_API hf_status hfi_lookup_begin(struct hfi_lookup *lookup, const char *host, bool again, hf_error *err);
HFI_API hf_status hfi_lookup_step(struct hfi_lookup *lookup, const char *host, bool last, hf_error *err);
/* Gives up one that is under way. */
HFI_API void hfi_lookup_end(struct hfi_lookup *lookup);

#endif
