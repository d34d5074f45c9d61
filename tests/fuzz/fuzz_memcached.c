/* SPDX-License-Identifier: MIT
 *
 * fuzz_memcached.c: URLs of the memcached: engine, and answers as a server, or whoever stands in its place, may give
 * them. No crash, nothing read that is not there, and nobody's record taken for somebody's.
 *
 * An input that begins with "memcached" is a URL, any other one the bytes of answers.
 */
#include "fuzz.h"

#include "core.h"
#include "engines/memcached.h"

#define INPUT_MOST 16384

const char *const fuzz_words[] = { "VA 50 c7 t13\r\n",
                                   "VA 0 c1 t-1\r\n",
                                   "VA 99999999999999999999 c1 t1\r\n",
                                   "c18446744073709551615 ",
                                   "held\t0000000000000001\t0000000000000002\tx\tsomebody!\r\n",
                                   "free\t0000000000000001\t0000000000000002\tx\t\r\n",
                                   "EN\r\n",
                                   "HD\r\n",
                                   "STORED\r\n",
                                   "SERVER_ERROR out of memory storing object\r\n",
                                   "STAT uptime 100\r\n",
                                   "STAT time 1700000100\r\n",
                                   "STAT version 1.6.18\r\n",
                                   "STAT cas_enabled yes\r\n",
                                   "END\r\n",
                                   "memcached://",
                                   "memcached+unix:///a",
                                   "[::1]:11211",
                                   "%2F",
                                   NULL };

static void check_url(const char *text)
{
    char scheme[32];
    struct hfi_url url = { .scheme = scheme };
    struct hfi_talks talks = { .idle = NULL };
    hf_error err = { 0 };
    if (hfi_url_split(scheme, &url.rest, text, &err) != HF_OK)
        return;
    const hf_status status = hfi_talks_open(&talks, &url, "11211", &err);
    if (status == HF_OK)
        FUZZ_REQUIRE(*talks.host && (*talks.port || *talks.host == '/'));
    else
        fuzz_check_words(status, &err);
    hfi_talks_close(&talks);
}

static void check_answers(char *text, size_t size)
{
    const char *limit = text + size, *end;
    for (const char *at = text; (end = hfi_memcached_end_of(at, limit)) != NULL; at = end) {
        struct memcached_record record;
        FUZZ_REQUIRE(end > at && end <= limit);
        if (!hfi_memcached_read_record(&record, at))
            continue;
        FUZZ_REQUIRE(record.is_there || !record.is_held);
        FUZZ_REQUIRE(strlen(record.name) < sizeof record.name && strlen(record.text) < sizeof record.text);
        FUZZ_REQUIRE((!record.owner.client && !record.owner.serial) || memmem(at, (size_t)(end - at), "\t", 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > INPUT_MOST)
        return 0;
    char *text = malloc(size + 1); /* of this very size, so that a sanitizer sees what is read behind it */
    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    if (strncmp(text, "memcached", 9) == 0)
        check_url(text);
    else
        check_answers(text, size);
    free(text);
    return 0;
}
