"""The background renewer: one native thread for each process.  Knows no Celery.

One pass over the leases is a plain function of the leases and a clock (:func:`renew_due`); the
thread only calls it when something is due.  "Refused" is loss at once; "could not ask" becomes
loss at the lease's deadline and not before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from celery_redlock import events, pool_child
from celery_redlock.clock import Clock, now
from celery_redlock.coordinators.base import Coordinator, Grant
from celery_redlock.events import Sink
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.lease import Lease
from celery_redlock.native import Event, native_thread

__all__ = ["Hold", "Watchdog", "renew_due"]

logger = logging.getLogger(__name__)
FOREVER = float("inf")
STOP_AGAIN = 1.0  # seconds at least until a body that goes on without its lock is stopped again


def _nothing(lease: Lease) -> None:
    """What happens to a body on loss unless something else is asked for."""


@dataclass(eq=False)
class Hold:
    """A lease and how it is kept alive.

    Attributes:
        lease: the lease.
        coordinator: who granted it.
        ttl: seconds that each renewal buys.
        renew_interval: seconds between renewals.
        max_hold: seconds after which renewing stops as if the lock was lost; None: never.
        sink: where events go.
        stop_body: called when the lock is lost, after the callbacks, and again while the body
            goes on all the same.
        next_at: the instant of the next renewal, or of the next call of ``stop_body``.
        keeps: whether the lock outlives its lease, to be kept for a least time.
        lost: whether everybody has been told that the lock was lost.
    """

    lease: Lease
    coordinator: Coordinator
    ttl: float
    renew_interval: float
    max_hold: float | None
    sink: Sink
    stop_body: Callable[[Lease], None] = _nothing
    next_at: float = field(default=0.0)
    keeps: bool = False
    lost: bool = False

    def __post_init__(self) -> None:
        """The first renewal is due one interval after the grant was asked for."""
        self.next_at = self.lease.since + self.renew_interval

    def tell(self, event: type[events.Event], **facts: Any) -> None:
        """Hand an event of this lease to the sink."""
        lease = self.lease
        self.sink(event(key=lease.key, mode=lease.mode, holder=lease.holder, **facts))

    def lose(self, reason: str) -> None:
        """Mark the lease lost and tell everybody, once."""
        if not self.lease.mark_lost(reason):
            return
        self.lost = True
        logger.warning("lock %r was lost: %s", self.lease.key, reason)
        for callback in self.lease.take_callbacks():
            try:
                callback(self.lease)
            except Exception:  # a user's callback must not stop the others
                logger.exception("a callback for the loss of %r failed", self.lease.key)
        self.tell(events.Lost, fencing_token=self.lease.fencing_token, reason=reason)
        self.stop_body(self.lease)

    def due_at(self) -> float:
        """When this lease next wants to be looked at."""
        if self.lost:
            return FOREVER if self.lease.ended else self.next_at
        ends = [self.next_at, self.lease.valid_until]
        if self.max_hold is not None:
            ends.append(self.lease.since + self.max_hold)
        return min(ends)


def renew_due(holds: Iterable[Hold], clock: Clock) -> float:
    """Renew what is due and give up what is over; the instant at which to look again.

    Args:
        holds: the leases to look after.
        clock: gives the present instant.
    """
    again = FOREVER
    for hold in holds:
        try:
            _look_after(hold, clock)
        except Exception:  # whatever it is, the other leases must be looked after
            logger.exception("renewing %r failed", hold.lease.key)
            hold.next_at = clock() + hold.renew_interval / 4
        again = min(again, hold.due_at())
    return again


def _look_after(hold: Hold, clock: Clock) -> None:
    lease, start, known = hold.lease, clock(), hold.lost
    if known and start >= hold.next_at and not lease.ended:
        known = False
        hold.stop_body(lease)  # it goes on, so it has swallowed the interrupt
    elif known:
        return
    elif any(pool_child.is_lost(grant.owner) for grant in lease.grants):
        hold.lose("the guardian saw that it was not renewed in time")
    elif lease.lost:
        hold.lose(lease.lost_because)
    elif hold.max_hold is not None and start - lease.since >= hold.max_hold:
        hold.lose(f"it was held for its max_hold of {hold.max_hold:g} s")
    elif start >= hold.next_at:
        _renew(hold, start, clock)
    if hold.lost and not known:
        hold.next_at = start + max(STOP_AGAIN, hold.renew_interval)  # it may be cleaning up


def _renew(hold: Hold, start: float, clock: Clock) -> None:
    lease, left = hold.lease, hold.lease.remaining()
    renewed: list[Grant] = []
    try:
        for grant in lease.grants:
            fresh = hold.coordinator.extend(grant, hold.ttl)
            if fresh is None and grant.valid_until <= clock() < lease.valid_until:
                hold.next_at = clock()  # we were too late; the guardian has renewed it meanwhile
                return
            if fresh is None:
                hold.lose(f"{grant.key!r} is not ours any more: a renewal was refused")
                return
            renewed.append(fresh)
    except CoordinatorUnavailable as exc:
        left = lease.remaining()
        hold.next_at = clock() + max(min(hold.renew_interval / 4, left / 2), hold.ttl / 100)
        hold.tell(events.RenewalFailed, remaining=left, error=str(exc))
        return
    if lease.ended and not hold.keeps:  # a renewal may have healed what the release had freed
        for grant in renewed:
            hold.coordinator.release(grant)
        return
    lease.renew(renewed)
    for grant in renewed:
        pool_child.note(grant)
    hold.next_at = start + hold.renew_interval
    hold.tell(events.Renewed, remaining=left, took=clock() - start)


@dataclass
class _LateRelease:
    coordinator: Coordinator
    grant: Grant
    until: float
    next_at: float
    pause: float = 0.1


class Watchdog:
    """Renews the leases of this process, and repeats releases that could not be said.

    The thread starts with the first lease and again if it should ever have ended; it is a
    native one even under gevent and eventlet, so that a body which blocks the hub keeps its
    lock.  After a fork the child has a watchdog of its own, without leases.

    Args:
        clock: gives the present instant.
    """

    def __init__(self, clock: Clock = now) -> None:
        """Start without leases and without a thread."""
        self._clock = clock
        self._holds: dict[Hold, None] = {}
        self._late: dict[int, _LateRelease] = {}
        self._wake = Event()
        self._wakes_at = FOREVER
        self._running = False

    def watch(self, hold: Hold) -> None:
        """Keep this lease alive until :meth:`forget`."""
        self._holds[hold] = None
        self._expect(hold.due_at())

    def forget(self, hold: Hold) -> None:
        """Stop looking after this lease."""
        self._holds.pop(hold, None)

    def release_later(self, coordinator: Coordinator, grant: Grant) -> None:
        """Repeat a release until it could be said, or until the grant has run out anyway."""
        start = self._clock()
        late = _LateRelease(coordinator, grant, start + grant.ttl, start + 0.1)
        self._late[id(late)] = late
        self._expect(late.next_at)

    @property
    def leases(self) -> list[Lease]:
        """The leases that are looked after."""
        return [hold.lease for hold in list(self._holds)]

    def _expect(self, instant: float) -> None:
        if not self._running:
            self._running = True
            native_thread(self._run, "celery_redlock-watchdog")
        elif instant < self._wakes_at:
            self._wake.set()

    def _run(self) -> None:
        try:
            while True:
                self._wakes_at = FOREVER  # whoever comes while a pass runs ends the next wait
                self._wake.clear()
                again = min(renew_due(list(self._holds), self._clock), self._repeat_releases())
                self._wakes_at = again
                pause = again - self._clock()
                self._wake.wait(None if again == FOREVER else max(pause, 0.001))
        finally:  # it can't die silently
            self._running = False
            for hold in list(self._holds):
                hold.lose("the watchdog's thread has ended")

    def _repeat_releases(self) -> float:
        again = FOREVER
        for mark, late in list(self._late.items()):
            if late.next_at <= self._clock():
                self._repeat(mark, late)
            if mark in self._late:
                again = min(again, late.next_at)
        return again

    def _repeat(self, mark: int, late: _LateRelease) -> None:
        try:
            late.coordinator.release(late.grant)
        except CoordinatorUnavailable:
            late.pause = min(late.pause * 2, 5.0)
            late.next_at = self._clock() + late.pause
            if late.next_at < late.until:
                return
            logger.warning("the release of %r was never heard; its ttl frees it", late.grant.key)
        except Exception:
            logger.exception("repeating the release of %r failed", late.grant.key)
        pool_child.retract(late.grant.owner)
        del self._late[mark]


_watchdog = Watchdog()


def watchdog() -> Watchdog:
    """The watchdog of this process."""
    return _watchdog


def _after_fork() -> None:
    global _watchdog  # noqa: PLW0603 - the child's leases are its own
    _watchdog = Watchdog()


os.register_at_fork(after_in_child=_after_fork)
