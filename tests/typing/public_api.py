"""What the public names are to a type checker; ``mypy`` checks it, nothing here is ever run.

A line with ``type: ignore`` must be an error: mypy warns of an ignore that isn't needed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_redlock import (
    CoordinatorUnavailable,
    DuplicateTask,
    FencingToken,
    Lease,
    LockedTask,
    LockLost,
    LockNotAcquired,
    LockOptions,
    Locks,
    RedlockError,
    Skipped,
    StaleTokenError,
    current_lease,
)
from celery_redlock.coordinators.base import Conflict, Coordinator, Grant
from celery_redlock.guards import django, http, object_store, redis, sqlalchemy
from celery_redlock.testing import FakeClock, MemoryCoordinator

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session
    from typing_extensions import assert_type

app = Celery("typed")


@app.task(base=LockedTask, lock_mode="correctness", lock_key="account:{account}")
def charge(account: int, cents: int = 5, *, fencing_token: FencingToken) -> int:
    """The natural signature."""
    assert_type(fencing_token, FencingToken)
    return account + cents + fencing_token


def calls() -> None:
    """No caller has to know of the token, and a unit test hands it in."""
    charge.delay(7)
    charge.apply_async((7,), lock={"ttl": 60})
    charge.s(7).delay()
    charge(7)
    charge.run(7, fencing_token=3)


class Charge(LockedTask):
    """A task class, with its lease at hand."""

    name = "typed.charge"
    lock_mode = "correctness"
    lock_on_lost = "flag"

    def run(self, account: int, *, fencing_token: FencingToken) -> int:
        """The body."""
        assert_type(self.lease, Lease | None)
        if self.lease is not None:
            self.lease.check()
        return account

    def on_lock_lost(
        self, exc: LockLost, task_id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Told of a loss."""
        assert_type(exc.fencing_token, int | None)


def a_token(token: FencingToken) -> None:
    """An int that knows its lock, and one of several locks knows each."""
    number: int = token
    assert_type(token.lock, str)
    assert_type(token.header, str)
    assert_type(token["account:7"], FencingToken)
    assert_type(token.tokens, tuple[FencingToken, ...])
    assert_type(FencingToken.from_header("a;7"), FencingToken)
    assert_type(token + 1, int)
    assert number > 0
    FencingToken(7)  # type: ignore[call-arg]
    token[0]  # type: ignore[index]
    for _ in token:  # type: ignore[misc]
        pass


def a_lease(lease: Lease) -> None:
    """What a body sees of its lock."""
    assert_type(current_lease(), Lease | None)
    assert_type(lease.key, str)
    assert_type(lease.fencing_token, FencingToken | None)
    assert_type(lease.fencing_tokens, dict[str, FencingToken])
    assert_type(lease.remaining(), float)
    assert_type(lease.lost, bool)
    assert_type(lease.lost_because, str)
    lease.on_lost(lambda lost: assert_type(lost, Lease))
    lease.lost = False  # type: ignore[misc]
    lease.fencing_token = 7  # type: ignore[misc,assignment]


def locks_outside_a_task() -> None:
    """A context manager that gives the lease."""
    locks = Locks.for_app(app)
    held: AbstractContextManager[Lease] = locks.lock("reindex", ttl=30, wait=5)
    with held as lease:
        assert_type(lease, Lease)
    with locks.lock(["a", "b"]):
        pass
    locks.lock(7)  # type: ignore[arg-type]
    assert_type(locks.coordinator("default", "correctness").raise_floor(5), int)
    locks.coordinator("default", "strict")  # type: ignore[arg-type]


def options() -> None:
    """Choices are literals, and options are frozen."""
    chosen = LockOptions(mode="correctness", ttl=60.0)
    assert_type(chosen.ttl, float)
    LockOptions(mode="strict")  # type: ignore[arg-type]
    LockOptions(tll=60)  # type: ignore[call-arg]
    chosen.ttl = 5  # type: ignore[misc]


def claims(session: Session, connection: Connection, token: FencingToken) -> None:
    """Every guard takes a token, or an int with its lock beside it."""
    sqlalchemy.claim(session, token)
    sqlalchemy.claim(connection, 7, lock="account:7")
    sqlalchemy.claim("session", token)  # type: ignore[arg-type]
    sqlalchemy.claim(session, "7")  # type: ignore[arg-type]
    sqlalchemy.claim(session, token, "account:7")  # type: ignore[call-arg]
    django.claim(token, using="ledger")
    with django.fenced(7, lock="account:7"):
        pass
    assert_type(http.headers(token), dict[str, str])
    http.raise_if_stale(412, token)
    assert_type(redis.claim(object(), token), None)
    object_store.FencedObject(object_store.S3Store(object(), "bucket"), "key", token)


async def asynchronous_claims(session: AsyncSession, token: FencingToken) -> None:
    """Awaited, with the same arguments."""
    await sqlalchemy.claim_async(session, token)
    sqlalchemy.claim(session, token)  # type: ignore[arg-type]


def errors(
    stale: StaleTokenError,
    taken: LockNotAcquired,
    twin: DuplicateTask,
    down: CoordinatorUnavailable,
) -> None:
    """One family, with typed facts."""
    family: list[RedlockError] = [stale, taken, twin, down]
    assert_type(stale.stored, int | None)
    assert_type(stale.fencing_token, int | None)
    assert_type(taken.holder, dict[str, Any] | None)
    assert_type(taken.retry_after, float | None)
    assert_type(twin.task_id, str | None)
    assert_type(down.nodes, dict[str, str])
    assert family


def results(skipped: Skipped) -> None:
    """A skipped result is a dict."""
    plain: dict[str, Any] = skipped
    assert plain


def for_tests() -> None:
    """What is offered for one's own tests fits where the real things go."""
    clock: Callable[[], float] = FakeClock()
    coordinator: Coordinator = MemoryCoordinator(clock)
    holder = Locks.for_app(app).holder(task="a test")
    assert_type(coordinator.acquire("key", "owner", 30.0, holder), Grant | Conflict)
