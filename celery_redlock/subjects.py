"""What is published: a locked task of this process, or one that only other processes know."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.locks import TOKEN, Locks, Plan
from celery_redlock.options import Level, LockOptions
from celery_redlock.publish import options_in
from celery_redlock.templates import Template

__all__ = ["Subject", "subject_of"]

logger = logging.getLogger(__name__)


class Subject:
    """A task as a publisher knows it.

    Args:
        name: the task's name.
        task: the task; None where this process doesn't have it.
    """

    def __init__(self, name: str, task: Any = None) -> None:
        """Know no more than that."""
        self.name = name
        self.task = task

    def plan(self, locks: Locks, queue: str | None, header: Mapping[str, Any]) -> Plan | None:
        """How it is locked in a queue; None if nothing says that it is locked at all.

        Raises:
            ImproperlyConfigured: its options can't be used.
        """
        call = options_in(header)
        if self.task is None and call is None and not self._is_mentioned(locks, queue):
            return None
        return locks.plan(self.stand_in(locks, queue, call), queue, call)

    def stand_in(self, locks: Locks, queue: str | None, call: Mapping[str, Any] | None) -> Any:
        """The task, or something in its place that has its name and what is known of its arguments.

        Raises:
            ImproperlyConfigured: its options can't be used.
        """
        if self.task is not None:
            return self.task
        settings = locks.settings
        options = LockOptions.layered(
            Level("the call", call or {}, "lock['{}']"),
            settings.pattern_level(self.name),
            settings.queue_level(queue),
            settings.app_level,
        )
        return _stranger(self.name, _arguments(self.name, options))

    def cannot_name(self, exc: TypeError) -> None:
        """Tell that a call's key can't be made."""
        if self.task is None:
            _warn_once(
                f"{self.name} is published without a queue lock, because its key can't be made "
                f"where the task isn't imported ({exc}): pass the arguments that make the key by "
                "their names, or import the task"
            )
        else:
            logger.info("%s is published without a queue lock: %s", self.name, exc)

    def _is_mentioned(self, locks: Locks, queue: str | None) -> bool:
        """Whether its name or its queue has options: those of the application are for all."""
        settings = locks.settings
        return bool(settings.pattern_level(self.name).values or settings.queue_level(queue).values)


def subject_of(app: Any, name: str, task_type: Any) -> Subject | None:
    """What a call of ``send_task`` is about; None for what is no business of ours.

    Args:
        app: the application.
        name: the task's name.
        task_type: the task, where the caller has it.
    """
    if name.startswith("celery."):
        return None
    task = task_type
    if task is None:
        if app.finalized or app.autofinalize:
            app.finalize(auto=True)  # waits for another thread that has just begun it
        task = app._tasks.get(name)  # noqa: SLF001 - app.tasks would finalize the app
    if task is not None:
        return Subject(name, task) if "_lock_error" in vars(task.__class__) else None
    conf = app.conf
    if conf.get("redlock_tasks") or conf.get("redlock_queues"):
        return Subject(name)
    return None


def _arguments(name: str, options: LockOptions) -> tuple[str, ...]:
    """The names of the arguments that are known to make the key."""
    if options.key is None:
        return options.args or ()
    keys = options.key if isinstance(options.key, tuple) else (options.key,)
    texts = [key for key in keys if isinstance(key, str)]
    found = [argument for text in texts for argument in Template(text, name).names]
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def _stranger(name: str, arguments: tuple[str, ...]) -> Any:
    """An object with a task's name whose body takes these arguments by name, and any others.

    Without names, the key is made of the arguments as they are written.
    """
    kind = inspect.Parameter
    parameters = [kind("args", kind.VAR_POSITIONAL)] if "args" not in arguments else []
    parameters += [kind(one, kind.KEYWORD_ONLY) for one in arguments]
    parameters.append(kind(TOKEN, kind.KEYWORD_ONLY, default=None))
    if "kwargs" not in arguments:
        parameters.append(kind("kwargs", kind.VAR_KEYWORD))

    def run(*_: Any, **__: Any) -> None:
        raise ImproperlyConfigured(f"{name} is not imported in this process")

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return type("Stranger", (), {"name": name, "run": staticmethod(run)})()


@lru_cache(maxsize=1024)
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
