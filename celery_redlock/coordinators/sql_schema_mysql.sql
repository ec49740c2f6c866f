-- The table of celery_redlock's SQL coordinator, for MySQL and MariaDB.
CREATE TABLE redlock_locks (
    name VARBINARY(255) NOT NULL PRIMARY KEY, -- compared byte by byte
    owner VARCHAR(255),
    holder TEXT,
    ttl DOUBLE NOT NULL,
    expires_at DOUBLE NOT NULL, -- seconds since the epoch, by the database's clock
    version BIGINT NOT NULL     -- the fencing token of the latest grant
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
