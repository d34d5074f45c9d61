/* SPDX-License-Identifier: MIT
 *
 * test_mysql_doctor.c: what hf_examine() says of servers that are set up well, and of one that is set up badly in each
 * way that can be had.
 */
#include "mysql_support.h"
#include "server_clock.h"

#include <stdio.h>

/* The server of a test is as fast as can be: nothing is flushed. */
#define DURABLE "--innodb-flush-log-at-trx-commit=1 --innodb-flush-method=fsync --sync-binlog=1 --innodb-doublewrite=1"

TEST_LIMIT(a_good_server_has_nothing_wrong, 60)
{
    struct mysql_server *server = start_store("lease", DURABLE);
    for (size_t s = 0; s < STRATEGIES; s++) {
        use_strategy(server, strategy_names[s]);
        hf_client *client = open_client();
        must_find_no_risk(find_with(client, 0));
        hf_close(client);
    }
    found(HF_FINDING_NOTE, "replication", "alone");
    found(HF_FINDING_OK, "proxy", "as was announced");
}

TEST_LIMIT(a_server_that_forgets_is_found, 60)
{
    struct mysql_server *server = start_store("lease", "--log-bin --server-id=1 --innodb-doublewrite=0");
    mysql_server_do(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    found(HF_FINDING_RISK, "disk", "innodb_flush_log_at_trx_commit is 2");
    mysql_server_do(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 0");
    found(HF_FINDING_RISK, "disk", "innodb_flush_log_at_trx_commit is 0");
    mysql_server_do(server, "SET GLOBAL innodb_flush_log_at_trx_commit = 1");
    found(HF_FINDING_OK, "disk", "innodb_flush_log_at_trx_commit is 1");
    found(HF_FINDING_RISK, "pages", "innodb_doublewrite is OFF");
    found(HF_FINDING_RISK, "flushing", "innodb_flush_method is nosync");
    mysql_server_do(server, "SET GLOBAL sync_binlog = 0");
    found(HF_FINDING_RISK, "log", "sync_binlog is 0");
    mysql_server_do(server, "SET GLOBAL sync_binlog = 1");
    mysql_server_do(server, "SET GLOBAL binlog_format = 'STATEMENT'");
    found(HF_FINDING_RISK, "log format", "binlog_format is STATEMENT");
    mysql_server_do(server, "SET GLOBAL binlog_format = 'ROW'");
    hf_client *client = open_client();
    mysql_server_do(server, "SET GLOBAL read_only = 1");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "writable", "no lock is granted");
    hf_close(client);
}

TEST_LIMIT(a_replica_that_may_lag_is_found, 60)
{
    struct mysql_server *primary = mysql_server_start("--log-bin --server-id=1 " DURABLE);
    struct mysql_server *replica = mysql_server_start("--log-bin --server-id=2 " DURABLE);
    mysql_server_do(replica,
                    "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %d, MASTER_USER = 'root',"
                    " MASTER_USE_GTID = no",
                    primary->port);
    use_strategy(primary, "lease");
    hf_close(open_client()); /* makes the tables */
    use_strategy(replica, "lease");
    hf_close(open_client()); /* there too: what the primary has written is not repeated */
    mysql_server_do(replica, "STOP SLAVE");
    mysql_server_do(replica, "SET GLOBAL slave_exec_mode = 'IDEMPOTENT'");
    mysql_server_do(replica, "START SLAVE IO_THREAD");
    mysql_server_await(primary, 1, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'");
    found(HF_FINDING_RISK, "role", "do not exclude each other");
    use_strategy(primary, "lease");
    found(HF_FINDING_RISK, "replication", "1 replicas, not semi-synchronous");
    mysql_server_do(replica, "STOP SLAVE");
    mysql_server_do(replica, "SET GLOBAL rpl_semi_sync_slave_enabled = 1");
    mysql_server_do(primary, "SET GLOBAL rpl_semi_sync_master_timeout = 1");
    mysql_server_do(primary, "SET GLOBAL rpl_semi_sync_master_enabled = 1");
    found(HF_FINDING_RISK, "replication", "0 replicas answer");
    mysql_server_do(replica, "START SLAVE IO_THREAD");
    mysql_server_await(primary, 1,
                       "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME ="
                       " 'Rpl_semi_sync_master_clients'");
    found(HF_FINDING_OK, "replication", "1 replicas answer");
}

TEST_LIMIT(tables_that_cannot_keep_locks_are_found, 60)
{
    struct mysql_server *server = start_store("lease", DURABLE);
    hf_client *client = open_client();
    mysql_server_do(server, "ALTER TABLE holdfast_locks DROP PRIMARY KEY");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "no unique index");
    mysql_server_do(server, "ALTER TABLE holdfast_locks ADD PRIMARY KEY (name), ENGINE = MyISAM");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "not kept by InnoDB");
    mysql_server_do(server, "ALTER TABLE holdfast_locks ENGINE = InnoDB");
    must_find_no_risk(find_with(client, 0));
    mysql_server_do(server, "ALTER TABLE holdfast_locks DROP COLUMN request");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "a table or column is missing");
    mysql_server_do(server, "DROP TABLE holdfast_locks_waiters");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "tables", "a table or column is missing");
    CHECK_INT(0, mysql_server_number(server, "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME ="
                                             " 'holdfast_locks_waiters'"));
    hf_close(client);
}

