/* SPDX-License-Identifier: MIT
 *
 * script_parse.c: reads scripts of the scripted server.
 */
#include "script_parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPECIAL 256

enum argument { NOTHING, NAME, NUMBER, TEXT };

static const struct {
    const char *word;
    enum script_verb verb;
    enum argument argument;
} verbs[] = {
    { "accept", SCRIPT_ACCEPT, NAME },        { "use", SCRIPT_USE, NAME },      { "expect", SCRIPT_EXPECT, TEXT },
    { "expect*", SCRIPT_EXPECT_UP_TO, TEXT }, { "skip", SCRIPT_SKIP, NUMBER },  { "eof", SCRIPT_EOF, NOTHING },
    { "torn", SCRIPT_TORN, NOTHING },         { "send", SCRIPT_SEND, TEXT },    { "dribble", SCRIPT_DRIBBLE, TEXT },
    { "stall", SCRIPT_STALL, NOTHING },       { "cut", SCRIPT_CUT, NOTHING },   { "reset", SCRIPT_RESET, NOTHING },
    { "refuse", SCRIPT_REFUSE, NOTHING },     { "next", SCRIPT_NEXT, NOTHING }, { "retry", SCRIPT_RETRY, NOTHING },
    { "done", SCRIPT_DONE, NOTHING },
};

/* One byte or escape from *at. -1: no such escape. 256 and more: no byte itself, but SPECIAL + what it is. */
static int read_byte(const char **at, const char *end)
{
    if (**at != '\\')
        return (unsigned char)*(*at)++;
    const char *escape = *at + 1;
    *at += 2;
    if (escape >= end)
        return -1;
    switch (*escape) {
    case 'r':
        return '\r';
    case 'n':
        return '\n';
    case 't':
        return '\t';
    case '\\':
        return '\\';
    case '?':
        return SPECIAL + SCRIPT_ANY;
    case 'x':
        break;
    default:
        return *escape >= '1' && *escape <= '9' ? SPECIAL + *escape - '0' : -1;
    }
    if (end - escape < 3 || !isxdigit((unsigned char)escape[1]) || !isxdigit((unsigned char)escape[2]))
        return -1;
    *at += 2;
    return (int)strtol((char[]){ escape[1], escape[2], '\0' }, NULL, 16);
}

static bool read_text(struct script_step *step, const char *text, size_t length)
{
    const char *end = text + length;
    step->bytes = calloc(1, length + 1);
    step->special = calloc(1, length + 1);
    if (!step->bytes || !step->special)
        return false;
    while (text < end) {
        int byte = read_byte(&text, end);
        if (byte < 0 || (byte == SPECIAL + SCRIPT_ANY && step->verb != SCRIPT_EXPECT) ||
            (byte >= SPECIAL && step->verb == SCRIPT_EXPECT_UP_TO))
            return false;
        step->special[step->length] = (unsigned char)(byte >= SPECIAL ? byte - SPECIAL : 0);
        step->bytes[step->length++] = (char)byte;
    }
    return step->length > 0;
}

static bool read_argument(struct script_step *step, enum argument kind, const char *text, size_t length)
{
    switch (kind) {
    case NOTHING:
        return length == 0;
    case NAME: /* or none */
        if (length >= SCRIPT_NAME_MOST)
            return false;
        memcpy(step->name, text, length);
        return true;
    case NUMBER:
        for (size_t i = 0; i < length; i++)
            if (!isdigit((unsigned char)text[i]))
                return false;
        step->length = length && length < 8 ? strtoul(text, NULL, 10) : 0;
        return step->length > 0;
    case TEXT:
        return read_text(step, text, length);
    }
    return false;
}

static bool read_step(struct script_step *step, const char *line, size_t length)
{
    size_t word = 0;
    while (word < length && line[word] != ' ')
        word++;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strlen(verbs[i].word) != word || memcmp(verbs[i].word, line, word) != 0)
            continue;
        size_t skip = word < length ? word + 1 : word;
        step->verb = verbs[i].verb;
        return read_argument(step, verbs[i].argument, line + skip, length - skip);
    }
    return false;
}

/* Every retry has its done, and none is inside of another. */
static bool check_blocks(const struct script *script, char *why, size_t size)
{
    const struct script_step *open = NULL;
    for (size_t i = 0; i < script->count; i++) {
        const struct script_step *step = &script->steps[i];
        if ((step->verb == SCRIPT_RETRY && open) || (step->verb == SCRIPT_DONE && !open)) {
            snprintf(why, size, "line %d makes no sense here", step->line);
            return false;
        }
        if (step->verb == SCRIPT_RETRY)
            open = step;
        else if (step->verb == SCRIPT_DONE)
            open = NULL;
    }
    if (open)
        snprintf(why, size, "line %d has no done", open->line);
    return !open;
}

bool script_parse(struct script *script, const char *text, char *why, size_t size)
{
    memset(script, 0, sizeof *script);
    for (int number = 1; *text; number++) {
        while (*text == ' ')
            text++;
        size_t length = strcspn(text, "\n");
        if (length > 0 && *text != '#') {
            if (script->count == SCRIPT_STEPS_MOST) {
                snprintf(why, size, "the script is too long");
                return false;
            }
            struct script_step *step = &script->steps[script->count++];
            step->line = number;
            if (!read_step(step, text, length)) {
                snprintf(why, size, "line %d makes no sense: %.*s", number, (int)length, text);
                return false;
            }
        }
        text += length + (text[length] == '\n');
    }
    return check_blocks(script, why, size);
}

void script_free(struct script *script)
{
    for (size_t i = 0; i < script->count; i++) {
        free(script->steps[i].bytes);
        free(script->steps[i].special);
    }
    script->count = 0;
}

void script_show(char *out, size_t size, const char *bytes, size_t length)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < length && used + 8 < size; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte == '\r' || byte == '\n')
            used += (size_t)snprintf(out + used, size - used, "\\%c", byte == '\r' ? 'r' : 'n');
        else if (byte < 32 || byte > 126)
            used += (size_t)snprintf(out + used, size - used, "\\x%02x", byte);
        else if (byte == '\\')
            used += (size_t)snprintf(out + used, size - used, "\\\\");
        else
            used += (size_t)snprintf(out + used, size - used, "%c", byte);
    }
    if (used + 8 >= size)
        snprintf(out + size - 4, 4, "...");
}
