/* SPDX-License-Identifier: MIT
 *
 * etcd_login.c: the token that a server wants to see with every call. It is got by the first who needs it, and again
 * when a server refuses it: some live in the servers' memory, and all of them only for a while. Whoever asks logs in,
 * and so does the push connection: those who wait for what it hears ask nothing meanwhile.
 */
#include "etcd.h"
#include <string.h>

bool hfi_etcd_needs_login(const struct etcd_store *store)
{
    return *store->config.user && !store->token;
}

const char *hfi_etcd_token(const struct etcd_store *store)
{
    return store->token && *store->token ? store->token : NULL;
}

void hfi_etcd_login_refused(struct etcd_store *store, uint64_t login)
{
    if (login != store->logins) /* there is a newer one */
        return;
    hfi_free(store->token);
    store->token = NULL;
}

bool hfi_etcd_login_prepare(const struct etcd_store *store, struct etcd_stream *stream)
{
    Etcd__AuthenticateRequest request = ETCD__AUTHENTICATE_REQUEST__INIT;
    request.name = store->config.user;
    request.password = store->config.password;
    stream->path = "/etcdserverpb.Auth/Authenticate";
    return hfi_etcd_add_message(stream, &request.base);
}

static void keep(struct etcd_store *store, const char *token)
{
    hfi_free(store->token);
    store->token = hfi_strdup(token);
    store->logins++;
    hfi_etcd_push_outdated(store);
}

bool hfi_etcd_login_take(struct etcd_store *store, struct etcd_stream *stream)
{
    ProtobufCMessage *answer = NULL;
    if (store->token) /* somebody else was faster */
        return true;
    if (strstr(stream->reason, "authentication is not enabled"))
        keep(store, ""); /* as etcd's own clients do: whoever is to log in soon can be set up before */
    else if (stream->code == 0 && hfi_etcd_take_message(stream, &etcd__authenticate_response__descriptor, &answer) &&
             answer)
        keep(store, ((const Etcd__AuthenticateResponse *)answer)->token);
    protobuf_c_message_free_unpacked(answer, NULL);
    return store->token != NULL;
}
