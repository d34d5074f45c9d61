/* SPDX-License-Identifier: MIT
 *
 * test_etcd_doctor.c: what hf_examine() says of clusters that are set up well, and of some that are set up badly or are
 * about to fail.
 */
#include "etcd_support.h"

#include <stdio.h>
#include <string.h>

TEST_LIMIT(a_good_server_has_nothing_wrong, 60)
{
    struct etcd_cluster *cluster = start_store(1, QUICK);
    char revision[300];
    hf_client *client = open_patient_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_NOTE, "members", "alone");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "compaction", "none was ever compacted");
    must_release(must_acquire(client, "x", NULL)); /* or there is nothing to throw away */
    etcd_ctl_read(cluster, revision, sizeof revision, "get --write-out=fields nothing");
    const char *number = strstr(revision, "\"Revision\" : ");
    REQUIRE(number != NULL);
    etcd_ctl(cluster, "compact %.*s", (int)strcspn(number + 13, "\n"), number + 13);
    must_find(find_with(client, 0), HF_FINDING_OK, "compaction", "the first is gone");
    CHECK_INT(0, etcd_ctl_keys(cluster, "holdfast/.examination"));
    hf_close(client);
}

/* First all are up, then one is down, then there is no majority. */
TEST_LIMIT(members_that_are_down_are_found, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(3, QUICK);
    hf_client *client = open_patient_client(), *hasty = open_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_OK, "members", "3 voting members");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "machines", "3 of 3");
    must_find(find_with(client, 1000), HF_FINDING_RISK, "time-to-live", "1000 ms");
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d", cluster->servers[0].port);
    use_url(url);
    found(HF_FINDING_NOTE, "URL", "the URL names 1");
    etcd_server_kill(&cluster->servers[2]);
    snprintf(url, sizeof url, "127.0.0.1:%d: ", cluster->servers[2].port);
    must_find(find_with(client, 0), HF_FINDING_RISK, "server", url);
    etcd_server_kill(&cluster->servers[1]);
    must_find(find_with(hasty, 0), HF_FINDING_BROKEN, "quorum", "no lock is granted");
    hf_close(hasty);
    hf_close(client);
}

TEST_LIMIT(an_even_number_of_members_is_found, 60)
{
    start_store(2, QUICK);
    found(HF_FINDING_RISK, "members", "2 voting members");
}

TEST_LIMIT(two_clusters_are_found, 60)
{
    char url[500];
    struct etcd_cluster *one = etcd_cluster_start(1, QUICK), *other = etcd_cluster_start(1, QUICK);
    snprintf(url, sizeof url, "etcd://%s,%s", one->hosts, other->hosts);
    use_url(url);
    found(HF_FINDING_BROKEN, "cluster", "different clusters");
}

TEST_LIMIT(a_full_server_is_found, 60)
{
    char alarms[500] = "";
    struct etcd_cluster *cluster = start_store(1, QUICK " --quota-backend-bytes 200000");
    hf_client *client = open_patient_client();
    for (unsigned i = 0; i < 2000 && !strstr(alarms, "NOSPACE"); i++) {
        hf_error err = { 0 };
        hf_lock *lock = NULL;
        if (hf_try_acquire(&lock, client, numbered_name("more", i).text, NULL, &err) == HF_OK)
            hf_release(lock, NULL);
        else
            etcd_ctl_read(cluster, alarms, sizeof alarms, "alarm list");
    }
    CHECK(strstr(alarms, "NOSPACE") != NULL);
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "space", "alarm NOSPACE");
    hf_close(client);
}

TEST_LIMIT(rights_are_looked_at, 60)
{
    char url[300];
    struct etcd_cluster *cluster = start_store(1, QUICK " --bcrypt-cost 4");
    etcd_ctl(cluster, "user add root:keeper");
    etcd_ctl(cluster, "user grant-role root root");
    etcd_ctl(cluster, "user add guest:open-sesame");
    etcd_ctl(cluster, "role add locker");
    etcd_ctl(cluster, "role grant-permission locker --prefix=true readwrite holdfast/");
    etcd_ctl(cluster, "user grant-role guest locker");
    etcd_ctl(cluster, "auth enable");
    snprintf(cluster->ctl, sizeof cluster->ctl, "--user root:keeper");
    snprintf(url, sizeof url, "etcd://guest:open-sesame@%s", cluster->hosts);
    use_url(url);
    hf_client *client = open_patient_client();
    must_find_no_risk(find_with(client, 0));
    must_find(find_with(client, 0), HF_FINDING_OK, "rights", "read and write");
    etcd_ctl(cluster, "role revoke-permission locker --prefix=true holdfast/");
    etcd_ctl(cluster, "role grant-permission locker --prefix=true read holdfast/");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "rights", "may not write");
    etcd_ctl(cluster, "role revoke-permission locker --prefix=true holdfast/");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "rights", "may not read");
    hf_close(client);
}
