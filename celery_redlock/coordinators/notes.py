"""A note left with a held lock, for whoever comes next: the arguments of one more run.

The note and the lock change hands in one step where the coordinator can do that
(:class:`KeepsNotes`: memory and Redis).  Elsewhere the note is a lock of its own name, whose
holder carries it.  There no note is ever lost or read twice either, because its writer looks at
the lock after it has written, and its reader at the note after it has released; but a third
party may take the lock between the release and the next run.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from celery_redlock import clock
from celery_redlock.coordinators.base import Coordinator, Grant, Held, Holder
from celery_redlock.exceptions import CoordinatorUnavailable

__all__ = ["HandedOver", "KeepsNotes", "hand_over", "leave_note"]

_TRIES = 20


@dataclass(frozen=True)
class HandedOver:
    """What a lock's former owner finds when it gives the lock back.

    Attributes:
        note: the newest note that was left.
        grant: the lock, which is the heir's now; None if somebody else was quicker.
    """

    note: bytes
    grant: Grant | None


@runtime_checkable
class KeepsNotes(Protocol):
    """What a coordinator can do that keeps notes itself."""

    def leave_note(self, key: str, owner: str, note: bytes, order: int, ttl: float) -> bool:
        """As :func:`leave_note`, in one step."""

    def hand_over(self, grant: Grant, heir: str, ttl: float, holder: Holder) -> HandedOver | None:
        """As :func:`hand_over`, in one step."""


def leave_note(
    coordinator: Coordinator, key: str, owner: str, note: bytes, order: int, ttl: float
) -> bool:
    """Leave a note with a lock, in the place of an older one; False if the lock isn't held so.

    Args:
        coordinator: who granted the lock.
        key: the lock's name.
        owner: who must hold the lock.
        note: anything.
        order: a rising number; of two notes the one with the higher number stays.
        ttl: seconds after which the note is forgotten.

    Raises:
        CoordinatorUnavailable: nobody can say whether it was left.
    """
    if isinstance(coordinator, KeepsNotes):
        return coordinator.leave_note(key, owner, note, order, ttl)
    name, mine = _note_name(key), secrets.token_hex(16)
    text = base64.b64encode(note).decode()
    for _ in range(_TRIES):
        held = coordinator.inspect(name)
        if held is not None:
            if _order(held, owner) >= order:
                return _holds(coordinator, key, owner)
            coordinator.release(_grant(held))
        # A holder's fields are all that a lock can carry.
        outcome = coordinator.acquire(name, mine, ttl, Holder(owner, str(order), text))
        if isinstance(outcome, Grant):
            # Either the owner still holds the lock, and will look, or we take the note back.
            return _holds(coordinator, key, owner) or not coordinator.release(outcome)
    raise CoordinatorUnavailable(f"lock {key!r}: too many leave notes at the same time")


def hand_over(
    coordinator: Coordinator, grant: Grant, heir: str, ttl: float, holder: Holder
) -> HandedOver | None:
    """Give a lock back; where a note was left, the lock is the heir's and the note is given.

    Args:
        coordinator: who granted the lock.
        grant: the lock, which may be lost by now.
        heir: the owner that the lock gets if there is a note.
        ttl: seconds that the heir gets it for.
        holder: who the heir is.

    Raises:
        CoordinatorUnavailable: nobody can say.
    """
    if isinstance(coordinator, KeepsNotes):
        return coordinator.hand_over(grant, heir, ttl, holder)
    note = _take_note(coordinator, grant)
    if note is None:
        coordinator.release(grant)
        note = _take_note(coordinator, grant)  # left just before the release
        if note is None:
            return None
    try:  # from here on the note is in nobody's hands but ours
        coordinator.release(grant)
        outcome = coordinator.acquire(grant.key, heir, ttl, holder)
    except CoordinatorUnavailable:
        return HandedOver(note, None)
    return HandedOver(note, outcome if isinstance(outcome, Grant) else None)


def _note_name(key: str) -> str:
    return f"latest:{key}"


def _holds(coordinator: Coordinator, key: str, owner: str) -> bool:
    held = coordinator.inspect(key)
    return held is not None and held.owner == owner


def _order(held: Held, owner: str) -> int:
    """The number of a note for ``owner``; -1 for somebody else's, which is of no use any more."""
    number = held.holder.id
    return int(number) if held.holder.task == owner and number.isdecimal() else -1


def _take_note(coordinator: Coordinator, grant: Grant) -> bytes | None:
    for _ in range(_TRIES):
        held = coordinator.inspect(_note_name(grant.key))
        if held is None or _order(held, grant.owner) < 0:
            return None
        if _erased(coordinator, held):
            return base64.b64decode(held.holder.attempt)
    raise CoordinatorUnavailable(f"lock {grant.key!r}: its note changes too often to be read")


def _erased(coordinator: Coordinator, held: Held) -> bool:
    """Whether the note is ours alone to use now; where nobody can say, rather twice than never."""
    for _ in range(3):
        try:
            return coordinator.release(_grant(held))
        except CoordinatorUnavailable:
            continue
    return True


def _grant(held: Held) -> Grant:
    return Grant(held.key, held.owner, 1.0, clock.now() + held.ttl_left)
