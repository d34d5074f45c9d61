/* SPDX-License-Identifier: MIT
 *
 * server_home.c: see server_home.h.
 */
#include "server_home.h"

#include "netns.h"
#include "server_clock.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRIES_MOST 1000
#define SHORT_PATH 60
#define ARGUMENTS_MOST 60

static bool is_free(int port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool bound = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return bound;
}

int home_free_port(int first, int count)
{
    static unsigned last;
    if (last == 0)
        REQUIRE_INT(sizeof last, getrandom(&last, sizeof last, 0));
    int port = first + (int)(++last % (unsigned)count);
    for (int tries = 0; !is_free(port); tries++) {
        REQUIRE(tries < TRIES_MOST);
        port = first + (int)(++last % (unsigned)count);
    }
    return port;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

void home_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void home_make(char *path, size_t size, const char *word)
{
    static unsigned count;
    const char *folder = getenv("TEST_DIRECTORY");
    const bool fits = folder && strlen(folder) < SHORT_PATH;
    snprintf(path, size, "%s/holdfast-%s-%d-%u", fits ? folder : "/tmp", word, (int)getpid(), ++count);
    home_remove(path);
    REQUIRE_INT(0, mkdir(path, 0700));
}

pid_t home_launch(const char *home, const struct netns *place, const char *clock, int last_signal,
                  char *const *arguments)
{
    char log[300];
    const pid_t parent = getpid();
    snprintf(log, sizeof log, "%s/log", home);
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid > 0)
        return pid;
    if (place)
        netns_enter(place);
    if (clock)
        server_clock_follow(clock);
    prctl(PR_SET_PDEATHSIG, last_signal);
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (getppid() != parent || fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(125);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (chdir(home) == 0)
        execv(arguments[0], arguments);
    _exit(127);
}

static _Noreturn void become(const char *url, int count, char **words, pid_t parent)
{
    char *arguments[ARGUMENTS_MOST + 2] = { words[0] };
    int used = 1;
    bool placed = false;
    for (int i = 1; i < count; i++)
        placed = placed || strcmp(words[i], "{}") == 0;
    if (!placed)
        arguments[used++] = (char *)url;
    for (int i = 1; i < count; i++)
        arguments[used++] = strcmp(words[i], "{}") == 0 ? (char *)url : words[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    execv(arguments[0], arguments);
    _exit(127);
}

int home_run_with_url(const char *url, int count, char **words)
{
    const pid_t parent = getpid();
    int status = 1;
    pid_t waited;
    if (count > ARGUMENTS_MOST)
        return 64;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        become(url, count, words, parent);
    do
        waited = waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

void home_run(const char *home, char *const *arguments)
{
    int status = 1;
    const pid_t pid = home_launch(home, NULL, NULL, SIGKILL, arguments);
    REQUIRE_INT(pid, waitpid(pid, &status, 0));
    if (status != 0) {
        FAIL("%s: see %s/log", arguments[0], home);
        test_abort();
    }
}
