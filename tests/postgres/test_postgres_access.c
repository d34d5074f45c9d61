/* SPDX-License-Identifier: MIT
 *
 * test_postgres_access.c: what libpq offers for getting in works as it does elsewhere: TLS, password and service files,
 * environment variables, options.
 */
#include "postgres_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file beside the server's folder, for us alone. */
static void write_private(char *path, size_t size, const struct postgres_server *server, const char *name,
                          const char *text)
{
    snprintf(path, size, "%s.%s", server->directory, name);
    FILE *file = fopen(path, "wex");
    REQUIRE(file != NULL);
    REQUIRE_INT(0, fchmod(fileno(file), 0600)); /* libpq reads no password that others may read too */
    fprintf(file, "%s", text);
    REQUIRE_INT(0, fclose(file));
}

static struct postgres_server *start_for_guests(void)
{
    struct postgres_server *server = start_store("lease", "");
    postgres_server_do(server, "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest");
    return server;
}

/* -------------------------------------------------------------------------------------------------------------- TLS */

TEST_LIMIT(tls_trusts_only_whom_it_should, 60)
{
    char url[500];
    const char *folder = getenv("TEST_CERTIFICATES");
    struct postgres_server *server = start_store("lease", "");
    REQUIRE(folder != NULL);
    check_open_at(HF_UNAVAILABLE, "SSL", "postgres://postgres@localhost:%d/postgres?sslmode=require", server->port);
    postgres_server_use_tls(server, "server");
    snprintf(url, sizeof url, "postgres://postgres@localhost:%d/postgres?sslmode=verify-full&sslrootcert=%s/ca.pem",
             server->port, folder);
    store_url = url;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    CHECK_INT(0, postgres_server_number(server, "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)"
                                                " WHERE application_name = 'holdfast' AND NOT s.ssl"));
    must_release(lock);
    hf_close(client);
    check_open_at(HF_DENIED, "certificate",
                  "postgres://postgres@localhost:%d/postgres?sslmode=verify-full&sslrootcert=%s/other-ca.pem",
                  server->port, folder);
    check_open_at(HF_INVALID, "/nowhere/ca.pem",
                  "postgres://postgres@localhost:%d/postgres?sslmode=verify-ca&sslrootcert=/nowhere/ca.pem",
                  server->port);
}

TEST_LIMIT(a_certificate_for_another_host_is_refused, 60)
{
    char url[500];
    const char *folder = getenv("TEST_CERTIFICATES");
    struct postgres_server *server = start_store("lease", "");
    REQUIRE(folder != NULL);
    postgres_server_use_tls(server, "stranger");
    check_open_at(HF_DENIED, "elsewhere.example",
                  "postgres://postgres@localhost:%d/postgres?sslmode=verify-full&sslrootcert=%s/ca.pem", server->port,
                  folder);
    snprintf(url, sizeof url, "postgres://postgres@localhost:%d/postgres?sslmode=verify-ca&sslrootcert=%s/ca.pem",
             server->port, folder);
    check_works(url);
}

/* -------------------------------------------------------------------------------------- files and the environment */

TEST_LIMIT(a_password_file_is_used, 60)
{
    char url[400], path[300];
    struct postgres_server *server = start_for_guests();
    write_private(path, sizeof path, server, "pgpass", "127.0.0.1:*:*:guest:open-sesame\n");
    snprintf(url, sizeof url, "postgres://guest@127.0.0.1:%d/postgres", server->port);
    check_open(url, HF_DENIED, "password");
    REQUIRE_INT(0, setenv("PGPASSFILE", path, 1));
    check_works(url);
    REQUIRE_INT(0, unsetenv("PGPASSFILE"));
    snprintf(url, sizeof url, "postgres://guest@127.0.0.1:%d/postgres?passfile=%s", server->port, path);
    check_works(url);
    CHECK_INT(0, remove(path));
}

