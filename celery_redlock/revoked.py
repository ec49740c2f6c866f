"""Whether a task that has a queue lock will still run: revoked and ended ones won't.

A revoked task is found out by the worker that meets its message, which may be hours later.  So
whoever revokes a task says so beside the queue locks, where a publisher looks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from celery.states import READY_STATES
from celery.utils.imports import instantiate

from celery_redlock.coordinators.base import Coordinator
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.in_time import OutOfTime, helpers
from celery_redlock.lock import new_owner
from celery_redlock.locks import Locks, task_level
from celery_redlock.uniqueness import QUEUE_SCOPES

__all__ = ["is_over", "is_revoked", "say_when_revoked"]

logger = logging.getLogger(__name__)

SAYING = 0.25  # seconds that revoking may take longer
ASKING_RESULTS = 0.1  # seconds that the result backend may take to say that a task has ended
REMEMBERED = 86400.0  # seconds that a revoke is remembered


def is_over(backend: Any, coordinator: Coordinator, task_id: str) -> bool:
    """Whether a task has ended or was revoked, as far as anybody has said so.

    Args:
        backend: the result backend.
        coordinator: who keeps the queue locks.
        task_id: which task.

    Raises:
        CoordinatorUnavailable: the coordinator can't say.
    """
    if not task_id:
        return False
    if is_revoked(coordinator, task_id):
        return True
    return _has_ended(backend, task_id)


def is_revoked(coordinator: Coordinator, task_id: str) -> bool:
    """Whether somebody has said beside the queue locks that a task is revoked.

    Raises:
        CoordinatorUnavailable: the coordinator can't say.
    """
    return coordinator.inspect(_revoked(task_id)) is not None


def _has_ended(backend: Any, task_id: str) -> bool:
    """Whether the result backend has a final state; a backend that can't say, says no."""

    def state() -> Any:
        # One that keeps answers for their askers only would take away another's.
        if not getattr(backend, "persistent", True):
            return None
        return backend.get_task_meta(task_id, cache=False).get("status")

    try:
        return helpers().within(ASKING_RESULTS, state) in READY_STATES
    except OutOfTime:
        logger.debug("the result backend didn't say in time whether task %s has ended", task_id)
    except Exception as exc:  # noqa: BLE001 - no backend, or one that is down: believe the lock
        logger.debug("the result backend can't say whether task %s has ended: %s", task_id, exc)
    return False


def say_when_revoked(app: Any) -> None:
    """From now on, have revokes that this application sends said beside the queue locks."""
    if "control" in app.__dict__:
        _watch(app, app.control)
        return
    make = app.control_cls

    def control(**options: Any) -> Any:
        made = instantiate(make, **options)
        _watch(app, made)
        return made

    app.control_cls = control


def _watch(app: Any, control: Any) -> None:
    send = control.broadcast

    def broadcast(command: str, *args: Any, **options: Any) -> Any:
        if command == "revoke":
            ids = (options.get("arguments") or {}).get("task_id")
            _remember(app, [ids] if isinstance(ids, str) else list(ids or ()))
        return send(command, *args, **options)

    control.broadcast = broadcast


def _remember(app: Any, task_ids: Iterable[str]) -> None:
    try:
        locks = Locks.for_app(app)
    except ImproperlyConfigured:
        return
    if not _uses_queue_locks(app, locks):
        return

    def say() -> None:
        for name in locks.settings.coordinators:
            coordinator = locks.coordinator(name, "efficiency", "queue")
            for task_id in task_ids:
                holder = locks.holder(id=task_id)
                coordinator.acquire(_revoked(task_id), new_owner(), REMEMBERED, holder)

    try:
        helpers().within(SAYING, say)
    except (CoordinatorUnavailable, OutOfTime) as exc:
        logger.warning(
            "the lock servers could not be told that tasks are revoked; until their messages are "
            "met, equal calls may be folded into them: %s",
            exc or f"no answer within {SAYING:g} s",
        )


def _uses_queue_locks(app: Any, locks: Locks) -> bool:
    settings = locks.settings
    levels = [settings.app_level, *settings.queues.values(), *settings.tasks.values()]
    levels += [task_level(task.__class__) for task in list(app._tasks.values())]  # noqa: SLF001 - app.tasks would finalize the app
    return any(level.values.get("scope") in QUEUE_SCOPES for level in levels)


def _revoked(task_id: str) -> str:
    return f"revoked:{task_id}"
