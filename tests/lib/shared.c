/* SPDX-License-Identifier: MIT
 *
 * shared.c: memory, gates, helper processes, connections and witnesses for tests with several processes; see shared.h.
 */
#include "shared.h"

#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL

void *shared_new(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

/* --- gates --- */

void gate_pass(struct gate *gate)
{
    atomic_fetch_add(&gate->count, 1);
    syscall(SYS_futex, &gate->count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void await_a_moment(void)
{
    const struct timespec moment = { .tv_nsec = 2000000 };
    REQUIRE(test_now_ns() < test_deadline_ns() - SECOND_NS);
    nanosleep(&moment, NULL);
}

uint32_t gate_count(const struct gate *gate)
{
    return atomic_load(&gate->count);
}

static bool await_until(struct gate *gate, uint32_t count, int64_t deadline_ns)
{
    for (;;) {
        uint32_t seen = atomic_load(&gate->count);
        if (seen >= count)
            return true;
        int64_t left = deadline_ns - test_now_ns();
        if (left <= 0)
            return false;
        struct timespec timeout = { left / SECOND_NS, left % SECOND_NS };
        syscall(SYS_futex, &gate->count, FUTEX_WAIT, seen, &timeout, NULL, 0);
    }
}

void gate_await(struct gate *gate, uint32_t count)
{
    /* A little before the runner's own limit, so that the message is this one. */
    if (!await_until(gate, count, test_deadline_ns() - SECOND_NS)) {
        FAIL("%u of %u came to the gate in time", gate_count(gate), count);
        test_abort();
    }
}

bool gate_await_for(struct gate *gate, uint32_t count, uint32_t ms)
{
    return await_until(gate, count, test_now_ns() + ms * 1000000LL);
}

/* --- helpers --- */

/* True if no other thread of this process is running. */
static bool others_sleep(void)
{
    bool asleep = true;
    DIR *threads = opendir("/proc/self/task");
    REQUIRE(threads != NULL);
    struct dirent *entry;
    while (asleep && (entry = readdir(threads))) {
        char path[300], state = 'S';
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        FILE *stat =
            *entry->d_name != '.' && (int)strtol(entry->d_name, NULL, 10) != gettid() ? fopen(path, "re") : NULL;
        if (!stat)
            continue;
        asleep = fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && state != 'R';
        fclose(stat);
    }
    closedir(threads);
    return asleep;
}

/* The sanitizers' own locks are not freed in the child of a fork, where another thread may have held one: wait until no
 * other thread is running. */
static void before_fork_with_sanitizer(void)
{
    for (int i = 0; i < 1000 && !others_sleep(); i++)
        sched_yield();
}

/* ThreadSanitizer ends a process in which a new thread gets the stack, and so the number, of one of the parent's
 * threads. The C library reuses only stacks that are large enough: ask for larger ones. */
static void after_fork_with_sanitizer(void)
{
    pthread_attr_t attributes;
    size_t size = 0;
    REQUIRE_INT(0, pthread_getattr_default_np(&attributes));
    REQUIRE_INT(0, pthread_attr_getstacksize(&attributes, &size));
    REQUIRE_INT(0, pthread_attr_setstacksize(&attributes, size + (1 << 20)));
    REQUIRE_INT(0, pthread_setattr_default_np(&attributes));
    REQUIRE_INT(0, pthread_attr_destroy(&attributes));
}

pid_t helper_start(helper_fn run, void *arg)
{
    pid_t parent = getpid();
    if (TEST_SANITIZED)
        before_fork_with_sanitizer();
    pid_t helper = fork();
    REQUIRE(helper >= 0);
    if (helper > 0)
        return helper;
    if (TEST_SANITIZED)
        after_fork_with_sanitizer();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    run(arg);
    test_exit_child();
}

/* The runner kills the whole group at the test's limit, so waitpid() needs no bound of its own. */
static int wait_for(pid_t helper, int flags)
{
    int status = 0;
    pid_t waited;
    do {
        waited = waitpid(helper, &status, flags);
    } while (waited < 0 && errno == EINTR);
    REQUIRE(waited == helper);
    return status;
}

void helper_join(pid_t helper)
{
    int status = wait_for(helper, 0);
    if (WIFSIGNALED(status))
        FAIL("a helper was killed by signal %d", WTERMSIG(status));
    else
        CHECK_INT(0, WEXITSTATUS(status));
}

void helper_kill(pid_t helper)
{
    CHECK_INT(0, kill(helper, SIGKILL));
    int status = wait_for(helper, 0);
    if (!WIFSIGNALED(status))
        FAIL("the helper ended before it was killed, with status %d", WEXITSTATUS(status));
}

void helper_stop(pid_t helper)
{
    CHECK_INT(0, kill(helper, SIGSTOP));
    CHECK(WIFSTOPPED(wait_for(helper, WUNTRACED)));
}

void helper_continue(pid_t helper)
{
    CHECK_INT(0, kill(helper, SIGCONT));
}

/* --- connections --- */

static int peer_port(int fd)
{
    struct sockaddr_in6 peer = { .sin6_port = 0 };
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0)
        return 0;
    /* The port stands where it does in an address of IPv4. */
    return peer.sin6_family == AF_INET || peer.sin6_family == AF_INET6 ? ntohs(peer.sin6_port) : 0;
}

int shut_connections(int port, int how)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        if (peer_port(fd) == port && shutdown(fd, how) == 0)
            count++;
    }
    return count;
}

