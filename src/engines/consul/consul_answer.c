/* SPDX-License-Identifier: MIT
 *
 * consul_answer.c: what the server's refusals mean, and what mends them.
 */
#include "consul.h"
#include <stdio.h>
#include <string.h>

#define NEEDED_RULES                                                                                                   \
    "the ACL token may not do this; it needs session_prefix \"\" { policy = \"write\" } and write for the keys below " \
    "the prefix"

static const struct meaning {
    const char *text;
    hf_status status;
    const char *words;
} meanings[] = {
    { "ACL not found", HF_DENIED, "the server does not know the ACL token" },
    { "Permission denied", HF_DENIED, NEEDED_RULES },
    { "ACL support disabled", HF_DENIED, "the server has no ACLs, but a token was given" },
    { "lead to leader", HF_UNAVAILABLE, "the servers have no leader" },
    /* Before the request was given to anybody; a leader that was lost on the way has other words. */
    { "No cluster leader", HF_UNAVAILABLE, "the servers have no leader" },
    { "node is not the leader", HF_UNAVAILABLE, "the servers have no leader" },
    { "No path to datacenter", HF_UNAVAILABLE, "the agent knows no way to the datacenter" },
    { "not ready to serve consistent reads", HF_UNAVAILABLE, "the servers have a new leader that is not ready yet" },
    { "rate limit", HF_UNAVAILABLE, "the server refuses so many requests (rate limit)" },
    { "too many concurrent connections", HF_UNAVAILABLE,
      "the agent takes no more connections from here (http_max_conns_per_client)" },
    { "Transaction contains too many", HF_INTERNAL, "the transaction is too long for the server" },
};

static const struct meaning *meaning_of(const char *text)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (strstr(text, meanings[i].text))
            return &meanings[i];
    }
    return NULL;
}

/* The first line of what the server says, cut to a sentence's length. */
static void first_line(char out[120], const struct consul_reply *reply)
{
    const size_t most = reply->length < 119 ? reply->length : 119;
    memcpy(out, reply->body, most);
    out[most] = 0;
    for (char *at = out; *at; at++) {
        if ((unsigned char)*at < ' ')
            *at = 0;
    }
}

hf_status hfi_consul_refusal(const struct consul_store *store, const struct consul_reply *reply, bool writes,
                             hf_error *err)
{
    char text[120];
    first_line(text, reply);
    const char *host = store->config.addresses[0].host;
    const struct meaning *meaning = meaning_of(text);
    if (meaning)
        return hfi_fail(err, meaning->status, reply->status, "%s", meaning->words);
    if (reply->status == 403 || reply->status == 401)
        return hfi_fail(err, HF_DENIED, reply->status, "%s: %.80s", NEEDED_RULES, text);
    if (reply->status == 429)
        return hfi_fail(err, HF_UNAVAILABLE, 429, "the server refuses so many requests: %.80s", text);
    if (reply->status >= 500) /* a leader that was lost in the middle may have done it or not */
        return hfi_fail(err, writes ? HF_UNKNOWN : HF_UNAVAILABLE, reply->status, "the server is in trouble: %.100s",
                        text);
    return hfi_fail(err, HF_INTERNAL, reply->status, "%.60s answered %d: %.100s", host, reply->status, text);
}

hf_status hfi_consul_complaint(const char *what, hf_error *err)
{
    const struct meaning *meaning = meaning_of(what);
    return meaning ? hfi_fail(err, meaning->status, 0, "%s", meaning->words) : HF_OK;
}
