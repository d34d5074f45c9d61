/* SPDX-License-Identifier: MIT
 *
 * test_mysql_access.c: the usual ways of getting in: TLS, password and option files, the environment, a socket file.
 */
#include "mysql_support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file in the server's folder, for us alone. */
static void write_private(char *path, size_t size, const struct mysql_server *server, const char *text)
{
    snprintf(path, size, "%s/private", server->directory);
    FILE *file = fopen(path, "we");
    REQUIRE(file != NULL);
    REQUIRE_INT(0, fchmod(fileno(file), 0600));
    fprintf(file, "%s", text);
    REQUIRE_INT(0, fclose(file));
}

static struct mysql_server *start_for_guests(const char *settings)
{
    struct mysql_server *server = start_store("lease", settings);
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO guest@'%%'");
    mysql_server_do(server, "CREATE USER guest@localhost IDENTIFIED BY 'open-sesame'");
    mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO guest@localhost");
    return server;
}

TEST_LIMIT(a_password_comes_from_where_it_is_kept, 60)
{
    char url[500], path[300], text[400];
    struct mysql_server *server = start_for_guests("");
    snprintf(url, sizeof url, "mysql://guest:open%%2Dsesame@localhost:%d/app", server->port);
    check_works(url);
    write_private(path, sizeof path, server, "open-sesame\n");
    snprintf(url, sizeof url, "mysql://guest@127.0.0.1:%d/app?password_file=%s", server->port, path);
    check_works(url);
    /* As it was spelt first. */
    snprintf(url, sizeof url, "mysql://guest@127.0.0.1:%d/app?password-file=%s", server->port, path);
    check_works(url);
    /* An option file, in which all of it may stand; and a group of our own in it. */
    snprintf(
        text, sizeof text,
        "[client]\nuser=nobody\n[locks]\nuser=guest\npassword=open-sesame\nhost=127.0.0.1\nport=%d\ndatabase=app\n",
        server->port);
    write_private(path, sizeof path, server, text);
    snprintf(url, sizeof url, "mysql://?default-file=%s&group=locks", path);
    check_works(url);
    check_open_at(HF_DENIED, "nobody", "mysql://127.0.0.1:%d/app?default-file=%s", server->port, path);
    snprintf(url, sizeof url, "mysql://guest@127.0.0.1:%d/app", server->port);
    check_open(url, HF_DENIED, "1045");
    REQUIRE_INT(0, setenv("MYSQL_PWD", "open-sesame", 1));
    check_works(url);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "wrong", 1)); /* the last of them */
    check_works(url);
    REQUIRE_INT(0, unsetenv("MYSQL_PWD"));
    check_open(url, HF_DENIED, "1045");
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "open-sesame", 1));
    check_works(url);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "wrong", 1));
    snprintf(url, sizeof url, "mysql://?default-file=%s&group=locks", path);
    check_works(url);
    snprintf(url, sizeof url, "mariadb://guest:open-sesame@/app?socket=%s/socket", server->directory);
    check_works(url);
}

TEST_LIMIT(tls_trusts_only_whom_it_should, 60)
{
    char url[600], settings[600];
    const char *folder = getenv("TEST_CERTIFICATES");
    REQUIRE(folder != NULL);
    struct mysql_server *plain = start_store("lease", "--skip-ssl"); /* MariaDB 11.4 has TLS by itself */
    check_open_at(HF_DENIED, "TLS", "mysql://root@localhost:%d/app?ssl=yes", plain->port);
    check_open_at(HF_DENIED, "SSL", "mysql://root@localhost:%d/app?ssl-ca=%s/ca.pem", plain->port, folder);
    mysql_server_stop(plain);
    snprintf(settings, sizeof settings, "--ssl-ca=%s/ca.pem --ssl-cert=%s/server.pem --ssl-key=%s/server.key", folder,
             folder, folder);
    struct mysql_server *server = start_for_guests(settings);
    mysql_server_do(server, "ALTER USER guest@'%%' REQUIRE SSL");
    mysql_server_do(server, "ALTER USER guest@localhost REQUIRE SSL");
    snprintf(url, sizeof url, "mysql://guest:open-sesame@localhost:%d/app?ssl-verify=yes&ssl-ca=%s/ca.pem",
             server->port, folder);
    check_works(url);
    check_open_at(HF_DENIED, "2026", "mysql://guest:open-sesame@localhost:%d/app?ssl-verify=yes&ssl-ca=%s/other-ca.pem",
                  server->port, folder);
    check_open_at(HF_DENIED, "1045", "mysql://guest:open-sesame@localhost:%d/app", server->port);
}

struct plain_program {
    char url[600];
    struct gate started, held, killed;
};

static void lose_the_server(void *arg)
{
    struct plain_program *it = arg;
    struct sigaction action;
    gate_await(&it->started, 1);
    store_url = it->url;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    REQUIRE_INT(0, sigaction(SIGPIPE, NULL, &action));
    CHECK(action.sa_handler == SIG_DFL);
    gate_pass(&it->held);
    gate_await(&it->killed, 1);
    CHECK(hf_release(lock, NULL) != HF_OK);
    hf_close(client);
}

/* The program's signals are the program's: neither is SIGPIPE ignored from now on, nor does one come. In a process in
 * which nobody else has used libmariadb. */
TEST_LIMIT(a_connection_that_breaks_raises_no_signal, 60)
{
    char settings[600];
    const char *folder = getenv("TEST_CERTIFICATES");
    struct plain_program *it = shared_new(sizeof *it);
    REQUIRE(folder != NULL);
    pid_t program = helper_start(lose_the_server, it);
    snprintf(settings, sizeof settings, "--ssl-ca=%s/ca.pem --ssl-cert=%s/server.pem --ssl-key=%s/server.key", folder,
             folder, folder);
    struct mysql_server *server = start_for_guests(settings);
    snprintf(it->url, sizeof it->url, "mysql://guest:open-sesame@localhost:%d/app?ssl-verify=yes&ssl-ca=%s/ca.pem",
             server->port, folder);
    gate_pass(&it->started);
    gate_await(&it->held, 1);
    mysql_server_kill(server);
    gate_pass(&it->killed);
    helper_join(program);
}

TEST_LIMIT(a_certificate_for_another_host_is_refused, 60)
{
    char url[600], settings[600];
    const char *folder = getenv("TEST_CERTIFICATES");
    REQUIRE(folder != NULL);
    snprintf(settings, sizeof settings, "--ssl-ca=%s/ca.pem --ssl-cert=%s/stranger.pem --ssl-key=%s/stranger.key",
             folder, folder, folder);
    struct mysql_server *server = start_store("lease", settings);
    check_open_at(HF_DENIED, "2026", "mysql://root@localhost:%d/app?ssl-ca=%s/ca.pem", server->port, folder);
    snprintf(url, sizeof url, "mysql://root@localhost:%d/app?ssl=yes&ssl-verify=no&ssl-ca=%s/ca.pem", server->port,
             folder);
    check_works(url);
}
