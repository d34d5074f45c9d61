/* SPDX-License-Identifier: MIT
 *
 * fuzz_mysql.c: URLs of the mysql: engine. No crash, no password in a message, and no name of a table in a statement
 * that would have to be quoted.
 *
 * The passwords of the corpus contain SECRET, which stands nowhere else by chance.
 */
#include "fuzz.h"

#include "engines/mysql/mysql_engine.h"

#include <string.h>

#define SECRET "Xs3cretX"
#define TEXT_MOST 4096

const char *const fuzz_words[] = { "//",
                                   ("user:" SECRET "@"),
                                   (":" SECRET "@"),
                                   "user@",
                                   "db.example.com",
                                   "[::1]",
                                   ":3306",
                                   "/app",
                                   "?strategy=get-lock",
                                   "&strategy=for-update",
                                   "&table=jobs",
                                   "&table=elsewhere.jobs",
                                   "&table=a`b",
                                   "&create=no",
                                   "&pooler=session",
                                   "&socket=/run/mysqld/mysqld.sock",
                                   "&default-file=/nowhere/my.cnf",
                                   "&group=locks",
                                   "&ssl=yes",
                                   "&ssl-verify=yes",
                                   "&ssl-ca=/x",
                                   "&tls-version=TLSv1.3",
                                   "%2F",
                                   "%40",
                                   "%00",
                                   "%",
                                   "@",
                                   "99999999999999999999",
                                   NULL };

/* Behind a ':' and before the last '@', in front of path and options. */
static bool secret_is_a_password(const char *text)
{
    const char *authority = strncmp(text, "//", 2) == 0 ? text + 2 : text;
    const size_t length = strcspn(authority, "/?");
    const char *secret = strstr(text, SECRET), *colon = memchr(authority, ':', length),
               *at = memrchr(authority, '@', length);
    return secret && colon && at && colon < secret && secret < at && !strstr(secret + 1, SECRET);
}

static void check_statements(const struct mysql_config *config)
{
    for (size_t i = 0; i < SQL_STATEMENTS; i++) {
        const char *wanted = config->strategy->sql[i].text, *text = config->sql[i];
        FUZZ_REQUIRE(!wanted == !text);
        const bool of_connections =
            i == SQL_CALL || i == SQL_WAITS || i == SQL_RINGER || (wanted && !strchr(wanted, '{'));
        FUZZ_REQUIRE(!text || (!strstr(text, "{") && strstr(text, config->table)) || of_connections);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_MOST];
    struct mysql_config config = { 0 };
    hf_error err = { 0 };
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (strstr(text, "password-file")) /* would read whatever file the fuzzer thinks of */
        return 0;
    const hf_status status = hfi_mysql_config_read(&config, &(struct hfi_url){ "mysql", text }, &err);
    if (status == HF_OK) {
        FUZZ_REQUIRE(*config.where && *config.table && strspn(config.table, "`'\\ ;") == 0);
        check_statements(&config);
    } else {
        FUZZ_REQUIRE(err.status == status && *err.message);
        FUZZ_REQUIRE(!secret_is_a_password(text) || !strstr(err.message, SECRET));
    }
    hfi_mysql_config_free(&config);
    return 0;
}