TEST_LIMIT(our_own_variable_is_the_last_place_of_a_password, 60)
{
    char url[400], path[300];
    struct postgres_server *server = start_for_guests();
    snprintf(url, sizeof url, "postgres://guest@127.0.0.1:%d/postgres", server->port);
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "open-sesame", 1));
    check_works(url);
    REQUIRE_INT(0, setenv("PGPASSWORD", "wrong", 1));
    check_open(url, HF_DENIED, "password");
    REQUIRE_INT(0, unsetenv("PGPASSWORD"));
    REQUIRE_INT(0, setenv("HOLDFAST_PASSWORD", "wrong", 1));
    check_open(url, HF_DENIED, "password");
    write_private(path, sizeof path, server, "pgpass", "127.0.0.1:*:*:guest:open-sesame\n");
    REQUIRE_INT(0, setenv("PGPASSFILE", path, 1));
    check_works(url);
    REQUIRE_INT(0, unsetenv("PGPASSFILE"));
    snprintf(url, sizeof url, "postgres://guest:open-sesame@127.0.0.1:%d/postgres", server->port);
    check_works(url);
    CHECK_INT(0, remove(path));
}

TEST_LIMIT(a_service_file_is_used, 60)
{
    char text[300], path[300];
    struct postgres_server *server = start_for_guests();
    snprintf(text, sizeof text,
             "[locks]\nhost=localhost\nport=%d\nuser=guest\ndbname=postgres\npassword=open-sesame\n"
             "ssl_max_protocol_version=none\n[good]\nhost=127.0.0.1\nport=%d\nuser=guest\ndbname=postgres\n"
             "password=open-sesame\n",
             server->port, server->port);
    write_private(path, sizeof path, server, "services", text);
    REQUIRE_INT(0, setenv("PGSERVICEFILE", path, 1));
    check_works("postgres://?service=good");
    check_works("postgres://127.0.0.1/?service=good&strategy=lease");
    check_open("postgres://?service=elsewhere", HF_INVALID, "elsewhere");
    /* What is in the file counts, also what the engine itself makes use of to read it. */
    check_open("postgres://?service=locks", HF_INVALID, "ssl_max_protocol_version");
    REQUIRE_INT(0, setenv("PGSERVICE", "good", 1));
    check_works("postgres:");
    REQUIRE_INT(0, unsetenv("PGSERVICE"));
    REQUIRE_INT(0, setenv("PGSERVICEFILE", "/nowhere/services", 1));
    check_open("postgres://?service=good", HF_INVALID, "/nowhere/services");
    CHECK_INT(0, remove(path));
}

TEST_LIMIT(environment_variables_are_used, 60)
{
    char port[16];
    struct postgres_server *server = start_for_guests();
    snprintf(port, sizeof port, "%d", server->port);
    REQUIRE_INT(0, setenv("PGHOST", "127.0.0.1", 1) | setenv("PGPORT", port, 1) | setenv("PGUSER", "guest", 1) |
                       setenv("PGDATABASE", "postgres", 1));
    check_open("postgres:", HF_DENIED, "127.0.0.1");
    REQUIRE_INT(0, setenv("PGPASSWORD", "open-sesame", 1));
    check_works("postgres:");
    check_works("postgresql://");
    REQUIRE_INT(0, setenv("PGHOST", server->directory, 1) | setenv("PGUSER", "postgres", 1));
    check_works("postgres:");
    REQUIRE_INT(0, setenv("PGPORT", "none", 1));
    check_open("postgres:", HF_INVALID, "none");
}

TEST_LIMIT(options_go_to_libpq, 60)
{
    char url[400];
    struct postgres_server *server = postgres_server_start("");
    postgres_server_do(server, "CREATE SCHEMA app");
    snprintf(url, sizeof url, "%s?options=-csearch_path%%3Dapp&application_name=night%%20shift&connect_timeout=3",
             server->url);
    store_url = url;
    hf_client *client = open_client();
    hf_lock *lock = must_acquire(client, "x", NULL);
    CHECK_INT(1, postgres_server_number(
                     server, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'night shift'"));
    CHECK_INT(1, postgres_server_number(server, "SELECT count(*) FROM app.holdfast_locks WHERE client IS NOT NULL"));
    CHECK_STATUS(HF_OK, hf_guard(client, "r", 1, NULL), NULL);
    CHECK_INT(1, postgres_server_number(server, "SELECT count(*) FROM app.holdfast_locks_fences"));
    must_release(lock);
    hf_close(client);
    check_works(server->unix_url);
}
