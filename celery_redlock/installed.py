"""Locks for tasks that don't use our base class, such as those of other packages.

By configuration alone: :func:`install` names them, or ``redlock_tasks`` does.  Celery's own
tasks, whose names begin with ``celery.``, are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any

from celery.signals import worker_init

from celery_redlock import guardian
from celery_redlock.choke import on_watched, watch_publishes
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.run import run_locked
from celery_redlock.task import coordinator_of, error_of, hide_token

__all__ = ["install"]

# What is kept in the application's own namespace.
_PATTERNS = "_celery_redlock_patterns"
_LOCKED = "_celery_redlock_locked"
_WATCHED = "_celery_redlock_registry"
_FACTORY = "_task_from_fun"  # Celery's own: makes a task of every decorated function
_MARK = "_takes_lock"


def install(app: Any, tasks: Iterable[str] = ()) -> None:
    """Lock tasks that don't use :class:`~celery_redlock.LockedTask`, and watch what is published.

    May be called at any time before the application works, and again.  The options come from
    ``redlock_tasks``, the queue and the application; tasks that ``redlock_tasks`` names need not
    be named here.  A process that publishes by name only calls it without ``tasks``, so that its
    calls are looked at, too.

    Args:
        app: the Celery application.
        tasks: names of tasks, or patterns of them such as ``"proj.reports.*"``.

    Raises:
        ImproperlyConfigured: ``tasks`` is no list of names, or names Celery's own tasks.
    """
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    for name in names:
        if not isinstance(name, str) or not name or name.startswith("celery."):
            raise ImproperlyConfigured(
                f"tasks={tasks!r}: must be names of tasks or patterns such as 'proj.reports.*'; "
                "Celery's own tasks can't be locked"
            )
    known = app.__dict__.setdefault(_PATTERNS, [])
    known += [name for name in names if name not in known]
    watch_publishes(app)
    _lock_registered(app)


def _watch_registry(app: Any) -> None:
    """See every task that this application gets from now on, and lock those it has."""
    if _WATCHED in app.__dict__:
        return
    app.__dict__[_WATCHED] = True
    make, register = getattr(app, _FACTORY), app.register_task

    def task_from_fun(*args: Any, **options: Any) -> Any:
        return _lock_if_named(app, make(*args, **options))

    def register_task(*args: Any, **options: Any) -> Any:
        """As Celery's own."""
        return _lock_if_named(app, register(*args, **options))

    setattr(app, _FACTORY, task_from_fun)
    app.register_task = register_task
    app.on_after_finalize.connect(_on_finalized, weak=False)
    for promise in list(app._pending):  # noqa: SLF001 - tasks that are made at their first use
        promise.__then__(_lock_registered, app)
    _lock_registered(app)


def _on_finalized(sender: Any = None, **_: Any) -> None:
    _lock_registered(sender)


def _on_worker_init(sender: Any = None, **_: Any) -> None:
    """The last instant at which a worker's tasks can be locked; all modules are imported."""
    if sender.app.conf.get("redlock_tasks"):
        watch_publishes(sender.app)
        _lock_registered(sender.app)


def _lock_registered(app: Any) -> None:
    for task in list(app._tasks.values()):  # noqa: SLF001 - app.tasks would finalize the app
        _lock_if_named(app, task)


def _lock_if_named(app: Any, task: Any) -> Any:
    """The task, which takes its lock from now on if somebody has named it."""
    cls, locked = task.__class__, app.__dict__.setdefault(_LOCKED, set())
    by_itself = hasattr(cls, "_locked_call")  # our base class
    if by_itself or task.name in locked or not _is_named(app, task.name):
        return task
    locked.add(task.name)
    cls._lock_error = error_of(cls)
    cls.refuse_if_broken = _refuse_if_broken
    hide_token(cls)
    guardian.install(app, coordinator_of)
    if not getattr(cls.__call__, _MARK, False):
        _wrap(cls)
    return task


def _is_named(app: Any, name: str) -> bool:
    patterns = [*app.__dict__.get(_PATTERNS, ()), *(app.conf.get("redlock_tasks") or ())]
    return not name.startswith("celery.") and any(fnmatchcase(name, one) for one in patterns)


def _wrap(cls: Any) -> None:
    call = cls.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - what it becomes
        """Run the body under its lock."""
        if self.name not in self.app.__dict__.get(_LOCKED, ()):  # a class that inherits it
            return call(self, *args, **kwargs)
        self.refuse_if_broken()
        return run_locked(self, MethodType(call, self), args, kwargs)

    setattr(__call__, _MARK, True)
    cls.__call__ = __call__


def _refuse_if_broken(self: Any) -> None:
    """As of a task with our base class."""
    if self._lock_error:
        raise ImproperlyConfigured(self._lock_error)


on_watched.append(_watch_registry)
worker_init.connect(_on_worker_init, weak=False, dispatch_uid="celery_redlock.install")
