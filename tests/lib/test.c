/* SPDX-License-Identifier: MIT
 *
 * test.c: the test runner; see test.h.
 */
#include "test.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
/* The exit status of test_cannot_run(). */
#define CANNOT_RUN 77

enum verdict { PASSED, FAILED, NOT_RUN };

static struct test *tests;
static atomic_int failures;
static int64_t deadline_ns;

/* Helpers are forked from processes with threads, and open clients, which start threads: that is what is tested
 * here, and ThreadSanitizer would rather die than look at it. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

/* Keeps the list in the order of files and lines: the order of constructors across files is the linker's whim. */
void test_register(struct test *test)
{
    struct test **at = &tests;
    while (*at) {
        int order = strcmp((*at)->file, test->file);
        if (order > 0 || (order == 0 && (*at)->line > test->line))
            break;
        at = &(*at)->next;
    }
    test->next = *at;
    *at = test;
}

int test_slowness(void)
{
    const char *text = getenv("HOLDFAST_TEST_SLOW");
    int factor = text ? (int)strtol(text, NULL, 10) : 1;
    return factor < 1 ? 1 : factor;
}

uint32_t test_ms(uint32_t ms)
{
    int factor = test_slowness();
    return ms * (uint32_t)(factor > 4 ? 4 : factor);
}

int64_t test_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

int64_t test_deadline_ns(void)
{
    return deadline_ns;
}

/* One write per message: threads and helper processes share the output. */
static void say(const char *file, int line, const char *format, va_list args)
{
    char text[1200];
    int used = file ? snprintf(text, sizeof text, "%s:%d: ", file, line) : 0;
    vsnprintf(text + used, sizeof text - (size_t)used - 1, format, args);
    memcpy(text + strlen(text), "\n", 2);
    ssize_t written = write(STDOUT_FILENO, text, strlen(text));
    (void)written;
}

void test_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(NULL, 0, format, args);
    va_end(args);
}

bool test_check(bool held, const char *file, int line, const char *format, ...)
{
    if (held)
        return true;
    va_list args;
    va_start(args, format);
    say(file, line, format, args);
    va_end(args);
    atomic_fetch_add(&failures, 1);
    return false;
}

bool test_check_int(const char *file, int line, const char *text, int64_t expected, int64_t actual)
{
    return test_check(expected == actual, file, line, "%s: expected %lld, got %lld", text, (long long)expected,
                      (long long)actual);
}

bool test_check_str(const char *file, int line, const char *text, const char *expected, const char *actual)
{
    return test_check(actual && strcmp(expected, actual) == 0, file, line, "%s: expected \"%s\", got \"%s\"", text,
                      expected, actual ? actual : "(null)");
}

bool test_check_status(const char *file, int line, const char *text, hf_status expected, hf_status actual,
                       const hf_error *err)
{
    const char *words = err && actual != HF_OK ? err->message : "";
    return test_check(expected == actual, file, line, "%s: expected %s, got %s%s%s", text, hf_status_name(expected),
                      hf_status_name(actual), *words ? ": " : "", words);
}

void test_cannot_run(const char *why)
{
    fprintf(stderr, "%s\n", why);
    _exit(CANNOT_RUN);
}

void test_abort(void)
{
    fflush(stdout);
    _exit(1);
}

void test_exit_child(void)
{
    fflush(stdout);
    _exit(atomic_load(&failures) ? 1 : 0);
}

/* --- one process --- */

static void run_in_child(const struct test *test, int output, const sigset_t *mask)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    close(output);
    setvbuf(stdout, NULL, _IOLBF, 0);
    test->run();
    /* exit() and not _exit(): leak checkers report then. */
    exit(atomic_load(&failures) ? 1 : 0);
}

/* Waits for `pid` until the deadline. SIGCHLD is blocked, so that none is missed between looking and sleeping. */
static bool wait_until(pid_t pid, int *status, const sigset_t *child_signal)
{
    for (;;) {
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
        int64_t left = deadline_ns - test_now_ns();
        if (left <= 0)
            return false;
        struct timespec timeout = { left / SECOND_NS, left % SECOND_NS };
        sigtimedwait(child_signal, NULL, &timeout);
    }
}

/* Kills and reaps the children of this process that have left their group. */
static void kill_strays(void)
{
    DIR *all = opendir("/proc");
    struct dirent *entry;
    while (all && (entry = readdir(all))) {
        char path[300];
        int pid = (int)strtol(entry->d_name, NULL, 10), parent = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *stat = pid > 0 ? fopen(path, "re") : NULL;
        if (!stat)
            continue;
        /* "pid (name) state parent": the name may hold anything but is the only thing in brackets before the state. */
        int found = fscanf(stat, "%*d (%*[^)]) %*c %d", &parent);
        fclose(stat);
        if (found == 1 && parent == getpid()) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
    }
    if (all)
        closedir(all);
}

