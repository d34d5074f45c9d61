/* SPDX-License-Identifier: MIT
 *
 * server_home.h: what every real server of a test needs: a port, a folder, and a process that dies with the test.
 */
#ifndef SERVER_HOME_H
#define SERVER_HOME_H

#include <sys/types.h>

struct netns;

/* A port of the loopback that nobody listens on, and not one of those that the kernel gives to outgoing connections. */
int home_free_port(int first, int count);

/* An empty folder of this process below TEST_DIRECTORY, or below /tmp if there is none, or a socket file in it would
 * have too long a path. */
void home_make(char *path, size_t size, const char *word);
void home_remove(const char *path);

/* Runs a program with its output in "log" of the folder; ends with this process, by `last_signal`. `place` may be NULL,
 * `clock` too: see server_clock.h. */
pid_t home_launch(const char *home, const struct netns *place, const char *clock, int last_signal,
                  char *const *arguments);
/* For programs that start a server for another one: runs words[0] with the URL in front of its arguments, or in place
 * of every "{}"; returns its exit status. */
int home_run_with_url(const char *url, int count, char **words);
/* Waits for its end, which must be a good one. */
void home_run(const char *home, char *const *arguments);

#endif
