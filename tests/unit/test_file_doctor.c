/* SPDX-License-Identifier: MIT
 *
 * test_file_doctor.c: what hf_examine() finds about the directory of file:, on directories and file systems that are
 * set up badly on purpose.
 */
#include "file_tests.h"
#include "findings.h"
#include "shared.h"
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Whatever the directory lies on: it may be a container's own, or in memory. */
static const char *const where[] = { "file system" };

static int count_files(void)
{
    int count = 0;
    DIR *stream = opendir(directory);
    REQUIRE(stream != NULL);
    while (readdir(stream))
        count++;
    closedir(stream);
    return count;
}

TEST(in_a_good_directory_nothing_is_found_and_nothing_is_written)
{
    set_up();
    hf_client *client = open_client();
    const int files = count_files();
    must_find_nothing_but(find_with(client, 0), where, 1);
    CHECK_INT(files, count_files());
    hf_close(client);
    tear_down(false);
}

TEST(who_else_may_write_there_is_found)
{
    set_up();
    hf_client *client = open_client();
    REQUIRE_INT(0, chmod(directory, 0770));
    must_find(find_with(client, 0), HF_FINDING_RISK, "permissions", "every member of its group");
    REQUIRE_INT(0, chmod(directory, 01770));
    must_find_nothing_but(find_with(client, 0), where, 1);
    REQUIRE_INT(0, chmod(directory, 01777));
    must_find(find_with(client, 0), HF_FINDING_NOTE, "permissions", "everybody on this machine");
    REQUIRE_INT(0, chmod(directory, 0700));
    hf_close(client);
    tear_down(false);
}

TEST(a_file_system_that_is_full_read_only_or_in_memory_is_found)
{
    need_namespaces();
    set_up();
    enter_namespaces(CLONE_NEWNS);
    REQUIRE_INT(0, mount("tmpfs", directory, "tmpfs", 0, "size=4m,nr_inodes=1000,mode=700"));
    hf_client *client = open_client();
    must_find(find_with(client, 0), HF_FINDING_NOTE, "file system", "in memory");
    must_find_nothing_but(find_with(client, 0), where, 1);
    REQUIRE_INT(0, mount(NULL, directory, NULL, MS_REMOUNT, "size=16k,nr_inodes=1000"));
    must_find(find_with(client, 0), HF_FINDING_RISK, "room", "16 KiB and");
    REQUIRE_INT(0, mount(NULL, directory, NULL, MS_REMOUNT, "size=4m,nr_inodes=20"));
    must_find(find_with(client, 0), HF_FINDING_RISK, "room", "nearly full");
    REQUIRE_INT(0, mount(NULL, directory, NULL, MS_REMOUNT | MS_RDONLY, "size=4m,nr_inodes=1000"));
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "room", "read-only");
    hf_close(client);
    umount(directory);
    tear_down(false);
}

TEST(an_engine_without_anything_to_look_at_says_so)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    REQUIRE_STATUS(HF_OK, hf_open(&client, "mem:", NULL, &err), &err);
    const struct findings *found = find_with(client, 0);
    CHECK_INT(HF_UNSUPPORTED, found->status);
    CHECK(strstr(found->err.message, "nothing to look at") != NULL);
    CHECK_INT(0, found->count);
    hf_close(client);
    REQUIRE_STATUS(HF_OK, hf_open(&client, "file:", NULL, &err), &err);
    CHECK_INT(HF_INVALID, find_with(client, 99)->status);
    hf_close(client);
}