TEST_LIMIT(rights_are_looked_at, 60)
{
    char url[200];
    struct mysql_server *server = start_store("lease", DURABLE);
    hf_close(open_client()); /* makes the tables */
    mysql_server_do(server, "CREATE USER keeper@'%%'");
    for (size_t i = 0; i < 5; i++) {
        static const char *const ends[] = { "", "_grants", "_waiters", "_fences", "_done" };
        mysql_server_do(server, "GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_locks%s TO keeper@'%%'", ends[i]);
    }
    snprintf(url, sizeof url, "mysql://keeper@127.0.0.1:%d/app", server->port);
    use_url(url);
    hf_client *client = open_client();
    must_find_no_risk(find_with(client, 0));
    mysql_server_do(server, "REVOKE UPDATE ON holdfast_locks_grants FROM keeper@'%%'");
    must_find(find_with(client, 0), HF_FINDING_BROKEN, "rights", "UPDATE");
    mysql_server_do(server, "GRANT UPDATE ON holdfast_locks_grants TO keeper@'%%'");
    mysql_server_do(server, "REVOKE INSERT ON holdfast_locks_fences FROM keeper@'%%'");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "rights", "guard");
    mysql_server_do(server, "GRANT INSERT ON holdfast_locks_fences TO keeper@'%%'");
    mysql_server_do(server, "REVOKE INSERT ON holdfast_locks_done FROM keeper@'%%'");
    must_find(find_with(client, 0), HF_FINDING_NOTE, "rights", "mark work as done");
    mysql_server_do(server, "GRANT INSERT ON holdfast_locks_done TO keeper@'%%'");
    mysql_server_do(server, "REVOKE DELETE ON holdfast_locks FROM keeper@'%%'");
    must_find_no_risk(find_with(client, 0)); /* only insert needs it */
    CHECK_INT(0, mysql_server_number(server, "SELECT COUNT(*) FROM holdfast_locks WHERE name = ''"));
    hf_close(client);
    snprintf(url, sizeof url, "mysql://keeper@127.0.0.1:%d/app?strategy=insert", server->port);
    use_url(url);
    found(HF_FINDING_BROKEN, "rights", "DELETE");
    mysql_server_do(server, "ALTER USER keeper@'%%' WITH MAX_USER_CONNECTIONS 3");
    found(HF_FINDING_RISK, "connections", "of 3 allowed by max_user_connections");
}

TEST_LIMIT(a_clock_that_is_wrong_is_found, 60)
{
    struct mysql_server *server = start_store("lease", DURABLE);
    mysql_server_own_clock(server);
    server_clock_set(server->clock, -5000);
    found(HF_FINDING_RISK, "clock", "behind the clock");
    server_clock_set(server->clock, 5000);
    found(HF_FINDING_RISK, "clock", "ahead of the clock");
}
