/* SPDX-License-Identifier: MIT
 *
 * fuzz.h: what a fuzz target and its driver agree on. A target is a file with LLVMFuzzerTestOneInput(), as libFuzzer
 * wants it; fuzz_driver.c runs it where there is no libFuzzer.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <holdfast.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Words that inputs of this target are made of; ends with NULL. Only our driver reads it. */
extern const char *const fuzz_words[];

#define FUZZ_REQUIRE(condition_)                                                                                       \
    do {                                                                                                               \
        if (!(condition_)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition_);                             \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Words that are fit to be shown. */
static inline void fuzz_check_words(hf_status status, const hf_error *err)
{
    FUZZ_REQUIRE(err->status == status);
    FUZZ_REQUIRE(*err->message);
    FUZZ_REQUIRE(strlen(err->message) < sizeof err->message);
    for (const char *c = err->message; *c; c++)
        FUZZ_REQUIRE((unsigned char)*c >= ' ');
}

/* What an engine says; not everything that is no success needs words. */
static inline void fuzz_check_answer(hf_status status, const hf_error *err)
{
    if (status != HF_OK && status != HF_BUSY && status != HF_TIMEOUT)
        fuzz_check_words(status, err);
}

#endif
