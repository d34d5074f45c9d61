/* SPDX-License-Identifier: MIT
 *
 * zookeeper_doctor.c: looks at the ensemble, the session and the rights, for whatever could lose a lock.
 *
 * Nothing is changed by it. How an ensemble is made up it says itself, in /zookeeper/config; how a server is, to those
 * who ask "srvr" on a connection of their own, if what is in between lets that through.
 */
#include "engines/dial.h"
#include "zookeeper.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SERVERS_MOST 32
#define PROOFS 5
#define SILENCE_MOST_MS 10000
/* Nothing is renewed until a new leader is elected and the others have followed it. */
#define ELECTION_MS 3000

/* What the ensemble was asked, with the mutex, before any of it is told, without. */
struct doctor {
    struct zookeeper_store *store;
    const struct hfi_examination *examination;
    hfi_time deadline_ns;
    long asked_ms, given_ms; /* the session */
    int proof;               /* what became of the transactions, and how long … */
    hfi_time slowest_ns;     /* … the slowest took */
    int config, acl;         /* what became of the questions, and the answers: */
    char config_text[HFI_ZOOKEEPER_PATH_MAX];
    char acl_text[HFI_ZOOKEEPER_PATH_MAX], acl_path[HFI_ZOOKEEPER_PATH_MAX];
    size_t voters; /* 0: not known */
};

/* --- the session: what the server gave, and how fast a majority answers --- */

static void judge_session(const struct doctor *doctor)
{
    const struct hfi_examination *examination = doctor->examination;
    const long given = doctor->given_ms, asked = doctor->asked_ms, ttl = examination->ttl_ms;
    if (given < asked && given < ttl)
        hfi_finding(examination, given < ttl / 2 ? HF_FINDING_RISK : HF_FINDING_NOTE, "session",
                    "a lock does not outlive a silence of the servers, or a pause of its holder, for its own time, but "
                    "only for as long as its session\n"
                    "the server gives sessions of %ld ms, and %ld are needed for locks of %ld ms (conf: "
                    "maxSessionTimeout)\nmaxSessionTimeout=%ld on all servers, or a shorter --ttl",
                    given, ttl + ttl / 2, ttl, ttl + ttl / 2);
    else if (given > 2 * ttl && asked >= given)
        hfi_finding(examination, HF_FINDING_OK, "session",
                    "it lasts long enough; one of its own is asked for when such a lock is taken\n"
                    "%ld ms were asked for and given, for locks of %ld ms",
                    given, ttl);
    else
        hfi_finding(examination, HF_FINDING_OK, "session",
                    "it lasts for as long as such locks\n%ld ms, for locks of %ld ms", given, ttl);
}

static void judge_quorum(const struct doctor *doctor)
{
    const struct hfi_examination *examination = doctor->examination;
    const long slowest_ms = (long)(doctor->slowest_ns / HFI_MS), ttl = examination->ttl_ms;
    if (doctor->proof != ZOK)
        hfi_finding(examination, HF_FINDING_BROKEN, "quorum",
                    "no majority of the servers answers: no lock is granted or renewed\n"
                    "a transaction that changes nothing: %s (srvr)\nstart the servers that are down",
                    zerror(doctor->proof));
    else if (slowest_ms > ttl / 6)
        hfi_finding(examination, HF_FINDING_RISK, "latency",
                    "a renewal, which comes at a third of the time-to-live and is tried again, may come too late\n"
                    "the slowest of %d transactions that change nothing took %ld ms, with %ld ms to live (srvr)\n"
                    "faster disks and network for the servers, or a longer --ttl",
                    PROOFS, slowest_ms, ttl);
    else
        hfi_finding(examination, HF_FINDING_OK, "latency",
                    "renewals have the time to be tried again\n"
                    "the slowest of %d transactions that change nothing took %ld ms, with %ld ms to live (srvr)",
                    PROOFS, slowest_ms, ttl);
}

/* --- the ensemble, as it is written down in "server.1=HOST:2888:3888:participant;…" --- */

struct ensemble {
    size_t voters, observers;
    char hosts[SERVERS_MOST][80];
};

