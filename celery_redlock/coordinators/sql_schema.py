"""The table of the locks in a database, and the work on it that needs nobody else's.

One row for each lock: who holds it, until when by the database's clock, and a version that the
statement bumps that takes it.  A release keeps the row, so that the version survives.  The row
with the empty name holds the floor, above which a new row's version begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.exc import SQLAlchemyError

from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["CLOCKS", "create_all", "kind_of", "locks", "metadata", "prune", "raise_floor"]

CLOCKS = {
    # At the moment of the evaluation, which may come after a wait for another's statement.
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
    # At the start of the statement, in UTC whatever the session's time zone is.
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)",
    # unixepoch('subsec') is silently NULL before SQLite 3.42.
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
"""The database's clock in seconds since the epoch, by the kind of database."""

_BATCH = 500  # rows that one transaction of a prune removes, for others wait meanwhile

metadata = MetaData()
"""What ``create_all`` makes; add it to your own migrations' metadata if you like."""

locks = Table(
    "redlock_locks",
    metadata,
    # Compared byte by byte everywhere: MySQL's texts ignore case and spaces at the end.
    Column("name", String(255).with_variant(VARBINARY(255), "mysql", "mariadb"), primary_key=True),
    Column("owner", String(255)),
    Column("holder", Text),
    Column("ttl", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("version", BigInteger, nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)


def create_all(engine: Engine) -> None:
    """Make the table ``redlock_locks`` in a database that doesn't have it yet.

    The files ``sql_schema.sql`` and ``sql_schema_mysql.sql`` beside this module say the same
    in plain SQL, for migrations.

    Args:
        engine: a SQLAlchemy engine of that database, with the right to create tables.
    """
    metadata.create_all(engine)


def prune(engine: Engine, older_than: float = 86400.0) -> int:
    """Remove the rows of locks that have long been free; how many they were.

    No token ever goes back by it: the floor is raised to the highest version that is removed,
    and new rows begin above the floor.  Others wait while a batch is removed.

    Args:
        engine: a SQLAlchemy engine of the database.
        older_than: seconds that a lock must have been free, 0 or more.

    Raises:
        ImproperlyConfigured: ``older_than`` is negative, or the database is of another kind.
    """
    if older_than < 0:
        raise ImproperlyConfigured(f"older_than={older_than!r}: must be 0 s or more")
    clock = CLOCKS[kind_of(engine.dialect.name)]
    old = text(
        f"SELECT name, version FROM redlock_locks WHERE expires_at <= {clock} - :age "  # noqa: S608
        f"AND name <> :floor ORDER BY expires_at LIMIT {_BATCH}"
    )
    removed = 0
    while True:
        with _alone(engine) as connection:
            rows = connection.execute(
                old, {"age": float(older_than), "floor": _name("", engine)}
            ).all()
            if rows:
                _raise(connection, max(row.version for row in rows))
                names = [row.name for row in rows]
                connection.execute(locks.delete().where(locks.c.name.in_(names)))
        removed += len(rows)
        if len(rows) < _BATCH:
            return removed


def raise_floor(engine: Engine, floor: int) -> int:
    """Make every version from now on higher than ``floor``; the floor that is in force.

    For a move from another coordinator, whose tokens were higher than this table's versions.
    It is never lowered, and a lock that is held keeps its token.

    Args:
        engine: a SQLAlchemy engine of the database.
        floor: the highest token that any resource has seen, 0 to 2**63 - 2.

    Raises:
        ImproperlyConfigured: ``floor`` is out of range, or the database is of another kind.
    """
    if not 0 <= floor < 2**63 - 1:
        raise ImproperlyConfigured(f"floor={floor!r}: must be from 0 to 2**63 - 2")
    with _alone(engine) as connection:
        return _raise(connection, floor)


def kind_of(dialect: str) -> str:
    """Which of :data:`CLOCKS` holds for a dialect of SQLAlchemy.

    Raises:
        ImproperlyConfigured: none does.
    """
    kind = "mysql" if dialect == "mariadb" else dialect
    if kind not in CLOCKS:
        raise ImproperlyConfigured(
            f"locks can't be kept in a database of the kind {dialect!r}: use PostgreSQL, MySQL, "
            "MariaDB or SQLite"
        )
    return kind


# How one connection gets the table for itself, and lets go of it.  Statements that are under
# way end first, and those that come later see what was done: none can carry on with an older
# floor.
_ALONE = {
    "postgresql": (("BEGIN", "LOCK TABLE redlock_locks IN EXCLUSIVE MODE"), "COMMIT", "ROLLBACK"),
    "mysql": (("LOCK TABLES redlock_locks WRITE",), "UNLOCK TABLES", "UNLOCK TABLES"),
    "sqlite": (("BEGIN IMMEDIATE",), "COMMIT", "ROLLBACK"),
}


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    begin, commit, rollback = _ALONE[kind_of(engine.dialect.name)]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            for statement in begin:
                connection.exec_driver_sql(statement)
            yield connection
            connection.exec_driver_sql(commit)
        except BaseException:
            with suppress(SQLAlchemyError):  # what went wrong is being raised
                connection.exec_driver_sql(rollback)
            raise


def _raise(connection: Connection, floor: int) -> int:
    """Raise the floor, if it is lower; what it is afterwards."""
    name = _name("", connection.engine)
    where = locks.c.name == name
    before = connection.execute(locks.select().with_only_columns(locks.c.version).where(where))
    known = before.scalar()
    if known is None:
        row = {"name": name, "ttl": 0.0, "expires_at": 0.0, "version": floor}
        connection.execute(locks.insert().values(row))
    elif known < floor:
        connection.execute(locks.update().where(where).values(version=floor))
    return max(floor, known or 0)


def _name(name: str, engine: Engine) -> str | bytes:
    return name.encode() if kind_of(engine.dialect.name) == "mysql" else name
