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
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRIES_MOST 1000
#define SHORT_PATH 60
#define ARGUMENTS_MOST 100
#define COMMAND_MOST 4000

/* --------------------------------------------------------------------------------------------- who ends the servers */

struct inhabitant {
    void *server;
    void (*stop)(void *server);
    struct inhabitant *next;
};

static struct inhabitant *inhabitants;
static pid_t starter; /* atexit() handlers are inherited by forked children, the servers are not theirs */

static void stop_all(void)
{
    while (inhabitants && getpid() == starter)
        inhabitants->stop(inhabitants->server); /* which forgets it */
}

void *home_new(size_t size, void (*stop)(void *server))
{
    struct inhabitant *one = calloc(1, sizeof *one);
    void *server = calloc(1, size);
    if (!one || !server) {
        FAIL("no memory");
        test_abort();
    }
    if (starter != getpid()) {
        starter = getpid();
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        inhabitants = NULL;
        REQUIRE_INT(0, atexit(stop_all));
    }
    *one = (struct inhabitant){ server, stop, inhabitants };
    inhabitants = one;
    return server;
}

void home_forget(void *server)
{
    struct inhabitant **link = &inhabitants;
    while (*link && (*link)->server != server)
        link = &(*link)->next;
    struct inhabitant *one = *link;
    if (one)
        *link = one->next;
    free(one);
    free(server);
}

/* ------------------------------------------------------------------------------------------------ places and files */

const char *home_need(const char *variable)
{
    const char *value = getenv(variable);
    if (value)
        return value;
    FAIL("no %s in the environment", variable);
    test_abort();
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
    chmod(path, 0700);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void home_make(char *path, size_t size, const char *folder, const char *word)
{
    static unsigned count;
    if (!folder)
        folder = getenv("TEST_DIRECTORY");
    const bool fits = folder && strlen(folder) < SHORT_PATH;
    snprintf(path, size, "%s/holdfast-%s-%d-%u", fits ? folder : "/tmp", word, (int)getpid(), ++count);
    home_remove(path);
    REQUIRE_INT(0, mkdir(path, 0700));
}

FILE *home_write(const char *home, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", home, name);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    return file;
}

const char *home_address(const struct netns *place)
{
    return place ? place->address : "127.0.0.1";
}

/* For both protocols: gossip uses both. */
static bool is_free(int port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    bool bound = true;
    for (int i = 0; i < 2; i++) {
        const int fd = socket(AF_INET, (i ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
        bound = bound && fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
        if (fd >= 0)
            close(fd);
    }
    return bound;
}

/* A server takes its time to listen; a test in another process that found the port free as well would then talk to it.
 * So each port is a byte of one file, and whoever wants it locks it, until its process ends. */
bool home_claim_port(int port)
{
    static int claims = -1;
    struct flock claim = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = port, .l_len = 1 };
    if (claims < 0) {
        char path[60];
        snprintf(path, sizeof path, "/tmp/holdfast-ports-%u", (unsigned)getuid());
        claims = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        REQUIRE(claims >= 0);
    }
    return fcntl(claims, F_OFD_SETLK, &claim) == 0 && is_free(port);
}

int home_free_port(int first, int count)
{
    static unsigned last;
    if (last == 0)
        REQUIRE_INT(sizeof last, getrandom(&last, sizeof last, 0));
    int port = first + (int)(++last % (unsigned)count);
    for (int tries = 0; !home_claim_port(port); tries++) {
        REQUIRE(tries < TRIES_MOST);
        port = first + (int)(++last % (unsigned)count);
    }
    return port;
}

/* ------------------------------------------------------------------------------------------------------- programs */

static void split(char **out, char *text)
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        REQUIRE(count < ARGUMENTS_MOST - 1);
        out[count++] = strcmp(word, "\"\"") == 0 ? word + 2 : word;
    }
    out[count] = NULL;
}

