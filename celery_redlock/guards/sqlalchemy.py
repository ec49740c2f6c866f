"""Fences what SQLAlchemy writes: one row for each lock, claimed in the transaction of the data.

It needs no lock server, and never opens, commits or retries a transaction of its own.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.argument import LONGEST_LOCK, each_checked, library
from celery_redlock.guards.fence_row import LOCK_NAME, TABLE, TOKEN, is_missing_table

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy import orm
    from sqlalchemy.dialects import mysql, postgresql, sqlite
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
else:
    sa = library("sqlalchemy", "celery_redlock[sql]")
    orm = library("sqlalchemy.orm", "celery_redlock[sql]")
    mysql, postgresql, sqlite = (
        library(f"sqlalchemy.dialects.{name}", "celery_redlock[sql]")
        for name in ("mysql", "postgresql", "sqlite")
    )

__all__ = ["claim", "claim_async", "metadata"]


class _LockName(sa.types.TypeDecorator[str]):
    """Text that is compared byte by byte: MySQL's text ignores case and trailing blanks."""

    impl = sa.String(LONGEST_LOCK)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.VARBINARY(LONGEST_LOCK))
        return dialect.type_descriptor(sa.String(LONGEST_LOCK))

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in _MYSQL else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        return value.decode() if isinstance(value, bytes) else value


_MYSQL = ("mysql", "mariadb")

metadata = sa.MetaData()
"""Holds the one table ``redlock_fence``; ``metadata.create_all(engine)`` makes it."""

_fence = sa.Table(
    TABLE,
    metadata,
    sa.Column(LOCK_NAME, _LockName, primary_key=True),
    sa.Column(TOKEN, sa.BigInteger, nullable=False),
    mysql_engine="InnoDB",  # an engine without transactions would fence nothing
    mariadb_engine="InnoDB",
)

# What each living transaction has claimed, by lock: a second claim of the same needs no
# statement, and may come after writes.
_claimed: MutableMapping[Any, dict[str, int]] = WeakKeyDictionary()


def claim(
    session_or_connection: orm.Session | orm.scoped_session[Any] | sa.Connection,
    fencing_token: int | None,
    *,
    lock: str | None = None,
) -> None:
    """Make this transaction one that only the newest holder of the lock can commit.

    It must be the first statement of every transaction that reads or writes what the lock
    protects, also of one that only reads what a later one writes.  It stores the token in the
    lock's fence row and keeps that row locked until the transaction ends, so two holders take
    turns.  One token may claim as often as it likes.  The token of a body that holds several locks
    claims all of them, in the sorted order of their names; claim them yourself in that order,
    before anything else, if you hand in one at a time.

    Whatever a session had loaded before is read again.  Works on PostgreSQL, MySQL and MariaDB
    (InnoDB), and SQLite, where it begins the transaction as ``BEGIN IMMEDIATE`` does.

    Args:
        session_or_connection: where the data is read and written.  A session of several
            databases can't tell which is meant: hand in
            ``session.connection(bind_arguments={"mapper": Account})``.
        fencing_token: the token of the grant.
        lock: the name of the lock that the data belongs to: required beside a plain int,
            checked beside a :class:`~celery_redlock.FencingToken`.

    Raises:
        StaleTokenError: the resource has seen a higher token; the transaction is rolled back.
        ImproperlyConfigured: the token is missing, malformed or of another lock; the table
            ``redlock_fence`` is missing; or the transaction can't be fenced (autocommit, a
            savepoint, changes made before the claim, another kind of database).
    """
    tokens = each_checked(fencing_token, lock)
    session, connection = _opened(session_or_connection)
    for token in tokens:
        _claim(session, connection, token)


def _claim(session: orm.Session | None, connection: sa.Connection, token: FencingToken) -> None:
    transaction = (session or connection).get_transaction()
    claimed = _claimed.setdefault(transaction, {})
    if claimed.get(token.lock) == token:
        return
    _refuse_what_fences_nothing(session, connection)
    try:
        stored = _raise_fence(connection, token)
    except sa.exc.DBAPIError as exc:
        _explain(exc, session or connection)
    if stored > token:
        (session or connection).rollback()
        raise StaleTokenError(token.lock, token, stored)
    if session is not None:
        session.expire_all()  # what was read before the claim may be older than the fence
    claimed[token.lock] = token


