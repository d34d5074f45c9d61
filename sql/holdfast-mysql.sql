-- SPDX-License-Identifier: MIT
--
-- The tables and the guard of the mysql: engine, for those whose programs may not create them. MariaDB 10.5 or newer,
-- MySQL 8.0.29 or newer. Running it again does no harm.
--
--     mariadb DATABASE < holdfast-mysql.sql
--     sed 's/holdfast_locks/jobs/g; s/holdfast_guard/jobs_guard/g' holdfast-mysql.sql | mariadb DATABASE
--                                                                     for URLs with ?table=jobs
--
-- What a program's user needs:
--
--     GRANT SELECT, INSERT, UPDATE, DELETE ON DATABASE.holdfast_locks TO worker;
--     GRANT SELECT, INSERT, UPDATE ON DATABASE.holdfast_locks_grants TO worker;
--     GRANT SELECT, INSERT, DELETE ON DATABASE.holdfast_locks_waiters TO worker;
--     GRANT SELECT, INSERT, UPDATE ON DATABASE.holdfast_locks_fences TO worker;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON DATABASE.holdfast_locks_done TO worker;
--     GRANT EXECUTE ON PROCEDURE DATABASE.holdfast_guard TO worker;
--
-- DELETE on the first is for the strategy insert only. The rights on holdfast_locks_done are for those who do something
-- once in a while (once_per_ms), and DELETE for those who take back that it was done. `holdfast break` ends a connection
-- of the holder, which any user may do to its own, and others with CONNECTION ADMIN (MySQL: CONNECTION_ADMIN).

-- One row for each name. lease, version: kept for ever, and with it the last token. insert: there only while the lock is
-- held. for-update: kept, and locked while the lock is held.
CREATE TABLE IF NOT EXISTS holdfast_locks (
    name VARBINARY(255) NOT NULL PRIMARY KEY,       -- bytes: 'a', 'A' and 'a ' are three locks
    token BIGINT UNSIGNED NOT NULL DEFAULT 0,
    owner VARBINARY(32),                            -- NULL: free
    epoch BIGINT UNSIGNED NOT NULL DEFAULT 0,       -- which bell rings when it comes free
    bell BIGINT UNSIGNED NOT NULL DEFAULT 0,        -- the connection that has this bell
    since DATETIME(6),                              -- all times are UTC
    expires DATETIME(6),                            -- held: its end; free: until then for whoever has the bell
    ttl INT UNSIGNED,                               -- ms from then to `expires`: one further away is a clock set back
    host VARCHAR(64) CHARACTER SET utf8mb4,
    pid BIGINT UNSIGNED,
    note VARCHAR(120) CHARACTER SET utf8mb4,
    request BIGINT UNSIGNED NOT NULL DEFAULT 0,     -- the number of the owner's last request: older ones come too late
    undone BLOB                                     -- owners that gave up without an answer: theirs come too late, too
) ENGINE=InnoDB;

-- What must outlive the lock itself (insert, for-update, get-lock): the last token, and who holds it or held it last.
-- lease, version, insert: of a lock that was broken, in the note: whose token that was, and who did it.
CREATE TABLE IF NOT EXISTS holdfast_locks_grants (
    name VARBINARY(255) NOT NULL PRIMARY KEY,
    token BIGINT UNSIGNED NOT NULL DEFAULT 0,
    owner VARBINARY(32),
    epoch BIGINT UNSIGNED NOT NULL DEFAULT 0,
    bell BIGINT UNSIGNED NOT NULL DEFAULT 0,
    claim DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00',
    lockname VARBINARY(64),                         -- by IS_USED_LOCK() of this it is seen whether it is held
    connection BIGINT UNSIGNED,
    since DATETIME(6),
    host VARCHAR(64) CHARACTER SET utf8mb4,
    pid BIGINT UNSIGNED,
    note VARCHAR(120) CHARACTER SET utf8mb4,
    undone BLOB
) ENGINE=InnoDB;

