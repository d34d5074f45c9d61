/* SPDX-License-Identifier: MIT
 *
 * memcached_record.c: how a lock is written down: its key, its value, and what the server says of them.
 */
#include "engines/memcached.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "holdfast:"
#define OWNER_END 39 /* of a value: there the name begins */

void hfi_memcached_make_key(char out[MEMCACHED_KEY_MAX], const char *name)
{
    char key[sizeof PREFIX + 3 * HFI_NAME_MAX] = PREFIX;
    size_t used = strlen(key);
    for (const char *from = name; *from; from++)
        used += (size_t)snprintf(key + used, 4, *from == ' ' || *from == '%' ? "%%%02x" : "%c", (unsigned char)*from);
    if (used < MEMCACHED_KEY_MAX)
        memcpy(out, key, used + 1);
    else
        snprintf(out, MEMCACHED_KEY_MAX, "%.200s%%-%016" PRIx64, key, hfi_name_hash(name));
}

int hfi_memcached_make_value(char out[MEMCACHED_VALUE_MAX], const char *word, struct hfi_owner owner, const char *name,
                             const char *text)
{
    return snprintf(out, MEMCACHED_VALUE_MAX, "%s\t%016" PRIx64 "\t%016" PRIx64 "\t%s\t%.159s", word, owner.client,
                    owner.serial, name, text);
}

bool hfi_memcached_read_record(struct memcached_record *record, const char *at)
{
    char value[MEMCACHED_VALUE_MAX];
    size_t size = 0;
    int header = 0;
    *record = (struct memcached_record){ .is_there = strncmp(at, "EN\r\n", 4) != 0 };
    if (!record->is_there)
        return true;
    if (sscanf(at, "VA %5zu c%20" SCNu64 " t%20" SCNd64 "%n", &size, &record->cas, &record->left_s, &header) != 3 ||
        strncmp(at, "VA ", 3) != 0 || strcspn(at, "\r\n") != (size_t)header || strncmp(at + header, "\r\n", 2) != 0)
        return false;
    snprintf(value, sizeof value, "%.*s", (int)size, at + header + 2);
    record->is_held = strncmp(value, "free", 4) != 0; /* also what others have put there */
    char *name = strlen(value) > OWNER_END ? value + OWNER_END : "", *tab = strchr(name, '\t');
    if (tab && sscanf(value, "%*4s %16" SCNx64 " %16" SCNx64, &record->owner.client, &record->owner.serial) == 2) {
        snprintf(record->name, sizeof record->name, "%.*s", (int)(tab - name), name);
        snprintf(record->text, sizeof record->text, "%s", tab + 1);
    }
    return true;
}

const char *hfi_memcached_end_of(const char *at, const char *limit)
{
    const char *line = memchr(at, '\n', (size_t)(limit - at));
    while (line && strncmp(at, "STAT ", 5) == 0)
        line = memchr(at = line + 1, '\n', (size_t)(limit - line - 1));
    if (!line || strncmp(at, "VA ", 3) != 0)
        return line ? line + 1 : NULL;
    const size_t length = strtoul(at + 3, NULL, 10), rest = (size_t)(limit - line - 1);
    return rest >= 2 && rest - 2 >= length ? line + 1 + length + 2 : NULL;
}
