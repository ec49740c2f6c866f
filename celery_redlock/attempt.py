"""One run of a locked task: who runs, for which message, and how it is locked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_redlock.lock import Claimant
from celery_redlock.locks import Plan

__all__ = ["Attempt", "Body"]

Body = Callable[..., Any]


@dataclass(frozen=True)
class Attempt:
    """One run of a task, from one delivery of its message or by a direct call.

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
