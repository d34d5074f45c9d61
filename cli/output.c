/* SPDX-License-Identifier: MIT
 *
 * output.c: text for terminals and for programs. Names and notes come from a store that anybody may have written to, so
 * nothing of them reaches a terminal or a JSON document unchecked.
 */
#include "cli.h"

#include <string.h>

/* The length in bytes of the UTF-8 character at `text`, and the character; 0 if it is malformed. */
static int utf8_next(const char *text, uint32_t *character)
{
    const unsigned char *byte = (const unsigned char *)text;
    static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
    int length = byte[0] < 0x80                      ? 1
                 : byte[0] >= 0xc2 && byte[0] < 0xe0 ? 2
                 : byte[0] >= 0xe0 && byte[0] < 0xf0 ? 3
                 : byte[0] >= 0xf0 && byte[0] < 0xf5 ? 4
                                                     : 0;

    if (length <= 1) {
        *character = byte[0];
        return length;
    }
    uint32_t value = byte[0] & (0xffu >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((byte[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (byte[i] & 0x3f);
    }
    if (value < smallest[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *character = value;
    return length;
}

/* What a terminal would obey: the two ranges of control characters, and what changes the direction of writing, by
 * which one name can be made to look like another. */
static bool is_obeyed(uint32_t character)
{
    return character < 0x20 || (character >= 0x7f && character < 0xa0) || character == 0x200e || character == 0x200f ||
           (character >= 0x2028 && character <= 0x202e) || (character >= 0x2066 && character <= 0x2069);
}

void hfc_json_string(FILE *out, const char *text)
{
    if (text == NULL) {
        fputs("null", out);
        return;
    }
    fputc('"', out);
    while (*text != '\0') {
        uint32_t character;
        int length = utf8_next(text, &character);

        if (length == 0)
            fputs("\\ufffd", out);
        else if (character == '"' || character == '\\')
            fprintf(out, "\\%c", (char)character);
        else if (is_obeyed(character))
            fprintf(out, "\\u%04x", (unsigned)character);
        else
            fwrite(text, 1, (size_t)length, out);
        text += length == 0 ? 1 : length;
    }
    fputc('"', out);
}

void hfc_json_key(FILE *out, const char *key, bool *first)
{
    if (!*first)
        fputs(", ", out);
    *first = false;
    hfc_json_string(out, key);
    fputs(": ", out);
}

const char *hfc_printable(char *buffer, size_t size, const char *text)
{
    size_t used = 0;

    while (*text != '\0') {
        uint32_t character;
        int length = utf8_next(text, &character);
        bool shown = length != 0 && !is_obeyed(character);
        size_t bytes = length == 0 ? 1 : (size_t)length;

        if (used + (shown ? bytes : 4 * bytes) >= size)
            break;
        for (size_t i = 0; i < bytes; i++) {
            if (shown)
                buffer[used++] = text[i];
            else
                used += (size_t)snprintf(buffer + used, size - used, "\\x%02x", (unsigned char)text[i]);
        }
        text += bytes;
    }
    buffer[used] = '\0';
    return buffer;
}

static int character_columns(uint32_t character)
{
    static const uint32_t wide[][2] = {
        { 0x1100, 0x115f }, { 0x2e80, 0xa4cf }, { 0xac00, 0xd7a3 },   { 0xf900, 0xfaff },   { 0xfe30, 0xfe6f },
        { 0xff00, 0xff60 }, { 0xffe0, 0xffe6 }, { 0x1f300, 0x1faff }, { 0x20000, 0x3fffd },
    };

    if ((character >= 0x300 && character <= 0x36f) || (character >= 0x200b && character <= 0x200f))
        return 0;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (character >= wide[i][0] && character <= wide[i][1])
            return 2;
    return 1;
}

int hfc_columns(const char *text)
{
    int columns = 0;

    while (*text != '\0') {
        uint32_t character;
        int length = utf8_next(text, &character);

        columns += length == 0 ? 1 : character_columns(character);
        text += length == 0 ? 1 : length;
    }
    return columns;
}

const char *hfc_short_time(char *buffer, size_t size, int64_t ms)
{
    long long seconds = (long long)(ms / 1000);

    if (ms < 0)
        snprintf(buffer, size, "-");
    else if (seconds < 1)
        snprintf(buffer, size, "%dms", (int)ms);
    else if (seconds < 60)
        snprintf(buffer, size, "%llds", seconds);
    else if (seconds < 3600)
        snprintf(buffer, size, "%lldm%02llds", seconds / 60, seconds % 60);
    else if (seconds < 86400)
        snprintf(buffer, size, "%lldh%02lldm", seconds / 3600, seconds / 60 % 60);
    else
        snprintf(buffer, size, "%lldd%02lldh", seconds / 86400, seconds / 3600 % 24);
    return buffer;
}
