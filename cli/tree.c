/* SPDX-License-Identifier: MIT
 *
 * tree.c: ending all descendants of this process. As their subreaper it is given every process whose own parent has
 * ended, so that none can leave the tree, and it has no children left only when the whole tree is gone.
 */
#include "run.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct pids {
    pid_t *pid;
    size_t count;
    size_t room;
};

static void add_pid(struct pids *pids, pid_t pid)
{
    if (pids->count == pids->room) {
        size_t room = pids->room == 0 ? 64 : 2 * pids->room;
        pid_t *grown = realloc(pids->pid, room * sizeof *grown);

        /* Without memory the tree is cut here; hfc_tree_kill() looks again once these are gone. */
        if (grown == NULL)
            return;
        pids->pid = grown;
        pids->room = room;
    }
    pids->pid[pids->count++] = pid;
}

/* Each thread has children of its own. */
static void add_children_of_thread(struct pids *pids, pid_t pid, const char *thread)
{
    char path[64];
    long child;

    snprintf(path, sizeof path, "/proc/%ld/task/%.20s/children", (long)pid, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    while (fscanf(file, "%ld", &child) == 1)
        add_pid(pids, (pid_t)child);
    fclose(file);
}

static void add_children(struct pids *pids, pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *threads = opendir(path);
    if (threads == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(threads)) != NULL;)
        if (entry->d_name[0] != '.')
            add_children_of_thread(pids, pid, entry->d_name);
    closedir(threads);
}

void hfc_tree_signal(int number, pid_t child)
{
    struct pids pids = { NULL, 0, 0 };
    bool shown = child == 0;

    add_children(&pids, getpid());
    for (size_t i = 0; i < pids.count; i++)
        add_children(&pids, pids.pid[i]);
    for (size_t i = 0; i < pids.count; i++) {
        kill(pids.pid[i], number);
        shown = shown || pids.pid[i] == child;
    }
    if (!shown) /* without /proc, or without the lists of children in it, it is the only one that we know of */
        kill(child, number);
    free(pids.pid);
}

/* True once there are no children left. Forgets *child once it is reaped: its number may then be another's. */
static bool reap_all(pid_t *child, int *wait_status)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == *child) {
            *wait_status = status;
            *child = 0;
        }
    return pid < 0 && errno == ECHILD;
}

void hfc_tree_kill(pid_t child, int *wait_status)
{
    const struct timespec pause = { 0, 100 * 1000 * 1000 };
    sigset_t chld;

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    /* Again and again, because a process can fork while the list is read, and all who are killed leave their children
     * to us. SIGCHLD is blocked here, so the pause ends as soon as somebody does. The bound is for a process that
     * cannot be killed (one stuck in a dead file system, one that changed its user). */
    for (int turn = 0; turn < 1000; turn++) {
        hfc_tree_signal(SIGKILL, child);
        if (reap_all(&child, wait_status))
            return;
        sigtimedwait(&chld, NULL, &pause);
    }
    hfc_say("some processes of the command cannot be ended");
}
