/* SPDX-License-Identifier: MIT
 *
 * mysql_relay.h: something between client and server that ends TCP, as a proxy does. It keeps back a chosen request
 * until the test says so, long after its client has given it up; and it keeps a client's connection open when the
 * server has ended the other half.
 *
 *     struct mysql_relay *relay = mysql_relay_start(server);
 *     mysql_relay_catch(relay, "name-of-the-lock", 1);
 *     hf_renew(lock, 2000, &err);            is not answered
 *     hf_renew(lock, 20000, &err);           is
 *     mysql_relay_deliver(relay);            now the first arrives
 */
#ifndef MYSQL_RELAY_H
#define MYSQL_RELAY_H

#include "mysql_server.h"

struct mysql_relay;

struct mysql_relay *mysql_relay_start(const struct mysql_server *server);
int mysql_relay_port(const struct mysql_relay *relay);
/* Keeps back the `nth` request from now on, counted from 1, in which `text` occurs, and all behind it. One at a
 * time. */
void mysql_relay_catch(struct mysql_relay *relay, const char *text, unsigned nth);
/* Whether one was caught. */
bool mysql_relay_has_caught(struct mysql_relay *relay);
/* Sends what was caught on to the server, and waits for its answer, which nobody gets. */
void mysql_relay_deliver(struct mysql_relay *relay);
/* How many clients have reset their connection, and how many have closed it. */
unsigned mysql_relay_resets(struct mysql_relay *relay);
unsigned mysql_relay_ends(struct mysql_relay *relay);
/* When all clients have gone. */
void mysql_relay_stop(struct mysql_relay *relay);

#endif
