/* SPDX-License-Identifier: MIT
 *
 * test_environment.c: which environment the library believes.
 */
#include "file_tests.h"
#include "shared.h"
#include "test.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 54321 /* a user without a home */

/* Puts a copy of the program into the directory. */
static void copy_program(const char *to)
{
    char from[512];
    struct stat stat;
    snprintf(from, sizeof from, "%s/open_default", getenv("TEST_DIRECTORY"));
    const int source = open(from, O_RDONLY | O_CLOEXEC);
    REQUIRE(source >= 0 && fstat(source, &stat) == 0);
    const int copy = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    REQUIRE(copy >= 0);
    REQUIRE_INT(stat.st_size, sendfile(copy, source, NULL, (size_t)stat.st_size));
    close(copy);
    close(source);
}

/* What it prints, in an environment that names the directory in every way. */
static void run_program(char line[600])
{
    char command[1400];
    snprintf(command, sizeof command, "HOLDFAST_URL='%s' HOME='%s' XDG_STATE_HOME='%s' '%s'", url, directory, directory,
             in_directory("program"));
    FILE *output = popen(command, "re");
    REQUIRE(output != NULL && fgets(line, 600, output) != NULL);
    pclose(output);
}

TEST(a_program_believes_its_environment)
{
    char line[600];
    set_up();
    copy_program(in_directory("program"));
    run_program(line);
    CHECK(strncmp(line, url, strlen(url)) == 0);
    tear_down(false);
}

/* It runs with other rights than its caller's. */
TEST(a_set_user_id_program_does_not_believe_its_environment)
{
    char line[600];
    need_root(); /* to make a program of another user's */
    set_up();
    copy_program(in_directory("program"));
    REQUIRE_INT(0, chmod(directory, 01777)); /* so that it is not refused for another reason */
    REQUIRE_INT(0, chown(in_directory("program"), NOBODY, NOBODY));
    REQUIRE_INT(0, chmod(in_directory("program"), 04755));
    run_program(line);
    CHECK_STR("there is no home directory for lock files; name one as file:///DIRECTORY\n", line);
    tear_down(false);
}
