"""Taking the queue lock for one publish, and what the policy makes of an equal call that lives.

Lock servers get a bounded time, all questions of one publish together.  Where they can't say, the
message goes out without a queue lock: nothing is dropped, and nothing is taken for a duplicate,
because nobody could say.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from celery_redlock import clock, events
from celery_redlock.coordinators.base import Conflict, Holder
from celery_redlock.coordinators.notes import leave_note
from celery_redlock.exceptions import CoordinatorUnavailable, DuplicateTask, describe_holder
from celery_redlock.in_time import OutOfTime, helpers
from celery_redlock.locks import Locks, Plan
from celery_redlock.revoked import is_over
from celery_redlock.sending import surely_not_sent
from celery_redlock.successor import order_now, successor_id
from celery_redlock.uniqueness import RUN_SCOPES, QueueLock, Unsettled, displace, reserve

__all__ = ["BUDGET", "Admission", "Folded"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

BUDGET = 0.25
"""Seconds that all questions to lock servers may take in one publish, together."""

NOTE_TTL = 86400.0
"""Seconds that a note lives at least: as long as a body may run, since only its end reads it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1  # seconds between looks at a lock that isn't settled


class Folded(Exception):
    """Leaves Celery's publish before anything is sent: a living task answers for the call.

    Attributes:
        task_id: the id of that task.
    """

    def __init__(self, task_id: str) -> None:
        """Remember the task."""
        super().__init__(task_id)
        self.task_id = task_id