/* Orphans of a test become children of the runner, which is a subreaper. Kills what still lives and returns whether
 * there was any. */
static bool kill_leftovers(pid_t group)
{
    bool any = false;
    /* Killing a parent may hand its children to us: look again until none is left. */
    for (int round = 0; round < 100; round++) {
        pid_t reaped;
        do {
            reaped = waitpid(-1, NULL, WNOHANG);
        } while (reaped > 0);
        if (reaped < 0)
            break;
        any = true;
        kill(-group, SIGKILL);
        while (waitpid(-group, NULL, 0) > 0)
            ;
        kill_strays();
    }
    return any;
}

static void show_output(int output)
{
    char line[2048];
    FILE *file = fdopen(output, "r");
    if (!file)
        return;
    rewind(file);
    while (fgets(line, sizeof line, file))
        printf("#   %s%s", line, strchr(line, '\n') ? "" : "\n");
    fclose(file);
}

/* True: it was not run, and says why. */
static bool was_not_run(const struct test *test, int status, int output)
{
    char why[200] = "";
    if (!WIFEXITED(status) || WEXITSTATUS(status) != CANNOT_RUN)
        return false;
    const ssize_t length = pread(output, why, sizeof why - 1, 0);
    why[length > 0 ? strcspn(why, "\n") : 0] = 0;
    printf("# not run: %s: %s\n", test->name, why);
    close(output);
    return true;
}

static enum verdict run_test(const struct test *test, int number)
{
    sigset_t child_signal, mask;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_signal, &mask);
    int output = memfd_create("test-output", MFD_CLOEXEC);
    int64_t start_ns = test_now_ns();
    deadline_ns = start_ns + test->limit_s * SECOND_NS * test_slowness();

    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        run_in_child(test, output, &mask);
    setpgid(pid, pid);
    int status = 0;
    char why[80] = "";
    if (pid < 0) {
        snprintf(why, sizeof why, "cannot fork");
    } else if (!wait_until(pid, &status, &child_signal)) {
        snprintf(why, sizeof why, "killed after %d s", test->limit_s * test_slowness());
        kill(-pid, SIGKILL);
        waitpid(pid, NULL, 0);
    } else if (WIFSIGNALED(status)) {
        snprintf(why, sizeof why, "killed by signal %d", WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
        snprintf(why, sizeof why, "exit status %d", WEXITSTATUS(status));
    }
    if (pid > 0 && kill_leftovers(pid) && !*why)
        snprintf(why, sizeof why, "left processes behind");
    if (was_not_run(test, status, output)) {
        sigprocmask(SIG_SETMASK, &mask, NULL);
        return NOT_RUN;
    }

    printf("%s %d - %s # %lld ms\n", *why ? "not ok" : "ok", number, test->name,
           (long long)(test_now_ns() - start_ns) / 1000000);
    if (*why) {
        printf("# %s: %s\n", test->name, why);
        show_output(output);
    } else {
        close(output);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return *why ? FAILED : PASSED;
}

/* --- all tests --- */

/* Behind "--but" is what is left out. */
static bool wanted(const struct test *test, int count, char **substrings)
{
    bool named = false, found = false;
    int i = 0;
    for (; i < count && strcmp(substrings[i], "--but") != 0; i++) {
        named = true;
        found = found || strstr(test->name, substrings[i]);
    }
    for (; i < count; i++)
        if (strstr(test->name, substrings[i]))
            return false;
    return found || !named;
}

int test_run(int count, char **substrings, test_filter filter)
{
    int counts[3] = { 0, 0, 0 }, listed = 0;
    char reason[200];
    bool list_only = count > 0 && strcmp(substrings[0], "--list") == 0;
    if (list_only) {
        count--;
        substrings++;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (struct test *test = tests; test && list_only; test = test->next)
        if (wanted(test, count, substrings))
            listed += printf("%s\n", test->name) > 0;
    if (list_only)
        return listed ? 0 : 1;

    for (struct test *test = tests; test; test = test->next) {
        if (!wanted(test, count, substrings))
            continue;
        if (filter && !filter(test, reason, sizeof reason))
            printf("# not selected: %s: %s\n", test->name, reason);
        else
            counts[run_test(test, counts[PASSED] + counts[FAILED] + 1)]++;
        fflush(stdout);
    }
    printf("1..%d\n", counts[PASSED] + counts[FAILED]); /* at the end, when it is known what can be run */
    printf("# %d passed, %d failed\n", counts[PASSED], counts[FAILED]);
    return counts[FAILED] || (!counts[PASSED] && !counts[NOT_RUN]) ? 1 : 0;
}
