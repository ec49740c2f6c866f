"""The statements on the lock table, for each kind of database.  Pure text; says nothing itself.

Each is atomic by itself and judged by the database's clock.  ``:name``, ``:owner`` and so on
are bound by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import TextClause, text

from celery_redlock.coordinators.sql_schema import CLOCKS

__all__ = ["Statements", "statements_for"]

# A new row begins above the floor; a row that is taken again goes on above its own version.
_FLOOR = "COALESCE((SELECT version FROM redlock_locks WHERE name = ''), 0)"

_UPSERT = """
INSERT INTO redlock_locks AS held (name, owner, holder, ttl, expires_at, version)
VALUES (:name, :owner, :holder, :ttl, {clock} + :ttl, {floor} + 1)
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner,
    holder = excluded.holder,
    ttl = excluded.ttl,
    expires_at = {clock} + excluded.ttl,
    version = CASE WHEN held.version < excluded.version
                   THEN excluded.version ELSE held.version + 1 END
WHERE held.owner IS NULL OR held.expires_at <= {clock}
"""
_RETURNING = "RETURNING version"

# MySQL has no condition on an upsert.  It reads another row of the table that it changes only
# through a derived table.
_DERIVED_FLOOR = (
    "(SELECT floor.version FROM (SELECT COALESCE(MAX(version), 0) AS version "
    "FROM redlock_locks WHERE name = '') AS floor)"
)
_TAKE_OVER = """
UPDATE redlock_locks SET
    version = GREATEST(version, {floor}) + 1,
    owner = :owner, holder = :holder, ttl = :ttl, expires_at = {clock} + :ttl
WHERE name = :name AND (owner IS NULL OR expires_at <= {clock})
"""
_INSERT = """
INSERT INTO redlock_locks (name, owner, holder, ttl, expires_at, version)
SELECT :name, :owner, :holder, :ttl, {clock} + :ttl, {floor} + 1
ON DUPLICATE KEY UPDATE ttl = redlock_locks.ttl
"""

_LOOK = """
SELECT owner, holder, ttl, version, expires_at - {clock} AS remains FROM redlock_locks
WHERE name = :name AND owner IS NOT NULL AND expires_at > {clock}
"""
_EXTEND = """
UPDATE redlock_locks SET ttl = :ttl, expires_at = {clock} + :ttl
WHERE name = :name AND owner = :owner AND expires_at > {clock}
"""
# A lock's end can't lie further ahead than its ttl, unless the clock stepped back since.
_CLAMP = """
UPDATE redlock_locks SET expires_at = {clock} + ttl
WHERE name = :name AND owner = :owner AND expires_at > {clock} + ttl + 1
"""
_RELEASE = """
UPDATE redlock_locks SET owner = NULL, holder = NULL, expires_at = {clock}
WHERE name = :name AND owner = :owner AND expires_at > {clock}
"""
_THIS_VERSION = " AND version = :version"
_CLOCK = "SELECT {clock}"


@dataclass(frozen=True)
class Statements:
    """What is said to one kind of database.

    Attributes:
        kind: ``"postgresql"``, ``"mysql"`` or ``"sqlite"``.
        take: takes the lock if it is free; several are said one after the other until one
            has changed a row.
        returning: whether ``take`` tells the version, so that success needs no look.
        look: who holds the lock.
        extend: prolongs a grant, by owner and version.
        extend_owner: the same, by the owner alone.
        release: frees a grant, by owner and version.
        release_owner: the same, by the owner alone.
        clamp: shortens a lock that a clock which stepped back made longer than its ttl.
        clock: tells the database's clock.
    """

    kind: str
    take: tuple[TextClause, ...]
    returning: bool
    look: TextClause
    extend: TextClause
    extend_owner: TextClause
    release: TextClause
    release_owner: TextClause
    clamp: TextClause
    clock: TextClause


def statements_for(kind: str) -> Statements:
    """The statements for a kind of database."""
    mysql, returning = kind == "mysql", kind == "postgresql"
    floor = _DERIVED_FLOOR if mysql else _FLOOR

    def made(template: str) -> TextClause:
        return text(template.format(clock=CLOCKS[kind], floor=floor).strip())

    upsert = _UPSERT + (_RETURNING if returning else "")
    return Statements(
        kind,
        tuple(map(made, (_TAKE_OVER, _INSERT) if mysql else (upsert,))),
        returning,
        made(_LOOK),
        made(_EXTEND.rstrip() + _THIS_VERSION),
        made(_EXTEND),
        made(_RELEASE.rstrip() + _THIS_VERSION),
        made(_RELEASE),
        made(_CLAMP),
        made(_CLOCK),
    )