async def claim_async(
    session_or_connection: AsyncSession | AsyncConnection,
    fencing_token: int | None,
    *,
    lock: str | None = None,
) -> None:
    """The same as :func:`claim`, for an ``AsyncSession`` or ``AsyncConnection``.

    Args:
        session_or_connection: where the data is read and written.
        fencing_token: the token of the grant.
        lock: the name of the lock that the data belongs to.

    Raises:
        StaleTokenError: the resource has seen a higher token; the transaction is rolled back.
        ImproperlyConfigured: as for :func:`claim`.
    """
    await session_or_connection.run_sync(claim, fencing_token, lock=lock)


def _opened(given: Any) -> tuple[orm.Session | None, sa.Connection]:
    if isinstance(given, orm.scoped_session):
        given = given()
    if isinstance(given, sa.Connection):
        if given.get_transaction() is None:
            given.begin()
        return None, given
    if not isinstance(given, orm.Session):
        cure = "await claim_async()" if hasattr(given, "run_sync") else "hand in one of them"
        raise ImproperlyConfigured(
            f"claim() needs a Session or a Connection, not a {type(given).__name__}: {cure}"
        )
    try:
        return given, given.connection()
    except sa.exc.UnboundExecutionError as exc:
        raise ImproperlyConfigured(
            "this session has several databases, and the fence must be in that of the data: "
            'claim(session.connection(bind_arguments={"mapper": YourModel}), ...)'
        ) from exc


def _refuse_what_fences_nothing(session: orm.Session | None, connection: sa.Connection) -> None:
    if _autocommits(connection):
        raise ImproperlyConfigured(
            "claim() on an AUTOCOMMIT connection fences nothing: the claim and the writes must "
            "be one transaction"
        )
    if (session or connection).in_nested_transaction():
        raise ImproperlyConfigured(
            "claim() in a savepoint: rolling back to it would take the fence away and leave "
            "the rest of the transaction unfenced; claim before begin_nested()"
        )
    if session is not None and (session.new or session.dirty or session.deleted):
        raise ImproperlyConfigured(
            "claim() must come first in its transaction (of several locks: all the claims), and "
            "this session has changes already, made from what it read before it was fenced"
        )


def _autocommits(connection: sa.Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    if connection.dialect.name == "sqlite":  # there, claim() begins a transaction itself
        return False
    driver = connection.connection.dbapi_connection
    ask = getattr(driver, "get_autocommit", None)  # PyMySQL, mysqlclient
    return (ask() if ask else getattr(driver, "autocommit", False)) is True


def _raise_fence(connection: sa.Connection, token: FencingToken) -> int:
    """Raise the fence to the token unless it is higher, and lock it; what it holds now."""
    values = {LOCK_NAME: token.lock, TOKEN: int(token)}
    name, stored = _fence.c[LOCK_NAME], _fence.c[TOKEN]
    kind = connection.dialect.name
    if kind == "postgresql":
        postgres = postgresql.insert(_fence).values(values)
        higher = {TOKEN: sa.func.greatest(stored, postgres.excluded[TOKEN])}
        raised = postgres.on_conflict_do_update(index_elements=[name], set_=higher)
        return int(connection.execute(raised.returning(stored)).scalar_one())
    if kind == "sqlite":
        _begin_immediately(connection)
        lite = sqlite.insert(_fence).values(values)
        higher = {TOKEN: sa.func.max(stored, lite.excluded[TOKEN])}
        connection.execute(lite.on_conflict_do_update(index_elements=[name], set_=higher))
    elif kind in _MYSQL:
        my = mysql.insert(_fence).values(values)
        # Not "insert ignore, then select for update": two of those deadlock on a new row.
        connection.execute(
            my.on_duplicate_key_update({TOKEN: sa.func.greatest(stored, int(token))})
        )
    else:
        raise ImproperlyConfigured(
            f"claim() works on PostgreSQL, MySQL, MariaDB and SQLite, and this is {kind}"
        )
    # A locking read sees the newest row where a plain one would see an old snapshot.
    query = sa.select(stored).where(name == token.lock).with_for_update()
    return int(connection.execute(query).scalar_one())


def _begin_immediately(connection: sa.Connection) -> None:
    """Take SQLite's write lock before the first read.

    The driver begins a transaction late or, with its ``isolation_level`` None, not at all.
    """
    driver = connection.connection.driver_connection
    if not getattr(driver, "in_transaction", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _explain(exc: sa.exc.DBAPIError, where: orm.Session | sa.Connection) -> NoReturn:
    if not is_missing_table(exc.orig):
        raise exc
    where.rollback()
    raise ImproperlyConfigured(
        f"the table {TABLE} is missing in the database of the data, so nothing can be fenced: "
        "celery_redlock.guards.sqlalchemy.metadata.create_all(engine) makes it"
    ) from exc