static _Noreturn void become(const struct home_program *program, char **arguments, pid_t parent)
{
    char log[300];
    int out = program->out;
    setpgid(0, 0);
    if (program->place)
        netns_enter(program->place);
    if (program->clock && *program->clock)
        server_clock_follow(program->clock);
    if (program->prepare)
        program->prepare(program->arg);
    prctl(PR_SET_PDEATHSIG, program->last_signal ? program->last_signal : SIGKILL); /* a change of user clears it */
    snprintf(log, sizeof log, "%s/log", program->home);
    if (out == 0)
        out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const bool orphan = getppid() != parent && getppid() != 0; /* 0: a parent who is not in our pid namespace */
    if (!arguments[0] || orphan || out < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
        _exit(125);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* the runner's mask must not be the server's */
    if (chdir(program->home) == 0)
        execvp(arguments[0], arguments);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

pid_t home_launch(const struct home_program *program, const char *command)
{
    char text[COMMAND_MOST];
    char *arguments[ARGUMENTS_MOST];
    const pid_t parent = getpid();
    REQUIRE(snprintf(text, sizeof text, "%s", command) < (int)sizeof text);
    split(arguments, text);
    fflush(stdout);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0)
        become(program, arguments, parent);
    setpgid(pid, pid); /* as it does itself: whoever comes first */
    return pid;
}

void home_run(const struct home_program *program, const char *command)
{
    int status = 1;
    const pid_t pid = home_launch(program, command);
    REQUIRE_INT(pid, waitpid(pid, &status, 0));
    if (status != 0) {
        FAIL("%.200s: see %s/log", command, program->home);
        test_abort();
    }
}

static _Noreturn void become_user(const char *url, int count, char **words, pid_t parent)
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
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", arguments[0], strerror(errno));
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
        become_user(url, count, words, parent);
    do
        waited = waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---------------------------------------------------------------------------------------------- starting and ending */

bool home_starts(pid_t pid, const char *home, int limit_s, bool (*serves)(void *server), void *server)
{
    const struct timespec pause = { .tv_nsec = 10000000 };
    const int64_t end_ns = test_now_ns() + limit_s * 1000000000LL * test_slowness();
    while (!serves(server)) {
        if (waitpid(pid, NULL, WNOHANG) == pid)
            return false;
        if (test_now_ns() > end_ns) {
            FAIL("the server in %s does not serve", home);
            test_abort();
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

void home_await(pid_t pid, const char *home, int limit_s, bool (*serves)(void *server), void *server)
{
    if (!home_starts(pid, home, limit_s, serves, server)) {
        FAIL("the server in %s has ended", home);
        test_abort();
    }
}

/* The server, and whatever it forked, as Redis does in order to save or to feed a replica: it has a process group of
 * its own, and we inherit what it leaves. */
void home_kill(pid_t *pid, int signal)
{
    pid_t reaped;
    if (*pid > 0) {
        CHECK_INT(0, kill(-*pid, signal));
        do
            reaped = waitpid(-*pid, NULL, 0);
        while (reaped > 0 || errno == EINTR);
    }
    *pid = 0;
}

void home_pause(pid_t pid)
{
    int status = 0;
    CHECK_INT(0, kill(pid, SIGSTOP));
    REQUIRE_INT(pid, waitpid(pid, &status, WUNTRACED));
    CHECK(WIFSTOPPED(status));
}

void home_continue(pid_t pid)
{
    CHECK_INT(0, kill(pid, SIGCONT));
}

/* -------------------------------------------------------------------------------------------------------- questions */

/* A socket belongs to the network in which it was made, wherever it is used. */
static int socket_at(const struct netns *place)
{
    if (!place)
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int here = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    REQUIRE(here >= 0);
    netns_enter(place);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE_INT(0, setns(here, CLONE_NEWNET));
    close(here);
    return fd;
}

ssize_t home_ask(const struct home_target *target, const char *text, char *answer, size_t size)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)target->port) };
    const struct timeval limit = { .tv_sec = target->limit_s };
    size_t used = 0;
    ssize_t got = 1;
    REQUIRE_INT(1, inet_pton(AF_INET, target->address, &address.sin_addr));
    const int fd = socket_at(target->from);
    REQUIRE(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const bool sent = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
                      send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
    while (sent && used < size - 1 && (got = recv(fd, answer + used, size - 1 - used, 0)) > 0)
        used += (size_t)got;
    answer[used] = '\0';
    close(fd);
    return sent && got >= 0 ? (ssize_t)used : -1;
}
