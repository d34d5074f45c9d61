/* SPDX-License-Identifier: MIT
 *
 * compare.c: Holdfast beside the bare system calls and the mutex that it is built on, by turns in one run, as ratios.
 * These are benchmarks and not tests: the program ends with 0 whatever the ratios, and says "OVER" where a bar is not
 * met.
 *
 *     compare [--json] DIRECTORY
 *
 * DIRECTORY is where the lock files go, ours and raw: an empty one, on the file system that is of interest.
 */
#include "compare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The directory's absolute name is part of the URL. */
static void set_directory(struct results *results, const char *directory)
{
    char *absolute = realpath(directory, NULL);

    if (absolute == NULL)
        die("%s: %s", directory, strerror(errno));
    results->directory = absolute;
    if ((size_t)snprintf(results->url, sizeof results->url, "file://%s", absolute) >= sizeof results->url)
        die("%s: too long", directory);
}

int main(int argc, char **argv)
{
    static struct results results;
    bool json = argc > 1 && strcmp(argv[1], "--json") == 0;

    if (argc != 2 + json || argv[1 + json][0] == '-') {
        fprintf(stderr, "usage: compare [--json] DIRECTORY\n");
        return 64;
    }
    set_directory(&results, argv[1 + json]);
    results.cores = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 2 : 1;
    /* First the parts that fork, while this process has no thread. */
    compare_handoff(&results);
    compare_crowd(&results);
    compare_pairs(&results);
    compare_heap(&results);
    results.has_shares = true;
    results_print(&results, json);
    return 0;
}
