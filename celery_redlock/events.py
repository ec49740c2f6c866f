"""One frozen dataclass for each thing that can happen to a lock.  Pure.

The engine hands each event to a *sink*; :mod:`celery_redlock.signals` turns them into
Celery-style signals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_redlock.coordinators.base import Holder

__all__ = [
    "Aborted",
    "Acquired",
    "ConflictMet",
    "DuplicateMet",
    "Event",
    "Lost",
    "ReleaseFailed",
    "Released",
    "RenewalFailed",
    "Renewed",
    "Rescheduled",
    "Sink",
    "SkippedTask",
    "StaleToken",
    "TakenOver",
    "Unavailable",
]


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event carries.

    Attributes:
        key: the lock's name.
        mode: ``"efficiency"`` or ``"correctness"``.
        holder: who asked for the lock, or holds it (not the one in the way).
    """

    key: str
    mode: str = "efficiency"
    holder: Holder = field(default_factory=Holder)


@dataclass(frozen=True, kw_only=True)
class Acquired(Event):
    """The lock is ours; the body is about to start.

    Attributes:
        fencing_token: the grant's token, where it has one.
        waited: seconds from the first try to the grant.
    """

    fencing_token: int | None = None
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ConflictMet(Event):
    """A runner found the lock held by somebody else, after any waiting.

    Attributes:
        other: who is in the way, where that is known.
        retry_after: seconds until their lease ends unless it is renewed, if known.
        waited: seconds spent waiting inside the slot.
    """

    other: Holder | None = None
    retry_after: float | None = None
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DuplicateMet(Event):
    """A publish was folded into a task that is alive.

    Attributes:
        task_id: the id of the living task.
        policy: what was done about it.
    """

    task_id: str = ""
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class SkippedTask(Event):
    """A task ended without running its body, because somebody else holds the lock.

    Attributes:
        other: who holds it, where that is known.
        policy: ``"skip"``, ``"revoke"`` or ``"raise"``.
    """

    other: Holder | None = None
    policy: str = "skip"


@dataclass(frozen=True, kw_only=True)
class Rescheduled(Event):
    """A task was published again, to try for its lock later.

    Attributes:
        countdown: seconds until then.
        waits: how often this task has been put off so far, this time included.
    """

    countdown: float = 0.0
    waits: int = 0


@dataclass(frozen=True, kw_only=True)
class Renewed(Event):
    """An extend succeeded.

    Attributes:
        remaining: seconds that were left on the old lease when it did.
        took: seconds that the extend took.
    """

    remaining: float = 0.0
    took: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RenewalFailed(Event):
    """An extend could not be asked; the lease still stands until its deadline.

    Attributes:
        remaining: seconds left until the lease counts as lost.
        error: what went wrong.
    """

    remaining: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Lost(Event):
    """A held lock is not ours any more.

    Attributes:
        fencing_token: the lost grant's token, where it had one.
        reason: what was seen.
    """

    fencing_token: int | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Aborted(Event):
    """A body was stopped because its lock was lost."""


@dataclass(frozen=True, kw_only=True)
class TakenOver(Event):
    """A redelivered task took over from a dead attempt of its own.

    Attributes:
        fencing_token: the new grant's token, where it has one.
    """

    fencing_token: int | None = None


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """The lock was given back.

    Attributes:
        held: seconds from the grant to the release.
    """

    held: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReleaseFailed(Event):
    """A release could not be said everywhere; it is retried until the ttl has passed.

    Attributes:
        error: what went wrong.
    """

    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Unavailable(Event):
    """Nobody could say whether the lock was free.

    Attributes:
        policy: what was done about it.
        error: what each lock server said.
    """

    policy: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class StaleToken(Event):
    """A resource refused a fencing token.

    Attributes:
        fencing_token: the token that was refused.
        stored: the highest that the resource has seen, where it told.
    """

    fencing_token: int | None = None
    stored: int | None = None


Sink = Callable[[Any], None]
"""Where events go; must not raise."""
