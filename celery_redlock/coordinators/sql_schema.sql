-- The table of celery_redlock's SQL coordinator, for PostgreSQL and SQLite.
-- For MySQL and MariaDB see sql_schema_mysql.sql.
CREATE TABLE redlock_locks (
    name VARCHAR(255) NOT NULL PRIMARY KEY,
    owner VARCHAR(255),
    holder TEXT,
    ttl DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL, -- seconds since the epoch, by the database's clock
    version BIGINT NOT NULL               -- the fencing token of the latest grant
);
