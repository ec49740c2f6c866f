"""Taking a lock, holding it while a body runs, and giving it back.  Knows no Celery."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from celery_redlock import clock, events, pool_child
from celery_redlock.coordinators.base import Conflict, Coordinator, Grant, Holder
from celery_redlock.events import Sink
from celery_redlock.exceptions import CoordinatorUnavailable, LockLost
from celery_redlock.interrupt import shielded
from celery_redlock.lease import Lease
from celery_redlock.notices import NoticeOptions
from celery_redlock.options import LockOptions, Mode
from celery_redlock.waiting import Patience
from celery_redlock.watchdog import Hold, watchdog

__all__ = ["Claimant", "Session", "boot_nonce", "current_lease", "entered", "held_leases"]

logger = logging.getLogger(__name__)

_leases: ContextVar[tuple[Lease, ...]] = ContextVar("celery_redlock_leases", default=())


def current_lease() -> Lease | None:
    """The lease of the body that is running, the innermost one; None outside of any."""
    leases = _leases.get()
    return leases[-1] if leases else None


def held_leases() -> tuple[Lease, ...]:
    """The leases of the bodies that are running in this context, the outermost first."""
    return _leases.get()


def new_owner() -> str:
    """A random value of 128 bits that proves who holds a lock, new for each attempt."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Claimant:
    """Who wants which locks, and how.

    Attributes:
        coordinator: who grants them.
        keys: the locks' names, sorted; all of them are taken, or none.
        options: how they are taken and kept.
        holder: readable facts about who asks.
        sink: where events go.
        guard: how the guardian is to look after the locks, should this process be killed or
            starved; None where there is no guardian.
    """

    coordinator: Coordinator
    keys: tuple[str, ...]
    options: LockOptions
    holder: Holder
    sink: Sink
    guard: NoticeOptions | None = None

    def tell(self, event: type[events.Event], **facts: object) -> None:
        """Hand an event of these locks to the sink."""
        mode: Mode = self.options.mode
        self.sink(event(key=", ".join(self.keys), mode=mode, holder=self.holder, **facts))


class Session:
    """The life of one claimant's locks: taken once, held while a body runs, given back once.

    Use it as ``try: conflict = session.take(wait) ... finally: session.give_back()``.  What a
    signal interrupts (a soft time limit, say) is still given back.

    Attributes:
        claimant: who wants what.
        hold: the lease and how it is kept alive; None unless the locks were granted.
        met: what was in the way the last time that somebody was; None if nobody was.
    """

    def __init__(self, claimant: Claimant) -> None:
        """Start without a lock."""
        self.claimant = claimant
        self.hold: Hold | None = None
        self.met: Conflict | None = None
        self._given_back = False

    def take(
        self, wait: float, stop_body: Callable[[Lease], None] | None = None
    ) -> Conflict | None:
        """Take all the locks, waiting up to ``wait`` seconds for them; None once they are held.

        A split vote, where perhaps nobody holds the lock, is decided by asking again a few
        times after random delays, whatever ``wait`` is.

        Args:
            wait: seconds, 0 or more.
            stop_body: called once from the watchdog's thread if a lock is lost.

        Raises:
            CoordinatorUnavailable: nobody can say; nothing is held.
        """
        began = clock.now()
        patience = Patience(wait, getattr(self.claimant.coordinator, "listen", None))
        try:
            while True:
                conflict = self._try(clock.now() - began, stop_body)
                self.met = conflict or self.met
                if conflict is None or not patience.another_try(conflict):
                    return conflict
        finally:
            patience.close()

    def _try(self, waited: float, stop_body: Callable[[Lease], None] | None) -> Conflict | None:
        claimant = self.claimant
        with shielded():
            outcome = _acquire_all(claimant)
            if isinstance(outcome, Conflict):
                return outcome
            self.hold = _start(claimant, outcome, stop_body)
        token = self.hold.lease.fencing_token
        claimant.tell(events.Acquired, fencing_token=token, waited=waited)
        return None

    def lost_error(self) -> LockLost:
        """What a body ends with that is stopped now because its lock was lost."""
        if self.hold is None:
            return LockLost(", ".join(self.claimant.keys))
        lease = self.hold.lease
        if not lease.lost:  # the signal came from the guardian, and the watchdog hasn't run since
            self.hold.lose("the guardian saw that it was not renewed in time")
        return LockLost(lease.key, lease.fencing_token, lease.lost_because)

    def is_told_lost(self) -> bool:
        """Whether the guardian has seen that a lock was lost; it signals when it has."""
        if self.hold is None:
            return False
        return any(pool_child.is_lost(grant.owner) for grant in self.hold.lease.grants)

    def give_back(self) -> None:
        """Give the locks back, whatever interrupts it.  Never raises on its own."""
        try:
            self._finish_once()
        except BaseException:  # a signal came just before its shield was up: it comes once
            self._finish_once()
            raise

    def _finish_once(self) -> None:
        with shielded():
            if self.hold is not None and not self._given_back:
                self._given_back = True
                _finish(self.claimant, self.hold)


