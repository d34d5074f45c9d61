/* SPDX-License-Identifier: MIT
 *
 * engine_support.c: see engine_support.h.
 */
#include "engine_support.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* What the conformance suite's support expects of a main program. */
extern uint32_t run_tag;
extern uint64_t run_seed;
const char *store_url;
uint32_t store_caps;
uint32_t run_tag = 1;
uint64_t run_seed = 1;

void use_url(const char *url)
{
    static char kept[1000];
    REQUIRE(snprintf(kept, sizeof kept, "%s", url) < (int)sizeof kept);
    store_url = kept;
    hf_client *client = open_client();
    store_caps = hf_capabilities(client);
    hf_close(client);
}

void check_error(const hf_error *err, hf_status status, const char *words)
{
    CHECK_STATUS(status, err->status, err);
    if (!strstr(err->message, words))
        FAIL("\"%s\" is not in: %s", words, err->message);
    CHECK(strstr(err->message, "sesame") == NULL);
}

void check_open_at(hf_status status, const char *words, const char *format, ...)
{
    char url[1500];
    va_list args;
    va_start(args, format);
    REQUIRE(vsnprintf(url, sizeof url, format, args) < (int)sizeof url);
    va_end(args);
    check_open(url, status, words);
}

void check_works(const char *url)
{
    store_url = url;
    hf_client *client = open_client();
    CHECK(strstr(hf_url(client), "sesame") == NULL);
    must_release(must_acquire(client, "x", NULL));
    hf_close(client);
}

void check_open(const char *url, hf_status status, const char *words)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    if (!CHECK_STATUS(status, hf_open(&client, url, NULL, &err), &err))
        test_note("for %s", url);
    if (status != HF_OK)
        check_error(&err, status, words);
    CHECK(strstr(err.message, "sesame") == NULL);
    if (client)
        CHECK(strstr(hf_url(client), "sesame") == NULL);
    hf_close(client);
}

void check_rests(void)
{
    struct timespec before, after;
    REQUIRE(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before) == 0);
    pause_ms(1000);
    REQUIRE(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after) == 0);
    const long used_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    if (used_ms > 100)
        FAIL("%ld ms of processor time in a second", used_ms);
}
