/* SPDX-License-Identifier: MIT
 *
 * late_relay.h: a way to a real server on which chosen requests are late: they stay on the way while whoever sent them
 * gives up and asks again, and arrive when the test says so, after their successor.
 *
 *     struct late_relay *relay = late_relay_start("127.0.0.1", server->port);
 *     open a client of 127.0.0.1, late_relay_port(relay) …
 *     late_relay_catch(relay, "EVAL", 1);
 *     hf_renew(lock, 3000, &err);            is not answered
 *     hf_renew(lock, 60000, &err);           is
 *     late_relay_deliver(relay);             now the first arrives, though its connection was closed long ago
 *
 * What is sent in one write of less than 16 kB is one request. All that follows a request that was caught, on the same
 * connection, stays behind it. Like some proxies it does not tell a client when the server has ended the connection.
 * Whatever goes wrong ends the test.
 */
#ifndef LATE_RELAY_H
#define LATE_RELAY_H

#include <stddef.h>
#include <stdint.h>

struct late_relay;

/* Starts a relay on a free port of 127.0.0.1; it lasts as long as the test. */
struct late_relay *late_relay_start(const char *address, int port);
int late_relay_port(const struct late_relay *relay);

/* Keeps back the `nth` request from now on, counted from 1, in which `text` occurs. One at a time. */
void late_relay_catch(struct late_relay *relay, const char *text, unsigned nth);
/* The same, and closes the connection at once to whoever sent it: the next request comes on another one. */
void late_relay_cut(struct late_relay *relay, const char *text, unsigned nth);
/* The same, and before the connection is closed the client is told what `answer` writes to `out`, as by a proxy that
 * has given up on the server. */
typedef size_t late_relay_answer_fn(char out[64], const char *request, size_t length);
void late_relay_answer(struct late_relay *relay, const char *text, unsigned nth, late_relay_answer_fn *answer);
/* Waits until it was caught. */
void late_relay_await(struct late_relay *relay);
/* Sends what was caught on to the server, and waits for the first byte of the server's answer. Whoever sent it gets
 * that if it is still connected. */
void late_relay_deliver(struct late_relay *relay);
/* The same to a server that may have closed the connection. */
void late_relay_deliver_if_open(struct late_relay *relay);

/* How many connections clients have made so far, how many they have reset, and how many closed. */
uint32_t late_relay_connections(const struct late_relay *relay);
uint32_t late_relay_resets(const struct late_relay *relay);
uint32_t late_relay_ends(const struct late_relay *relay);

#endif
