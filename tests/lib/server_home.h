/* SPDX-License-Identifier: MIT
 *
 * server_home.h: what every real server of a test needs, whatever it serves: a port, a folder, a host, a process that
 * dies with the test, and somebody who ends it and removes what it wrote. The kinds of servers are in *_server.h.
 */
#ifndef SERVER_HOME_H
#define SERVER_HOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct netns;

/* --- what it is, and that it does not outlive the test --- */

/* Zeroed memory for a server. `stop` is called for it when this process ends, unless home_forget() came first. */
void *home_new(size_t size, void (*stop)(void *server));
/* Frees it. */
void home_forget(void *server);

/* --- where it is --- */

/* What the environment says; the test fails if it says nothing. */
const char *home_need(const char *variable);

/* An empty folder of this process below `folder`; NULL: below TEST_DIRECTORY, or below /tmp if there is none, or a
 * socket file in it would have too long a path. */
void home_make(char *path, size_t size, const char *folder, const char *word);
void home_remove(const char *path);
/* A new file there, to be written. */
FILE *home_write(const char *home, const char *name);

/* That of the host; of the loopback for NULL. */
const char *home_address(const struct netns *place);
/* A port of the loopback on which nobody listens, and not one of those that the kernel gives to outgoing connections:
 * while a server is down, its port could go to a client of anybody, or to the client that tries to reach it, which
 * would then talk to itself. */
int home_free_port(int first, int count);
/* The same for a port of one's choice; false if somebody has it. No other test gets it before this process ends. */
bool home_claim_port(int port);

/* --- its process --- */

struct home_program {
    const char *home;                 /* the folder in which it runs */
    int out;                          /* gets what it says; 0: the file "log" of the folder does */
    const struct netns *place;        /* NULL: where the test is */
    const char *clock;                /* the file that its wall clock follows; NULL or "": the machine's clock */
    int last_signal;                  /* ends it with this process; 0: SIGKILL */
    void (*prepare)(const void *arg); /* is called in the new process; may be NULL */
    const void *arg;
};

/* Runs a program, which is looked for in the PATH. Words end at blanks, and "" is an empty one. */
pid_t home_launch(const struct home_program *program, const char *command);
/* Waits for its end, which must be a good one. */
void home_run(const struct home_program *program, const char *command);
/* For programs that start a server for another one: runs words[0] with the URL in front of its arguments, or in place
 * of every "{}"; returns its exit status. */
int home_run_with_url(const char *url, int count, char **words);

/* Asks until it serves. False: its process has ended. It has `limit_s` seconds for either. */
bool home_starts(pid_t pid, const char *home, int limit_s, bool (*serves)(void *server), void *server);
/* The same, of which only a success will do. */
void home_await(pid_t pid, const char *home, int limit_s, bool (*serves)(void *server), void *server);

/* Ends it at once with all that it forked, and makes the number 0; nothing happens if it is 0 already. */
void home_kill(pid_t *pid, int signal);
/* SIGSTOP, and waits until it stands still; SIGCONT. */
void home_pause(pid_t pid);
void home_continue(pid_t pid);

/* --- plain questions --- */

struct home_target {
    const char *address;
    int port;
    int limit_s;              /* for each step of the way */
    const struct netns *from; /* who asks; NULL: where the test is. To go there and come back takes root. */
};

/* Sends `text` and reads until the server closes, or there is no more room. Returns how much came, -1 if it did not
 * come to that; what came is in `answer` in any case. */
ssize_t home_ask(const struct home_target *target, const char *text, char *answer, size_t size);

#endif
