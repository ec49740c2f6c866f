"""One run of a locked task: take the lock, run the body, and what happens if that can't be."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore
from celery.states import REVOKED

from celery_redlock import events
from celery_redlock.attempt import Attempt, Body
from celery_redlock.beat_marks import sent_twice
from celery_redlock.coordinators.base import Conflict, Holder
from celery_redlock.edge import run_to_edge
from celery_redlock.exceptions import (
    CoordinatorUnavailable,
    LockLost,
    LockNotAcquired,
    StaleTokenError,
    describe_holder,
)
from celery_redlock.interrupt import Interruptible
from celery_redlock.lease import Lease
from celery_redlock.lock import Claimant, Session, entered, held_leases
from celery_redlock.locks import TOKEN, Locks
from celery_redlock.publish import Ticket, header_of, options_in
from celery_redlock.queued import Place
from celery_redlock.redelivery import (
    answer_sign,
    has_met,
    is_another_delivery,
    is_done,
    remove_signs,
)
from celery_redlock.reschedule import PutOff, put_off, reschedule
from celery_redlock.skipped import Skipped
from celery_redlock.uniqueness import RUN_SCOPES
from celery_redlock.unrun import mark_handled
from celery_redlock.visibility import VisibilityHeartbeat

__all__ = ["run_locked"]

logger = logging.getLogger(__name__)
PROTECTED = "_protected"  # Celery's mark of a request whose body runs already


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
    attempt = _prepare(task, body, args, kwargs)
    again = _lease_of_this_very_lock(attempt)
    if again is not None:
        return _call_body(attempt, again)
    heartbeat = VisibilityHeartbeat.for_app(task.app)
    if attempt.delivered:
        heartbeat.add(attempt.request, acks_late=task.acks_late)
    place = _place_of(attempt)
    try:
        with place:
            return _in_place(attempt, place)
    except PutOff as exc:
        raise Ignore(str(exc)) from exc
    finally:
        heartbeat.remove(attempt.request)


def _in_place(attempt: Attempt, place: Place) -> Any:
    """Do what is to be done about the message; its queue lock is looked after outside."""
    if is_done(attempt, met=False):
        _drop(attempt)
    if place.is_replaced():
        _end_replaced(attempt)
    first = _first_of_this_slot(attempt)
    if first is not None:
        return _skip(attempt, first)
    options = attempt.plan.options
    if options.mode == "correctness" or options.scope in RUN_SCOPES:
        return _under_lock(attempt, place)
    return _start(attempt, place)


def _first_of_this_slot(attempt: Attempt) -> Conflict | None:
    """The other message that beats have sent for this one's slot, if that ran already."""
    if not attempt.delivered:
        return None
    header, holder = header_of(attempt.request), attempt.claimant.holder
    first = sent_twice(Locks.for_app(attempt.task.app), header, holder)
    if first is not None:
        attempt.claimant.tell(events.SkippedTask, other=first.holder, policy="skip")
    return first


def _under_lock(attempt: Attempt, place: Place) -> Any:
    """Take the locks, run the body, and give the locks back."""
    session, options = Session(attempt.claimant), attempt.plan.options
    interruptible = Interruptible(lambda: _stopped(attempt, session), session.is_told_lost)
    stop = interruptible.fire if options.on_lost != "flag" else _leave_running
    try:
        try:
            conflict = session.take(options.wait, lambda lease: stop())
        except CoordinatorUnavailable as exc:
            return _unavailable(attempt, place, exc)
        if conflict is not None or session.hold is None:
            return _conflict(attempt, conflict or Conflict(attempt.claimant.keys[0]))
        _look_for_another_delivery(attempt, session)
        with entered(session.hold.lease) as lease:
            _keep_place(attempt, place)
            result = run_to_edge(interruptible, attempt.task, _call_body, attempt, lease)
        answer_sign(attempt)
        return result
    except StaleTokenError as exc:
        attempt.claimant.tell(events.StaleToken, fencing_token=exc.fencing_token, stored=exc.stored)
        raise
    finally:
        session.give_back()


def _look_for_another_delivery(attempt: Attempt, session: Session) -> None:
    """Go on if the body is to run: no other delivery of this message has done the work."""
    met = has_met(attempt.request) or (
        session.met is not None and is_another_delivery(attempt, session.met)
    )
    done = is_done(attempt, met=met)
    if met:
        remove_signs(attempt)
    if done:
        _drop(attempt)
    if met and session.hold is not None:
        token = session.hold.lease.fencing_token
        attempt.claimant.tell(events.TakenOver, fencing_token=token)
        logger.warning("%s takes over from an earlier delivery of it, which died", attempt.named)


def _drop(attempt: Attempt) -> NoReturn:
    logger.info("%s dropped: another delivery of it has done the work", attempt.named)
    raise Ignore