class Admission:
    """One call that asks to be let into the queue.

    Args:
        app: the application.
        plan: how the task is locked.
        lock: the queue lock that it needs; the owner is chosen here.
        holder: who asks: the task's name, its id, its queue.
        note: makes the note that is left with a living task, to be run under the given id.

    Attributes:
        taken: the lock, once it is ours.
    """

    def __init__(
        self,
        app: Any,
        plan: Plan,
        lock: QueueLock,
        holder: Holder,
        note: Callable[[str], bytes],
    ) -> None:
        """Ask nobody yet."""
        self.taken: QueueLock | None = None
        self._app, self._plan, self._lock, self._holder, self._note = app, plan, lock, holder, note
        self._left = BUDGET
        self._displaced: str | None = None
        # Of this thread: a helper's own backend would be another connection.
        self._backend = app.backend

    @property
    def named(self) -> str:
        """The task and its id, for log lines."""
        return f"{self._holder.task}[{self._holder.id}]"

    def enter(self, *, behind: bool = False) -> QueueLock | None:
        """The queue lock, which is ours now; None: the message goes out without it.

        A call that has the lock but isn't published yet is waited for, until it is or until the
        first, short life of its lock is over.

        Args:
            behind: whether the call comes from a running task of the same key, and is let in
                whoever else waits.

        Raises:
            Folded: a living task answers for the call.
            DuplicateTask: an equal call is alive, and the policy is to say so.
        """
        try:
            self.taken = self._enter(behind=behind)
        except (CoordinatorUnavailable, OutOfTime) as exc:
            why = str(exc) or f"its lock servers gave no answer within {BUDGET:g} s"
            self._warn(why)
        return self.taken

    def _enter(self, *, behind: bool) -> QueueLock | None:
        pause, until = _FIRST_PAUSE, clock.now() + self._lock.first_ttl + _LONGEST_PAUSE
        while True:
            outcome = self._ask(
                lambda: reserve(self._lock, self._holder, self._is_alive), _undo_reserve
            )
            if isinstance(outcome, QueueLock):
                return outcome
            if isinstance(outcome, Conflict):
                if behind:  # somebody stands in the line already, and it must run all the same
                    return None
                self._meet(outcome)
            elif clock.now() >= until:
                raise CoordinatorUnavailable(outcome.why)
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - not a secret
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_alive(self, conflict: Conflict) -> bool:
        if self._plan.options.scope == "until_expired" or conflict.holder is None:
            return True
        return not is_over(self._backend, self._lock.coordinator, conflict.holder.id)

    def _meet(self, conflict: Conflict) -> None:
        """Do what the policy says about an equal call that is alive; return to try again.

        Raises:
            Folded: the call is answered for.
            DuplicateTask: it is to be said.
            CoordinatorUnavailable: nobody can say what is to be done.
        """
        other, policy = conflict.holder, self._plan.options.on_duplicate
        if other is None or not other.id:
            raise CoordinatorUnavailable(f"queue lock {conflict.key!r} is held by no task")
        if policy == "replace":
            running = self._plan.coordinator if self._plan.options.scope in RUN_SCOPES else None
            displaced = self._ask(partial(displace, self._lock, conflict, running))
            self._displaced = displaced or self._displaced
            return
        into = other.id
        if policy == "keep_latest":
            into = successor_id(other.id, conflict.key)
            if not self._leave(conflict, self._note(into)):
                return  # it has just ended
        self._tell(events.DuplicateMet, task_id=into, policy=policy)
        logger.info(
            "%s was not published (on_duplicate=%r): lock %r is held by %s; task %s answers for it",
            self._holder.task,
            policy,
            conflict.key,
            describe_holder(other.to_dict()),
            into,
        )
        if policy == "raise":
            raise DuplicateTask(conflict.key, other.to_dict(), conflict.retry_after, other.id)
        raise Folded(into)

    def _leave(self, conflict: Conflict, note: bytes) -> bool:
        """Leave this call with the living task, to be run after it; False if that has ended."""
        lock, number = self._lock, order_now()

        def leave() -> bool:
            held = lock.present(conflict)
            if held is None:
                return False
            ttl = max(lock.ttl, NOTE_TTL)
            return leave_note(lock.coordinator, conflict.key, held.owner, note, number, ttl)

        return self._ask(leave)

    def settle(self) -> None:
        """The message is out: let the lock live, and a displaced task die."""
        if self.taken is not None:
            keep = partial(self.taken.confirm, self.taken.ttl)
            if self.taken.coordinator.capabilities.tests_only:
                keep()
            else:
                helpers().later(keep)
        if self._displaced is None:
            return
        logger.info("%s takes the place of task %s", self.named, self._displaced)
        self._tell(events.DuplicateMet, task_id=self._displaced, policy="replace")
        try:
            self._app.control.revoke(self._displaced)
        except Exception:  # the worker will see that it has lost its place
            logger.warning("task %s could not be revoked", self._displaced, exc_info=True)

    def undo(self, exc: BaseException) -> None:
        """The publish has failed: nobody must be folded into what will never run."""
        lock = self.taken
        if lock is None:
            return
        if not surely_not_sent(exc):
            logger.warning(
                "whether %s was published is not known: its queue lock %r runs out in %g s",
                self.named,
                lock.name,
                lock.first_ttl,
            )
            return
        try:
            self._ask(lock.free)
        except OutOfTime:
            logger.debug("queue lock %r will be given back in the background", lock.name)

    def _ask(self, ask: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Ask lock servers something within what is left of the budget."""
        if self._lock.coordinator.capabilities.tests_only:  # in this process: it can't hang
            return ask()
        began = clock.now()
        try:
            return helpers().within(self._left, ask, undo)
        finally:
            self._left = max(0.0, self._left - (clock.now() - began))

    def _warn(self, why: str) -> None:
        logger.warning(
            "%s is published WITHOUT ITS QUEUE LOCK %r: %s", self.named, self._lock.name, why
        )
        self._tell(events.Unavailable, policy="publish", error=why)

    def _tell(self, event: type[events.Event], **facts: Any) -> None:
        mode = self._plan.options.mode
        sink = Locks.for_app(self._app).sink
        sink(event(key=self._lock.name, mode=mode, holder=self._holder, **facts))


def _undo_reserve(outcome: QueueLock | Conflict | Unsettled) -> None:
    if isinstance(outcome, QueueLock):
        outcome.free()
