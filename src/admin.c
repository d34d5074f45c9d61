/* SPDX-License-Identifier: MIT
 *
 * admin.c: looking at locks, breaking them, and guarding what they protect.
 */
#include "core.h"
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static hf_status check(const hf_client *client, bool able, const char *what, hf_error *err)
{
    if (client->generation != hfi_generation)
        return hfi_fail(err, HF_INVALID, 0, "the client was opened before a fork; open a new one in the child");
    if (!able)
        return hfi_fail(err, HF_UNSUPPORTED, 0, "the %s engine cannot %s", client->engine->name, what);
    return HF_OK;
}

/* Engines have room for a name. */
static bool is_longer_than_names(const char *prefix)
{
    return prefix && strlen(prefix) > HFI_NAME_MAX;
}

hf_status hf_inspect(hf_client *client, const char *prefix, hf_inspect_fn each, void *arg, hf_error *err)
{
    const hf_status status = check(client, client->engine->inspect, "list locks", err);
    if (status != HF_OK || is_longer_than_names(prefix))
        return status;
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->inspect(client->store, prefix ? prefix : "", each, arg, deadline, &trouble),
                       &trouble, err);
}

hf_status hf_inspect_one(hf_client *client, const char *name, hf_inspect_fn each, void *arg, hf_error *err)
{
    const hf_status status = check(client, client->engine->inspect_one, "list locks", err);
    if (status != HF_OK)
        return status;
    if (!hfi_name_check(name))
        return hfi_fail(err, HF_INVALID, 0, "a lock's name is 1 to 255 bytes of UTF-8 without control characters");
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->inspect_one(client->store, name, each, arg, deadline, &trouble), &trouble, err);
}

hf_status hf_inspect_done(hf_client *client, const char *prefix, hf_inspect_fn each, void *arg, hf_error *err)
{
    const hf_status status = check(client, client->caps & HF_CAP_ONCE, "remember what was done", err);
    if (status != HF_OK || is_longer_than_names(prefix))
        return status;
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->inspect_done(client->store, prefix ? prefix : "", each, arg, deadline, &trouble),
                       &trouble, err);
}

hf_status hf_forget_done(hf_client *client, const char *name, hf_error *err)
{
    const hf_status status = check(client, client->caps & HF_CAP_ONCE, "remember what was done", err);
    if (status != HF_OK)
        return status;
    if (!hfi_name_check(name))
        return hfi_fail(err, HF_INVALID, 0, "a lock's name is 1 to 255 bytes of UTF-8 without control characters");
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->forget_done(client->store, name, deadline, &trouble), &trouble, err);
}

/* Who breaks a lock, for its holder to be told. */
static void say_who(char out[160])
{
    char buffer[1024], host[65] = "";
    struct passwd entry, *found = NULL;
    gethostname(host, sizeof host - 1);
    if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found)
        snprintf(out, 160, "%.64s@%s:%ld", found->pw_name, host, (long)getpid());
    else
        snprintf(out, 160, "user %u@%s:%ld", (unsigned)geteuid(), host, (long)getpid());
}

hf_status hf_break(hf_client *client, const char *name, hf_error *err)
{
    const hf_status status = check(client, client->engine->evict, "break a lock", err);
    if (status != HF_OK)
        return status;
    if (!hfi_name_check(name))
        return hfi_fail(err, HF_INVALID, 0, "a lock's name is 1 to 255 bytes of UTF-8 without control characters");
    char by[160];
    say_who(by);
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->evict(client->store, name, by, deadline, &trouble), &trouble, err);
}

hf_status hf_guard(hf_client *client, const char *resource, uint64_t token, hf_error *err)
{
    const hf_status status = check(client, client->caps & HF_CAP_GUARD, "guard a resource", err);
    if (status != HF_OK)
        return status;
    if (!hfi_name_check(resource))
        return hfi_fail(err, HF_INVALID, 0, "a resource's name is 1 to 255 bytes of UTF-8 without control characters");
    if (token == 0 || token > INT64_MAX) /* what the stores can count to */
        return hfi_fail(err, HF_INVALID, 0, "%" PRIu64 " is not the token of a lock", token);
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->guard(client->store, resource, token, deadline, &trouble), &trouble, err);
}