static void read_ensemble(struct ensemble *out, char *text)
{
    char *rest = NULL;
    *out = (struct ensemble){ .voters = 0 };
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *host = strncmp(line, "server.", 7) == 0 ? strchr(line, '=') : NULL;
        if (host && strstr(host, ":observer"))
            out->observers++;
        else if (host && out->voters < SERVERS_MOST)
            snprintf(out->hosts[out->voters++], sizeof out->hosts[0], "%.*s", (int)strcspn(host + 1, ":"), host + 1);
    }
}

static size_t count_together(const struct ensemble *ensemble, const char **where)
{
    size_t most = 0;
    for (size_t i = 0; i < ensemble->voters; i++) {
        size_t same = 0;
        for (size_t j = 0; j < ensemble->voters; j++)
            same += strcmp(ensemble->hosts[i], ensemble->hosts[j]) == 0;
        if (same > most)
            *where = ensemble->hosts[i];
        most = same > most ? same : most;
    }
    return most;
}

#define CONFIG "get /zookeeper/config"

static void judge_ensemble(const struct doctor *doctor, const struct ensemble *ensemble)
{
    const struct hfi_examination *examination = doctor->examination;
    const size_t voters = ensemble->voters, spare = voters ? (voters - 1) / 2 : 0;
    const char *where = "";
    const size_t together = count_together(ensemble, &where);
    if (voters < 2)
        hfi_finding(examination, HF_FINDING_NOTE, "ensemble",
                    "the server is alone: while it is down no lock is granted or renewed, and if its disk is lost all "
                    "locks and tokens are\nno other is written down (" CONFIG ")");
    else if (voters % 2 == 0)
        hfi_finding(examination, voters == 2 ? HF_FINDING_RISK : HF_FINDING_NOTE, "ensemble",
                    "%s\n%zu servers vote (" CONFIG ")\nadd a server, or remove one: an odd number",
                    voters == 2 ? "if either of two servers is down no lock is granted or renewed: that is twice as "
                                  "likely as with one"
                                : "an even number of servers survives no more failures than one server fewer would",
                    voters);
    else
        hfi_finding(examination, HF_FINDING_OK, "ensemble",
                    "locks are granted and renewed while %zu of the servers are down\n"
                    "%zu servers vote, and %zu observe (" CONFIG ")",
                    spare, voters, ensemble->observers);
    if (voters > 1 && together > spare)
        hfi_finding(examination, HF_FINDING_NOTE, "machines",
                    "if these servers are on one machine, all locks go with it\n"
                    "%zu of %zu servers are at %s (" CONFIG ")\na machine for each server",
                    together, voters, where);
}

static void look_at_ensemble(struct doctor *doctor)
{
    struct ensemble ensemble;
    if (doctor->config != ZOK) {
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "ensemble",
                    "how many servers there are is not known\n%s (" CONFIG ")", zerror(doctor->config));
        return;
    }
    read_ensemble(&ensemble, doctor->config_text);
    doctor->voters = ensemble.voters ? ensemble.voters : 1;
    judge_ensemble(doctor, &ensemble);
}

/* --- rights --- */

struct rights {
    int ours, others; /* ZOO_PERM_ bits: of this user, of everybody */
    bool unsure;      /* there are more, for somebody who may be us */
};

/* Lines of "31 world anyone". */
static struct rights read_rights(const struct doctor *doctor, char *text)
{
    const char *user = doctor->store->config.credentials;
    const size_t length = user ? strcspn(user, ":") : 0;
    struct rights rights = { .ours = 0 };
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char scheme[16] = "", id[80] = "";
        int bits = 0;
        sscanf(line, "%d %15s %79s", &bits, scheme, id);
        if (strcmp(scheme, "world") == 0) {
            rights.ours |= bits;
            rights.others |= bits;
        } else if (strcmp(scheme, "digest") != 0) {
            rights.unsure = true;
        } else if (user && strncmp(id, user, length) == 0 && id[length] == ':') {
            rights.ours |= bits;
        }
    }
    return rights;
}

