/* SPDX-License-Identifier: MIT
 *
 * duration.c: numbers and durations on the command line.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_TTL_MS 100 /* of the library */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Milliseconds per unit; 0 for what is no unit. */
static uint64_t unit_ms(const char *unit)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = { { "", 1000 },       { "s", 1000 },        { "ms", 1 },
                  { "m", 60 * 1000 }, { "h", 3600 * 1000 }, { "d", 86400 * 1000 } };

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(unit, units[i].name) == 0)
            return units[i].ms;
    return 0;
}

bool hfc_duration(const char *text, uint32_t *ms, const char **why)
{
    static const char garbage[] = "is not a duration such as 500ms, 2s, 5m, 1h, 7d or plain seconds";
    static const char too_long[] = "is too long (49 days are the most)";
    uint64_t whole = 0, part = 0, scale = 1;
    const char *at = text;

    *why = garbage;
    if (*at == '-' && (is_digit(at[1]) || at[1] == '.')) {
        *why = "is negative";
        return false;
    }
    if (!is_digit(*at) && !(*at == '.' && is_digit(at[1])))
        return false;
    /* Both parts are cut far above the limit and far below the precision, so that nothing here can overflow. */
    for (; is_digit(*at); at++)
        whole = whole > UINT32_MAX ? whole : whole * 10 + (uint64_t)(*at - '0');
    if (*at == '.')
        for (at++; is_digit(*at); at++)
            if (scale < 1000000000) {
                part = part * 10 + (uint64_t)(*at - '0');
                scale *= 10;
            }
    uint64_t unit = unit_ms(at);
    if (unit == 0)
        return false;
    uint64_t total = whole * unit + (part * unit + scale - 1) / scale;
    if (total > UINT32_MAX) {
        *why = too_long;
        return false;
    }
    *ms = (uint32_t)total;
    return true;
}

bool hfc_ttl(const char *text, uint32_t *ms, const char **why)
{
    if (!hfc_duration(text, ms, why))
        return false;
    *why = *ms == 0 ? "is no time at all" : "is too short: the least is 100ms";
    return *ms >= LEAST_TTL_MS;
}

bool hfc_number(const char *text, long min, long max, long *out)
{
    char *end;

    errno = 0;
    long value = strtol(text, &end, 10);
    /* strtol() skips blanks, which nobody means to type. */
    if (errno != 0 || end == text || *end != '\0' || (!is_digit(*text) && *text != '-') || value < min || value > max)
        return false;
    *out = value;
    return true;
}
