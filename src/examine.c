/* SPDX-License-Identifier: MIT
 *
 * examine.c: having an engine look at the way its store is set up.
 */
#include "core.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FINDING_MAX 1024

/* The first line of what is left; "" if there is none. */
static char *take_line(char **rest)
{
    char *line = *rest;
    char *end = strchr(line, '\n');
    *rest = end ? end + 1 : line + strlen(line);
    if (end)
        *end = 0;
    return line;
}

void hfi_finding(const struct hfi_examination *examination, hf_finding_level level, const char *what,
                 const char *format, ...)
{
    char text[FINDING_MAX], lines[3][FINDING_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char *rest = text;
    for (size_t i = 0; i < 3; i++) /* a server's words may hold anything */
        hfi_text_clean(lines[i], sizeof lines[i], take_line(&rest));
    const hf_finding finding = { .size = sizeof finding,
                                 .level = level,
                                 .what = what,
                                 .sentence = lines[0],
                                 .evidence = lines[1],
                                 .remedy = lines[2] };
    examination->each(&finding, examination->arg);
}

hf_status hf_examine(hf_client *client, uint32_t ttl_ms, hf_examine_fn each, void *arg, hf_error *err)
{
    if (client->generation != hfi_generation)
        return hfi_fail(err, HF_INVALID, 0, "the client was opened before a fork; open a new one in the child");
    if (!client->engine->examine)
        return hfi_fail(err, HF_UNSUPPORTED, 0, "the %s engine has nothing to look at", client->engine->name);
    if (ttl_ms && ttl_ms < HFI_MIN_TTL_MS)
        return hfi_fail(err, HF_INVALID, 0, "a time-to-live is at least %u ms", HFI_MIN_TTL_MS);
    const struct hfi_examination examination = { ttl_ms ? ttl_ms : HFI_DEFAULT_TTL_MS, each, arg };
    hf_error trouble = { .message = "" };
    const hfi_time deadline = hfi_now_ns() + client->timeout_ns;
    return hfi_pass_on(client->engine->examine(client->store, &examination, deadline, &trouble), &trouble, err);
}