def _prepare(task: Any, body: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attempt:
    request = task.request
    entry = bool(request.id) and not request.called_directly and not getattr(request, PROTECTED)
    header = header_of(request) if entry else {}
    locks = Locks.for_app(task.app)
    queue = _queue_of(task.app, request, header) if entry else None
    plan = locks.plan(task, queue, options_in(header))
    kwargs = {name: value for name, value in kwargs.items() if name != TOKEN}
    holder = locks.holder(
        task=task.name,
        id=(request.id or "") if entry else "",
        attempt=uuid.uuid4().hex,
        queue=queue,
    )
    names = plan.keys.names(args, kwargs)
    claimant = Claimant(plan.coordinator, names, plan.options, holder, locks.sink, plan.guard)
    if entry and getattr(body, "__func__", None) is Task.__call__:
        setattr(request, PROTECTED, 1)  # what Celery's own __call__ does before it runs the body
        body = task.run
    return Attempt(
        task, request, body, args, kwargs, entry and not request.is_eager, plan, claimant
    )


def _queue_of(app: Any, request: Any, header: Mapping[str, Any]) -> str | None:
    """The queue that a message came through, as far as it can be known."""
    queue = header.get("queue")
    if isinstance(queue, str):
        return queue
    routing_key = (request.delivery_info or {}).get("routing_key")
    return routing_key if routing_key in app.amqp.queues else None


def _place_of(attempt: Attempt) -> Place:
    request, plan = attempt.request, attempt.plan
    ticket = Ticket.of(header_of(request), request.id) if attempt.delivered else None
    mark_handled(request)
    return Place(attempt.task.app, attempt.task.name, attempt.claimant.keys, plan.options, ticket)


def _keep_place(attempt: Attempt, place: Place) -> None:
    """Tell the line that the body starts; the task ends here if another has taken its place."""
    if not place.begin():
        _end_replaced(attempt)


def _end_replaced(attempt: Attempt) -> None:
    _revoke(attempt, LockNotAcquired(", ".join(attempt.claimant.keys)))


def _start(attempt: Attempt, place: Place) -> Any:
    """Run the body without a run lock."""
    _keep_place(attempt, place)
    return _call_body(attempt, None)


def _call_body(attempt: Attempt, lease: Lease | None) -> Any:
    """Run the body, with the fencing token where it has a parameter for it."""
    index, plan = attempt.plan.token_index, attempt.plan
    if index is None:
        return attempt.body(*attempt.args, **attempt.kwargs)
    token = lease.fencing_token if lease is not None else None
    if plan.token_by_position or index < len(attempt.args):
        return attempt.body(*attempt.args[:index], token, *attempt.args[index:], **attempt.kwargs)
    return attempt.body(*attempt.args, **attempt.kwargs, **{TOKEN: token})


def _lease_of_this_very_lock(attempt: Attempt) -> Lease | None:
    """The task lease under which a direct call runs: a body that calls itself keeps its lock."""
    if attempt.claimant.holder.id:  # a delivery of its own, also where it is an eager one
        return None
    wanted, mode = attempt.claimant.keys, attempt.plan.options.mode
    for lease in reversed(held_leases()):
        usable = lease.holder.attempt and lease.mode == mode and not lease.lost
        if usable and wanted == tuple(grant.key for grant in lease.grants):
            return lease
    return None


def _leave_running() -> None:
    """With ``on_lost="flag"`` the body looks at ``lease.lost`` itself."""


def _stopped(attempt: Attempt, session: Session) -> LockLost:
    """What an interrupted body ends with; tells everybody that it was stopped."""
    error = session.lost_error()
    _aborted(attempt, error)
    return error


def _aborted(attempt: Attempt, exc: LockLost) -> None:
    attempt.claimant.tell(events.Aborted)
    logger.warning("%s was stopped: %s", attempt.named, exc)
    hook = getattr(attempt.task, "on_lock_lost", None)
    if hook is None:
        return
    try:
        hook(exc, attempt.request.id, attempt.args, attempt.kwargs)
    except Exception:  # a user's hook must not hide the loss
        logger.exception("on_lock_lost of %s failed", attempt.task.name)


def _conflict(attempt: Attempt, conflict: Conflict) -> Any:
    options, other = attempt.plan.options, conflict.holder
    attempt.claimant.tell(
        events.ConflictMet, other=other, retry_after=conflict.retry_after, waited=options.wait
    )
    if is_another_delivery(attempt, conflict):  # neither run it now nor drop it
        return put_off(attempt, f"an earlier delivery of it still holds lock {conflict.key!r}")
    error = _not_acquired(conflict)
    behind = header_of(attempt.request).get("behind")  # it must run after whoever sent it
    if attempt.delivered and (behind or options.on_conflict == "reschedule"):
        return reschedule(attempt, str(error), error)
    attempt.claimant.tell(events.SkippedTask, other=other, policy=options.on_conflict)
    if options.on_conflict == "skip":
        return _skip(attempt, conflict)
    if options.on_conflict == "revoke" and attempt.delivered:
        _revoke(attempt, error)
    raise error


def _not_acquired(conflict: Conflict) -> LockNotAcquired:
    holder = conflict.holder.to_dict() if conflict.holder else None
    return LockNotAcquired(conflict.key, holder, conflict.retry_after)


def _skip(attempt: Attempt, conflict: Conflict) -> Skipped:
    holder = (conflict.holder or Holder()).to_dict()
    logger.info(
        "%s skipped: lock %r is held by %s", attempt.named, conflict.key, describe_holder(holder)
    )
    return Skipped(conflict.key, holder)


def _revoke(attempt: Attempt, error: LockNotAcquired) -> None:
    """End the task as REVOKED: nothing that waits for it hangs, and no errback is called."""
    logger.info("%s revoked: %s", attempt.named, error)
    attempt.task.backend.mark_as_failure(
        attempt.request.id,
        error,
        request=attempt.request,
        store_result=not attempt.request.ignore_result,
        call_errbacks=False,
        state=REVOKED,
    )
    raise Ignore


def _unavailable(attempt: Attempt, place: Place, exc: CoordinatorUnavailable) -> Any:
    policy = attempt.plan.options.on_unavailable
    attempt.claimant.tell(events.Unavailable, policy=policy, error=str(exc))
    if policy == "run":
        logger.warning(
            "%s RUNS WITHOUT ITS LOCK, as on_unavailable='run' says: %s", attempt.named, exc
        )
        return _start(attempt, place)
    if policy == "reschedule" and attempt.delivered:
        return reschedule(attempt, f"its lock can't be asked for: {exc}")
    raise exc