static void look_at_rights(struct doctor *doctor)
{
    const struct hfi_examination *examination = doctor->examination;
    const char *path = doctor->acl_path;
    const struct rights rights = read_rights(doctor, doctor->acl_text);
    if (doctor->acl != ZOK && doctor->acl != ZNOAUTH)
        return;
    if (doctor->acl == ZNOAUTH)
        hfi_finding(examination, HF_FINDING_BROKEN, "rights",
                    "this user may not read where the locks are: none is granted\n%s: %s (getAcl %s)\n"
                    "setAcl %s, with cdrwa for this user",
                    path, zerror(doctor->acl), path, path);
    else if (!(rights.ours & ZOO_PERM_CREATE) && !rights.unsure)
        hfi_finding(examination, HF_FINDING_BROKEN, "rights",
                    "this user may not make what a new lock needs: none is granted\n"
                    "%s: no right to create (getAcl %s)\nsetAcl %s, with cdrwa for this user",
                    path, path, path);
    else
        hfi_finding(examination, HF_FINDING_OK, "rights", "%s\n%s (getAcl %s)",
                    rights.ours & ZOO_PERM_CREATE ? "this user may make what locks need"
                                                  : "whether this user is one of those who may make locks is not known",
                    path, path);
    if (rights.others & (ZOO_PERM_CREATE | ZOO_PERM_DELETE))
        hfi_finding(examination, HF_FINDING_NOTE, "strangers",
                    "%s\n%s: world:anyone may create or delete (getAcl %s)\n"
                    "a user in the URL of all clients, and setAcl %s for that user",
                    doctor->store->config.creator_only ? "whoever reaches the servers can make locks of their own here"
                                                       : "whoever reaches the servers can take a lock from its holder",
                    path, path, path);
}

/* --- each server of the URL, asked with four letters --- */

enum said { SAID_NOTHING, SAID_NO, SAID_NOT_SERVING, SAID_MODE };

struct server {
    char host[256];
    const char *port;
    enum said said;
    char version[24], mode[24];
    char trouble[160];
};

static bool sleep_for(const struct zookeeper_store *store, int fd, short events, hfi_time deadline_ns)
{
    const hfi_time left = deadline_ns - store->env->now_ns();
    const struct timespec most = { .tv_sec = left / HFI_SECOND, .tv_nsec = left % HFI_SECOND };
    struct pollfd one = { .fd = fd, .events = events };
    return left > 0 && ppoll(&one, 1, &most, NULL) != 0;
}

static hf_status dial(const struct zookeeper_store *store, struct hfi_dial *dial, int *fd, const struct server *server,
                      hfi_time deadline_ns, hf_error *err)
{
    hf_status status = hfi_dial_begin(dial, fd, server->host, server->port, err);
    if (status == HF_OK)
        status = HF_TIMEOUT;
    while (status == HF_TIMEOUT) {
        if (!sleep_for(store, *fd, POLLIN | POLLOUT, deadline_ns))
            return hfi_dial_late(dial, server->host, server->port, err);
        status = hfi_dial_step(dial, fd, server->host, server->port, err);
    }
    return status;
}

/* Until the server closes the connection. */
static size_t hear_out(const struct zookeeper_store *store, int fd, char *answer, size_t size, hfi_time deadline_ns)
{
    size_t used = 0;
    ssize_t length = send(fd, "srvr", 4, MSG_NOSIGNAL) == 4 ? 1 : 0;
    while (length != 0 && used < size - 1 && sleep_for(store, fd, POLLIN, deadline_ns)) {
        length = recv(fd, answer + used, size - 1 - used, 0);
        if (length < 0 && errno != EAGAIN && errno != EINTR)
            break;
        used += length > 0 ? (size_t)length : 0;
    }
    answer[used] = 0;
    return used;
}

static void understand(struct server *server, const char *answer)
{
    const char *version = strstr(answer, "version: "), *mode = strstr(answer, "Mode: ");
    server->said = SAID_NO;
    if (strstr(answer, "not currently serving"))
        server->said = SAID_NOT_SERVING;
    if (!mode)
        return;
    server->said = SAID_MODE;
    snprintf(server->mode, sizeof server->mode, "%.*s", (int)strcspn(mode + 6, "\r\n"), mode + 6);
    if (version)
        snprintf(server->version, sizeof server->version, "%.*s", (int)strcspn(version + 9, "-, \n"), version + 9);
}

static void ask_server(const struct doctor *doctor, struct server *server, hfi_time deadline_ns)
{
    struct hfi_dial way = { .silence_ms = SILENCE_MOST_MS };
    char answer[2000];
    int fd = -1;
    hf_error trouble = { .message = "the server hung up" };
    if (dial(doctor->store, &way, &fd, server, deadline_ns, &trouble) == HF_OK &&
        hear_out(doctor->store, fd, answer, sizeof answer, deadline_ns) > 0)
        understand(server, answer);
    snprintf(server->trouble, sizeof server->trouble, "%.159s", trouble.message);
    hfi_dial_end(&way);
    hfi_fd_close(fd);
}

