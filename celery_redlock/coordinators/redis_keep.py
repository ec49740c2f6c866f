"""Prolonging one grant, and giving it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from celery_redlock.coordinators.redis_ballot import Ballot, Record, order
from celery_redlock.coordinators.redis_channel import Channel, Silence
from celery_redlock.coordinators.redis_commands import EXTEND, HEAL, RELEASE, Names, milliseconds
from celery_redlock.coordinators.redis_wire import pack
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import Round, Vote, majority

__all__ = ["Keeping", "extend", "release"]


class Keeping(NamedTuple):
    """What an extend needs of the coordinator.

    Attributes:
        longest: the longest ttl in seconds.
        epoch: the marker of the set of servers; ``""`` where it gives no fencing tokens.
        counter_life: seconds that a counter of fencing tokens is kept after its last use.
    """

    longest: float
    epoch: str = ""
    counter_life: float = 0.0


def extend(
    channel: Channel, names: Names, grant: Grant, this: Round, keeping: Keeping
) -> Grant | None:
    """Prolong a grant; None if it isn't ours any more.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    channel.begin()
    record: Record | None = grant.record
    ballot = Ballot(
        channel, this, _prolonging(channel, names, grant, this.ttl, keeping.longest), _read
    )
    verdict = ballot.hold(_refused)
    if verdict.state != "won":
        if _refused(ballot) or now() >= this.until:
            return None
        raise CoordinatorUnavailable(
            f"lock {grant.key!r}: {majority(this.nodes)} of {this.nodes} lock servers must renew it",
            {
                node.shown: _say(ballot.said.get(number, Silence(f"left out: {node.trouble}")))
                for number, node in enumerate(channel.nodes)
            },
        )
    if record is not None:
        unseen = _still_unseen(channel, record.unseen, ballot)
        unseen.update(_heal(channel, names, grant, ballot, keeping))
        record = replace(record, unseen=unseen)
    return replace(grant, ttl=this.ttl, valid_until=verdict.valid_until, record=record)


def _prolonging(
    channel: Channel, names: Names, grant: Grant, ttl: float, longest: float
) -> Callable[[int], bytes]:
    name, life = names.lock(grant.key), milliseconds(ttl)
    script = EXTEND.call((name,), grant.owner, life, milliseconds(longest))
    record: Record | None = grant.record
    if record is None or not record.exact:
        return lambda _: script
    exact, value = record.exact, record.value(grant.owner)
    native = pack("SET", name, value, "IFEQ", value, "PX", life)

    def ask(number: int) -> bytes:
        facts = channel.nodes[number].facts
        return native if number in exact and facts is not None and facts.extends else script

    return ask


def _read(answer: Any) -> Vote:
    if answer in (1, b"OK"):
        return Vote("yes")
    return Vote("no", owner="another" if answer == -1 else "")


def _refused(ballot: Ballot) -> bool:
    against = sum(vote.says == "no" for vote in ballot.votes.values())
    return against >= majority(ballot.round.nodes)


def _say(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    return "renewed" if answer in (1, b"OK") else "not ours"


def _still_unseen(channel: Channel, unseen: Mapping[int, int], ballot: Ballot) -> dict[int, int]:
    """What is still unseen: an answer to the extend comes after the one to the acquire."""
    return {
        number: serial
        for number, serial in unseen.items()
        if isinstance(ballot.said.get(number, Silence()), Silence)
        or (link := channel.links[number]) is None
        or link.serial != serial
    }


def _heal(
    channel: Channel, names: Names, grant: Grant, ballot: Ballot, keeping: Keeping
) -> dict[int, int]:
    """Put the lock back where it is missing; nobody waits for that, and it is no vote."""
    healed: dict[int, int] = {}
    record: Record | None = grant.record
    if record is None:
        return healed
    keys: tuple[str, ...] = names.lock(grant.key), names.grave(grant.key, grant.owner)
    life = milliseconds(ballot.verdict.valid_until - now())
    value = record.value(grant.owner)
    words = life, milliseconds(keeping.longest), value
    command = HEAL.call(keys, grant.owner, *words)
    if record.token:
        keys += names.counter(grant.key), names.highest, names.epoch
        fence = keeping.epoch, record.token, milliseconds(keeping.counter_life)
        command = HEAL.call(keys, grant.owner, *words, *fence)
    for number, vote in ballot.votes.items():
        link = channel.links[number]
        missing = vote.says == "no" and not vote.owner
        if missing and link is not None and channel.post(number, command):
            healed[number] = link.serial
    return healed


def release(channel: Channel, names: Names, grant: Grant) -> bool:
    """Give a grant back; False if it wasn't ours any more.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    channel.begin(tidy=False)
    started = now()
    giving = _Giving(channel, names, grant)
    first, spare = order(channel, started)
    for number in first:
        channel.send(number, giving.command(number))
    for number in spare:
        channel.post(number, giving.command(number))
        giving.owe(number)
    yes = no = 0
    need = majority(len(channel.nodes))
    said: dict[str, str] = {}
    for reply in channel.replies():
        if isinstance(reply.value, str):
            giving.owe(reply.node)
            said[channel.nodes[reply.node].shown] = str(reply.value)
            continue
        channel.nodes[reply.node].recover()
        ours = reply.value == 1
        yes, no = yes + ours, no + (not ours)
        if yes >= need or no >= need:
            return bool(yes >= need)
    if yes + no >= need:
        return True  # the rest couldn't be asked, and may have been ours
    raise CoordinatorUnavailable(
        f"lock {grant.key!r}: {need} of {len(channel.nodes)} lock servers must release it", said
    )


class _Giving:
    """The commands that release one grant.

    Where an answer to the acquire was not seen and it went over another connection, it may
    still arrive: there the owner is buried, so that it can't.
    """

    def __init__(self, channel: Channel, names: Names, grant: Grant) -> None:
        self._channel = channel
        self._grant = grant
        self._record: Record | None = grant.record
        keys = names.lock(grant.key), names.grave(grant.key, grant.owner)
        self._buried = RELEASE.call(keys, grant.owner, milliseconds(grant.ttl))
        self._plain = RELEASE.call(keys, grant.owner, 0)
        self._name = keys[0]

    def command(self, number: int) -> bytes:
        record = self._record
        if record is None:
            return self._buried
        serial = record.unseen.get(number)
        link = self._channel.links[number]
        if serial is not None:
            return self._plain if link is not None and link.serial == serial else self._buried
        facts = self._channel.nodes[number].facts
        if link is None or facts is None or not facts.release or number not in record.exact:
            return self._plain
        value = record.value(self._grant.owner)
        words = ("IFEQ", value) if facts.release == ("DELEX",) else (value,)
        return pack(*facts.release, self._name, *words)

    def owe(self, number: int) -> None:
        node = self._channel.nodes[number]
        node.owe(max(now() + 1.0, self._grant.valid_until), self._buried)
