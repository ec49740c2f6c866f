"""One run of a locked task: take the lock, run the body, and what happens if that can't be."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery import Task
from celery.exceptions import Ignore
from celery.states import REVOKED, SUCCESS

from celery_redlock import events
from celery_redlock.coordinators.base import Conflict, Holder
from celery_redlock.exceptions import (
    CoordinatorUnavailable,
    LockLost,
    LockNotAcquired,
    describe_holder,
)
from celery_redlock.interrupt import Interruptible
from celery_redlock.lease import Lease
from celery_redlock.lock import Claimant, Session, entered, held_leases
from celery_redlock.locks import TOKEN, Locks, Plan
from celery_redlock.publish import header_of
from celery_redlock.reschedule import reschedule, waits_of
from celery_redlock.skipped import Skipped

__all__ = ["Run", "run_locked"]

logger = logging.getLogger(__name__)
Body = Callable[..., Any]


@dataclass(frozen=True)
class Run:
    """One run of a task, from its message or by a direct call.

    Attributes:
        task: the task.
        request: its request, as Celery gives it.
        body: runs it; takes the call's arguments.
        args: the call's positional arguments.
        kwargs: the call's keyword arguments.
        delivered: whether a worker runs it for a message, so that it can be published again.
        plan: how it is locked.
        claimant: who asks for the locks.
    """

    task: Any
    request: Any
    body: Body
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    delivered: bool
    plan: Plan
    claimant: Claimant

    @property
    def named(self) -> str:
        """The task and its id, for log lines."""
        return f"{self.task.name}[{self.request.id or 'direct call'}]"


def run_locked(task: Any, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a task's body under its lock, or do what its policies say.

    Args:
        task: the task.
        body: runs it without a lock; takes the call's arguments.
        args: the call's positional arguments.
        kwargs: the call's keyword arguments.

    Raises:
        ImproperlyConfigured: the task's options can't be used.
        LockNotAcquired: somebody else holds the lock, and the policy is to say so.
        CoordinatorUnavailable: nobody can say, and the policy is to say so.
        LockLost: the lock was lost while the body ran, and the body was stopped.
    """
    run = _prepare(task, body, args, kwargs)
    again = _lease_of_this_very_lock(run)
    if again is not None:
        return _call_body(run, again)
    if run.delivered and waits_of(run.request) and _done_by_another_attempt(run):
        raise Ignore
    session = Session(run.claimant)
    interruptible = Interruptible(lambda: _lost_error(session))
    stop = interruptible.fire if run.plan.options.on_lost != "flag" else _leave_running
    try:
        try:
            conflict = session.take(run.plan.options.wait, lambda lease: stop())
        except CoordinatorUnavailable as exc:
            return _unavailable(run, exc)
        if conflict is not None or session.hold is None:
            return _conflict(run, conflict or Conflict(run.claimant.keys[0]))
        with entered(session.hold.lease) as lease:
            return interruptible.run(_call_body, run, lease)
    except LockLost as exc:
        if session.hold is not None:
            _aborted(run, exc)
        raise
    finally:
        session.give_back()


