/* SPDX-License-Identifier: MIT
 *
 * zookeeper_server.c: real servers for tests; see zookeeper_server.h.
 */
#include "zookeeper_server.h"

#include "server_home.h"
#include "shared.h"
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PORT_FIRST 12000
#define PORT_COUNT 9000
#define ANSWER_S 2
#define START_S 60

/* --------------------------------------------------------------------------------------------------------- settings */

/* `settings` is split: what begins with -D is Java's. */
static void write_settings(struct zookeeper_server *server, FILE *file, const char *settings)
{
    char text[600], *rest = NULL;
    snprintf(text, sizeof text, "%s", settings);
    for (char *word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        const size_t used = strlen(server->properties);
        if (strncmp(word, "-D", 2) == 0)
            snprintf(server->properties + used, sizeof server->properties - used, " %s", word);
        else
            fprintf(file, "%s\n", word);
    }
}

static void configure(struct zookeeper_server *server, struct zookeeper_server **all, int count, const char *settings)
{
    FILE *file = home_write(server->directory, "zoo.cfg");
    fprintf(file,
            "tickTime=200\ninitLimit=50\nsyncLimit=25\ndataDir=%s/data\nclientPort=%d\nclientPortAddress=%s\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
            server->directory, server->port, server->address);
    write_settings(server, file, settings);
    for (int i = 0; count > 1 && i < count; i++)
        fprintf(file, "server.%d=%s:%d:%d\n", i + 1, all[i]->address, all[i]->quorum_port, all[i]->election_port);
    REQUIRE_INT(0, fclose(file));
    file = home_write(server->directory, "data/myid");
    fprintf(file, "%d\n", server->number);
    REQUIRE_INT(0, fclose(file));
}

/* ---------------------------------------------------------------------------------------------- starting and ending */

void zookeeper_server_launch(struct zookeeper_server *server)
{
    char command[1500];
    const struct home_program program = { .home = server->directory, .place = server->place };
    /* Small and quick to start; nothing of what is tested depends on what survives a loss of power. */
    snprintf(command, sizeof command,
             "%s -Xmx128m -Xms24m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dzookeeper.forceSync=no "
             "-Dzookeeper.preAllocSize=1024%s -cp %s org.apache.zookeeper.server.quorum.QuorumPeerMain %s/zoo.cfg",
             home_need("TEST_JAVA"), server->properties, home_need("TEST_ZOOKEEPER"), server->directory);
    server->pid = home_launch(&program, command);
}

/* One that is not in an ensemble yet answers, but not this. */
static bool serves(void *server)
{
    char answer[8000];
    return zookeeper_server_ask(server, "mntr", answer, sizeof answer) && strstr(answer, "zk_server_state");
}

void zookeeper_server_await(struct zookeeper_server *server)
{
    home_await(server->pid, server->directory, START_S, serves, server);
}

void zookeeper_server_restart(struct zookeeper_server *server)
{
    REQUIRE_INT(0, server->pid);
    zookeeper_server_launch(server);
    zookeeper_server_await(server);
}

static void stop(void *server)
{
    zookeeper_server_stop(server);
}

static struct zookeeper_server *new_server(int number, struct netns *place)
{
    char data[220];
    struct zookeeper_server *server = home_new(sizeof *server, stop);
    home_make(server->directory, sizeof server->directory, NULL, "zookeeper");
    snprintf(data, sizeof data, "%s/data", server->directory);
    REQUIRE_INT(0, mkdir(data, 0700));
    server->number = number;
    server->place = place;
    server->port = home_free_port(PORT_FIRST, PORT_COUNT);
    server->quorum_port = home_free_port(PORT_FIRST, PORT_COUNT);
    server->election_port = home_free_port(PORT_FIRST, PORT_COUNT);
    snprintf(server->address, sizeof server->address, "%s", home_address(place));
    snprintf(server->url, sizeof server->url, "zookeeper://%s:%d", server->address, server->port);
    return server;
}

void zookeeper_servers_start(struct zookeeper_server **out, int count, struct netns **places, const char *settings)
{
    char url[200] = "zookeeper://";
    REQUIRE(count <= ZOOKEEPER_SERVERS_MOST);
    for (int i = 0; i < count; i++) {
        out[i] = new_server(i + 1, places ? places[i] : NULL);
        const size_t used = strlen(url);
        snprintf(url + used, sizeof url - used, "%s%s:%d", i ? "," : "", out[i]->address, out[i]->port);
    }
    for (int i = 0; i < count; i++) {
        snprintf(out[i]->ensemble_url, sizeof out[i]->ensemble_url, "%s", url);
        configure(out[i], out, count, settings);
        zookeeper_server_launch(out[i]);
    }
    for (int i = 0; i < count; i++)
        zookeeper_server_await(out[i]);
}

struct zookeeper_server *zookeeper_server_start(const char *settings)
{
    struct zookeeper_server *server;
    zookeeper_servers_start(&server, 1, NULL, settings);
    return server;
}

void zookeeper_server_kill(struct zookeeper_server *server)
{
    home_kill(&server->pid, SIGKILL);
}

void zookeeper_server_stop(struct zookeeper_server *server)
{
    zookeeper_server_kill(server);
    home_remove(server->directory);
    home_forget(server);
}

void zookeeper_server_pause(struct zookeeper_server *server)
{
    home_pause(server->pid);
}

void zookeeper_server_continue(struct zookeeper_server *server)
{
    home_continue(server->pid);
}

/* -------------------------------------------------------------------------------------------------------- questions */

bool zookeeper_server_ask(struct zookeeper_server *server, const char *word, char *answer, size_t size)
{
    const struct home_target target = { server->address, server->port, ANSWER_S, server->place };
    return home_ask(&target, word, answer, size) >= 0;
}

int64_t zookeeper_server_number(struct zookeeper_server *server, const char *name)
{
    char answer[8000], line[80];
    REQUIRE(zookeeper_server_ask(server, "mntr", answer, sizeof answer));
    snprintf(line, sizeof line, "%s\t", name);
    const char *found = strstr(answer, line);
    if (found)
        return strtoll(found + strlen(line), NULL, 10);
    FAIL("mntr does not say %s", name);
    test_abort();
}

struct zookeeper_server *zookeeper_leader(struct zookeeper_server **all, int count)
{
    for (;;) {
        for (int i = 0; i < count; i++) {
            char answer[8000];
            if (all[i]->pid > 0 && zookeeper_server_ask(all[i], "mntr", answer, sizeof answer) &&
                strstr(answer, "zk_server_state\tleader"))
                return all[i];
        }
        await_a_moment();
    }
}
