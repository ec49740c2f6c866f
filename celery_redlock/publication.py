"""One publish of a locked task: what its queue's options make of it, and its queue lock.

Spends a bounded time on lock servers and, where they can't say, publishes without a queue lock:
a message is never dropped, and never taken for a duplicate, because nobody could say.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from celery.utils import uuid

from celery_redlock import clock, events
from celery_redlock.coordinators.base import Conflict, Holder
from celery_redlock.coordinators.notes import leave_note
from celery_redlock.exceptions import CoordinatorUnavailable, DuplicateTask, describe_holder
from celery_redlock.in_time import OutOfTime, helpers
from celery_redlock.locks import LONGEST_QUEUE_TTL, Locks, Plan
from celery_redlock.options import LockOptions
from celery_redlock.publish import HEADER, Line, Ticket, call_options, current_line
from celery_redlock.revoked import is_over
from celery_redlock.routes import queue_of
from celery_redlock.sending import is_promised, life_in_queue, surely_not_sent
from celery_redlock.subjects import Subject
from celery_redlock.successor import Call, order_now, successor_id
from celery_redlock.uniqueness import QUEUE_SCOPES, RUN_SCOPES, QueueLock, displace, reserve

__all__ = ["BUDGET", "Publication"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

BUDGET = 0.25
"""Seconds that all questions to lock servers may take in one publish, together."""

_TRIES = 5  # how often a lock may change hands under a publisher's eyes


class _Folded(Exception):
    """Leaves Celery's publish before anything is sent: a living task answers for the call."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.task_id = task_id