def _acquire_all(claimant: Claimant) -> tuple[Grant, ...] | Conflict:
    grants: list[Grant] = []
    for key in claimant.keys:
        try:
            outcome = _acquire_one(claimant, key)
        except BaseException:
            _give_back(claimant, grants)
            raise
        if isinstance(outcome, Conflict):
            _give_back(claimant, grants)
            return outcome
        grants.append(outcome)
    return tuple(grants)


def _acquire_one(claimant: Claimant, key: str) -> Grant | Conflict:
    owner, ttl = new_owner(), claimant.options.ttl
    if claimant.guard is not None:  # before any server knows it, for a death in between
        pool_child.announce(key, owner, claimant.guard)
    try:
        outcome = claimant.coordinator.acquire(key, owner, ttl, claimant.holder)
    except CoordinatorUnavailable:  # the coordinator has taken its partial acquisition back
        pool_child.retract(owner)
        raise
    except BaseException:  # interrupted half-way: what was granted, nobody knows
        unknown = Grant(key, owner, ttl, clock.now() + ttl)
        watchdog().release_later(claimant.coordinator, unknown)
        raise
    if isinstance(outcome, Conflict):
        pool_child.retract(owner)
    else:
        pool_child.note(outcome)
    return outcome


def _give_back(claimant: Claimant, grants: Sequence[Grant]) -> bool:
    """Give grants back; False if one of them was not ours any more."""
    ours = [_release(claimant, grant) for grant in grants]
    return all(ours)


def _release(claimant: Claimant, grant: Grant) -> bool:
    """Give one grant back; False if it was not ours any more.  Never raises."""
    pool_child.finish(grant.owner)
    try:
        ours = claimant.coordinator.release(grant)
    except CoordinatorUnavailable as exc:
        claimant.tell(events.ReleaseFailed, error=str(exc))
    except Exception as exc:
        logger.exception("releasing %r failed", grant.key)
        claimant.tell(events.ReleaseFailed, error=repr(exc))
    else:
        pool_child.retract(grant.owner)
        return ours
    watchdog().release_later(claimant.coordinator, grant)
    return True


def _start(
    claimant: Claimant, grants: Sequence[Grant], stop_body: Callable[[Lease], None] | None
) -> Hold:
    """Begin to hold what was granted: from here on the watchdog renews it."""
    options = claimant.options
    lease = Lease(grants, options.mode, claimant.holder, clock.now, pool_child.renewed_until)
    hold = Hold(
        lease,
        claimant.coordinator,
        options.ttl,
        options.renew_interval,
        options.max_hold,
        claimant.sink,
    )
    if stop_body is not None:
        hold.stop_body = stop_body
    watchdog().watch(hold)
    return hold


def _finish(claimant: Claimant, hold: Hold) -> None:
    """End the lease and give its locks back.  Never raises."""
    lease = hold.lease
    held = clock.now() - lease.since
    keep = claimant.options.min_hold - held
    hold.keeps = keep > 0 and not lease.lost
    lease.end()
    watchdog().forget(hold)
    if hold.keeps:
        _keep(claimant, lease, keep)
    elif lease.lost_because:
        _give_back(claimant, lease.grants)  # some server may still have it as ours
    elif _give_back(claimant, lease.grants):
        claimant.tell(events.Released, held=held)
    else:
        reason = "it was found gone when the body was over"
        logger.warning("lock %r was lost: %s", lease.key, reason)
        claimant.tell(events.Lost, fencing_token=lease.fencing_token, reason=reason)


def _keep(claimant: Claimant, lease: Lease, seconds: float) -> None:
    """Let the locks run out ``seconds`` from now, instead of giving them back."""
    for grant in lease.grants:
        pool_child.finish(grant.owner)
        try:
            claimant.coordinator.extend(grant, seconds)
        except CoordinatorUnavailable as exc:  # it runs out by its ttl, a little earlier or later
            claimant.tell(events.ReleaseFailed, error=str(exc))
        pool_child.retract(grant.owner)


@contextmanager
def entered(lease: Lease) -> Iterator[Lease]:
    """Make a lease the current one while a body runs."""
    mark = _leases.set((*_leases.get(), lease))
    try:
        yield lease
    finally:
        _leases.reset(mark)


_boot_nonce = secrets.token_hex(8)


def boot_nonce() -> str:
    """Random, and new for each process: a process id is used again, this is not."""
    return _boot_nonce


def _after_fork() -> None:
    global _boot_nonce  # noqa: PLW0603 - the child is another process
    _boot_nonce = secrets.token_hex(8)


os.register_at_fork(after_in_child=_after_fork)
