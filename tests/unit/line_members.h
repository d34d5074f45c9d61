/* SPDX-License-Identifier: MIT
 *
 * line_members.h: threads of one client that want one lock, "x", and a look at the line in which they wait for it.
 */
#ifndef LINE_MEMBERS_H
#define LINE_MEMBERS_H

#include "core.h"
#include "scripted_engine.h"
#include "shared.h"
#include "test.h"

#define LONG_MS 60000 /* longer than a test */

struct member {
    pthread_t thread;
    hf_client *client;
    hf_options options;
    hf_status status;
    hf_error err;
    hf_lock *lock;
    struct gate ended, told;
};

/* Of the scripted engine, which gives tokens in advance; and of "mem:". */
hf_client *line_client(int64_t handoff_ms);
hf_client *line_mem_client(int64_t handoff_ms);

/* How many stand in the lines of the client, and how many of its waits ask the store. */
size_t line_length(hf_client *client);
void await_line_length(hf_client *client, size_t count);
size_t line_asking(hf_client *client);

void member_prepare(struct member *member, hf_client *client);
/* The same for two of one client that passes on for so long. */
void members_prepare_two(struct member members[2], int64_t handoff_ms);
void member_start(struct member *member);
/* Waits for its end and checks how it ended. */
void member_join(struct member *member, hf_status expected);
/* Starts them one after the other, each once the one before stands in the line. */
void members_line_up(struct member *members, size_t count);
/* All line up behind one that holds the lock and lets go of it: the first has taken it from the store. */
void members_serve_first(struct member *members, size_t count);

hf_lock *line_hold(hf_client *client, const hf_options *options);
void line_give(hf_lock *lock);

#endif