def _prepare(task: Any, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
    request = task.request
    entry = bool(request.id) and not request.called_directly and not request._protected
    header = header_of(request) if entry else {}
    locks = Locks.for_app(task.app)
    queue = _queue_of(task.app, request, header) if entry else None
    plan = locks.plan(task, queue, header.get("options"))
    kwargs = {name: value for name, value in kwargs.items() if name != TOKEN}
    holder = locks.holder(
        task=task.name,
        id=(request.id or "") if entry else "",
        attempt=uuid.uuid4().hex,
        queue=queue,
    )
    names = plan.keys.names(args, kwargs)
    claimant = Claimant(plan.coordinator, names, plan.options, holder, locks.sink)
    if entry and getattr(body, "__func__", None) is Task.__call__:
        request._protected = 1  # what Celery's own __call__ does before it runs the body
        body = task.run
    return Run(
        task, request, body, args, kwargs, entry and not request.is_eager, plan, claimant
    )


def _queue_of(app: Any, request: Any, header: Mapping[str, Any]) -> str | None:
    """The queue that a message came through, as far as it can be known."""
    queue = header.get("queue")
    if isinstance(queue, str):
        return queue
    routing_key = (request.delivery_info or {}).get("routing_key")
    return routing_key if routing_key in app.amqp.queues else None


def _call_body(run: Run, lease: Lease | None) -> Any:
    """Run the body, with the fencing token where it has a parameter for it."""
    index, plan = run.plan.token_index, run.plan
    if index is None:
        return run.body(*run.args, **run.kwargs)
    token = lease.fencing_token if lease is not None else None
    if plan.token_by_position or index < len(run.args):
        return run.body(*run.args[:index], token, *run.args[index:], **run.kwargs)
    return run.body(*run.args, **run.kwargs, **{TOKEN: token})


def _lease_of_this_very_lock(run: Run) -> Lease | None:
    """The lease under which this call runs already: a body that calls itself keeps its lock."""
    wanted = run.claimant.keys
    for lease in reversed(held_leases()):
        same = lease.mode == run.plan.options.mode and not lease.lost
        if same and wanted == tuple(grant.key for grant in lease.grants):
            return lease
    return None


def _leave_running() -> None:
    """With ``on_lost="flag"`` the body looks at ``lease.lost`` itself."""


def _lost_error(session: Session) -> LockLost:
    if session.hold is None:
        return LockLost(", ".join(session.claimant.keys))
    lease = session.hold.lease
    return LockLost(lease.key, lease.fencing_token, lease.lost_because)


def _aborted(run: Run, exc: LockLost) -> None:
    run.claimant.tell(events.Aborted)
    logger.warning("%s was stopped: %s", run.named, exc)
    hook = getattr(run.task, "on_lock_lost", None)
    if hook is None:
        return
    try:
        hook(exc, run.request.id, run.args, run.kwargs)
    except Exception:  # a user's hook must not hide the loss
        logger.exception("on_lock_lost of %s failed", run.task.name)


def _conflict(run: Run, conflict: Conflict) -> Any:
    options, other = run.plan.options, conflict.holder
    run.claimant.tell(
        events.ConflictMet, other=other, retry_after=conflict.retry_after, waited=options.wait
    )
    mine = other is not None and bool(other.id) and other.id == run.request.id
    if run.delivered and mine:  # this message came twice: neither run it now nor drop it
        return reschedule(run, f"an earlier delivery of it still holds lock {conflict.key!r}")
    error = _not_acquired(conflict)
    if options.on_conflict == "reschedule" and run.delivered:
        return reschedule(run, str(error), error)
    run.claimant.tell(events.SkippedTask, other=other, policy=options.on_conflict)
    if options.on_conflict == "skip":
        return _skip(run, conflict)
    if options.on_conflict == "revoke" and run.delivered:
        _revoke(run, error)
    raise error


def _not_acquired(conflict: Conflict) -> LockNotAcquired:
    holder = conflict.holder.to_dict() if conflict.holder else None
    return LockNotAcquired(conflict.key, holder, conflict.retry_after)


def _skip(run: Run, conflict: Conflict) -> Skipped:
    holder = (conflict.holder or Holder()).to_dict()
    logger.info(
        "%s skipped: lock %r is held by %s", run.named, conflict.key, describe_holder(holder)
    )
    return Skipped(conflict.key, holder)


def _revoke(run: Run, error: LockNotAcquired) -> None:
    """End the task as REVOKED: nothing that waits for it hangs, and no errback is called."""
    logger.info("%s revoked: %s", run.named, error)
    run.task.backend.mark_as_failure(
        run.request.id,
        error,
        request=run.request,
        store_result=not run.request.ignore_result,
        call_errbacks=False,
        state=REVOKED,
    )
    raise Ignore


def _unavailable(run: Run, exc: CoordinatorUnavailable) -> Any:
    policy = run.plan.options.on_unavailable
    run.claimant.tell(events.Unavailable, policy=policy, error=str(exc))
    if policy == "run":
        logger.warning("%s RUNS WITHOUT ITS LOCK, as on_unavailable='run' says: %s", run.named, exc)
        return _call_body(run, None)
    if policy == "reschedule" and run.delivered:
        return reschedule(run, f"its lock can't be asked for: {exc}")
    raise exc


def _done_by_another_attempt(run: Run) -> bool:
    """Whether this message was delivered twice and the other delivery has succeeded."""
    if not run.request.delivery_info or run.request.ignore_result:
        return False
    meta = run.task.backend.get_task_meta(run.request.id, cache=False)
    return bool(meta.get("status") == SUCCESS)


