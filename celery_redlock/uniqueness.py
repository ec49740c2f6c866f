"""Queue locks: taken before a message is published, given back when its task starts or ends.

Knows no Celery.  A queue lock is held by nobody's process but by a message: whoever handles the
message has the owner and the keys from its header, and gives the lock back by them alone.  It is
taken for a few seconds, and kept for longer once the message is out, so that a publisher that
dies in between blocks nobody for an hour.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_redlock import clock
from celery_redlock.coordinators.base import Conflict, Coordinator, Grant, Held, Holder
from celery_redlock.events import Event
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.lease import Lease
from celery_redlock.lock import new_owner
from celery_redlock.watchdog import Hold, watchdog

__all__ = ["QUEUE_SCOPES", "RUN_SCOPES", "Kept", "QueueLock", "Unsettled", "displace"]
__all__ += ["reserve"]

logger = logging.getLogger(__name__)

QUEUE_SCOPES = frozenset(
    {"until_executing", "until_and_while_executing", "until_executed", "until_expired"}
)
RUN_SCOPES = frozenset({"while_executing", "until_and_while_executing", "until_executed"})

FIRST_TTL = 5.0  # seconds from taking the lock to the message being out
CONFIRM_TRIES, CONFIRM_PAUSE = 4, 0.3
RELEASE_TRIED_FOR = 60.0  # seconds that a release which couldn't be said is repeated


@dataclass(frozen=True)
class QueueLock:
    """One queue lock, as a message carries it.

    Attributes:
        coordinator: who grants it.
        keys: its names, sorted; all of them are taken, or none.
        owner: the random value that proves whose it is.
        ttl: its life in seconds while the message waits, more than 0.
    """

    coordinator: Coordinator
    keys: tuple[str, ...]
    owner: str
    ttl: float

    @property
    def first_ttl(self) -> float:
        """Its life in seconds until the message is known to be out."""
        first, least = min(FIRST_TTL, self.ttl / 4), self.coordinator.capabilities.min_ttl
        return first if first > least else min(self.ttl, 1.5 * least)

    def grant(self, key: str) -> Grant:
        """The grant of one key, rebuilt from what the message carries."""
        life = min(self.ttl, RELEASE_TRIED_FOR)
        return Grant(key, self.owner, life, clock.now() + self.ttl)

    def take(self, holder: Holder) -> Conflict | None:
        """Take all keys for a few seconds; None if that is done, else none of them is taken.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        grants: list[Grant] = []
        outcome: Grant | Conflict
        for key in self.keys:
            try:
                outcome = self.coordinator.acquire(key, self.owner, self.first_ttl, holder)
            except BaseException:
                self._give_back(grants)
                raise
            if isinstance(outcome, Conflict):
                self._give_back(grants)
                return outcome
            grants.append(outcome)
        return None

    def keep(self, ttl: float) -> bool:
        """Set the life that is left to ``ttl`` seconds; False if a key is not ours any more.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        kept = [self.coordinator.extend(self.grant(key), ttl) for key in self.keys]
        return all(one is not None for one in kept)

    def confirm(self, ttl: float) -> None:
        """Keep the lock for ``ttl`` seconds from now, because its message is out.

        A lock that is gone by now has been given back by the task itself.
        """
        for left in reversed(range(CONFIRM_TRIES)):
            try:
                self.keep(ttl)
            except CoordinatorUnavailable as exc:
                if not left:
                    logger.warning(
                        "queue lock %r runs out in seconds, since it couldn't be kept: %s",
                        self.name,
                        exc,
                    )
                    return
                time.sleep(random.uniform(0, CONFIRM_PAUSE))  # noqa: S311 - not a secret
            else:
                return

    def free(self) -> bool:
        """Give it back; whether all of it was still ours.  Never raises, is repeated if need be."""
        return self._give_back([self.grant(key) for key in self.keys])

    def present(self, conflict: Conflict) -> Held | None:
        """What stands in the way, with its owner; None if that is gone by now.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        held = self.coordinator.inspect(conflict.key)
        same = held and conflict.holder and held.holder.id == conflict.holder.id
        return held if same else None

    @property
    def name(self) -> str:
        """Its keys, for messages."""
        return ", ".join(self.keys)

    def _give_back(self, grants: list[Grant]) -> bool:
        ours = [_release(self.coordinator, grant) for grant in grants]
        return all(ours)


