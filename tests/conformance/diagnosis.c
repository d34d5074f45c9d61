/* SPDX-License-Identifier: MIT
 *
 * diagnosis.c: see diagnosis.h.
 */
#include "diagnosis.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

struct search {
    hf_finding_level level;
    const char *what, *words;
    unsigned found, fine, bad;
};

/* What a failed test shows. */
static void print(const hf_finding *finding)
{
    static const char *const levels[] = { "ok", "note", "risk", "broken" };
    printf("# %-6s %s: %s | %s | %s\n", levels[finding->level], finding->what, finding->sentence, finding->evidence,
           finding->remedy);
}

static void see(const hf_finding *finding, void *arg)
{
    struct search *search = arg;
    if (finding->level > HF_FINDING_OK || (search->what && strcmp(finding->what, search->what) == 0))
        print(finding);
    CHECK(*finding->what && *finding->sentence);
    CHECK(finding->size == sizeof *finding);
    if (finding->level >= HF_FINDING_RISK) /* what is told must be seen by the user too, and mended */
        CHECK(*finding->evidence && *finding->remedy);
    search->fine += finding->level == HF_FINDING_OK;
    search->bad += finding->level >= HF_FINDING_RISK;
    if (search->what && finding->level == search->level && strcmp(finding->what, search->what) == 0 &&
        (strstr(finding->sentence, search->words) || strstr(finding->evidence, search->words)))
        search->found++;
}

void check_found(const char *file, int line, hf_client *client, hf_finding_level level, const char *what,
                 const char *words, uint32_t ttl_ms)
{
    struct search search = { .level = level, .what = what, .words = words };
    hf_error err = { .message = "" };
    printf("# %s:%d: %s, %s\n", file, line, what, words);
    CHECK_STATUS(HF_OK, hf_examine(client, ttl_ms, see, &search, &err), &err);
    CHECK_INT(1, search.found);
}

void check_healthy(hf_client *client)
{
    struct search search = { .what = NULL };
    hf_error err = { .message = "" };
    CHECK_STATUS(HF_OK, hf_examine(client, 0, see, &search, &err), &err);
    CHECK_INT(0, search.bad);
    CHECK(search.fine > 0);
}
