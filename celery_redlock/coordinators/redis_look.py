"""Looking at one lock, and telling in words what servers said.  Changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from statistics import median_low
from typing import Any, NamedTuple

from celery_redlock.coordinators.base import Held, Holder
from celery_redlock.coordinators.redis_ballot import order
from celery_redlock.coordinators.redis_channel import Channel, Silence
from celery_redlock.coordinators.redis_commands import NOBODY, Names
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import ErrorReply, pack
from celery_redlock.exceptions import CoordinatorUnavailable, describe_holder
from celery_redlock.fencing import FencingToken
from celery_redlock.quorum import majority

__all__ = ["Stored", "inspect", "parse_value", "say", "server_time"]


_VALUE, _LEFT = 0, 1  # places in what is asked


class Stored(NamedTuple):
    """What a server keeps for a lock."""

    owner: str
    token: int
    holder: Holder


def parse_value(value: bytes) -> Stored:
    """The parts of a stored value; one of somebody else's making has an owner at least."""
    owner, _, rest = value.decode(errors="replace").partition(" ")
    token, _, facts = rest.partition(" ")
    try:
        return Stored(owner, int(token), Holder.from_dict(json.loads(facts)))
    except (ValueError, TypeError, AttributeError):
        return Stored(owner, 0, Holder())


def say(answer: Any, node: Node) -> str:
    """What a server answered to an acquire, in words."""
    if answer is None:
        return f"left out, after: {node.trouble}" if node.trouble else "no answer yet"
    if isinstance(answer, (Silence, ErrorReply)):
        return str(answer)
    if not isinstance(answer, list) or answer[0] == 1:
        return "free"
    if answer[0] == 0 and parse_value(answer[1]).owner == NOBODY:
        return "kept free for a moment, after a release by another connection"
    if answer[0] == 0:
        return f"held by {describe_holder(parse_value(answer[1]).holder.to_dict())}"
    return {
        -1: "this owner has given up here: every attempt needs a new one",
        -2: "it belongs to another epoch or set of nodes, or has been emptied",
        -3: "it was admitted a short while ago and doesn't vote yet",
    }.get(answer[0], repr(answer))


def inspect(channel: Channel, names: Names, key: str, instant: float) -> Held | None:
    """Who holds the lock on a majority; None if nobody does.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    channel.begin()
    name = names.lock(key)
    commands = pack("GET", name), pack("PTTL", name)
    seen: dict[int, dict[int, Any]] = {}
    first, spare = order(channel, instant)
    for number in first + spare:
        channel.send_many(number, commands)
    for reply in channel.replies():
        seen.setdefault(reply.node, {})[reply.tag] = reply.value
    values = {
        number: one[_VALUE]
        for number, one in seen.items()
        if not any(isinstance(answer, str) for answer in one.values())
    }
    nodes = _words(channel, seen)
    need = majority(len(channel.nodes))
    if len(values) < need:
        message = f"lock {key!r}: {need} of {len(channel.nodes)} lock servers must answer"
        raise CoordinatorUnavailable(message, nodes)
    owners = Counter(parse_value(value).owner for value in values.values() if value is not None)
    del owners[NOBODY]
    owner, votes = owners.most_common(1)[0] if owners else ("", 0)
    if votes < need:
        return None
    theirs = {n: parse_value(v) for n, v in values.items() if v and parse_value(v).owner == owner}
    left = sorted((seen[number][_LEFT] / 1000 for number in theirs), reverse=True)[need - 1]
    token = max(stored.token for stored in theirs.values())
    holder = next(iter(theirs.values())).holder
    fencing_token = FencingToken(token, key) if token else None
    return Held(key, owner, holder, max(0.0, left), fencing_token, nodes)


def server_time(channel: Channel) -> float:
    """The median of the servers' wall clocks, in seconds since the epoch.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    channel.begin()
    channel.send(range(len(channel.nodes)), pack("TIME"))
    said, seen = {}, []
    for reply in channel.replies():
        if isinstance(reply.value, list):
            seen.append(int(reply.value[0]) + int(reply.value[1]) / 1e6)
        else:
            said[channel.nodes[reply.node].shown] = str(reply.value)
    need = majority(len(channel.nodes))
    if len(seen) < need:
        message = f"the time: {need} of {len(channel.nodes)} lock servers must answer"
        raise CoordinatorUnavailable(message, said)
    return median_low(seen)


def _words(channel: Channel, seen: dict[int, dict[int, Any]]) -> dict[str, str]:
    said = {}
    for number, node in enumerate(channel.nodes):
        value = seen.get(number, {}).get(_VALUE, Silence("no answer"))
        if value is None:
            said[node.shown] = "free"
        elif isinstance(value, str):
            said[node.shown] = str(value)
        else:
            said[node.shown] = f"held by {describe_holder(parse_value(value).holder.to_dict())}"
    return said