class Publication:
    """One call of ``send_task``.

    Args:
        app: the application.
        subject: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        options: the rest of what ``send_task`` was given; changed here.
        lock: the options of this call alone; None if there are none.
    """

    def __init__(
        self,
        app: Any,
        subject: Subject,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
        lock: Mapping[str, Any] | None,
    ) -> None:
        """Ask nobody yet."""
        self.app = app
        self.locks = Locks.for_app(app)
        self.subject = subject
        self.args, self.kwargs, self.options = args or (), kwargs or {}, options
        self.call = lock
        self.member = is_promised(options)
        self.task_id = options["task_id"] = options.get("task_id") or uuid()
        self.queue: str | None = None
        self._left = BUDGET
        self._headers: dict[str, Any] | None = None
        self._ticket: Ticket | None = None
        self._taken: QueueLock | None = None
        self._heir_in: tuple[Line, Ticket] | None = None
        self._displaced: str | None = None

    def send(self, send: Callable[..., Any]) -> Any:
        """Publish it, or answer with the result of the task that it was folded into.

        Raises:
            DuplicateTask: an equal call is alive, and the policy is to say so.
            ImproperlyConfigured: its options can't be used.
        """
        self.options["router"] = Gate(self, self.options.get("router") or self.app.amqp.router)
        try:
            result = send(self.subject.name, self.args, self.kwargs, **self.options)
        except _Folded as folded:
            return self._result_of(folded.task_id)
        except BaseException as exc:
            self._undo(exc)
            raise
        self._settle()
        result.duplicate = False
        return result

    def routed(self, routed: dict[str, Any]) -> None:
        """Put our header in, now that the queue is known, and take the queue lock.

        Args:
            routed: the options of the publish, after the router; changed here.
        """
        headers = routed.get("headers") or {}
        known = headers.get(HEADER)
        header = dict(known) if isinstance(known, Mapping) else {}
        if self.call is not None:
            target = self.subject.stand_in(self.locks, None, None)
            header["options"] = call_options(target, self.call, self.args, self.kwargs)
        self.queue = queue_of(self.app, routed) or header.get("queue")
        ticket = Ticket.pop(header, self.task_id if self.member else None)
        plan = self.subject.plan(self.locks, self.queue, header)
        if plan is None:
            return
        if self.queue:
            header["queue"] = self.queue
        names = self._names(plan)
        self._headers = {**headers, HEADER: header}
        if ticket is None and not self.member and names and plan.options.scope in QUEUE_SCOPES:
            ticket = self._get_in_line(plan, names, header)
        if ticket is not None:
            ticket.into(header)
        routed["headers"] = self._headers

    # The queue lock

    def _names(self, plan: Plan) -> tuple[str, ...]:
        try:
            return plan.keys.names(self.args, self.kwargs)
        except TypeError as exc:  # the call doesn't fit: the worker will say so
            self.subject.cannot_name(exc)
            return ()

    def _get_in_line(
        self, plan: Plan, names: tuple[str, ...], header: dict[str, Any]
    ) -> Ticket | None:
        """Take the queue lock; None where it can't be had and the message goes out without."""
        options = plan.options
        lock = QueueLock(
            self.locks.coordinator(options.coordinator, "efficiency", "queue"),
            names,
            secrets.token_hex(16),
            self._life(options),
        )
        named = isinstance(options.coordinator, str) and "://" not in options.coordinator
        self._ticket = ticket = Ticket(
            self.task_id,
            names,
            lock.owner,
            options.scope,
            lock.ttl,
            str(options.coordinator) if named else "",
            options.on_duplicate,
        )
        line = current_line().get()
        behind = line is not None and line.shares(names)
        if line is not None and behind:
            header["behind"] = True
            if line.holds(names):
                self._heir_in = line, ticket
                return ticket
        taken = self._take(plan, lock, behind=behind)
        return ticket if taken else None

    def _take(self, plan: Plan, lock: QueueLock, *, behind: bool) -> bool:
        """Whether the lock is ours; False: the message goes out without it."""
        try:
            for _ in range(_TRIES):
                conflict = self._reserve(plan, lock)
                if conflict is None:
                    self._taken = lock
                    return True
                if behind:  # its own predecessor stands in the line already
                    return False
                self._meet(plan, lock, conflict)
        except (CoordinatorUnavailable, OutOfTime) as exc:
            why = str(exc) or f"its lock servers gave no answer within {BUDGET:g} s"
        else:
            why = "it changed hands too often"
        logger.warning(
            "%s[%s] is published WITHOUT ITS QUEUE LOCK %r: %s",
            self.subject.name,
            self.task_id,
            lock.name,
            why,
        )
        self._tell(events.Unavailable, plan, lock, policy="publish", error=why)
        return False

    def _reserve(self, plan: Plan, lock: QueueLock) -> Conflict | None:
        holder, deadline = self._holder(), clock.now() + self._left
        backend = self.app.backend  # of this thread: a helper's own would be another connection

        def alive(conflict: Conflict) -> bool:
            if plan.options.scope == "until_expired" or conflict.holder is None:
                return True
            return not is_over(backend, lock.coordinator, conflict.holder.id, deadline)

        def undo(conflict: Conflict | None) -> None:
            if conflict is None:
                lock.free()

        return self._ask(lock, lambda: reserve(lock, holder, deadline, alive), undo)

    def _meet(self, plan: Plan, lock: QueueLock, conflict: Conflict) -> None:
        """Do what the policy says about an equal call that is alive; return to try again.

        Raises:
            _Folded: the call is answered for.
            DuplicateTask: it is to be said.
            CoordinatorUnavailable: nobody can say what is to be done.
        """
        other, policy = conflict.holder, plan.options.on_duplicate
        if other is None or not other.id:
            raise CoordinatorUnavailable(f"queue lock {conflict.key!r} is held by no task")
        into = other.id
        if policy == "keep_latest":
            into = successor_id(other.id, conflict.key)
            if not self._leave(lock, conflict, into):
                return  # it has just ended
        elif policy == "replace":
            self._displaced = self._displace(plan, lock, conflict) or self._displaced
            return
        self._tell(events.DuplicateMet, plan, lock, task_id=into, policy=policy)
        logger.info(
            "%s was not published (on_duplicate=%r): lock %r is held by %s, task id %s answers for it",
            self.subject.name,
            policy,
            conflict.key,
            describe_holder(other.to_dict()),
            into,
        )
        if policy == "raise":
            raise DuplicateTask(conflict.key, other.to_dict(), conflict.retry_after, other.id)
        raise _Folded(into)

    def _leave(self, lock: QueueLock, conflict: Conflict, task_id: str) -> bool:
        """Leave this call with the living task, to be run after it; False if that has ended."""
        options = {**self.options, "headers": self._headers_for(task_id)}
        call = Call.of(self.app, self.subject.name, self.args, self.kwargs, options)
        note, number = call.to_note(self.app), order_now()

        def leave() -> bool:
            held = lock.present(conflict)
            if held is None:
                return False
            return leave_note(lock.coordinator, conflict.key, held.owner, note, number, lock.ttl)

        return self._ask(lock, leave)

    def _headers_for(self, task_id: str) -> dict[str, Any]:
        """The headers of the one more run; its ticket's owner is not known yet."""
        headers = self._headers or {}
        header = dict(headers.get(HEADER) or {})
        if self._ticket is not None:
            replace(self._ticket, id=task_id).into(header)
        return {**headers, HEADER: header}

    def _displace(self, plan: Plan, lock: QueueLock, conflict: Conflict) -> str | None:
        """Take the lock from a queued task; its id, or None if it runs already or is gone."""
        running = plan.coordinator if plan.options.scope in RUN_SCOPES else None
        return self._ask(lock, partial(displace, lock, conflict, running))

    def _ask(
        self, lock: QueueLock, ask: Callable[[], T], undo: Callable[[T], object] | None = None
    ) -> T:
        """Ask lock servers something within what is left of the budget."""
        if lock.coordinator.capabilities.tests_only:  # in this process: it can't hang
            return ask()
        began = clock.now()
        try:
            return helpers().within(self._left, ask, undo)
        finally:
            self._left = max(0.0, self._left - (clock.now() - began))

    def _life(self, options: LockOptions) -> float:
        if options.scope == "until_expired":
            return options.queue_ttl
        life = life_in_queue(self.app, self.options, options.queue_ttl)
        return min(life, LONGEST_QUEUE_TTL)

    # Afterwards

    def _settle(self) -> None:
        """The message is out: let the lock live, and the displaced one die."""
        if self._taken is not None:
            lock = self._taken
            keep = partial(lock.confirm, lock.ttl)
            keep() if lock.coordinator.capabilities.tests_only else helpers().later(keep)
        if self._heir_in is not None:
            line, ticket = self._heir_in
            line.adopt(ticket, self.subject.name)
        if self._displaced is not None:
            self._revoke(self._displaced)

    def _revoke(self, task_id: str) -> None:
        logger.info("%s[%s] takes the place of task %s", self.subject.name, self.task_id, task_id)
        try:
            self.app.control.revoke(task_id)
        except Exception:  # the worker will see that it has lost its place
            logger.warning("task %s could not be revoked", task_id, exc_info=True)

    def _undo(self, exc: BaseException) -> None:
        """The publish has failed: nobody must be folded into what will never run."""
        lock = self._taken
        if lock is None:
            return
        if not surely_not_sent(exc):
            logger.warning(
                "whether %s[%s] was published is not known: queue lock %r runs out in %g s",
                self.subject.name,
                self.task_id,
                lock.name,
                lock.first_ttl,
            )
            return
        try:
            self._ask(lock, lock.free)
        except OutOfTime:
            logger.debug("queue lock %r will be given back in the background", lock.name)

    def _result_of(self, task_id: str) -> Any:
        result = (self.options.get("result_cls") or self.app.AsyncResult)(task_id)
        result.ignored = self.options.get("ignore_result")
        result.duplicate = True
        return result

    def _holder(self) -> Holder:
        return self.locks.holder(task=self.subject.name, id=self.task_id, queue=self.queue)

    def _tell(self, event: type[events.Event], plan: Plan, lock: QueueLock, **facts: Any) -> None:
        mode = plan.options.mode
        self.locks.sink(event(key=lock.name, mode=mode, holder=self._holder(), **facts))


class Gate:
    """Stands where Celery asks for a route: the last instant before anything is sent.

    Args:
        publication: is told the route.
        router: decides it.
    """

    def __init__(self, publication: Publication, router: Any) -> None:
        """Decide nothing."""
        self._publication = publication
        self._router = router

    def route(
        self, options: Any, name: str, args: Any = (), kwargs: Any = None, task_type: Any = None
    ) -> dict[str, Any]:
        """The router's own answer, with our header in it."""
        routed: dict[str, Any] = self._router.route(options, name, args, kwargs, task_type)
        self._publication.routed(routed)
        return routed

    def __getattr__(self, name: str) -> Any:
        """Everything else is the router's."""
        return getattr(self._router, name)
