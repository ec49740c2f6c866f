"""What an operator should know of a database with locks.  Changes nothing but a probe's lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from celery_redlock.coordinators.base import Coordinator, Finding
from celery_redlock.coordinators.probe import probe
from celery_redlock.coordinators.sql_errors import MISSING, describe
from celery_redlock.coordinators.sql_schema import kind_of, locks
from celery_redlock.coordinators.sql_statements import statements_for

__all__ = ["findings"]

_FAR_CLOCK = 5.0  # seconds
_DURABLE = "a crash of the machine may forget the latest grants, and a token be given out twice"


def findings(
    engine_of: Callable[[], Engine],
    coordinator: Coordinator,
    subject: str,
    timeout: float,
    password: str,
) -> list[Finding]:
    """The findings about the server, the table, the clock, and those of a probe.

    Args:
        engine_of: gives the engine.
        coordinator: what the probe goes through.
        subject: the url without a password.
        timeout: seconds that one answer may take.
        password: what must not be shown.
    """
    try:
        with engine_of().connect() as connection:
            kind = kind_of(connection.dialect.name)
            found = [Finding("ok", subject, _version(connection))]
            found += _SETTINGS[kind](connection, subject)
            found += _clock(connection, kind, subject)
            if not connection.dialect.has_table(connection, locks.name):
                said, cure = MISSING.split(": ", 1)
                return [*found, Finding("error", subject, said, cure)]
    except SQLAlchemyError as exc:
        said = f"it can't be asked: {describe(exc, password)}"
        cure = "start it, or correct its url in redlock_coordinators"
        return [Finding("error", subject, said, cure, passing=True)]
    cure = "give the user the rights SELECT, INSERT and UPDATE on redlock_locks"
    return [*found, *probe(coordinator, subject, timeout, cure)]


def _version(connection: Connection) -> str:
    version = ".".join(map(str, connection.dialect.server_version_info or ()))
    maria = getattr(connection.dialect, "is_mariadb", False)
    return f"{'mariadb' if maria else connection.dialect.name} {version}"


def _all(connection: Connection, query: str) -> dict[str, Any]:
    row = connection.execute(text(query)).mappings().first()
    return dict(row or {})


def _postgresql(connection: Connection, subject: str) -> Iterable[Finding]:
    seen = _all(
        connection,
        "SELECT pg_is_in_recovery() AS standby, current_setting('fsync') AS fsync, "
        "current_setting('default_transaction_read_only') AS read_only",
    )
    if seen["standby"]:
        said = "it is a standby: nothing can be written"
        cure = "name the primary, or add ?target_session_attrs=read-write"
        yield Finding("error", subject, said, cure)
    elif seen["read_only"] == "on":
        said = "transactions are read only by default"
        cure = "switch default_transaction_read_only off for this user"
        yield Finding("error", subject, said, cure)
    if seen["fsync"] != "on":
        yield Finding("error", subject, f"fsync is {seen['fsync']}: {_DURABLE}", "switch it on")
    if connection.dialect.driver != "psycopg":
        said = f"the driver {connection.dialect.driver} waits for ever for a server that hangs"
        yield Finding("warning", subject, said, "use psycopg 3: postgresql+psycopg://")


def _mysql(connection: Connection, subject: str) -> Iterable[Finding]:
    seen = _all(
        connection,
        "SELECT @@global.read_only AS read_only, @@innodb_flush_log_at_trx_commit AS flush",
    )
    if seen["read_only"]:
        said = "it is read only, as a replica is"
        yield Finding("error", subject, said, "name the primary, or set read_only=0")
    if seen["flush"] != 1:
        said = f"innodb_flush_log_at_trx_commit is {seen['flush']}: {_DURABLE}"
        yield Finding("error", subject, said, "set it to 1")


def _sqlite(connection: Connection, subject: str) -> Iterable[Finding]:
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    if mode in {"off", "memory"}:
        said = f"its journal_mode is {mode}: a crash may break the file"
        yield Finding("error", subject, said, "PRAGMA journal_mode=WAL")
    elif mode != "wal":
        said = f"its journal_mode is {mode}: slower than need be"
        yield Finding("ok", subject, said, "PRAGMA journal_mode=WAL, once")


_SETTINGS = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}


def _clock(connection: Connection, kind: str, subject: str) -> list[Finding]:
    before = time.time()
    server = float(connection.execute(statements_for(kind).clock).scalar_one())
    after = time.time()
    # Where between the two instants the server looked is not known.
    offset = server - after if server > after else min(0.0, server - before)
    if abs(offset) <= _FAR_CLOCK:
        return []
    said = f"its clock differs from this machine's by {offset:+.1f} s"
    cure = "no lock depends on it, but one of the two is wrong: look after NTP"
    return [Finding("warning", subject, said, cure)]