-- Who waits, for people: the queue itself is the server's. A row whose connection has gone is removed by a later one.
CREATE TABLE IF NOT EXISTS holdfast_locks_waiters (
    connection BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    name VARBINARY(255) NOT NULL,
    owner VARBINARY(32) NOT NULL,
    since DATETIME(6) NOT NULL,
    host VARCHAR(64) CHARACTER SET utf8mb4,
    pid BIGINT UNSIGNED,
    note VARCHAR(120) CHARACTER SET utf8mb4,
    KEY (name)
) ENGINE=InnoDB;

-- The greatest token that was shown for each resource.
CREATE TABLE IF NOT EXISTS holdfast_locks_fences (
    resource VARBINARY(255) NOT NULL PRIMARY KEY,
    token BIGINT UNSIGNED NOT NULL
) ENGINE=InnoDB;

-- Whose work is done, for those who do it once in a while: one row for each name, which is written anew the next time.
CREATE TABLE IF NOT EXISTS holdfast_locks_done (
    name VARBINARY(255) NOT NULL PRIMARY KEY,
    token BIGINT UNSIGNED NOT NULL,                 -- of who did it
    since DATETIME(6) NOT NULL,                     -- when it was done
    expires DATETIME(6) NOT NULL,                   -- until when that counts
    host VARCHAR(64) CHARACTER SET utf8mb4,
    pid BIGINT UNSIGNED,
    note VARCHAR(120) CHARACTER SET utf8mb4
) ENGINE=InnoDB;

-- Tables of version 0.1 get the columns that it did not know. MySQL has no ADD COLUMN IF NOT EXISTS.
SET @holdfast = IF((SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()
    AND TABLE_NAME = 'holdfast_locks' AND COLUMN_NAME = 'request') > 0, 'DO 0',
    'ALTER TABLE holdfast_locks ADD COLUMN request BIGINT UNSIGNED NOT NULL DEFAULT 0');
PREPARE holdfast FROM @holdfast;
EXECUTE holdfast;
SET @holdfast = IF((SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()
    AND TABLE_NAME = 'holdfast_locks' AND COLUMN_NAME = 'undone') > 0, 'DO 0',
    'ALTER TABLE holdfast_locks ADD COLUMN undone BLOB');
PREPARE holdfast FROM @holdfast;
EXECUTE holdfast;
SET @holdfast = IF((SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()
    AND TABLE_NAME = 'holdfast_locks_grants' AND COLUMN_NAME = 'undone') > 0, 'DO 0',
    'ALTER TABLE holdfast_locks_grants ADD COLUMN undone BLOB');
PREPARE holdfast FROM @holdfast;
EXECUTE holdfast;
DEALLOCATE PREPARE holdfast;

-- Call it in the transaction that writes. It fails if a greater token was shown: roll back, then. Its row stays locked
-- until the transaction ends.
--
--     START TRANSACTION; CALL holdfast_guard('accounts', 1731668400000001); UPDATE accounts …; COMMIT;
DELIMITER //
CREATE PROCEDURE IF NOT EXISTS holdfast_guard (IN guarded VARBINARY(255), IN shown BIGINT UNSIGNED) MODIFIES SQL DATA
BEGIN
    DECLARE highest BIGINT UNSIGNED;
    DECLARE sentence VARCHAR(128) CHARACTER SET utf8mb4;
    INSERT INTO holdfast_locks_fences (resource, token) VALUES (guarded, shown)
        ON DUPLICATE KEY UPDATE token = GREATEST(token, shown);
    SELECT token INTO highest FROM holdfast_locks_fences WHERE resource = guarded FOR UPDATE;
    IF highest > shown THEN
        SET sentence = CONCAT('token ', shown, ' is too old: ', highest, ' was shown before');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = sentence;
    END IF;
END//
DELIMITER ;
