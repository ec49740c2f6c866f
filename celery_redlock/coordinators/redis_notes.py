"""Notes left with a held lock, and its handing over with the note, on one server or several.

A note counts as left when a majority of the servers has put it beside its owner's lock.  Whoever
hands the lock over asks a majority as well, so it sees the note on one server at least; and a
server where the lock has changed hands takes no note for its former owner any more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.coordinators.notes import HandedOver
from celery_redlock.coordinators.redis_ballot import order
from celery_redlock.coordinators.redis_channel import Channel
from celery_redlock.coordinators.redis_commands import HAND_OVER, LEAVE, Names, milliseconds
from celery_redlock.coordinators.redis_keep import release
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import Drift, majority

__all__ = ["hand_over", "leave"]

_as_json = json.JSONEncoder(
    separators=(",", ":")
).encode  # made once: json.dumps makes one each time


def leave(
    channel: Channel, names: Names, key: str, owner: str, note: bytes, number: int, ttl: float
) -> bool:
    """Leave a note with a lock; False if a majority doesn't have the lock as this owner's.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    keys = names.lock(key), names.note(key)
    text = base64.b64encode(note).decode()
    command = LEAVE.call(keys, owner, number, text, milliseconds(ttl))
    need = majority(len(channel.nodes))
    answers = _ask(channel, key, command, lambda said: list(said.values()).count(1) >= need)
    return list(answers.values()).count(1) >= need


def hand_over(
    channel: Channel,
    names: Names,
    grant: Grant,
    heir: str,
    ttl: float,
    holder: Holder,
    longest: float,
    drift: Drift,
) -> HandedOver | None:
    """Give a lock back, or hand it over with its note.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    keys = names.lock(grant.key), names.note(grant.key)
    facts = _as_json(holder.to_dict())
    alone = "1" if len(channel.nodes) == 1 else "0"
    started = now()
    command = HAND_OVER.call(
        keys, grant.owner, heir, facts, milliseconds(ttl), milliseconds(longest), alone
    )
    # Every server is heard: a note that its writer has given up on is better read than left.
    answers = _ask(channel, grant.key, command, lambda said: False)
    notes = [answer[1] for answer in answers.values() if answer[0] in {1, 2}]
    theirs = sum(answer[0] in {1, 3} for answer in answers.values())
    heirs = Grant(grant.key, heir, ttl, started + ttl - drift.of(ttl))
    if notes:
        note = base64.b64decode(max(notes, key=_number).split(b" ", 2)[2])
        return HandedOver(note, heirs if theirs >= majority(len(channel.nodes)) else None)
    if theirs:
        release(channel, names, heirs)
    return None


def _number(note: bytes) -> int:
    return int(note.split(b" ", 2)[1])


def _ask(
    channel: Channel, key: str, command: bytes, enough: Callable[[dict[int, Any]], bool]
) -> dict[int, Any]:
    """The answers of the servers, by their number, until there are enough."""
    channel.begin()
    first, spare = order(channel, now())
    channel.send([*first, *spare], command)
    said: dict[int, Any] = {}
    trouble: dict[str, str] = {}
    for reply in channel.replies():
        if isinstance(reply.value, str):
            trouble[channel.nodes[reply.node].shown] = str(reply.value)
            continue
        channel.nodes[reply.node].recover()
        said[reply.node] = reply.value
        if enough(said):
            return said
    need = majority(len(channel.nodes))
    if len(said) < need:
        raise CoordinatorUnavailable(
            f"lock {key!r}: {need} of {len(channel.nodes)} lock servers must answer", trouble
        )
    return said
