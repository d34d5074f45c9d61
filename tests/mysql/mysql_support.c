/* SPDX-License-Identifier: MIT
 *
 * mysql_support.c: see mysql_support.h.
 */
#include "mysql_support.h"

#include <stdio.h>
#include <string.h>

extern uint32_t run_tag;
extern uint64_t run_seed;

const char *store_url;
uint32_t store_caps;
uint32_t run_tag = 1;
uint64_t run_seed = 1;

const char *const strategy_names[STRATEGIES] = { "lease", "insert", "version", "for-update", "get-lock" };

bool is_bound(const char *strategy)
{
    return strcmp(strategy, "for-update") == 0 || strcmp(strategy, "get-lock") == 0;
}

void use_strategy(const struct mysql_server *server, const char *strategy)
{
    static char url[200];
    snprintf(url, sizeof url, "%s?strategy=%s", server->url, strategy);
    store_url = url;
    hf_client *client = open_client();
    store_caps = hf_capabilities(client);
    hf_close(client);
}

struct mysql_server *start_store(const char *strategy, const char *settings)
{
    struct mysql_server *server = mysql_server_start(settings);
    use_strategy(server, strategy);
    return server;
}

void check_open(const char *url, hf_status status, const char *words)
{
    hf_client *client = NULL;
    hf_error err = { 0 };
    if (!CHECK_STATUS(status, hf_open(&client, url, NULL, &err), &err))
        test_note("for %s", url);
    if (status != HF_OK && !strstr(err.message, words))
        FAIL("\"%s\" is not in: %s", words, err.message);
    CHECK(strstr(err.message, "sesame") == NULL);
    hf_close(client);
}
