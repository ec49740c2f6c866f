"""Where an interrupted body's edge is: inside of Celery's ``autoretry_for``, not outside.

Celery wraps the body of a task with ``autoretry_for`` once, and retries on what leaves it.  An
interrupt has become an ordinary :class:`~celery_redlock.LockLost` by then, so that
``autoretry_for=(LockLost,)`` means what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from celery_redlock.interrupt import Interruptible

__all__ = ["run_to_edge"]

WRAPPED = "_orig_run"  # where Celery keeps the body that it has wrapped

_edge: ContextVar[Interruptible | None] = ContextVar("celery_redlock_edge", default=None)


def run_to_edge(
    interruptible: Interruptible, task: Any, call: Callable[..., Any], *args: Any
) -> Any:
    """What ``call(*args)``, which runs the task's body, returns or raises.

    Args:
        interruptible: stops the body if need be.
        task: the task.
        call: runs the body, through Celery's wrapper if there is one.
        args: what ``call`` takes.

    Raises:
        LockLost: the body was stopped, and nothing has made a retry of that.
    """
    if not hasattr(task, WRAPPED):
        return interruptible.run(call, *args)
    if not isinstance(getattr(task, WRAPPED), _Edge):
        setattr(task, WRAPPED, _Edge(getattr(task, WRAPPED)))
    mark = _edge.set(interruptible)
    try:
        return call(*args)
    finally:
        _edge.reset(mark)


class _Edge:
    """A wrapped body, stopped by whatever looks after the present run."""

    def __init__(self, body: Callable[..., Any]) -> None:
        """Stand in for ``body``."""
        self._body = body

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        interruptible = _edge.get()
        if interruptible is None:
            return self._body(*args, **kwargs)
        mark = _edge.set(None)  # a call from inside the body is part of the body
        try:
            return interruptible.run(self._body, *args, **kwargs)
        finally:
            _edge.reset(mark)
