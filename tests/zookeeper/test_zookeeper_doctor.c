/* SPDX-License-Identifier: MIT
 *
 * test_zookeeper_doctor.c: what hf_examine() says of servers that are set up well, and of some that are set up badly or
 * are about to fail.
 */
#include "zookeeper_support.h"

#include <stdio.h>

#define LONG "maxSessionTimeout=600000 "

static void look_at_a_good_one(struct raw *raw)
{
    hf_client *client = open_patient_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_NOTE, "ensemble", "alone");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "strangers", "take a lock");
    must_find(find_with(client, 0), HF_FINDING_OK, "server", "standalone");
    must_find(find_with(client, 0), HF_FINDING_OK, "rights", "may make");
    CHECK_INT(ZNONODE, raw_list(raw, "/holdfast")); /* nothing was made */
    hf_close(client);
}

/* The longest session is shorter than the locks. */
static void look_at_a_short_session(const struct zookeeper_server *server)
{
    char url[100];
    snprintf(url, sizeof url, "%s?session_timeout=700000", server->url);
    use_url(url);
    hf_client *client = open_patient_client();
    must_find(find_with(client, 800000), HF_FINDING_NOTE, "session", "sessions of 600000 ms");
    must_find(find_with(client, 1300000), HF_FINDING_RISK, "session", "sessions of 600000 ms");
    hf_close(client);
}

static void look_at_rights(const struct zookeeper_server *server, struct raw *raw)
{
    char url[200];
    REQUIRE_INT(ZOK, raw_create(raw, ZOO_PERSISTENT, "", "/holdfast"));
    REQUIRE_INT(ZOK, raw_permit(raw, ZOO_PERM_READ | ZOO_PERM_ADMIN, "/holdfast"));
    use_url(server->url);
    found(HF_FINDING_BROKEN, "rights", "no right to create");
    snprintf(url, sizeof url, "zookeeper://keeper:open-sesame@%s:%d/ours", server->address, server->port);
    use_url(url);
    hf_client *client = open_patient_client();
    must_release(must_acquire(client, "x", NULL)); /* makes the directory, for this user alone */
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_OK, "rights", "/ours");
    hf_close(client);
    snprintf(url, sizeof url, "%s/ours", server->url);
    use_url(url);
    found(HF_FINDING_BROKEN, "rights", "/ours");
}

/* Servers take long to start: one for all of it. */
TEST_LIMIT(server_that_stands_alone, 90)
{
    struct zookeeper_server *server = serve("");
    struct raw *raw = raw_open(server, NULL, NULL);
    look_at_a_good_one(raw);
    look_at_a_short_session(server);
    look_at_rights(server, raw);
    raw_close(raw);
}

/* First all are up, then one is down, then there is no majority. */
TEST_LIMIT(ensemble_of_which_servers_are_down, 90)
{
    struct zookeeper_server *three[3];
    char words[60];
    serve_three(three, LONG);
    hf_client *client = open_patient_client(), *hasty = open_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_OK, "ensemble", "3 servers vote");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "machines", "3 of 3");
    must_find(find_with(client, 1000), HF_FINDING_RISK, "time-to-live", "1000 ms");
    use_url(three[0]->url);
    found(HF_FINDING_NOTE, "URL", "the URL names 1");
    zookeeper_server_kill(three[2]);
    snprintf(words, sizeof words, "%s:%d", three[2]->address, three[2]->port);
    must_find(find_with(client, 0), HF_FINDING_RISK, "server", words);
    zookeeper_server_kill(three[1]);
    must_find(find_with(hasty, 0), HF_FINDING_BROKEN, "quorum", "");
    hf_close(hasty);
    hf_close(client);
}

TEST_LIMIT(ensemble_of_an_even_number, 60)
{
    struct zookeeper_server *two[2];
    zookeeper_servers_start(two, 2, NULL, LONG);
    use_url(two[0]->ensemble_url);
    found(HF_FINDING_RISK, "ensemble", "2 servers vote");
}

TEST_LIMIT(ensemble_of_servers_that_do_not_belong_together, 90)
{
    char url[200];
    struct zookeeper_server *one = zookeeper_server_start(LONG), *other = zookeeper_server_start(LONG);
    snprintf(url, sizeof url, "%s,%s:%d", one->url, other->address, other->port);
    use_url(url);
    found(HF_FINDING_BROKEN, "ensemble", "do not belong together");
}
