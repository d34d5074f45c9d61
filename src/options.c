/* SPDX-License-Identifier: MIT
 *
 * options.c: reading option structs from callers that were compiled against an older or a newer header.
 */
#include "core.h"
#include <string.h>

bool hfi_options_copy(void *known, size_t known_size, const void *given, size_t given_size)
{
    if (given_size < sizeof(size_t))
        return false; /* not initialised */
    const unsigned char *bytes = given;
    for (size_t i = known_size; i < given_size; i++) {
        if (bytes[i])
            return false; /* the caller asks for something that did not exist yet */
    }
    memcpy(known, given, given_size < known_size ? given_size : known_size);
    return true;
}

static hf_status read_owner(struct hfi_want *want, hf_client *client, hf_error *err)
{
    const hf_options *options = &want->options;
    want->key = (struct hfi_owner_key){ .kind = options->owner, .text = "" };
    switch (options->owner) {
    case HF_OWNER_THREAD:
        want->key.number = hfi_thread_number();
        return HF_OK;
    case HF_OWNER_TEXT:
        if (!hfi_text_check(options->owner_text, HFI_NAME_MAX))
            return hfi_fail(err, HF_INVALID, 0,
                            "owner_text must be 1 to 255 bytes of UTF-8 without control characters");
        want->key.text = options->owner_text;
        return HF_OK;
    case HF_OWNER_HANDLE:
        if (!options->owner_handle)
            return HF_OK;
        if (options->owner_handle->generation != hfi_generation || options->owner_handle->hold->client != client ||
            strcmp(hfi_hold_name(options->owner_handle->hold), want->name) != 0)
            return hfi_fail(err, HF_INVALID, 0, "owner_handle is not a lock of the same client and name");
        want->key = hfi_hold_key(options->owner_handle->hold);
        return HF_OK;
    }
    return hfi_fail(err, HF_INVALID, 0, "owner kind %d does not exist", (int)options->owner);
}

hf_status hfi_want_read(struct hfi_want *want, hf_client *client, const char *name, const hf_options *options,
                        hf_error *err)
{
    const hf_options defaults = HF_OPTIONS_INIT;
    want->options = defaults;
    if (options && !hfi_options_copy(&want->options, sizeof want->options, options, options->size))
        return hfi_fail(err, HF_INVALID, 0, "the options are not from HF_OPTIONS_INIT, or newer than this library");
    if (!hfi_name_check(name))
        return hfi_fail(err, HF_INVALID, 0, "a lock's name is 1 to 255 bytes of UTF-8 without control characters");
    want->name = name;
    want->name_hash = (uint32_t)hfi_name_hash(name);
    if (want->options.ttl_ms == 0)
        want->options.ttl_ms = HFI_DEFAULT_TTL_MS;
    if (want->options.ttl_ms < HFI_MIN_TTL_MS)
        return hfi_fail(err, HF_INVALID, 0, "ttl_ms is %u; the least is %u", want->options.ttl_ms, HFI_MIN_TTL_MS);
    if (want->options.renew != HF_RENEW_ON && want->options.renew != HF_RENEW_OFF)
        return hfi_fail(err, HF_INVALID, 0, "renew mode %d does not exist", (int)want->options.renew);
    if (want->options.once_per_ms > HFI_ONCE_MOST_MS)
        return hfi_fail(err, HF_INVALID, 0, "once_per_ms is more than a year");
    if (want->options.once_per_ms && !(client->caps & HF_CAP_ONCE))
        return hfi_fail(err, HF_UNSUPPORTED, 0, "the %s engine cannot remember what was done", client->engine->name);
    const char *note = want->options.note;
    if (note && *note && !hfi_text_check(note, HFI_NOTE_MAX))
        return hfi_fail(err, HF_INVALID, 0, "a note is at most %d bytes of UTF-8 without control characters",
                        HFI_NOTE_MAX);
    return read_owner(want, client, err);
}
