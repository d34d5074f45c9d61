/* SPDX-License-Identifier: MIT
 *
 * compare_util.c: clock, placement, shared memory, and the ways to give up.
 */
#include "compare.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void die(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(args, format);
    vdprintf(STDERR_FILENO, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(1);
}

void must(hf_status status, const hf_error *err, const char *what)
{
    if (status != HF_OK)
        die("%s: %s: %s", what, hf_status_name(status), err != NULL ? err->message : "");
}

void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdprintf(STDERR_FILENO, format, args);
    va_end(args);
}

int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

void pin_process_to(int pid, int core)
{
    cpu_set_t set;
    long cores = sysconf(_SC_NPROCESSORS_CONF);

    CPU_ZERO(&set);
    for (int i = 0; i < cores && i < CPU_SETSIZE; i++)
        if (core < 0 || i == core)
            CPU_SET(i, &set);
    if (sched_setaffinity(pid, sizeof set, &set) != 0)
        die("cannot run on core %d: %s", core, strerror(errno));
}

void pin_to(int core)
{
    pin_process_to(0, core);
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;

    return (a > b) - (a < b);
}

double median(double *values, size_t count)
{
    if (count == 0)
        die("nothing was measured");
    qsort(values, count, sizeof *values, by_value);
    return count % 2 != 0 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void sem_wait_or_die(sem_t *semaphore, const char *what)
{
    int64_t deadline_ns = now_ns() + 30 * SECOND_NS;
    struct timespec deadline = { .tv_sec = deadline_ns / SECOND_NS, .tv_nsec = deadline_ns % SECOND_NS };

    while (sem_clockwait(semaphore, CLOCK_MONOTONIC, &deadline) != 0)
        if (errno != EINTR)
            die("waited for 30 s for %s", what);
}

void *shared_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        die("no shared memory: %s", strerror(errno));
    return memory;
}

int open_raw_file(const struct results *results)
{
    char path[600];
    int fd;

    snprintf(path, sizeof path, "%s/raw.lock", results->directory);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        die("cannot open %s: %s", path, strerror(errno));
    return fd;
}

int fork_child(void)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0)
        die("cannot fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

void reap_child(int pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("cannot wait for a child: %s", strerror(errno));
    if (status != 0)
        die("a child ended with wait status %d", status);
}

double heap_in_use(void)
{
    struct mallinfo2 info = mallinfo2();

    return (double)info.uordblks + (double)info.hblkhd;
}

double resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long size, resident;

    if (file == NULL || fscanf(file, "%lu %lu", &size, &resident) != 2)
        die("cannot read /proc/self/statm");
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}
