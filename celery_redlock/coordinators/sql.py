"""Locks in a table of a SQL database, judged by the database's own clock.  Never touches the
caller's transaction.

Each lock is a row that stays for ever: who holds it, until when, and a version that rises with
every grant and is the fencing token (``sql_schema.py``).  The one statement that takes a lock
also decides whether it is free and bumps the version, so two contenders can't both succeed.

* Time is only ever compared inside the database.  If its clock steps back, a lock can't last
  longer than its ttl from then on; if it steps forward, locks end early, which the fencing
  token covers.
* Connections are this module's own, a few for each process, and every statement is a
  transaction of its own, so a lock neither waits for the caller's commit nor goes away with a
  rollback.
* An acquire whose answer is lost with its connection is undone over a new one if that is
  possible.  What a silent server may have done is left to its ttl.
* How durable a grant is, is up to the database: with asynchronous replication a failover may
  forget the latest grants, and then a token may be given out twice.

Urls are SQLAlchemy's: ``postgresql+psycopg://``, ``mysql+pymysql://``, ``mariadb+pymysql://``
and ``sqlite:///file`` (a few processes of one machine: writers take turns by luck, not in order).
A statement may take a second, or
``redlock_node_timeout`` if that is more.  Other drivers for PostgreSQL work, but wait for ever
for a server that hangs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.aftermath import DATABASE
from celery_redlock.coordinators.base import Capabilities, Conflict, Finding, Grant, Held, Holder
from celery_redlock.coordinators.patience import answer_timeout
from celery_redlock.coordinators.per_process import PerProcess
from celery_redlock.coordinators.urls import CoordinatorSettings, needs, without_password
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.fencing import FencingToken

needs("sqlalchemy", "sql")  # before the imports that need it, for a message that helps

from sqlalchemy import URL, Connection, Engine, make_url  # noqa: E402
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError  # noqa: E402

from celery_redlock.coordinators import sql_schema  # noqa: E402
from celery_redlock.coordinators.sql_check import findings  # noqa: E402
from celery_redlock.coordinators.sql_engine import engine_for, with_driver  # noqa: E402
from celery_redlock.coordinators.sql_errors import answered, describe  # noqa: E402
from celery_redlock.coordinators.sql_names import stored_name  # noqa: E402
from celery_redlock.coordinators.sql_schema import create_all, metadata, prune, raise_floor  # noqa: E402
from celery_redlock.coordinators.sql_statements import statements_for  # noqa: E402

__all__ = ["SqlCoordinator", "create_all", "from_urls", "metadata", "prune", "raise_floor"]


class SqlCoordinator:
    """Locks in one database.

    Args:
        url: the database.
        settings: what every coordinator of the application shares.
    """

    capabilities = Capabilities(
        name="SQL",
        fencing=True,
        exclusion="a row of the database, by its clock",
        survives_failover=False,
        survives_restart=True,
        after=DATABASE,
    )

    def __init__(self, url: URL, settings: CoordinatorSettings) -> None:
        """Connect to nothing yet."""
        self._settings = settings
        self._password = str(url.password or "")
        self._shown = without_password(url.render_as_string(hide_password=True))
        self._timeout = answer_timeout(settings.node_timeout)
        self._say = statements_for(sql_schema.kind_of(url.get_backend_name()))
        self._engines: PerProcess[Engine] = PerProcess(
            lambda: engine_for(url, self._timeout), Engine.dispose
        )

    def acquire(self, key: str, owner: str, ttl: float, holder: Holder) -> Grant | Conflict:
        """Ask for the lock once.

        Raises:
            CoordinatorUnavailable: nobody can say; what may have been granted is undone if
                possible.
        """
        values = {
            "name": self._name(key),
            "owner": owner,
            "holder": json.dumps(holder.to_dict()),
            "ttl": float(ttl),
        }
        unsure = Grant(key, owner, ttl, now() + ttl)
        start = now()
        with self._talking(undo=unsure) as connection, self._whole(connection):
            version = self._take(connection, values)
            row: Any = None if version else connection.execute(self._say.look, values).first()
        if version or (row is not None and row.owner == owner):
            try:
                return self._granted(unsure, version or row.version, start, ttl, row)
            except CoordinatorUnavailable:
                self._undo(unsure)
                raise
        if row is None:
            return Conflict(key, certain=False)
        if row.remains > row.ttl + 1.0:
            self._clamp(values | {"owner": row.owner})
        return Conflict(key, _holder(row.holder), min(row.remains, row.ttl))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Prolong this exact grant; None if it is not ours any more.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        say, values = self._say, self._named(grant) | {"ttl": float(ttl)}
        statement = say.extend if "version" in values else say.extend_owner
        start = now()
        with self._talking() as connection:
            changed = connection.execute(statement, values).rowcount
        if not changed:
            return None
        return self._granted(grant, int(grant.fencing_token or 0), start, ttl)

    def release(self, grant: Grant) -> bool:
        """Give this exact grant back; False if it was not ours any more.

        Raises:
            CoordinatorUnavailable: it could not be said.
        """
        values = self._named(grant)
        statement = self._say.release if "version" in values else self._say.release_owner
        with self._talking() as connection:
            return bool(connection.execute(statement, values).rowcount)

    def inspect(self, key: str) -> Held | None:
        """Who holds the lock now.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        with self._talking() as connection:
            row = connection.execute(self._say.look, {"name": self._name(key)}).first()
        if row is None:
            return None
        token = FencingToken(row.version, key)
        return Held(key, row.owner, _holder(row.holder) or Holder(), row.remains, token)

    def server_time(self) -> float:
        """The database's wall clock, in seconds since the epoch.

        Raises:
            CoordinatorUnavailable: it did not answer.
        """
        with self._talking() as connection:
            return float(connection.execute(self._say.clock).scalar_one())

    def raise_floor(self, floor: int) -> int:
        """Make every token from now on higher than ``floor``; the floor that is in force.

        Args:
            floor: the highest token that any resource has seen, 0 to 2**63 - 2.

        Raises:
            CoordinatorUnavailable: it could not be done.
            ImproperlyConfigured: it is out of range.
        """
        with self._errors_mapped():
            return sql_schema.raise_floor(self._engines.get(), floor)

    def check(self) -> list[Finding]:
        """What an operator should know: durability, the table, permissions.  Never raises."""
        return findings(self._engines.get, self, self._shown, self._timeout, self._password)

    def close(self) -> None:
        """Let go of connections; the coordinator may be used again afterwards."""
        self._engines.close()

    def __repr__(self) -> str:
        return f"<SqlCoordinator {self._shown}>"

    # Below: steps of the above.

    def _name(self, key: str) -> str | bytes:
        name = stored_name(self._settings.prefix, self._settings.kind, key)
        return name.encode() if self._say.kind == "mysql" else name

    def _named(self, grant: Grant) -> dict[str, Any]:
        """What names the exact grant; its owner is enough where it carries no token."""
        values: dict[str, Any] = {"name": self._name(grant.key), "owner": grant.owner}
        if grant.fencing_token is not None:
            values["version"] = int(grant.fencing_token)
        return values

    def _take(self, connection: Connection, values: dict[str, Any]) -> int:
        """Take the lock if it is free; its version, or 0 where a look must tell."""
        for statement in self._say.take:
            result = connection.execute(statement, values)
            if self._say.returning:
                return int(result.scalar() or 0)
            if result.rowcount:
                break
        return 0

    @contextmanager
    def _whole(self, connection: Connection) -> Iterator[None]:
        """One transaction for taking and looking, where that costs nothing."""
        if self._say.kind != "sqlite":
            yield
            return
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        connection.exec_driver_sql("COMMIT")  # after an error the connection is closed instead

    def _granted(
        self, grant: Grant, version: int, start: float, ttl: float, row: Any = None
    ) -> Grant:
        seconds = ttl if row is None else min(ttl, row.remains)
        valid_until = start + seconds - self._settings.drift.of(seconds)
        if valid_until <= now():
            raise CoordinatorUnavailable(f"the answer came after the ttl of {ttl:g} s was over")
        token = FencingToken(version, grant.key) if version else None
        return Grant(grant.key, grant.owner, ttl, valid_until, token)

    def _undo(self, grant: Grant) -> None:
        with suppress(CoordinatorUnavailable):  # else it runs out by its ttl
            self.release(grant)

    def _clamp(self, values: dict[str, Any]) -> None:
        with suppress(CoordinatorUnavailable), self._talking() as connection:
            connection.execute(self._say.clamp, values)

    @contextmanager
    def _talking(self, undo: Grant | None = None) -> Iterator[Connection]:
        """A connection; an error ends it, and is mapped."""
        with self._errors_mapped():
            connection = self._engines.get().connect()
            start = now()
            try:
                yield connection
            except BaseException as exc:
                connection.invalidate()  # nobody knows what it is in the middle of
                cut_off = isinstance(exc, DBAPIError) and not answered(exc.orig)
                if undo and cut_off and now() - start < self._timeout:  # else it is silent
                    self._undo(undo)
                raise
            finally:
                connection.close()

    @contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as exc:
            raise CoordinatorUnavailable(
                "the database did not do it", {self._shown: describe(exc, self._password)}
            ) from None  # the error's text could hold the url


