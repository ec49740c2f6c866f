"""What a database's error means: in words, and whether the statement was carried out.  Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["answered", "describe", "missing_table"]

MISSING = (
    "it has no table redlock_locks: make it with celery_redlock.coordinators.sql.create_all(engine)"
    " or from sql_schema.sql"
)
_MISSING_STATES = {"42P01", "42S02"}
_MISSING_NUMBERS = {1146}
# PostgreSQL's classes of "connection exception" and "operator intervention".
_CUT_OFF = ("08", "57P")
# MySQL's client errors, which the server has nothing to do with.
_CLIENT = range(2000, 3000)


def answered(error: Any) -> bool:
    """Whether the server itself refused the statement, so that it surely wasn't carried out.

    Args:
        error: what the driver raised.
    """
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state:
        return not str(state).startswith(_CUT_OFF)
    number = _number(error)
    if number is not None:
        return number not in _CLIENT and number > 0
    return type(error).__module__.partition(".")[0] in {"sqlite3", "_sqlite3"}


def missing_table(error: Any) -> bool:
    """Whether there is no such table."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return (
        state in _MISSING_STATES
        or _number(error) in _MISSING_NUMBERS
        or "no such table" in str(error)
    )


def describe(error: BaseException, password: str = "") -> str:
    """An error in one line, without the password.

    Args:
        error: what was raised, by the driver or by SQLAlchemy around it.
        password: what must not be shown.
    """
    cause: Any = getattr(error, "orig", None) or error
    if missing_table(cause):
        return MISSING
    parts: tuple[Any, ...] = getattr(cause, "args", ())
    said = str(parts[-1]) if _number(cause) is not None and len(parts) > 1 else str(cause)
    line = " ".join(said.split()) or type(cause).__name__
    return line.replace(password, "***") if password else line


def _number(error: Any) -> int | None:
    first = next(iter(getattr(error, "args", ())), None)
    return first if isinstance(first, int) else None
