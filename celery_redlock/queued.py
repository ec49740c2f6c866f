"""In the worker: what becomes of the queue lock that a message carries while its task runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from celery.exceptions import Reject, Retry

from celery_redlock.endings import Next, settle
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.interrupt import shielded
from celery_redlock.locks import LONGEST_QUEUE_TTL, Locks
from celery_redlock.options import LockOptions
from celery_redlock.publish import Ticket, current_line
from celery_redlock.revoked import is_revoked
from celery_redlock.uniqueness import Kept, QueueLock

__all__ = ["Place"]

logger = logging.getLogger(__name__)

_AT_START = frozenset({"until_executing", "until_and_while_executing"})


class Place:
    """The place that a running task has in the line of equal calls.

    Use it as a context around everything that happens to the message: leaving it gives the
    queue lock back, or keeps it if the message comes again.

    Args:
        app: the application.
        task: the task's name.
        keys: the names of its locks.
        options: how it is locked.
        ticket: the queue lock that its message carries; None if it carries none.
    """

    def __init__(
        self,
        app: Any,
        task: str,
        keys: Sequence[str],
        options: LockOptions,
        ticket: Ticket | None,
    ) -> None:
        """Touch nothing yet."""
        self._app, self._task, self._keys, self._options = app, task, frozenset(keys), options
        self._ticket, self._lock = ticket, _lock_of(app, ticket, options)
        self._kept: Kept | None = None
        self._heir: tuple[Ticket, str] | None = None
        self._next: list[Next] = []

    def __enter__(self) -> None:
        self._mark = current_line().set(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        current_line().reset(self._mark)
        ticket, lock = self._ticket, self._lock
        if ticket is None or lock is None:
            return
        again = _comes_again(self._app, exc)
        with shielded():
            if again is None:
                self._leave(ticket, lock)
            else:
                self._stay(ticket, lock, again)
            for one in self._next:
                one.publish(self._app)

    def is_replaced(self) -> bool:
        """Whether another call has taken this one's place while it waited.  Never raises."""
        ticket, lock = self._ticket, self._lock
        if ticket is None or lock is None or ticket.policy != "replace":
            return False
        try:
            return is_revoked(lock.coordinator, ticket.id) or _is_anothers(lock)
        except CoordinatorUnavailable as exc:
            logger.warning("queue lock %r: nobody can say whose it is: %s", lock.name, exc)
            return False

    def begin(self) -> bool:
        """The body is about to start; False if another call has taken this one's place.

        Never raises: a queue lock that is missing is no reason not to run.
        """
        ticket, lock = self._ticket, self._lock
        if ticket is None or lock is None or ticket.scope == "until_expired":
            return True
        try:
            with shielded():
                mine = self._start(ticket, lock)
            return mine or ticket.policy != "replace" or not _is_anothers(lock)
        except CoordinatorUnavailable as exc:
            logger.warning("queue lock %r: nobody can say whose it is: %s", lock.name, exc)
            return True

    def shares(self, keys: Sequence[str]) -> bool:
        """Whether one of these is a key of the running task."""
        return not self._keys.isdisjoint(keys)

    def holds(self, keys: Sequence[str]) -> bool:
        """Whether the running task has the queue lock of one of these keys."""
        ticket = self._ticket
        if ticket is None or self._lock is None or ticket.scope in _AT_START:
            return False
        return not set(ticket.keys).isdisjoint(keys)

    def adopt(self, ticket: Ticket, task: str) -> None:
        """Let the message with this ticket have the queue lock next."""
        self._heir = ticket, task

    def _start(self, ticket: Ticket, lock: QueueLock) -> bool:
        if ticket.scope in _AT_START:
            # What was left with the waiting call runs after it, so it is not sent before its end.
            self._next = settle(self._app, ticket, lock) if ticket.policy == "keep_latest" else []
            for one in self._next:
                one.wait(Locks.for_app(self._app))
            return ticket.policy == "keep_latest" or lock.free()
        ttl = max(self._options.ttl, 2 * lock.first_ttl)
        mine = lock.keep(ttl)
        if mine:
            holder = Locks.for_app(self._app).holder(task=self._task, id=ticket.id)
            self._kept = Kept(lock, holder, ttl)
        return mine

    def _stay(self, ticket: Ticket, lock: QueueLock, seconds: float) -> None:
        """The message comes again in so many seconds: keep the lock until then."""
        self._stop(keeps=True)
        if ticket.scope == "until_executed":
            try:
                lock.keep(min(lock.ttl + seconds, LONGEST_QUEUE_TTL))
            except CoordinatorUnavailable as exc:
                logger.warning("queue lock %r may not last until the retry: %s", lock.name, exc)

    def _leave(self, ticket: Ticket, lock: QueueLock) -> None:
        self._stop(keeps=False)
        if ticket.scope == "until_executed" and self._heir is not None:
            self._bequeath(lock, *self._heir)
        elif not self._next:
            self._next = settle(self._app, ticket, lock)

    def _bequeath(self, lock: QueueLock, heir: Ticket, task: str) -> None:
        """Give the lock to a message that this body has sent, which waits behind it."""
        locks = Locks.for_app(self._app)
        lock.free()
        try:
            theirs = heir.lock(locks, self._options.coordinator)
            if theirs.take(locks.holder(task=task, id=heir.id)) is None:
                theirs.confirm(heir.ttl)
        except CoordinatorUnavailable as exc:
            logger.warning("task %s waits without its queue lock: %s", heir.id, exc)

    def _stop(self, *, keeps: bool) -> None:
        if self._kept is not None:
            self._kept.stop(keeps=keeps)
            self._kept = None


def _lock_of(app: Any, ticket: Ticket | None, options: LockOptions) -> QueueLock | None:
    if ticket is None:
        return None
    try:
        return ticket.lock(Locks.for_app(app), options.coordinator)
    except ImproperlyConfigured as exc:
        logger.warning("queue lock %r is left to its ttl: %s", ticket.keys, exc)
        return None


def _comes_again(app: Any, exc: BaseException | None) -> float | None:
    """Seconds until the message comes again; None if it is over."""
    if isinstance(exc, Reject) and exc.requeue:
        return 0.0
    if not isinstance(exc, Retry):
        return None
    when = exc.when
    if isinstance(when, datetime):
        present = app.now() if when.tzinfo else app.now().replace(tzinfo=None)
        return max(0.0, float((when - present).total_seconds()))
    return float(when) if isinstance(when, (int, float)) else 0.0


def _is_anothers(lock: QueueLock) -> bool:
    found = [lock.coordinator.inspect(key) for key in lock.keys]
    return any(held is not None and held.owner != lock.owner for held in found)
