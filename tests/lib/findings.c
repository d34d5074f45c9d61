/* SPDX-License-Identifier: MIT
 *
 * findings.c: see findings.h.
 */
#include "findings.h"
#include "shared.h"
#include "test.h"
#include <stdio.h>
#include <string.h>

static const char *const words_of[] = { "ok", "note", "risk", "broken" };

static void take(const hf_finding *finding, void *arg)
{
    struct findings *findings = arg;
    REQUIRE(findings->count < FINDINGS_MOST);
    CHECK_INT((int64_t)sizeof *finding, (int64_t)finding->size);
    CHECK(*finding->what && *finding->sentence);
    if (finding->level >= HF_FINDING_RISK) /* nobody is left alone with it */
        CHECK(*finding->evidence && *finding->remedy);
    struct one_finding *one = &findings->list[findings->count++];
    one->level = finding->level;
    snprintf(one->what, sizeof one->what, "%s", finding->what);
    snprintf(one->text, sizeof one->text, "%s\n%s\n%s", finding->sentence, finding->evidence, finding->remedy);
}

struct findings *find_with(hf_client *client, uint32_t ttl_ms)
{
    struct findings *findings = shared_new(sizeof *findings);
    findings->status = hf_examine(client, ttl_ms, take, findings, &findings->err);
    return findings;
}

static void show(const struct findings *findings)
{
    for (int i = 0; i < findings->count; i++)
        test_note("%s %s: %s", words_of[findings->list[i].level], findings->list[i].what, findings->list[i].text);
}

void must_find(const struct findings *findings, hf_finding_level level, const char *what, const char *words)
{
    for (int i = 0; i < findings->count; i++) {
        const struct one_finding *one = &findings->list[i];
        if (one->level == level && strcmp(one->what, what) == 0 && strstr(one->text, words))
            return;
    }
    show(findings);
    FAIL("no %s about %s says \"%s\"", words_of[level], what, words);
}

void must_find_nothing_but(const struct findings *findings, const char *const *whats, int count)
{
    int fine = 0;
    hf_error err = findings->err;
    CHECK_STATUS(HF_OK, findings->status, &err);
    for (int i = 0; i < findings->count; i++) {
        const struct one_finding *one = &findings->list[i];
        bool expected = false;
        for (int j = 0; j < count; j++)
            expected = expected || strcmp(one->what, whats[j]) == 0;
        fine += one->level == HF_FINDING_OK;
        if (one->level != HF_FINDING_OK && !expected)
            FAIL("%s %s: %s", words_of[one->level], one->what, one->text);
    }
    CHECK(fine > 0);
}

void must_find_nothing(const struct findings *findings)
{
    must_find_nothing_but(findings, NULL, 0);
}

void must_find_no_risk(const struct findings *findings)
{
    int fine = 0;
    hf_error err = findings->err;
    CHECK_STATUS(HF_OK, findings->status, &err);
    for (int i = 0; i < findings->count; i++) {
        const struct one_finding *one = &findings->list[i];
        fine += one->level == HF_FINDING_OK;
        if (one->level >= HF_FINDING_RISK)
            FAIL("%s %s: %s", words_of[one->level], one->what, one->text);
    }
    CHECK(fine > 0);
}
