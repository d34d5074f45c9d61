/* SPDX-License-Identifier: MIT
 *
 * test_modules.c: engines that are loaded when their URL is used.
 */
#include "test.h"
#include <stdlib.h>
#include <string.h>

static hf_error open_error(const char *url, hf_status expected)
{
    hf_client *client = (hf_client *)&client;
    hf_error err = { 0 };
    CHECK_STATUS(expected, hf_open(&client, url, NULL, &err), &err);
    CHECK(client == NULL);
    return err;
}

TEST(a_module_is_loaded_and_asked)
{
    const hf_error err = open_error("etcd://host", HF_UNAVAILABLE);
    CHECK_STR("the module was asked for //host", err.message);
    CHECK_INT(7, err.native);
}

TEST(a_module_of_another_version_is_refused)
{
    const hf_error err = open_error("consul://host", HF_UNSUPPORTED);
    CHECK(strstr(err.message, "is not a consul module for holdfast") != NULL);
}

TEST(a_missing_module_is_named_with_what_to_install)
{
    const hf_error err = open_error("zookeeper://host", HF_UNSUPPORTED);
    CHECK(strstr(err.message, "zookeeper") != NULL);
    CHECK(strstr(err.message, "zookeeper.so") != NULL);
}

TEST(an_unknown_scheme_is_refused)
{
    const hf_error err = open_error("gopher://host", HF_INVALID);
    CHECK(strstr(err.message, "gopher") != NULL);
    open_error("no scheme", HF_INVALID);
    open_error("mem", HF_INVALID);
    open_error("mem:x", HF_INVALID);
    open_error("di:", HF_INVALID); /* part of a known one */
}

static void count(const hf_engine_info *info, void *arg)
{
    int *seen = arg;
    seen[0]++;
    seen[1] += info->present;
    CHECK(info->present ? *info->missing == 0 : *info->missing != 0);
    CHECK(info->present ? info->caps != 0 : info->caps == 0);
    if (strcmp(info->name, "etcd") == 0)
        CHECK(info->present);
    if (strcmp(info->name, "consul") == 0)
        CHECK(!info->present);
    if (strcmp(info->name, "etcd") == 0) /* its own words, not what it may answer to one day */
        CHECK_STR("etcd: and nothing else", info->schemes);
    if (strcmp(info->name, "file") == 0)
        CHECK_STR("file:", info->schemes);
}

TEST(the_list_of_engines_tells_who_is_there)
{
    int seen[2] = { 0, 0 };
    hf_engines(count, seen);
    CHECK_INT(11, seen[0]);
    CHECK(seen[1] >= 3);
}

TEST(the_environment_names_the_default)
{
    hf_client *client = NULL;
    hf_error err;
    setenv("HOLDFAST_URL", "mem:", 1);
    REQUIRE_STATUS(HF_OK, hf_open(&client, NULL, NULL, &err), &err);
    CHECK_STR("mem:", hf_url(client));
    hf_close(client);
    hf_close(NULL);
    /* Set and empty is a mistake, not the default. */
    setenv("HOLDFAST_URL", "", 1);
    CHECK_INT(HF_INVALID, hf_open(&client, NULL, NULL, &err));
    CHECK_STR("HOLDFAST_URL is empty", err.message);
    CHECK_INT(HF_INVALID, hf_open(&client, "", NULL, &err));
    CHECK_STR("the URL is empty", err.message);
}
