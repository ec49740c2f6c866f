"""One publish of a locked task: what the options of its queue make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from celery.utils import uuid

from celery_redlock.admission import Admission, Folded
from celery_redlock.lock import new_owner
from celery_redlock.locks import LONGEST_QUEUE_TTL, Locks, Plan
from celery_redlock.options import LockOptions
from celery_redlock.publish import HEADER, Line, Ticket, call_options, current_line
from celery_redlock.routes import queue_of
from celery_redlock.sending import is_promised, life_in_queue
from celery_redlock.subjects import Subject
from celery_redlock.successor import Call
from celery_redlock.uniqueness import QUEUE_SCOPES, QueueLock

__all__ = ["Publication"]

_NOBODY_YET = "-"  # in the place of an owner that is chosen later


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
        self._app, self._subject = app, subject
        self._locks = Locks.for_app(app)
        self._args, self._kwargs, self._options = args or (), kwargs or {}, options
        self._call = lock
        self._promised = is_promised(options)
        self._task_id = options["task_id"] = options.get("task_id") or uuid()
        self._headers: dict[str, Any] = {}
        self._admission: Admission | None = None
        self._inherits: tuple[Line, Ticket] | None = None

    def send(self, send: Callable[..., Any]) -> Any:
        """Publish it, or answer with the result of the task that it was folded into.

        Raises:
            DuplicateTask: an equal call is alive, and the policy is to say so.
            ImproperlyConfigured: its options can't be used.
        """
        router = self._options.get("router") or self._app.amqp.router
        options = {**self._options, "router": _Gate(self, router)}
        try:
            result = send(self._subject.name, self._args, self._kwargs, **options)
        except Folded as folded:
            return self._result_of(folded.task_id)
        except BaseException as exc:
            if self._admission is not None:
                self._admission.undo(exc)
            raise
        if self._admission is not None:
            self._admission.settle()
        if self._inherits is not None:
            line, ticket = self._inherits
            line.adopt(ticket, self._subject.name)
        result.duplicate = False
        return result

    def routed(self, routed: dict[str, Any]) -> None:
        """Put our header in, now that the queue is known, and take the queue lock.

        Args:
            routed: the options of the publish, after the router; changed here.

        Raises:
            Folded: a living task answers for the call.
            DuplicateTask: an equal call is alive, and the policy is to say so.
            ImproperlyConfigured: its options can't be used.
        """
        headers = routed.get("headers") or {}
        known = headers.get(HEADER)
        header = dict(known) if isinstance(known, Mapping) else {}
        if self._call is not None:
            target = self._subject.stand_in(self._locks, None, None)
            header["options"] = call_options(target, self._call, self._args, self._kwargs)
        queue = queue_of(self._app, routed) or header.get("queue")
        ticket = Ticket.pop(header, self._task_id if self._promised else None)
        plan = self._subject.plan(self._locks, queue, header)
        if plan is None:
            return
        if queue:
            header["queue"] = queue
        self._headers = {**headers, HEADER: header}
        names = self._names(plan)
        unique = plan.options.scope in QUEUE_SCOPES and not self._promised
        if ticket is None and unique and names:
            ticket = self._get_in_line(plan, names, header)
        if ticket is not None:
            ticket.into(header)
        routed["headers"] = self._headers

    def _names(self, plan: Plan) -> tuple[str, ...]:
        try:
            return plan.keys.names(self._args, self._kwargs)
        except TypeError as exc:  # the call doesn't fit: the worker will say so
            self._subject.cannot_name(exc)
            return ()

    def _get_in_line(
        self, plan: Plan, names: tuple[str, ...], header: dict[str, Any]
    ) -> Ticket | None:
        """The ticket of the queue lock; None where the message goes out without one."""
        coordinator = self._locks.coordinator(plan.options.coordinator, "efficiency", "queue")
        lock = QueueLock(coordinator, names, _NOBODY_YET, self._life(plan.options))
        ticket = Ticket(
            self._task_id,
            names,
            lock.owner,
            plan.options.scope,
            lock.ttl,
            _name_of(plan.options.coordinator),
            plan.options.on_duplicate,
        )
        line = current_line().get()
        behind = line is not None and line.shares(names)
        if line is not None and behind:
            header["behind"] = True
            if line.holds(names):  # it gets the lock of the task that sends it, at its end
                ticket = replace(ticket, owner=new_owner())
                self._inherits = line, ticket
                return ticket
        queue = header.get("queue")
        holder = self._locks.holder(task=self._subject.name, id=self._task_id, queue=queue)
        self._admission = Admission(
            self._app, plan, lock, holder, lambda task_id: self._note(task_id, ticket)
        )
        taken = self._admission.enter(behind=behind)
        return replace(ticket, owner=taken.owner) if taken is not None else None

    def _life(self, options: LockOptions) -> float:
        if options.scope == "until_expired":
            return options.queue_ttl
        life = life_in_queue(self._app, self._options, options.queue_ttl)
        return min(life, LONGEST_QUEUE_TTL)

    def _note(self, task_id: str, ticket: Ticket) -> bytes:
        """This call, to be run later under another id; its ticket's owner is not known yet."""
        header = dict(self._headers[HEADER])
        replace(ticket, id=task_id).into(header)
        options = {**self._options, "headers": {**self._headers, HEADER: header}}
        call = Call.of(self._app, self._subject.name, self._args, self._kwargs, options)
        return call.to_note(self._app)

    def _result_of(self, task_id: str) -> Any:
        result = (self._options.get("result_cls") or self._app.AsyncResult)(task_id)
        result.ignored = self._options.get("ignore_result")
        result.duplicate = True
        return result


class _Gate:
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


def _name_of(coordinator: str | tuple[str, ...]) -> str:
    """The coordinator's name; empty where it is given by urls, which may hold a password."""
    named = isinstance(coordinator, str) and "://" not in coordinator
    return str(coordinator) if named else ""