static void judge_server(const struct doctor *doctor, const struct server *server)
{
    const struct hfi_examination *examination = doctor->examination;
    switch (server->said) {
    case SAID_MODE:
        hfi_finding(examination, HF_FINDING_OK, "server", "it serves\n%.200s:%s: %s, %s (srvr)", server->host,
                    server->port, server->mode, server->version);
        break;
    case SAID_NO:
        hfi_finding(examination, HF_FINDING_NOTE, "server",
                    "whether it serves, and of which version it is, is not known\n"
                    "%.200s:%s does not say (srvr)\nask it from its own machine",
                    server->host, server->port);
        break;
    case SAID_NOT_SERVING:
        hfi_finding(examination, HF_FINDING_RISK, "server",
                    "it is up and not part of a majority: it serves nobody\n%.200s:%s: not serving requests (srvr)\n"
                    "see why it does not reach the others",
                    server->host, server->port);
        break;
    case SAID_NOTHING:
        hfi_finding(examination, HF_FINDING_RISK, "server",
                    "with one server less there may be no majority when the next one goes, and no lock be granted or "
                    "renewed\n%s (srvr)\nstart it, or take it out of the URL",
                    server->trouble);
        break;
    }
}

/* Two that stand alone, or that lead, are two stores. */
static void compare_servers(const struct doctor *doctor, const struct server *servers, size_t count)
{
    size_t stores = 0, first = count, second = count, other = count;
    for (size_t i = 0; i < count; i++) {
        if (servers[i].said != SAID_MODE)
            continue;
        if (strcmp(servers[i].mode, "standalone") == 0 || strcmp(servers[i].mode, "leader") == 0) {
            stores++;
            second = i;
        }
        if (first == count)
            first = i;
        else if (strcmp(servers[i].version, servers[first].version) != 0)
            other = i;
    }
    if (stores > 1)
        hfi_finding(doctor->examination, HF_FINDING_BROKEN, "ensemble",
                    "the URL names servers that do not belong together: a lock has a holder at each of them\n"
                    "%zu of them lead or stand alone, %.200s:%s is %s (srvr)\nname the servers of one ensemble",
                    stores, servers[second].host, servers[second].port, servers[second].mode);
    if (other < count)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "version",
                    "servers of different versions are meant to be together only during an upgrade\n"
                    "%.100s:%s has %s, %.100s:%s has %s (srvr)\nfinish the upgrade",
                    servers[first].host, servers[first].port, servers[first].version, servers[other].host,
                    servers[other].port, servers[other].version);
    if (count < doctor->voters / 2 + 1)
        hfi_finding(doctor->examination, HF_FINDING_NOTE, "URL",
                    "if the servers that it names are down locks are lost, though the others serve; unless a name "
                    "stands for several\nthe URL names %zu, and %zu servers vote (" CONFIG ")\nname all of them",
                    count, doctor->voters);
    if (doctor->examination->ttl_ms < ELECTION_MS && (count > 1 || doctor->voters > 1))
        hfi_finding(doctor->examination, HF_FINDING_RISK, "time-to-live",
                    "while a new leader is elected nothing is renewed: a lock with so short a time may be lost by it\n"
                    "%u ms; an election takes a second or two\na --ttl of 5s or more",
                    doctor->examination->ttl_ms);
}

static size_t split_hosts(struct server *servers, const char *hosts)
{
    size_t count = 0;
    while (*hosts && count < SERVERS_MOST) {
        const size_t length = strcspn(hosts, ",");
        struct server *server = &servers[count];
        snprintf(server->host, sizeof server->host, "%.*s", (int)length, hosts);
        char *colon = strrchr(server->host, ':');
        hosts += length + (hosts[length] == ',');
        if (!colon)
            continue;
        *colon = 0;
        server->port = colon + 1;
        count++;
    }
    return count;
}

