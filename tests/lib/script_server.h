/* SPDX-License-Identifier: MIT
 *
 * script_server.h: a server that does what a script says and nothing else, so that whatever can happen on a wire is a
 * few lines of a test: lost replies, half replies, stalls, garbage, cut connections.
 *
 *     struct script_server *server = script_start("accept\n"
 *                                                 "expect PING\\r\\n\n"
 *                                                 "send +PO\n"
 *                                                 "stall\n"
 *                                                 "send NG\\r\\n\n"
 *                                                 "reset\n");
 *     connect to 127.0.0.1, script_port(server) …
 *     script_await_stall(server, 1);
 *     script_go(server);
 *     script_check(server);
 *
 * One step per line; empty lines and lines that begin with # are skipped.
 *
 *     accept [NAME]   the next connection, called NAME, which becomes the current one
 *     use NAME        makes NAME the current one again
 *     next            makes that one the current one on which something comes, or came and was not yet expected
 *     expect TEXT     exactly these bytes, and in this order; bytes that come after them wait for the next step
 *     expect* TEXT    anything up to TEXT and TEXT itself
 *     skip N          any N bytes
 *     eof             the client closes the connection
 *     torn            the client resets it, so that what was not delivered never will be
 *     send TEXT       these bytes
 *     dribble TEXT    the same, every byte in a packet of its own
 *     stall           nothing, until script_go() or script_check()
 *     cut             closes the connection
 *     reset           closes it so that the client sees ECONNRESET (on a Unix socket: the same as cut)
 *     refuse          no further connections
 *     retry … done    the steps in between; from their beginning again, whenever the client closes the connection
 *                     before it has sent what was expected: for clients that give up at a deadline and come back
 *
 * TEXT is the rest of the line, with the escapes \r \n \t \\ \xNN, and \? in `expect` for any one byte. \1 to \9 stand
 * for bytes that are not known beforehand but come again: the first `expect` with \1\1\1 takes any three bytes, later
 * ones want the same three, and `send` sends them. The name of a connection is "" unless given. Connections that are
 * open at the end of the script stay open until script_check().
 */
#ifndef SCRIPT_SERVER_H
#define SCRIPT_SERVER_H

#include <stdbool.h>
#include <stddef.h>

struct script_server;

/* Starts a server on a free port of 127.0.0.1, or on a Unix socket at `path`. A script that makes no sense ends the
 * test. */
struct script_server *script_start(const char *script);
struct script_server *script_start_unix(const char *path, const char *script);

int script_port(const struct script_server *server);

/* How long one step may take before it is a mismatch; 5 s, longer in slow runs, unless set here. */
void script_set_patience(struct script_server *server, unsigned ms);

/* Waits until the script has come to its `count`-th stall, counted from 1. */
void script_await_stall(struct script_server *server, unsigned count);
/* Ends one stall, the present one or the next. */
void script_go(struct script_server *server);
/* Waits until the script has done its last step or come upon a mismatch; connections stay open. */
void script_await_end(struct script_server *server);

/* Ends all stalls, waits for the script's end, closes and frees. False: something was not as expected, and `why`
 * says at which line, what was expected and what came. */
bool script_finish(struct script_server *server, char *why, size_t size);
/* The same, and fails the test if something was not as expected. */
void script_check(struct script_server *server);

#endif
