/* SPDX-License-Identifier: MIT
 *
 * etcd_answer.c: what came of a call: gRPC's code, and behind it etcd's own words.
 */
#include "etcd.h"
#include <string.h>

enum {
    INVALID_ARGUMENT = 3,
    NOT_FOUND = 5,
    PERMISSION_DENIED = 7,
    RESOURCE_EXHAUSTED = 8,
    FAILED_PRECONDITION = 9,
    UNIMPLEMENTED = 12,
    INTERNAL = 13,
    UNAUTHENTICATED = 16
};

/* In these words the server says that it did nothing. */
static const struct {
    const char *words;
    hf_status status;
    const char *meaning;
} meanings[] = {
    { "no leader", HF_UNAVAILABLE, "the server is cut off from the cluster, or the cluster has no leader" },
    { "too many requests", HF_UNAVAILABLE, "the server has too many requests on its hands" },
    { "database space exceeded", HF_UNAVAILABLE, "the server's database is full (quota-backend-bytes)" },
    { "user name is empty", HF_DENIED, "the server wants a user and a password (URL, HOLDFAST_PASSWORD)" },
    { "invalid user ID or password", HF_DENIED, "the server refuses the user name or password" },
    { "permission denied", HF_DENIED, "the user needs the right to read and write keys below the URL's prefix" },
    { "invalid auth token", HF_DENIED, "the server does not accept the log-in" },
    { "lease not found", HF_UNAVAILABLE, "the lease has ended" },
    { "request is too large", HF_INVALID, "the server takes no request of this size (max-request-bytes)" },
    { "too many operations", HF_INVALID, "the server takes too few operations in one transaction (max-txn-ops)" },
    { "learner", HF_UNAVAILABLE, "the server is a learner, which takes no such requests" },
};

static hf_status by_code(int code, bool writes)
{
    switch (code) {
    case PERMISSION_DENIED:
    case UNAUTHENTICATED:
        return HF_DENIED;
    case UNIMPLEMENTED:
        return HF_UNSUPPORTED;
    case RESOURCE_EXHAUSTED:
        return HF_UNAVAILABLE;
    case INVALID_ARGUMENT:
    case FAILED_PRECONDITION:
    case NOT_FOUND:
    case INTERNAL:
        return HF_INTERNAL;
    default: /* no answer in time, leader changed, server stopped: it may have been done, or be done yet */
        return writes ? HF_UNKNOWN : HF_UNAVAILABLE;
    }
}

hf_status hfi_etcd_outcome(const struct etcd_stream *stream, bool writes, hf_error *err)
{
    if (stream->code == 0)
        return HF_OK;
    if (stream->code < 0 && stream->untouched)
        return hfi_fail(err, HF_UNAVAILABLE, 0, "the server takes no more calls on this connection");
    /* A proxy that gave up may have passed the request on. */
    if (stream->code < 0 && stream->http && stream->http != 200)
        return hfi_fail(err, writes && stream->http >= 500 ? HF_UNKNOWN : HF_UNAVAILABLE, stream->http,
                        "the server answers with HTTP status %d, and not as etcd does", stream->http);
    if (stream->code < 0)
        return hfi_fail(err, writes ? HF_UNKNOWN : HF_UNAVAILABLE, 0, "the server broke off its answer");
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (strstr(stream->reason, meanings[i].words))
            return hfi_fail(err, meanings[i].status, stream->code, "%s", meanings[i].meaning);
    }
    return hfi_fail(err, by_code(stream->code, writes), stream->code, "the server answered: %.119s", stream->reason);
}

bool hfi_etcd_is_stale_token(const struct etcd_stream *stream)
{
    return (stream->code == UNAUTHENTICATED && strstr(stream->reason, "invalid auth token")) ||
           (stream->code == INVALID_ARGUMENT &&
            (strstr(stream->reason, "revision in header is old") || strstr(stream->reason, "user name is empty")));
}

bool hfi_etcd_is_lease_missing(const struct etcd_stream *stream)
{
    return stream->code == NOT_FOUND && strstr(stream->reason, "lease not found");
}

bool hfi_etcd_is_lease_there(const struct etcd_stream *stream)
{
    return stream->code == FAILED_PRECONDITION && strstr(stream->reason, "lease already exists");
}

bool hfi_etcd_is_too_many(const struct etcd_stream *stream)
{
    return stream->code == INVALID_ARGUMENT && strstr(stream->reason, "too many operations");
}

bool hfi_etcd_is_full(const struct etcd_stream *stream)
{
    return stream->code == RESOURCE_EXHAUSTED && strstr(stream->reason, "database space exceeded");
}
