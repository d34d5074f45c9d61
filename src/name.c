/* SPDX-License-Identifier: MIT
 *
 * name.c: what may be a lock's name, and how it becomes one path component.
 */
#include "core.h"
#include <string.h>

/* The length of the UTF-8 character at `text` if it is well formed and no control character, else 0. */
static size_t printable_length(const unsigned char *text)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char first = text[0];
    if (first < 0x80)
        return first >= 0x20 && first != 0x7f;
    const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    uint32_t code = first & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3fu);
    }
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    const bool control = code < 0xa0; /* U+0080 to U+009F move cursors as C0 does */
    return code < least[length] || code > 0x10ffff || surrogate || control ? 0 : length;
}

bool hfi_text_check(const char *text, size_t max)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t length = 0;
    for (size_t step; at && at[length]; length += step) {
        const bool plain = at[length] >= ' ' && at[length] <= '~'; /* as nearly all are */
        step = plain ? 1 : printable_length(at + length);
        if (step == 0 || length + step > max)
            return false;
    }
    return length > 0;
}

void hfi_text_clean(char *out, size_t size, const char *text)
{
    size_t used = 0;
    for (size_t step; *text; text += step) {
        const size_t length = printable_length((const unsigned char *)text);
        step = length ? length : 1;
        if (used + step >= size)
            break;
        memcpy(out + used, length ? text : "?", step);
        used += step;
    }
    out[used] = 0;
}

bool hfi_name_check(const char *name)
{
    return hfi_text_check(name, HFI_NAME_MAX);
}

uint64_t hfi_name_hash(const char *name)
{
    uint64_t sum = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++)
        sum = (sum ^ (unsigned char)*name) * 0x100000001b3u;
    return sum;
}

void hfi_name_encode(char *out, const char *name)
{
    static const char digits[] = "0123456789ABCDEF";
    for (const char *from = name; *from; from++) {
        if (*from == '/' || *from == '%' || (*from == '.' && from == name)) {
            *out++ = '%';
            *out++ = digits[(unsigned char)*from >> 4];
            *out++ = digits[*from & 15];
        } else {
            *out++ = *from;
        }
    }
    *out = 0;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool hfi_name_decode(char *out, size_t size, const char *text)
{
    char again[HFI_NAME_ENCODED_MAX];
    size_t used = 0;
    for (const char *from = text; *from; from++) {
        if (used + 1 >= size || used >= HFI_NAME_MAX)
            return false;
        char c = *from;
        if (c == '%') {
            const int high = digit(from[1]);
            const int low = high < 0 ? -1 : digit(from[2]);
            if (low < 0)
                return false;
            c = (char)(high << 4 | low);
            from += 2;
        }
        out[used++] = c;
    }
    out[used] = 0;
    /* Only what encode() would have written counts, else two file names would stand for one lock. */
    hfi_name_encode(again, out);
    return strcmp(again, text) == 0 && hfi_text_check(out, HFI_NAME_MAX);
}
