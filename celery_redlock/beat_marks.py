"""The worker's side of a slot: a second message for the same slot is found out before its body.

A beat that dies between the publish of a slot and the note of it leaves another beat in doubt,
which sends the slot again.  So whoever begins to run a message of a slot leaves a mark that
names the task id; a message of the same slot with another task id comes too late.  Each entry
has a ring of marks, so that their number doesn't grow.  Never keeps a message from running
because nobody could say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from celery_redlock import clock
from celery_redlock.beat_claims import name_of
from celery_redlock.coordinators.base import Conflict, Coordinator, Grant, Holder
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.lock import new_owner
from celery_redlock.locks import Locks
from celery_redlock.options import LockOptions

__all__ = ["KEPT", "RING", "sent_twice"]

logger = logging.getLogger(__name__)

RING = 16
"""How many marks each entry has."""
KEPT = 3600.0
"""Seconds for which a mark is kept, unless its place in the ring is needed."""

_TRIES = 5  # how often others may take a place in the ring under our eyes


def sent_twice(locks: Locks, header: Mapping[str, Any], holder: Holder) -> Conflict | None:
    """The message that ran for the same slot before, with another task id; None if there is none.

    Args:
        locks: the locks of the application.
        header: our header of the message.
        holder: who is about to run it, with its task id.
    """
    slot = header.get("slot")
    if not isinstance(slot, Mapping):
        return None
    entry, at = slot.get("entry"), slot.get("at")
    if not isinstance(entry, str) or not isinstance(at, str) or not holder.id:
        return None
    options = LockOptions.layered(locks.settings.app_level)
    coordinator = locks.coordinator(options.coordinator, "efficiency", "queue")
    try:
        return _mark(coordinator, entry, replace(holder, attempt=at))
    except CoordinatorUnavailable as exc:
        logger.warning("whether slot %s of %s was sent twice is not known: %s", at, entry, exc)
        return None


def _mark(coordinator: Coordinator, entry: str, holder: Holder) -> Conflict | None:
    place = int(blake2b(holder.attempt.encode(), digest_size=2).hexdigest(), 16) % RING
    key = f"{name_of(entry)}:ran:{place}"
    for _ in range(_TRIES):
        outcome = coordinator.acquire(key, new_owner(), KEPT, holder)
        if isinstance(outcome, Grant):
            return None
        other = coordinator.inspect(key)
        if other is None:
            continue
        if other.holder.attempt == holder.attempt:
            same = other.holder.id == holder.id  # a retry, or another delivery of this message
            return None if same else Conflict(key, other.holder, other.ttl_left)
        # The mark of another slot: its place in the ring is needed.
        coordinator.release(Grant(key, other.owner, 1.0, clock.now() + 1.0))
    return None
