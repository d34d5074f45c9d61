/* SPDX-License-Identifier: MIT
 *
 * server_clock.c: see server_clock.h.
 */
#include "server_clock.h"

#include "test.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void server_clock_set(const char *path, int64_t offset_ms)
{
    char changed[250];
    snprintf(changed, sizeof changed, "%s.new", path);
    FILE *file = fopen(changed, "we");
    REQUIRE(file != NULL);
    const int64_t size_ms = offset_ms < 0 ? -offset_ms : offset_ms;
    fprintf(file, "%c%" PRId64 ".%03d\n", offset_ms < 0 ? '-' : '+', size_ms / 1000, (int)(size_ms % 1000));
    REQUIRE_INT(0, fchmod(fileno(file), 0644)); /* the server may be another user's */
    REQUIRE_INT(0, fclose(file));
    /* Renamed: the server reads it all the time, and must not find half of it. */
    REQUIRE_INT(0, rename(changed, path));
}

/* libfaketime calls malloc() when it is first asked for the time, and jemalloc asks for the time when it is first
 * called: together they wait for each other for ever. So the server gets the C library's malloc() instead. */
void server_clock_follow(const char *path)
{
    char libraries[300];
    glob_t found;
    if (glob("/usr/lib/*/faketime/libfaketime.so.1", 0, NULL, &found) != 0) {
        test_note("libfaketime, of the package faketime, is not installed");
        _exit(127);
    }
    snprintf(libraries, sizeof libraries, "libc_malloc_debug.so.0:%s", found.gl_pathv[0]);
    globfree(&found);
    setenv("LD_PRELOAD", libraries, 1);
    setenv("FAKETIME_TIMESTAMP_FILE", path, 1);
    setenv("FAKETIME_NO_CACHE", "1", 1);
    setenv("DONT_FAKE_MONOTONIC", "1", 1);
}
