/* SPDX-License-Identifier: MIT
 *
 * zookeeper_names.c: names of locks and nodes, and who comes before whom.
 *
 * Nodes are called as other clients call theirs, so that a lock can be shared with them: `_c_<uuid>-lock-<number>` as
 * Curator and go-zookeeper write them, or `<32 digits>__lock__<number>` as kazoo does. Whoever stands in the directory
 * with a number at the end of its name is respected, whatever the rest looks like.
 */
#include "zookeeper.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_DIGITS 10

/* --- names of locks --- */

/* The length of the UTF-8 character at `text`, and whether ZooKeeper refuses it in a path: it looks at UTF-16 units,
 * and takes both halves of a character beyond U+FFFF for private ones. */
static size_t character(const char *text, bool *refused)
{
    const unsigned char *at = (const unsigned char *)text;
    const size_t length = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    const uint32_t code = length == 3 ? (at[0] & 0x0fu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu) : 0;
    *refused = length == 4 || (code >= 0xd800 && code <= 0xf8ff) || code >= 0xfff0;
    return length;
}

void hfi_zookeeper_name_encode(char *out, const char *name)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *from = name;
    while (*from) {
        bool refused;
        size_t length = character(from, &refused);
        refused = refused || *from == '/' || *from == '%' || (*from == '.' && from == name);
        for (; length > 0 && *from; length--, from++) {
            if (refused) {
                *out++ = '%';
                *out++ = digits[(unsigned char)*from >> 4];
                *out++ = digits[*from & 15];
            } else {
                *out++ = *from;
            }
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

bool hfi_zookeeper_name_decode(char *out, const char *text)
{
    char again[HFI_NAME_ENCODED_MAX];
    size_t used = 0;
    for (const char *from = text; *from; from++) {
        if (used >= HFI_NAME_MAX)
            return false;
        char c = *from;
        if (c == '%') {
            const int high = digit(from[1]);
            const int low = high < 0 ? -1 : digit(from[2]);
            if (low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high << 4 | low);
            from += 2;
        }
        out[used++] = c;
    }
    out[used] = 0;
    /* Only what encode() would have written counts, else two directories would stand for one lock. */
    hfi_zookeeper_name_encode(again, out);
    return used > 0 && strcmp(again, text) == 0;
}

bool hfi_zookeeper_component_check(const char *text, size_t length)
{
    if (length == 0 || (length == 1 && text[0] == '.') || (length == 2 && strncmp(text, "..", 2) == 0))
        return false;
    for (size_t i = 0; i < length;) {
        bool refused;
        const size_t step = character(text + i, &refused);
        if (refused || (unsigned char)text[i] < 0x20 || text[i] == 0x7f || i + step > length)
            return false;
        i += step;
    }
    return true;
}

void hfi_zookeeper_directory(char *out, const struct zookeeper_config *config, const char *name)
{
    const size_t length = strlen(config->prefix);
    memcpy(out, config->prefix, length);
    out[length] = '/';
    hfi_zookeeper_name_encode(out + length + 1, name);
}

void hfi_zookeeper_path(char *out, const struct zookeeper_config *config, const char *name, const char *node)
{
    hfi_zookeeper_directory(out, config, name);
    const size_t length = strlen(out);
    snprintf(out + length, HFI_ZOOKEEPER_PATH_MAX - length, "/%s", node);
}

/* --- marks --- */

/* The names of locks are encoded so that none begins with a dot. */
void hfi_zookeeper_marks(char *out, const struct zookeeper_config *config)
{
    snprintf(out, HFI_ZOOKEEPER_PATH_MAX, "%s/.done", config->prefix);
}

void hfi_zookeeper_mark_path(char *out, const struct zookeeper_config *config, const char *name)
{
    hfi_zookeeper_marks(out, config);
    const size_t length = strlen(out);
    out[length] = '/';
    hfi_zookeeper_name_encode(out + length + 1, name);
}

void hfi_zookeeper_mark_write(char out[HFI_ZOOKEEPER_MARK_MAX], uint64_t for_ms, uint64_t token, const char *who)
{
    snprintf(out, HFI_ZOOKEEPER_MARK_MAX, "%" PRIu64 " %" PRIu64 " %s", for_ms, token, who);
}

bool hfi_zookeeper_mark_read(struct zookeeper_mark *out, char *data, const struct Stat *stat, int64_t now_ms)
{
    char *end = data;
    const int64_t for_ms = strtoll(data, &end, 10);
    out->token = strtoull(end, &end, 10);
    out->who = *end == ' ' ? end + 1 : end;
    out->ago_ms = now_ms > stat->mtime ? now_ms - stat->mtime : 0; /* a clock may have been set back */
    out->left_ms = for_ms > out->ago_ms ? for_ms - out->ago_ms : 0;
    return out->left_ms > 0;
}

/* --- breaks --- */

void hfi_zookeeper_breaker_write(char out[HFI_ZOOKEEPER_DATA_MAX], const char *node, const char *by)
{
    snprintf(out, HFI_ZOOKEEPER_DATA_MAX, "%.255s %.160s", node, by);
}

const char *hfi_zookeeper_breaker_read(const char *data, const char *node)
{
    const size_t length = strlen(node);
    const bool same = length > 0 && strncmp(data, node, length) == 0 && data[length] == ' ';
    return same && data[length + 1] ? data + length + 1 : NULL;
}

bool hfi_zookeeper_is_breaker(const char *data)
{
    char node[HFI_ZOOKEEPER_DATA_MAX];
    int32_t sequence;
    snprintf(node, sizeof node, "%.*s", (int)strcspn(data, " "), data);
    return hfi_zookeeper_sequence(node, &sequence) && hfi_zookeeper_breaker_read(data, node);
}

/* --- names of nodes --- */

void hfi_zookeeper_node_prefix(char *out, const struct zookeeper_config *config, struct hfi_owner owner,
                               unsigned incarnation)
{
    /* The client's number is random, the serial counts its locks: no two attempts are ever alike. */
    const uint64_t low = owner.serial << 16 | (incarnation & 0xffffu);
    if (config->kazoo)
        snprintf(out, HFI_ZOOKEEPER_NODE_MAX, "%016" PRIx64 "%016" PRIx64 "__lock__", owner.client, low);
    else
        snprintf(out, HFI_ZOOKEEPER_NODE_MAX, "_c_%08" PRIx32 "-%04x-%04x-%04x-%012" PRIx64 "-lock-",
                 (uint32_t)(owner.client >> 32), (unsigned)(owner.client >> 16 & 0xffffu),
                 (unsigned)(owner.client & 0xffffu), (unsigned)(low >> 48), low & 0xffffffffffffu);
}

/* The server writes "%010d": ten digits, eleven characters from -2147483648 on, ten with a sign and nine digits in the
 * end. A dash before the digits is a sign if another separator stands before it. */
bool hfi_zookeeper_sequence(const char *node, int32_t *sequence)
{
    const size_t length = strlen(node);
    size_t digits = 0;
    while (digits < NUMBER_DIGITS && digits < length && node[length - digits - 1] >= '0' &&
           node[length - digits - 1] <= '9')
        digits++;
    const char *number = node + length - digits;
    const bool dash = digits < length && number[-1] == '-';
    const bool sign = dash && digits + 1 < length && (number[-2] == '-' || number[-2] == '_');
    if (digits != NUMBER_DIGITS && !(sign && digits == NUMBER_DIGITS - 1))
        return false;
    const int64_t value = strtoll(number, NULL, 10);
    const int64_t signed_value = sign || value > INT32_MAX ? -value : value;
    if (signed_value < INT32_MIN)
        return false;
    *sequence = (int32_t)signed_value;
    return true;
}

bool hfi_zookeeper_is_before(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a - (uint32_t)b) < 0;
}

bool hfi_zookeeper_may_be_replaced(const char *node)
{
    return strstr(node, "__WRIT__") != NULL;
}

static int by_sequence(const void *a, const void *b)
{
    int32_t first = 0, second = 0;
    hfi_zookeeper_sequence(*(char *const *)a, &first);
    hfi_zookeeper_sequence(*(char *const *)b, &second);
    if (first != second)
        return hfi_zookeeper_is_before(first, second) ? -1 : 1;
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void hfi_zookeeper_line_up(struct zookeeper_children *children)
{
    size_t kept = 0;
    int32_t sequence;
    for (size_t i = 0; i < children->count; i++) {
        if (hfi_zookeeper_sequence(children->names[i], &sequence))
            children->names[kept++] = children->names[i];
    }
    children->count = kept;
    qsort(children->names, kept, sizeof *children->names, by_sequence);
}
