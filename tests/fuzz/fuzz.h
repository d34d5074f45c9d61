/* SPDX-License-Identifier: MIT
 *
 * fuzz.h: what a fuzz target and its driver agree on. A target is a file with LLVMFuzzerTestOneInput(), as libFuzzer
 * wants it; fuzz_driver.c runs it where there is no libFuzzer.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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

#endif