def _holder(stored: str | None) -> Holder | None:
    try:
        return Holder.from_dict(json.loads(stored or ""))
    except (ValueError, TypeError, AttributeError):
        return None


def from_urls(urls: Sequence[str], settings: CoordinatorSettings) -> SqlCoordinator:
    """The coordinator of the one database that the url names.

    Raises:
        ImproperlyConfigured: several urls, one that can't be used, or a driver that is not
            installed.
    """
    if len(urls) > 1:
        raise ImproperlyConfigured(
            f"a SQL coordinator is one database, not {len(urls)}: give one url"
        )
    try:
        url = with_driver(make_url(urls[0]))
        dialect = url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as exc:  # the last: a port
        raise ImproperlyConfigured(
            f"malformed coordinator url {without_password(urls[0])!r}: expected a SQLAlchemy url "
            "such as postgresql+psycopg://user@host/database"
        ) from exc
    sql_schema.kind_of(dialect.name)
    try:
        dialect.import_dbapi()
    except ImportError as exc:
        raise ImproperlyConfigured(
            f"the driver of {url.drivername}:// is not installed: {exc}; "
            "install psycopg for PostgreSQL, PyMySQL for MySQL and MariaDB"
        ) from exc
    if dialect.name == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ImproperlyConfigured(
            "a SQLite database in memory is seen by one connection only: name a file, as in "
            "sqlite:////var/lib/locks.db, or use memory:// in tests"
        )
    return SqlCoordinator(url, settings)