static hf_status look_at_servers(const struct doctor *doctor, hf_error *err)
{
    struct server *servers = hfi_alloc(SERVERS_MOST * sizeof *servers);
    if (!servers)
        return hfi_zookeeper_no_memory(err);
    const size_t count = split_hosts(servers, doctor->store->config.hosts);
    for (size_t i = 0; i < count; i++) { /* one that stands still costs its share of the time */
        const hfi_time now = doctor->store->env->now_ns();
        ask_server(doctor, &servers[i], now + (doctor->deadline_ns - now) / (hfi_time)(count - i + 1));
    }
    for (size_t i = 0; i < count; i++)
        judge_server(doctor, &servers[i]);
    compare_servers(doctor, servers, count);
    hfi_free(servers);
    return HF_OK;
}

/* --- all of it --- */

/* A transaction that checks something and changes nothing: as a renewal, it needs a majority. */
static void prove(struct doctor *doctor, struct zookeeper_session *session)
{
    static const char *const root[] = { "/" };
    const hfi_time now = doctor->store->env->now_ns(), until = now + (doctor->deadline_ns - now) / 2;
    for (int i = 0; i < PROOFS && doctor->proof == ZOK; i++) {
        const hfi_time begun = doctor->store->env->now_ns();
        struct zookeeper_call *call = hfi_zookeeper_check(session, root, 1);
        doctor->proof = hfi_zookeeper_answer(call, until);
        hfi_zookeeper_call_free(call);
        const hfi_time took = doctor->store->env->now_ns() - begun;
        doctor->slowest_ns = took > doctor->slowest_ns ? took : doctor->slowest_ns;
    }
}

static void ask_about_ensemble(struct doctor *doctor, struct zookeeper_session *session)
{
    struct zookeeper_call *call = hfi_zookeeper_get(session, "/zookeeper/config", false);
    doctor->config = hfi_zookeeper_answer(call, doctor->deadline_ns);
    if (doctor->config == ZOK && call->stat.dataLength >= (int)sizeof call->text) /* half of it says nothing */
        doctor->config = ZMARSHALLINGERROR;
    if (doctor->config == ZOK)
        snprintf(doctor->config_text, sizeof doctor->config_text, "%s", call->text);
    hfi_zookeeper_call_free(call);
}

/* Of the directory of all locks, or the nearest one above it that is there yet. */
static void ask_about_rights(struct doctor *doctor, struct zookeeper_session *session)
{
    char *path = doctor->acl_path;
    const char *prefix = doctor->store->config.prefix;
    snprintf(path, sizeof doctor->acl_path, "%s", *prefix ? prefix : "/");
    for (;;) {
        struct zookeeper_call *call = hfi_zookeeper_get_acl(session, path);
        doctor->acl = hfi_zookeeper_answer(call, doctor->deadline_ns);
        if (doctor->acl == ZOK)
            snprintf(doctor->acl_text, sizeof doctor->acl_text, "%s", call->text);
        hfi_zookeeper_call_free(call);
        if (doctor->acl != ZNONODE || strcmp(path, "/") == 0)
            return;
        char *slash = strrchr(path, '/');
        slash[slash == path] = 0;
    }
}

static hf_status ask(struct doctor *doctor, hf_error *err)
{
    struct zookeeper_store *store = doctor->store;
    struct zookeeper_session *session;
    hfi_zookeeper_enter(store);
    const hfi_time now = store->env->now_ns();
    const hf_status status =
        hfi_zookeeper_session_borrow(store, 0, &session, now + (doctor->deadline_ns - now) / 2, err);
    if (status == HF_OK) {
        doctor->asked_ms = session->asked_ms;
        doctor->given_ms = session->timeout_ms;
        prove(doctor, session);
        if (doctor->proof == ZOK) {
            ask_about_ensemble(doctor, session);
            ask_about_rights(doctor, session);
        }
        hfi_zookeeper_session_give_back(session);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

hf_status hfi_zookeeper_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                                hf_error *err)
{
    struct doctor doctor = { .store = memory, .examination = examination, .deadline_ns = deadline_ns };
    hf_error trouble = { .message = "" };
    const hf_status status = ask(&doctor, &trouble);
    if (status == HF_OK) {
        judge_session(&doctor);
        judge_quorum(&doctor);
    } else {
        hfi_finding(examination, HF_FINDING_BROKEN, status == HF_DENIED ? "rights" : "quorum",
                    "no server lets us in: no lock is granted or renewed\n%s (srvr)\nstart the servers that are down",
                    trouble.message);
    }
    if (status == HF_OK && doctor.proof == ZOK) {
        look_at_ensemble(&doctor);
        look_at_rights(&doctor);
    }
    return look_at_servers(&doctor, err);
}
