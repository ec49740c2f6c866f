"""What is known of another delivery of the same message.  Neither takes nor frees a task's lock.

A broker delivers a message again that wasn't acknowledged: its worker died, or only seems to
have.  The copy has the task's id, so its lock tells that an earlier delivery is at work.  Once
the copy has the lock, it must find out whether that one has done the work.

The result tells, where there is one.  Where results are ignored, or kept where a worker can't
look them up, the copy leaves a *sign* with the lock servers when it is put off, and a delivery
that has done the work answers a sign before it gives its lock back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from celery.states import READY_STATES, REVOKED, SUCCESS

from celery_redlock.attempt import Attempt
from celery_redlock.clock import now
from celery_redlock.coordinators.base import Conflict, Coordinator, Grant, Held
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.interrupt import shielded
from celery_redlock.keys import explicit_name
from celery_redlock.lock import new_owner
from celery_redlock.locks import Locks
from celery_redlock.publish import header_of

__all__ = [
    "FOR_RETRY",
    "MET",
    "answer_sign",
    "has_met",
    "is_another_delivery",
    "is_done",
    "leave_sign",
    "remove_signs",
    "waiting_facts",
]

logger = logging.getLogger(__name__)

FOR_RETRY = "for_retry"  # in our header: which of the task's runs has waited
MET = "met"  # in our header: an earlier delivery of this message was seen to have the lock
DONE = frozenset({SUCCESS, REVOKED})
# A lock is given back just before the result is published: seconds for that to happen.
RESULT_IS_LATE = 1.0
LOOK_AGAIN = 0.05
SIGN_LIFE = 120.0  # seconds that a sign lasts beyond the countdown of the copy that left it


def waiting_facts(request: Any) -> Mapping[str, Any]:
    """What our header says of the waiting for this run; a retry's body starts to wait anew."""
    header = header_of(request)
    return header if header.get(FOR_RETRY, request.retries) == request.retries else {}


def has_met(request: Any) -> bool:
    """Whether an earlier delivery of this message was met."""
    return bool(waiting_facts(request).get(MET))


def is_another_delivery(attempt: Attempt, conflict: Conflict) -> bool:
    """Whether what is in the way is an earlier delivery of this very message.

    Where nobody can say who is in the way, a message that was delivered before takes it for its
    own earlier delivery, because then it is put off and never dropped.
    """
    other = conflict.holder
    if not attempt.delivered:
        return False
    if other is not None and other.host:
        return bool(other.id) and other.id == attempt.request.id
    return was_delivered_before(attempt.request)


def was_delivered_before(request: Any) -> bool:
    """Whether the broker says so, or an earlier delivery has been met."""
    info = request.delivery_info or {}
    return bool(info.get("redelivered")) or has_met(request)


def is_done(attempt: Attempt, *, met: bool) -> bool:
    """Whether another delivery of this message has done the work.

    Args:
        attempt: the run of this delivery.
        met: whether the other delivery was seen to have the lock; its result, if there is to be
            one, may be a moment late.
    """
    if not attempt.delivered or not (met or was_delivered_before(attempt.request)):
        return False
    if not _results_tell(attempt):
        return met and _is_signed(attempt, _done_name(attempt))
    until = now() + (RESULT_IS_LATE if met else 0.0)
    while True:
        state = _state(attempt)
        if state in READY_STATES or now() >= until:
            return state in DONE
        time.sleep(LOOK_AGAIN)


def _results_tell(attempt: Attempt) -> bool:
    """Whether a worker can look up what became of the task."""
    backend = attempt.task.backend
    looks_up = hasattr(backend, "_get_task_meta_for")  # not those that only send results away
    return looks_up and not attempt.request.ignore_result


def _state(attempt: Attempt) -> str:
    try:
        meta = attempt.task.backend.get_task_meta(attempt.request.id, cache=False)
    except Exception:  # whatever the store says: the work is done rather twice than never
        logger.exception("%s: nobody can say whether it has been done", attempt.named)
        return ""
    return str(meta.get("status"))


# Signs, for tasks without results.


def leave_sign(attempt: Attempt, countdown: float) -> None:
    """Say that a copy waits until another delivery is over; does nothing where results tell."""
    if not _results_tell(attempt):
        _sign(attempt, _copy_name(attempt), countdown)


def answer_sign(attempt: Attempt) -> None:
    """Say that the work is done, if a copy waits to know; call it before the lock is given back.

    Costs one look at the lock servers for a task with ``acks_late`` and without results.
    """
    late = attempt.delivered and attempt.task.acks_late
    if late and not _results_tell(attempt):
        with shielded():
            if _is_signed(attempt, _copy_name(attempt)):
                _sign(attempt, _done_name(attempt), attempt.plan.options.reschedule_delay[1])


def remove_signs(attempt: Attempt) -> None:
    """Take back what was left for this message."""
    if _results_tell(attempt):
        return
    coordinator = _coordinator(attempt)
    for name in (_copy_name(attempt), _done_name(attempt)):
        try:
            held = coordinator.inspect(name)
            if held is not None:
                coordinator.release(_grant(held))
        except CoordinatorUnavailable as exc:
            logger.debug("sign %r is left to its ttl: %s", name, exc)


def _copy_name(attempt: Attempt) -> str:
    return explicit_name(f"redelivered:{attempt.request.id}")


def _done_name(attempt: Attempt) -> str:
    return explicit_name(f"done:{attempt.request.id}")


def _coordinator(attempt: Attempt) -> Coordinator:
    options = attempt.plan.options
    return Locks.for_app(attempt.task.app).coordinator(options.coordinator, "efficiency", "queue")


def _sign(attempt: Attempt, name: str, seconds: float) -> None:
    coordinator, life = _coordinator(attempt), SIGN_LIFE + seconds
    try:
        held = coordinator.inspect(name)
        if held is None or coordinator.extend(_grant(held), life) is None:
            coordinator.acquire(name, new_owner(), life, attempt.claimant.holder)
    except CoordinatorUnavailable as exc:
        logger.warning("%s may be run again although it has been done: %s", attempt.named, exc)


def _grant(held: Held) -> Grant:
    """Whoever has left a sign: it is no lock, so any delivery may renew it or take it away."""
    return Grant(held.key, held.owner, held.ttl_left, now() + held.ttl_left)


def _is_signed(attempt: Attempt, name: str) -> bool:
    try:
        return _coordinator(attempt).inspect(name) is not None
    except CoordinatorUnavailable as exc:
        logger.warning("%s: nobody can say whether it has been done: %s", attempt.named, exc)
        return False
