"""Claims a lock's fence row in the transaction of the data.  Opens one only in ``fenced``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.argument import each_checked, library
from celery_redlock.guards.fence_row import LOCK_NAME, TABLE, TOKEN, is_missing_table

if TYPE_CHECKING:
    from django import db as django_db
    from django.db import transaction
else:
    django_db = library("django.db", "celery_redlock[django]")
    transaction = library("django.db.transaction", "celery_redlock[django]")

__all__ = ["claim", "fenced"]

_INSERT = f"insert into {TABLE} ({LOCK_NAME}, {TOKEN}) values (%s, %s)"  # noqa: S608 -- our names
_ON_CONFLICT = f"{_INSERT} on conflict ({LOCK_NAME}) do update set {TOKEN} ="
# Raise the fence to the token unless it is higher.  Each locks the row until the end of the
# transaction.  Not "insert ignore, then select for update": two of those deadlock on a new row.
_RAISE = {
    "postgresql": f"{_ON_CONFLICT} greatest({TABLE}.{TOKEN}, %s)",
    "sqlite": f"{_ON_CONFLICT} max({TABLE}.{TOKEN}, %s)",
    "mysql": f"{_INSERT} on duplicate key update {TOKEN} = greatest({TOKEN}, %s)",
}
_READ = f"select {TOKEN} from {TABLE} where {LOCK_NAME} = %s"  # noqa: S608 -- our names


def claim(fencing_token: int | None, *, lock: str | None = None, using: str = "default") -> None:
    """Make this transaction one that only the newest holder of the lock can commit.

    It must be the first statement of every ``atomic`` block that reads or writes what the lock
    protects.  It stores the token in the lock's fence row and keeps that row locked until the
    transaction ends, so two holders take turns.  One token may claim as often as it likes.  The
    token of a body that holds several locks claims all of them, in the sorted order of their
    names.  A model instance that was read before must be read again.

    Args:
        fencing_token: the token of the grant.
        lock: the name of the lock that the data belongs to: required beside a plain int,
            checked beside a :class:`~celery_redlock.FencingToken`.
        using: the alias of the database of the data.

    Raises:
        StaleTokenError: the resource has seen a higher token; the transaction can only be
            rolled back from here on, even if the error is swallowed.
        ImproperlyConfigured: the token is missing, malformed or of another lock; the table
            is missing; or the claim is outside an atomic block, in an inner one (whose
            savepoint could take the fence back), or on another kind of database.
    """
    tokens = each_checked(fencing_token, lock)
    connection = transaction.get_connection(using)
    _refuse_what_fences_nothing(connection, using)
    for token in tokens:
        try:
            stored = _raise_fence(connection, token)
        except django_db.Error as exc:
            _explain(exc, using)
        if stored > token:
            transaction.set_rollback(True, using)
            raise StaleTokenError(token.lock, token, stored)


@contextmanager
def fenced(
    fencing_token: int | None, *, lock: str | None = None, using: str = "default"
) -> Iterator[None]:
    """A transaction that begins with :func:`claim`, for a ``with`` statement.

    Args:
        fencing_token: the token of the grant.
        lock: the name of the lock that the data belongs to.
        using: the alias of the database of the data.

    Raises:
        StaleTokenError: the resource has seen a higher token; nothing was written.
        ImproperlyConfigured: as for :func:`claim`; also inside another atomic block.
    """
    connection = transaction.get_connection(using)
    if _blocks(connection):
        raise ImproperlyConfigured(
            "fenced() inside an atomic block would be a savepoint of it and not a transaction: "
            "call claim() as the first statement of the outer block (with ATOMIC_REQUESTS: of "
            "the view)"
        )
    with transaction.atomic(using=using):
        claim(fencing_token, lock=lock, using=using)
        yield


def _blocks(connection: Any) -> list[Any]:
    """The atomic blocks around us, without those that Django's TestCase opens for a test."""
    return [b for b in connection.atomic_blocks if not getattr(b, "_from_testcase", False)]


def _refuse_what_fences_nothing(connection: Any, using: str) -> None:
    if not connection.in_atomic_block or not _blocks(connection):
        raise ImproperlyConfigured(
            f"claim() outside a transaction of database {using!r} fences nothing: the claim and "
            "the writes must be in one transaction.atomic() block; fenced() makes one"
        )
    # A block without a savepoint of its own is rolled back with the one around it.
    inner = _blocks(connection)[1:]
    savepoints = connection.savepoint_ids[-len(inner) :] if inner else []
    if any(savepoints):
        raise ImproperlyConfigured(
            "claim() in an inner atomic block: rolling back to its savepoint would take the "
            "fence away and leave the outer block unfenced; claim in the outermost block"
        )


def _raise_fence(connection: Any, token: FencingToken) -> int:
    if connection.vendor not in _RAISE:
        raise ImproperlyConfigured(
            f"claim() works on PostgreSQL, MySQL, MariaDB and SQLite, and database "
            f"{connection.alias!r} is {connection.display_name}"
        )
    # A locking read sees the newest row where a plain one would see an old snapshot.
    read = _READ if connection.vendor == "sqlite" else f"{_READ} for update"
    name = token.lock.encode() if connection.vendor == "mysql" else token.lock
    with connection.cursor() as cursor:
        cursor.execute(_RAISE[connection.vendor], [name, int(token), int(token)])
        cursor.execute(read, [name])
        return int(cursor.fetchone()[0])


def _explain(exc: Exception, using: str) -> NoReturn:
    if not is_missing_table(exc.__cause__):
        raise exc
    transaction.set_rollback(True, using)
    raise ImproperlyConfigured(
        f"the table {TABLE} is missing in database {using!r}, so nothing can be fenced: put "
        "'celery_redlock.guards.django' into INSTALLED_APPS and run migrate "
        f"--database={using}"
    ) from exc
