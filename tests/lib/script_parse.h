/* SPDX-License-Identifier: MIT
 *
 * script_parse.h: the steps of a script; see script_server.h for the language.
 */
#ifndef SCRIPT_PARSE_H
#define SCRIPT_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#define SCRIPT_STEPS_MOST 256
#define SCRIPT_GROUPS 10 /* \1 to \9 */
#define SCRIPT_ANY SCRIPT_GROUPS
#define SCRIPT_NAME_MOST 32

enum script_verb {
    SCRIPT_ACCEPT,
    SCRIPT_USE,
    SCRIPT_NEXT,
    SCRIPT_EXPECT,
    SCRIPT_EXPECT_UP_TO,
    SCRIPT_SKIP,
    SCRIPT_EOF,
    SCRIPT_TORN,
    SCRIPT_SEND,
    SCRIPT_DRIBBLE,
    SCRIPT_STALL,
    SCRIPT_CUT,
    SCRIPT_RESET,
    SCRIPT_REFUSE,
    SCRIPT_RETRY,
    SCRIPT_DONE
};

struct script_step {
    enum script_verb verb;
    int line;
    char name[SCRIPT_NAME_MOST];
    char *bytes;
    unsigned char *special; /* for each byte: 0, it stands for itself; 1 to 9, the group it belongs to; SCRIPT_ANY */
    size_t length;
};

struct script {
    struct script_step steps[SCRIPT_STEPS_MOST];
    size_t count;
};

/* False: `why` says which line makes no sense. Either way script_free() frees what was allocated. */
bool script_parse(struct script *script, const char *text, char *why, size_t size);
void script_free(struct script *script);

/* `length` bytes as they would be written in a script, cut off where `out` ends. */
void script_show(char *out, size_t size, const char *bytes, size_t length);

#endif
