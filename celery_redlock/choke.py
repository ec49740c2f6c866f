"""The one place that every publish of an application goes through: ``send_task``.

By class, by signature, by name, from beat, by canvas, retry, replace and link: all of them end
there.  It is wrapped on the application itself, so other applications are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.locks import Locks
from celery_redlock.publication import Publication
from celery_redlock.revoked import say_when_revoked
from celery_redlock.subjects import subject_of
from celery_redlock.unrun import DecodeErrors

__all__ = ["on_watched", "watch_publishes"]

# The positional parameters of Celery's own, after the first three.
_POSITIONAL = (
    "countdown",
    "eta",
    "task_id",
    "producer",
    "connection",
    "router",
    "result_cls",
    "expires",
)
_MARK = "_celery_redlock_publishes"

on_watched: list[Callable[[Any], object]] = []
"""Called with each application whose publishes are watched, once."""


def watch_publishes(app: Any) -> None:
    """From now on, let what this application publishes go through here; harmless when repeated."""
    if _MARK in app.__dict__:
        return
    app.__dict__[_MARK] = True
    send = app.send_task

    def send_task(
        name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """As Celery's own, with ``lock={...}`` for this call's options.

        Raises:
            DuplicateTask: an equal call is alive, and the policy is to say so.
            ImproperlyConfigured: an option of the task or of the call can't be used.
        """
        options.update(zip(_POSITIONAL, rest, strict=False))
        lock = options.pop("lock", None)
        subject = subject_of(app, name, options.get("task_type"))
        if subject is not None:
            return Publication(app, subject, args, kwargs, options, lock).send(send)
        if lock is not None:
            raise ImproperlyConfigured(
                f"lock={lock!r}: {name} takes no lock; use base=LockedTask, or name it in "
                "redlock_tasks"
            )
        return send(name, args, kwargs, **options)

    app.send_task = send_task
    say_when_revoked(app)
    app.steps["consumer"].add(DecodeErrors)
    for prepare in on_watched:
        prepare(app)


Locks.on_made.append(watch_publishes)