/* --- witnesses --- */

static bool is_dead(struct witness *witness, uint32_t who)
{
    return who < WITNESS_MOST && atomic_load(&witness->dead[who]);
}

void witness_enter(struct witness *witness, uint32_t who, uint64_t token)
{
    uint32_t before = atomic_exchange(&witness->inside, who);
    if (before != 0 && !is_dead(witness, before))
        atomic_fetch_add(&witness->overlaps, 1);
    uint64_t last = atomic_exchange(&witness->last_token, token);
    if (token <= last)
        atomic_fetch_add(&witness->disorders, 1);
    atomic_fetch_add(&witness->entries, 1);
}

void witness_leave(struct witness *witness, uint32_t who)
{
    uint32_t expected = who;
    if (!atomic_compare_exchange_strong(&witness->inside, &expected, 0))
        atomic_fetch_add(&witness->overlaps, 1);
}

void witness_increment(struct witness *witness)
{
    uint64_t seen = atomic_load(&witness->counter);
    sched_yield();
    atomic_store(&witness->counter, seen + 1);
}

void witness_visit(struct witness *witness, uint32_t who, uint64_t token)
{
    witness_enter(witness, who, token);
    witness_increment(witness);
    witness_leave(witness, who);
}

void witness_mark_dead(struct witness *witness, uint32_t who)
{
    REQUIRE(who < WITNESS_MOST);
    atomic_store(&witness->dead[who], true);
}

void witness_check(struct witness *witness)
{
    CHECK_INT(0, atomic_load(&witness->overlaps));
    CHECK_INT(0, atomic_load(&witness->disorders));
}

bool fenced_write(struct fenced_register *place, uint64_t token)
{
    uint64_t largest = atomic_load(&place->largest);
    do {
        if (token < largest) {
            atomic_fetch_add(&place->refused, 1);
            return false;
        }
    } while (!atomic_compare_exchange_weak(&place->largest, &largest, token));
    return true;
}

/* --- namespaces --- */

static void write_text(const char *path, const char *text)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

void need_namespaces(void)
{
    int status = 1;
    const pid_t child = geteuid() == 0 ? 0 : fork();
    if (geteuid() == 0)
        return;
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : 1);
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0)
        test_cannot_run("it needs root, or user namespaces, which this system refuses");
}

void need_root(void)
{
    if (geteuid() != 0)
        test_cannot_run("it needs root");
}

void enter_namespaces(int flags)
{
    char user[64], group[64];
    snprintf(user, sizeof user, "0 %u 1", (unsigned)geteuid());
    snprintf(group, sizeof group, "0 %u 1", (unsigned)getegid());
    const bool root = geteuid() == 0;
    REQUIRE_INT(0, unshare(flags | (root ? 0 : CLONE_NEWUSER)));
    if (!root) {
        write_text("/proc/self/uid_map", user);
        write_text("/proc/self/setgroups", "deny"); /* without which the next is not allowed */
        write_text("/proc/self/gid_map", group);    /* without which a file system of its own takes no file */
    }
    if (flags & CLONE_NEWNS)
        REQUIRE_INT(0, mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}
