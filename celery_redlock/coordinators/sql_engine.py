"""Engines for the lock table: few connections, own transactions, and no answer waited for long.

The connections are never the caller's: a lock must be seen by others before the caller commits,
and must not vanish when the caller rolls back.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator
from importlib.util import find_spec
from typing import Any, TypeVar

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.default import DefaultDialect

from celery_redlock.clock import now
from celery_redlock.coordinators.sql_schema import kind_of

__all__ = ["PATIENCE", "engine_for", "with_driver"]

T = TypeVar("T")

PATIENCE = 1.5  # how much longer the client waits than the server may take

_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
# A rollback at the end of each use is a round trip for nothing where every statement commits.
_NO_ROLLBACK: dict[str, Any] = (
    {"skip_autocommit_rollback": True}
    if "skip_autocommit_rollback" in inspect.signature(DefaultDialect.__init__).parameters
    else {}
)


def with_driver(url: URL) -> URL:
    """The url with the driver that is meant for it, where it names none."""
    driver = _DRIVERS.get(url.drivername)
    if driver and find_spec(driver):
        return url.set(drivername=f"{url.drivername}+{driver}")
    return url


def engine_for(url: URL, timeout: float) -> Engine:
    """A new engine; connects to nothing yet.

    Args:
        url: the database.
        timeout: seconds that the server may take for a statement.
    """
    kind = kind_of(url.get_backend_name())
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=5,
        max_overflow=15,
        pool_timeout=timeout,
        pool_recycle=600,  # before a firewall or the server forgets an idle connection
        pool_use_lifo=True,
        connect_args=_ARGUMENTS[kind](url, timeout),
        **_NO_ROLLBACK,
    )
    event.listen(engine, "connect", _saying(_first_statements(kind, timeout)))
    if url.get_driver_name() == "psycopg":
        event.listen(engine, "do_connect", _bounded(timeout * PATIENCE))
    return engine


def _postgresql(url: URL, timeout: float) -> dict[str, Any]:
    milliseconds = math.ceil(timeout * 1000)
    ours = (
        f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds} "
        "-c default_transaction_isolation=read\\ committed"
    )
    given = url.query.get("options", "")
    theirs = given if isinstance(given, str) else " ".join(given)
    return {
        "options": f"{theirs} {ours}".strip(),
        "connect_timeout": max(2, math.ceil(timeout)),  # libpq's least
    }


def _mysql(url: URL, timeout: float) -> dict[str, Any]:  # noqa: ARG001 - as the others
    wait = timeout * PATIENCE
    return {"connect_timeout": wait, "read_timeout": wait, "write_timeout": wait}


def _sqlite(url: URL, timeout: float) -> dict[str, Any]:  # noqa: ARG001 - as the others
    return {"timeout": timeout}


_ARGUMENTS: dict[str, Callable[[URL, float], dict[str, Any]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "sqlite": _sqlite,
}


def _first_statements(kind: str, timeout: float) -> tuple[str, ...]:
    """What each new connection begins with."""
    return {
        "postgresql": (_SYNCHRONOUS,),
        "mysql": (
            f"SET SESSION innodb_lock_wait_timeout = {math.ceil(timeout)}",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        ),
        "sqlite": ("PRAGMA synchronous = FULL",),
    }[kind]


# A version that isn't on disk before it is used could be given out twice.
_SYNCHRONOUS = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


def _saying(statements: tuple[str, ...]) -> Callable[[Any, Any], None]:
    def say(connection: Any, record: Any) -> None:  # noqa: ARG001 - the library's signature
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()

    return say


def _bounded(patience: float) -> Callable[..., Any]:
    """Connects by psycopg so that no answer is waited for longer than ``patience`` seconds.

    The server's own timeout doesn't help where the server hangs, and psycopg has none.
    """
    import psycopg

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            try:
                return super().wait(_until(gen, now() + patience), *args, **options)
            except _NoAnswerError:
                self.close()  # what may still come would be taken for another's answer
                raise psycopg.OperationalError(f"no answer within {patience:g} s") from None

    def connect(dialect: Any, record: Any, args: Any, options: Any) -> Any:  # noqa: ARG001
        return Bounded.connect(*args, **options)

    return connect


class _NoAnswerError(Exception):
    """The server is silent."""


def _until(gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
    """The generator, ended when nothing has come until the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and now() > deadline:
                raise _NoAnswerError
            wanted = gen.send(ready)
    except StopIteration as end:
        value: T = end.value
        return value
