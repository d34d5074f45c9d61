/* SPDX-License-Identifier: MIT
 *
 * mysql_answer.c: what refusals of the server and of libmariadb mean to the caller, in one sentence. hf_error.native is
 * their number.
 */
#include "mysql_engine.h"
#include <errmsg.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <string.h>

/* Numbers of MySQL that MariaDB does not have. */
enum { MYSQL_CONNECTION_KILLED = 1927, MYSQL_USER_LOCK_DEADLOCK = 3058, MYSQL_NOWAIT = 3572 };

static hf_status status_of(unsigned number)
{
    static const struct {
        unsigned number;
        hf_status status;
    } known[] = {
        { ER_ACCESS_DENIED_ERROR, HF_DENIED },
        { ER_ACCESS_DENIED_NO_PASSWORD_ERROR, HF_DENIED },
        { ER_DBACCESS_DENIED_ERROR, HF_DENIED },
        { ER_TABLEACCESS_DENIED_ERROR, HF_DENIED },
        { ER_COLUMNACCESS_DENIED_ERROR, HF_DENIED },
        { ER_SPECIFIC_ACCESS_DENIED_ERROR, HF_DENIED },
        { ER_PROCACCESS_DENIED_ERROR, HF_DENIED },
        { ER_KILL_DENIED_ERROR, HF_DENIED },
        { ER_HOST_NOT_PRIVILEGED, HF_DENIED },
        { ER_MUST_CHANGE_PASSWORD, HF_DENIED },
        { CR_AUTH_PLUGIN_CANNOT_LOAD, HF_DENIED },
        { ER_BAD_DB_ERROR, HF_INVALID },
        { ER_NO_DB_ERROR, HF_INVALID },
        { ER_NO_SUCH_TABLE, HF_INVALID },
        { ER_BAD_FIELD_ERROR, HF_INVALID }, /* a table of another shape */
        { ER_DATA_TOO_LONG, HF_INVALID },
        { ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, HF_INVALID },
        { ER_PARSE_ERROR, HF_UNSUPPORTED },
        { ER_BINLOG_STMT_MODE_AND_ROW_ENGINE, HF_UNSUPPORTED },
        { CR_OUT_OF_MEMORY, HF_NOMEM },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].number == number)
            return known[i].status;
    }
    /* Deadlocks, time-outs, shutdown, too many connections, a full disk, read-only, a replica, a kill: passing, or a
     * matter for whoever runs the server. */
    return HF_UNAVAILABLE;
}

/* What is wrong with TLS has one number: a certificate that is not trusted, a server without TLS, and one that is going
 * away. */
static bool is_distrust(unsigned number, const char *text)
{
    return number == CR_SSL_CONNECTION_ERROR &&
           (strcasestr(text, "certificate") || strcasestr(text, "verif") || strcasestr(text, "not support"));
}

hf_status hfi_mysql_refusal(const struct mysql_store *store, unsigned number, const char *text, hf_error *err)
{
    char words[150];
    snprintf(words, sizeof words, "%s", text);
    words[strcspn(words, "\r\n")] = 0;
    const hf_status status = is_distrust(number, text) ? HF_DENIED : status_of(number);
    return hfi_fail(err, status, (int)number, "%.70s refused: %s (%u)", store->config.where, words, number);
}

bool hfi_mysql_is_final(hf_status status)
{
    return status == HF_DENIED || status == HF_INVALID || status == HF_UNSUPPORTED;
}

bool hfi_mysql_is_lost(unsigned number)
{
    return number == CR_SERVER_GONE_ERROR || number == CR_SERVER_LOST || number == CR_UNKNOWN_ERROR ||
           number == CR_MALFORMED_PACKET || number == CR_COMMANDS_OUT_OF_SYNC || number == MYSQL_CONNECTION_KILLED ||
           number == 0;
}

bool hfi_mysql_is_conflict(unsigned number)
{
    return number == ER_LOCK_DEADLOCK || number == ER_LOCK_WAIT_TIMEOUT || number == ER_CHECKREAD ||
           number == MYSQL_USER_LOCK_DEADLOCK || number == ER_NEED_REPREPARE;
}

bool hfi_mysql_is_missing_table(unsigned number)
{
    return number == ER_NO_SUCH_TABLE;
}

bool hfi_mysql_is_there_already(unsigned number)
{
    return number == ER_DUP_FIELDNAME;
}

bool hfi_mysql_is_locked(unsigned number)
{
    return number == ER_LOCK_WAIT_TIMEOUT || number == MYSQL_NOWAIT;
}