def _release(coordinator: Coordinator, grant: Grant) -> bool:
    try:
        return coordinator.release(grant)
    except CoordinatorUnavailable:
        watchdog().release_later(coordinator, grant)
    except Exception:
        logger.exception("giving back queue lock %r failed", grant.key)
    return True


class Unsettled(NamedTuple):
    """Nobody knows yet whether the call that has the lock will be published.

    To fold another call into one that never is would lose it.

    Attributes:
        why: what is not known, for messages.
    """

    why: str


def reserve(
    lock: QueueLock, holder: Holder, alive: Callable[[Conflict], bool]
) -> QueueLock | Conflict | Unsettled:
    """Take a queue lock: as it is ours now, or who has it and is alive, or that nobody knows yet.

    Args:
        lock: what is wanted; its owner is of no account.
        holder: who asks: the task that is to be published.
        alive: whether the task that holds the lock is one that will run or is running; a dead
            one's lock is taken from it.

    Raises:
        CoordinatorUnavailable: nobody can say.
    """
    mine = replace(lock, owner=new_owner())  # new for each attempt
    conflict = mine.take(holder)
    if conflict is None:
        return mine
    if not conflict.certain:
        return Unsettled(f"others want {conflict.key!r} at the same time")
    task_id = conflict.holder.id if conflict.holder else ""
    if not _settled(conflict, lock.first_ttl):
        return Unsettled(f"task {task_id} has {conflict.key!r}, and its message is not out yet")
    if alive(conflict):
        return conflict
    held = lock.present(conflict)
    if held is not None:
        logger.info("queue lock %r is taken from dead task %s", held.key, task_id)
        _take_from(lock, held)
    return Unsettled(f"task {task_id}, which is dead, had {conflict.key!r}")


def _settled(conflict: Conflict, first_ttl: float) -> bool:
    """Whether the lock is known to be held by a message that is out.

    One with no more than its first life left, which is young besides, has not been kept yet.
    """
    holder, left = conflict.holder, conflict.retry_after
    if holder is None or left is None or left > first_ttl:
        return True
    return time.time() - holder.since >= 1.5 * first_ttl  # it can't have been left as it was


def _take_from(lock: QueueLock, held: Held) -> None:
    """Give a lock back in its owner's name."""
    life = min(held.ttl_left, RELEASE_TRIED_FOR)
    lock.coordinator.release(Grant(held.key, held.owner, life, clock.now() + life))


def displace(lock: QueueLock, conflict: Conflict, running: Coordinator | None) -> str | None:
    """Take a queue lock from the task that has it, so that another takes its place.

    Args:
        lock: what is wanted.
        conflict: who is in the way.
        running: who grants the run lock that the task has while it runs, if it has one.

    Returns:
        the id of a task that is queued; None if it runs already, or is gone.

    Raises:
        CoordinatorUnavailable: nobody can say.
    """
    held = lock.present(conflict)
    if held is None:
        return None
    run = None if running is None else running.inspect(conflict.key)
    _take_from(lock, held)
    return None if run is not None and run.holder.id == held.holder.id else held.holder.id


class _Hold(Hold):
    """A queue lock that is renewed: to lose it is no loss for the body."""

    def lose(self, reason: str) -> None:
        if self.lease.mark_lost(reason):
            logger.info("queue lock %r is not ours any more: %s", self.lease.key, reason)


def _nobody(event: Event) -> None:
    """Renewals of queue locks are nobody's news."""


class Kept:
    """A queue lock that is renewed while its task runs, so that it dies with the worker.

    Args:
        lock: the lock.
        holder: whose it is.
        ttl: seconds that each renewal buys.
    """

    def __init__(self, lock: QueueLock, holder: Holder, ttl: float) -> None:
        """Begin to renew it."""
        grants = [Grant(key, lock.owner, ttl, clock.now() + ttl) for key in lock.keys]
        lease = Lease(grants, "efficiency", holder, clock.now)
        self._hold = _Hold(lease, lock.coordinator, ttl, ttl / 3, None, _nobody)
        watchdog().watch(self._hold)

    def stop(self, *, keeps: bool) -> None:
        """Stop renewing; ``keeps``: the lock is not given back now."""
        self._hold.keeps = keeps
        self._hold.lease.end()
        watchdog().forget(self._hold)
