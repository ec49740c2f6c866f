"""How the fence row of a lock is stored in SQL, whatever writes it.  Pure: runs no statement."""

from __future__ import annotations

__all__ = ["LOCK_NAME", "TABLE", "TOKEN", "is_missing_table"]

TABLE = "redlock_fence"
"""The one table: a row for each lock, with the highest token that has claimed it."""

LOCK_NAME = "lock_name"
"""The column with the lock's name, the primary key; compared byte by byte."""

TOKEN = "fencing_token"  # noqa: S105 -- a number that orders, no secret
"""The column with the highest token, a 64-bit integer."""

_SQLSTATES = {"42P01", "42S02"}  # PostgreSQL's, and that of ODBC, which MySQL uses
_MYSQL_NO_SUCH_TABLE = 1146


def is_missing_table(error: BaseException | None) -> bool:
    """Whether a database driver's error says that a table doesn't exist.

    Args:
        error: as the driver raised it (psycopg, asyncpg, pg8000, PyMySQL, mysqlclient,
            sqlite3 and their like); None: it isn't known.
    """
    said: tuple[object, ...] = getattr(error, "args", ()) or ("",)
    if said[0] == _MYSQL_NO_SUCH_TABLE or "no such table" in str(said[0]):
        return True
    return (getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)) in _SQLSTATES
