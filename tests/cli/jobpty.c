/* SPDX-License-Identifier: MIT
 *
 * jobpty.c: a shell with job control, on a pseudo-terminal, that follows a script:
 *
 *     jobpty STEP ... -- COMMAND [ARGUMENT ...]
 *
 *     file:PATH     wait until the file exists
 *     key:C         type control-C, for any letter C
 *     stopped       wait until the job has stopped
 *     sh:SCRIPT     run a shell script, which must succeed; $JOB is the job's process
 *     fg            continue the job in the foreground
 *     exited:CODE   wait until the job has exited with CODE
 *     signaled:N    wait until signal N has killed the job
 *
 * COMMAND is one foreground job with a process group of its own. What it prints comes out here. Exits with 0 if all
 * steps did what they say. The caller sets the time limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static int terminal; /* the master's side */
static pid_t job;

static void *copy_output(void *unused)
{
    char text[4096];
    ssize_t length;

    while ((length = read(terminal, text, sizeof text)) > 0) {
        fwrite(text, 1, (size_t)length, stdout);
        fflush(stdout); /* a step may wait for it */
    }
    return unused;
}

static int wait_for_file(const char *path)
{
    const struct timespec pause = { 0, 10 * 1000 * 1000 };

    for (int turn = 0; turn < 3000; turn++) {
        if (access(path, F_OK) == 0)
            return 0;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "jobpty: %s did not appear\n", path);
    return 1;
}

/* Waits for the job to stop or end, and compares. */
static int wait_for_job(const char *step, int wanted_stopped, int wanted_code, int wanted_signal)
{
    int status;

    if (waitpid(job, &status, WUNTRACED) != job) {
        perror("jobpty: waitpid");
        return 1;
    }
    if ((wanted_stopped && WIFSTOPPED(status)) ||
        (wanted_code >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == wanted_code) ||
        (wanted_signal > 0 && WIFSIGNALED(status) && WTERMSIG(status) == wanted_signal))
        return 0;
    fprintf(stderr, "jobpty: %s, but the wait status is %#x\n", step, (unsigned)status);
    return 1;
}

static int run_script(const char *script)
{
    int status = -1;
    const pid_t pid = fork();

    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(127);
    }
    if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)
        return 0;
    fprintf(stderr, "jobpty: failed: %s\n", script);
    return 1;
}

static int do_step(const char *step, int slave)
{
    if (strncmp(step, "file:", 5) == 0)
        return wait_for_file(step + 5);
    if (strncmp(step, "key:", 4) == 0) {
        const char key = (char)(step[4] & 0x1f);
        return write(terminal, &key, 1) != 1;
    }
    if (strcmp(step, "stopped") == 0) {
        const int result = wait_for_job(step, 1, -1, 0);
        return tcsetpgrp(slave, getpgrp()) != 0 || result;
    }
    if (strncmp(step, "sh:", 3) == 0)
        return run_script(step + 3);
    if (strcmp(step, "fg") == 0)
        return tcsetpgrp(slave, job) != 0 || kill(-job, SIGCONT) != 0;
    if (strncmp(step, "exited:", 7) == 0)
        return wait_for_job(step, 0, (int)strtol(step + 7, NULL, 10), 0);
    if (strncmp(step, "signaled:", 9) == 0)
        return wait_for_job(step, 0, -1, (int)strtol(step + 9, NULL, 10));
    fprintf(stderr, "jobpty: no such step: %s\n", step);
    return 1;
}

static void start_job(int slave, char **command)
{
    char text[24];

    job = fork();
    if (job == 0) {
        setpgid(0, 0);
        tcsetpgrp(slave, getpid());
        signal(SIGTTOU, SIG_DFL);
        for (int fd = 0; fd < 3; fd++)
            dup2(slave, fd);
        execvp(command[0], command);
        perror("jobpty: exec");
        _exit(127);
    }
    /* Both sides do it, because either may be the first to need it. */
    setpgid(job, job);
    tcsetpgrp(slave, job);
    snprintf(text, sizeof text, "%ld", (long)job);
    setenv("JOB", text, 1);
}

/* The session whose terminal it is. */
static int shell(int slave, char **steps, char **command)
{
    pthread_t copier;
    int failed = 0;

    /* From the background tcsetpgrp() would stop us. */
    signal(SIGTTOU, SIG_IGN);
    if (setsid() < 0 || ioctl(slave, TIOCSCTTY, 0) != 0 || pthread_create(&copier, NULL, copy_output, NULL) != 0) {
        perror("jobpty: terminal");
        return 2;
    }
    start_job(slave, command);
    for (; !failed && *steps != NULL; steps++)
        failed = do_step(*steps, slave);
    if (failed)
        kill(-job, SIGKILL);
    /* The last descriptor of the slave's side but those of a job that is still there: the copier sees the end of its
     * input. */
    close(slave);
    pthread_join(copier, NULL);
    return failed;
}

int main(int argc, char **argv)
{
    int slave, status, steps = 1;

    while (steps < argc && strcmp(argv[steps], "--") != 0)
        steps++;
    if (steps + 1 >= argc || openpty(&terminal, &slave, NULL, NULL, NULL) != 0) {
        fprintf(stderr, "jobpty: no command, or no terminal: %s\n", strerror(errno));
        return 2;
    }
    argv[steps] = NULL;
    fcntl(terminal, F_SETFD, FD_CLOEXEC);
    fcntl(slave, F_SETFD, FD_CLOEXEC);
    /* A process that leads a group, as we may, cannot begin a session. */
    pid_t session = fork();
    if (session == 0)
        exit(shell(slave, argv + 1, argv + steps + 1));
    close(slave);
    close(terminal);
    return waitpid(session, &status, 0) == session && WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
