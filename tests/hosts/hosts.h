/* SPDX-License-Identifier: MIT
 *
 * hosts.h: a resolver whose answers a test decides on. It takes the place of getaddrinfo() in the whole process, so
 * that everything in it asks here: the library, the engines and the clients of stores below them. What is not named
 * here the system's resolver answers.
 */
#ifndef HOSTS_H
#define HOSTS_H

/* `host` leads to these addresses from now on, between blanks. */
void hosts_answer(const char *host, const char *addresses);
/* … but says so only when it is too late: somebody has been refused at HOSTS_FORMER by then, which is not there. */
void hosts_answer_late(const char *host, const char *addresses);
/* Whoever asks for it from now on gets no answer for half a minute, also if others are answered again. */
void hosts_hang(const char *host);
/* The resolver says that it cannot say. */
void hosts_fail(const char *host);
/* A second address of 127.0.0.1, where a server was until it moved: connections to it are made no more from now on. */
#define HOSTS_FORMER "127.0.0.4"
void hosts_move(void);
/* … or not for so many times. */
void hosts_refuse(int times);
/* How many are waiting for an answer; at least one is going to. */
int hosts_hanging(void);

#endif
