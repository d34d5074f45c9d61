/* SPDX-License-Identifier: MIT
 *
 * test_consul_doctor.c: what hf_examine() says of servers that are set up well, and of some that are set up badly or
 * are about to fail.
 */
#include "consul_support.h"
#include "findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST_LIMIT(a_good_server_has_nothing_wrong, 60)
{
    struct consul_server *server = start_store("");
    hf_client *client = open_patient_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_NOTE, "servers", "alone");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "strangers", "ACLs are not enabled");
    must_find(find_with(client, 0), HF_FINDING_OK, "rights", "read and write");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "lock-delay", "lock_delay is 0s");
    must_find(find_with(client, 100), HF_FINDING_NOTE, "sessions", "session_ttl_min is 200 ms");
    CHECK_INT(0, consul_server_keys(server, "holdfast/"));
    hf_close(client);
}

/* It takes the autopilot a while. 200: all are healthy; 429: not all. */
static void await_health(struct consul_server *server, int status)
{
    char answer[4000];
    while (consul_server_ask(server, "GET", "/v1/operator/autopilot/health", "", answer, sizeof answer) != status)
        usleep(10000);
}

/* First all are up, then one is down, then there is no majority. */
TEST_LIMIT(servers_that_are_down_are_found, 60)
{
    struct consul_server *three[3];
    char words[20];
    consul_servers_start(three, 3, NULL, "");
    use_url(three[0]->url);
    hf_client *client = open_patient_client(), *hasty = open_client();
    must_find(find_with(client, 0), HF_FINDING_OK, "servers", "3 servers");
    must_find(find_with(client, 2000), HF_FINDING_RISK, "time-to-live", "2000 ms");
    await_health(three[0], 200);
    must_find_no_risk(find_with(client, 0));
    const int follower = consul_leader(three, 3) == three[2] ? 1 : 2;
    snprintf(words, sizeof words, "n%d is", three[follower]->number);
    consul_server_kill(three[follower]);
    await_health(three[0], 429);
    must_find(find_with(client, 0), HF_FINDING_RISK, "health", words);
    consul_server_kill(three[3 - follower]);
    must_find(find_with(hasty, 0), HF_FINDING_BROKEN, "leader", "no lock is granted");
    hf_close(hasty);
    hf_close(client);
}

TEST_LIMIT(an_even_number_of_servers_is_found, 60)
{
    struct consul_server *two[2];
    consul_servers_start(two, 2, NULL, "");
    use_url(two[0]->url);
    hf_client *client = open_patient_client();
    must_find(find_with(client, 0), HF_FINDING_RISK, "servers", "2 servers");
    hf_close(client);
}

TEST_LIMIT(an_agent_that_leaves_or_refuses_is_found, 60)
{
    char url[100];
    struct consul_server *server =
        start_store(", \"leave_on_terminate\": true, \"limits\": {\"http_max_conns_per_client\": 20}");
    hf_client *client = open_patient_client();
    must_find(find_with(client, 0), HF_FINDING_RISK, "leaving", "all sessions");
    must_find(find_with(client, 0), HF_FINDING_RISK, "connections", "http_max_conns_per_client is 20");
    hf_close(client);
    snprintf(url, sizeof url, "%s?lock_delay=15s", server->url);
    use_url(url);
    client = open_patient_client();
    must_find(find_with(client, 0), HF_FINDING_NOTE, "leaving", "but for the lock-delay");
    hf_close(client);
}

#define MASTER "11111111-2222-3333-4444-555555555555"
#define ACLS ", \"acl\": {\"enabled\": true, \"default_policy\": \"deny\", \"tokens\": {\"master\": \"" MASTER "\"}}"

/* A token with these rules for the keys below holdfast/, and the right to make sessions. */
static void use_token(struct consul_server *server, const char *policy)
{
    char body[500], answer[2000], token[37];
    snprintf(body, sizeof body,
             "{\"Name\": \"%s\", \"Rules\": \"session_prefix \\\"\\\" { policy = \\\"write\\\" } key_prefix "
             "\\\"holdfast/\\\" { policy = \\\"%s\\\" }\"}",
             policy, policy);
    consul_server_do(server, "PUT", "/v1/acl/policy", body, NULL, 0);
    snprintf(body, sizeof body, "{\"Policies\": [{\"Name\": \"%s\"}]}", policy);
    consul_server_do(server, "PUT", "/v1/acl/token", body, answer, sizeof answer);
    const char *secret = strstr(answer, "\"SecretID\":\"");
    REQUIRE(secret != NULL);
    snprintf(token, sizeof token, "%.36s", secret + strlen("\"SecretID\":\""));
    setenv("CONSUL_HTTP_TOKEN", token, 1);
}

TEST_LIMIT(rights_are_looked_at, 60)
{
    struct consul_server *server = consul_server_start(ACLS);
    use_token(server, "write");
    use_url(server->url);
    hf_client *client = open_patient_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_OK, "rights", "read and write");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "agent", "not known"); /* what it may not see, it does not guess */
    must_find(find_with(client, 0), HF_FINDING_NOTE, "health", "not known");
    hf_close(client);
    use_token(server, "read");
    client = open_patient_client();
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "rights", "may not write");
    hf_close(client);
}
