"""Giving back the queue lock of a message that is over, and publishing what was left with it.

By its owner's value alone, so it can be done by whoever learns of the end: the process that ran
the task, or the worker's main process for a message that never got so far.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery_redlock.coordinators.base import Grant
from celery_redlock.coordinators.notes import hand_over
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.in_time import helpers
from celery_redlock.lock import new_owner
from celery_redlock.locks import Locks
from celery_redlock.publish import HEADER, Ticket
from celery_redlock.successor import Call, successor_id
from celery_redlock.uniqueness import Kept, QueueLock

__all__ = ["Next", "finish_later", "settle"]

logger = logging.getLogger(__name__)

PUBLISH_TRIES, LONGEST_PAUSE = 10, 10.0
HAND_OVER_TRIES, HAND_OVER_PAUSE = 5, 0.2


class Next:
    """The one more run that was asked for while a task was alive.

    Args:
        call: what is called.
        task_id: its id, which the callers know already.
        ticket: its queue lock; None if somebody else was quicker.
        lock: the lock itself.
    """

    def __init__(
        self, call: Call, task_id: str, ticket: Ticket | None, lock: QueueLock | None
    ) -> None:
        """Publish nothing yet, but keep its lock."""
        self.call, self.task_id, self.ticket, self._lock = call, task_id, ticket, lock
        self._kept: Kept | None = None

    def wait(self, locks: Locks) -> None:
        """Keep its lock until it is published, which is not yet."""
        if self._lock is not None:
            holder = locks.holder(task=self.call.task, id=self.task_id)
            self._kept = Kept(self._lock, holder, 2 * self._lock.first_ttl)

    def publish(self, app: Any) -> None:
        """Send it, trying again for a while if the broker doesn't take it.  Never raises."""
        own = (self.call.options.get("headers") or {}).get(HEADER)
        header = {**own, "behind": True} if isinstance(own, Mapping) else {"behind": True}
        Ticket.pop(header, None)
        if self.ticket is not None:
            self.ticket.into(header)
        pause = 0.5
        for left in reversed(range(PUBLISH_TRIES)):
            try:
                self.call.publish(app, self.task_id, {HEADER: header})
            except Exception:
                logger.exception(
                    "the newest call of %s (task id %s) could not be published%s",
                    self.call.task,
                    self.task_id,
                    "; trying again" if left else ", AND IS GIVEN UP",
                )
                if left:
                    time.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
            else:
                logger.info(
                    "%s[%s] is published with the newest arguments, after the run before it",
                    self.call.task,
                    self.task_id,
                )
                self._settle(published=True)
                return
        self._settle(published=False)

    def _settle(self, *, published: bool) -> None:
        if self._kept is not None:
            self._kept.stop(keeps=published)
        if self._lock is not None and published:
            self._lock.confirm(self._lock.ttl)
        elif self._lock is not None:
            self._lock.free()


def settle(app: Any, ticket: Ticket, lock: QueueLock) -> list[Next]:
    """Give a queue lock back because its message is over; what is to be published now.

    Never raises.

    Args:
        app: the application.
        ticket: what the message carried.
        lock: its queue lock.
    """
    if ticket.scope == "until_expired":
        return []
    if ticket.policy != "keep_latest":
        lock.free()
        return []
    found = [_take_over(app, ticket, lock, key) for key in lock.keys]
    return [one for one in found if one is not None]


def _take_over(app: Any, ticket: Ticket, lock: QueueLock, key: str) -> Next | None:
    locks, heir, task_id = Locks.for_app(app), new_owner(), successor_id(ticket.id, key)
    holder, ttl = locks.holder(task="the newest call", id=task_id), lock.first_ttl
    for left in reversed(range(HAND_OVER_TRIES)):
        try:
            found = hand_over(lock.coordinator, lock.grant(key), heir, ttl, holder)
        except CoordinatorUnavailable:
            if not left:
                logger.exception(
                    "queue lock %r can't be given back; IF A NEWER CALL WAS LEFT WITH IT, IT IS LOST",
                    key,
                )
                return None
            time.sleep(HAND_OVER_PAUSE)
        else:
            break
    if found is None:
        return None
    try:
        call = Call.from_note(app, found.note)
    except Exception:
        logger.exception("the newest call that was left with lock %r can't be read: LOST", key)
        if found.grant is not None:
            lock.coordinator.release(found.grant)
        return None
    header = (call.options.get("headers") or {}).get(HEADER)
    theirs = Ticket.of(header, task_id) if isinstance(header, Mapping) else None
    if theirs is None or found.grant is None:
        return Next(call, task_id, None, None)
    return Next(call, task_id, *_ticket_of(locks, theirs, found.grant))


def _ticket_of(locks: Locks, theirs: Ticket, grant: Grant) -> tuple[Ticket, QueueLock]:
    """The ticket of the one more run, over those of its keys that it can have."""
    ticket = replace(theirs, keys=(grant.key,), owner=grant.owner)
    others = tuple(key for key in theirs.keys if key != grant.key)
    if others:
        more = replace(theirs, keys=others, owner=grant.owner).lock(locks)
        try:
            if more.take(locks.holder(task="the newest call", id=theirs.id)) is None:
                ticket = replace(ticket, keys=theirs.keys)
        except CoordinatorUnavailable as exc:
            logger.warning("task %s waits without queue lock %r: %s", theirs.id, more.name, exc)
    return ticket, ticket.lock(locks)


def finish_later(app: Any, header: Mapping[str, Any], task_id: str | None) -> None:
    """Give back the queue lock of a message that never ran, or whose process died; in background.

    Args:
        app: the application.
        header: our header of the message.
        task_id: its id.
    """
    ticket = Ticket.of(header, task_id)
    if ticket is None or ticket.scope == "until_expired":
        return

    def finish() -> None:
        locks = Locks.for_app(app)
        try:
            lock = ticket.lock(locks)
        except ImproperlyConfigured as exc:
            logger.warning("queue lock %r is left to its ttl: %s", ticket.keys, exc)
            return
        for one in settle(app, ticket, lock):
            one.publish(app)

    helpers().later(finish)
