/* SPDX-License-Identifier: MIT
 *
 * file_tests.c: see file_tests.h.
 */
#include "file_tests.h"
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char directory[256];
char url[300];

/* Every test in a directory of its own. */
void set_up(void)
{
    const char *base = getenv("TEST_DIRECTORY");
    snprintf(directory, sizeof directory, "%s/file-engine-XXXXXX", base ? base : "/tmp");
    REQUIRE(mkdtemp(directory) != NULL);
    snprintf(url, sizeof url, "file://%s", directory);
}

/* Removes the directory; fails if a hidden file was left behind in it. */
void tear_down(bool after_kills)
{
    DIR *stream = opendir(directory);
    REQUIRE(stream != NULL);
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        test_check(entry->d_name[0] != '.' || after_kills, __FILE__, __LINE__, "%s was left behind", entry->d_name);
        unlinkat(dirfd(stream), entry->d_name, 0);
    }
    closedir(stream);
    CHECK_INT(0, rmdir(directory));
}

const char *in_directory(const char *name)
{
    static char paths[2][600]; /* link(2) takes two */
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", directory, name);
    return paths[turn];
}

hf_client *open_client(void)
{
    hf_client *client = NULL;
    hf_error err;
    REQUIRE_STATUS(HF_OK, hf_open(&client, url, NULL, &err), &err);
    return client;
}

hf_lock *take(hf_client *client, const char *name)
{
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock = NULL;
    hf_error err;
    options.owner = HF_OWNER_HANDLE;
    REQUIRE_STATUS(HF_OK, hf_acquire(&lock, client, name, &options, &err), &err);
    return lock;
}

hf_status try_once(const char *name, hf_error *err)
{
    hf_lock *lock = NULL;
    hf_client *client = NULL;
    hf_status status = hf_open(&client, url, NULL, err);
    if (status == HF_OK)
        status = hf_try_acquire(&lock, client, name, NULL, err);
    hf_release(lock, NULL);
    hf_close(client);
    return status;
}

static int remember_waiters(const hf_info *info, void *arg)
{
    *(int64_t *)arg = info->waiters;
    return 0;
}

void await_waiters(hf_client *client, const char *name, int64_t wanted)
{
    int64_t waiters = -1;
    while (waiters != wanted) {
        REQUIRE(test_now_ns() < test_deadline_ns());
        hf_inspect(client, name, remember_waiters, &waiters, NULL);
        poll(NULL, 0, 1);
    }
}

void tidy_up(hf_client *client)
{
    int64_t ignored;
    hf_inspect(client, NULL, remember_waiters, &ignored, NULL);
}
