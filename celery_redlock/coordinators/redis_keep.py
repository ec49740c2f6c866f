"""Prolonging one grant, and giving it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from celery_redlock.coordinators.redis_ballot import Ballot, Outcome, Record, Request, order
from celery_redlock.coordinators.redis_channel import Channel, Silence
from celery_redlock.coordinators.redis_commands import EXTEND, HEAL, RELEASE, Names, milliseconds
from celery_redlock.coordinators.redis_node import Facts
from celery_redlock.coordinators.redis_wire import pack
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import Round, Vote, majority

__all__ = ["Keeping", "extend", "prolonging", "read_extend", "refused", "release", "renewed"]
__all__ += ["unavailable"]

_LATEST = 1000  # ms after which an acquire that is under way has arrived, or never will


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
    ask = prolonging(channel, names, grant, this.ttl, keeping.longest)
    ballot = Ballot(channel, this, ask, read_extend)
    verdict = ballot.hold(lambda ballot: refused(this.nodes, ballot.votes))
    if verdict.state == "won":
        return renewed(channel, names, grant, ballot.outcome(), keeping)
    if refused(this.nodes, ballot.votes) or now() >= this.until:
        return None
    raise unavailable(channel, grant, ballot.said)


def unavailable(channel: Channel, grant: Grant, said: Mapping[int, Any]) -> CoordinatorUnavailable:
    """The error of an extend that too few servers answered."""
    nodes = len(channel.nodes)
    return CoordinatorUnavailable(
        f"lock {grant.key!r}: {majority(nodes)} of {nodes} lock servers must renew it",
        {
            node.shown: _say(said.get(number, Silence(f"left out, after: {node.trouble}")))
            for number, node in enumerate(channel.nodes)
        },
    )


def renewed(
    channel: Channel, names: Names, grant: Grant, outcome: Outcome, keeping: Keeping
) -> Grant:
    """The grant that an extend has won; puts the lock back where it was missing."""
    record: Record | None = grant.record
    if record is not None:
        unseen = _still_unseen(channel, record.unseen, outcome.said)
        unseen.update(_heal(channel, names, grant, outcome, keeping))
        record = replace(record, unseen=unseen)
    until = outcome.valid_until
    return replace(grant, ttl=outcome.ttl, valid_until=until, record=record)


def prolonging(
    channel: Channel, names: Names, grant: Grant, ttl: float, longest: float
) -> Callable[[Sequence[int]], Iterable[Request]]:
    """What makes the commands that prolong a grant, natively where that can be."""
    name, life = names.lock(grant.key), milliseconds(ttl)
    record: Record | None = grant.record

    def ask(numbers: Sequence[int]) -> Iterable[Request]:
        native, others = _natively(channel, record, numbers, _extends)
        if native and record is not None:
            value = record.value(grant.owner)
            yield Request(pack("SET", name, value, "IFEQ", value, "PX", life), native)
        if others:
            yield Request(EXTEND.call((name,), grant.owner, life, milliseconds(longest)), others)

    return ask


def _natively(
    channel: Channel,
    record: Record | None,
    numbers: Sequence[int],
    able: Callable[[Facts], object],
) -> tuple[list[int], list[int]]:
    """The servers on which a native command will do, and those that need the script."""
    if record is None:
        return [], list(numbers)
    native: list[int] = []
    others: list[int] = []
    for number in numbers:
        facts = channel.nodes[number].facts
        fit = number in record.exact and facts is not None and able(facts)
        (native if fit and _follows(channel, record, number) else others).append(number)
    return native, others


def _extends(facts: Facts) -> object:
    return facts.extends


def _releases(facts: Facts) -> object:
    return facts.release


def read_extend(answer: Any) -> Vote:
    """The vote that an answer to an extend stands for."""
    if answer in (1, b"OK"):
        return Vote("yes")
    return Vote("no", owner="another" if answer == -1 else "")


def refused(nodes: int, votes: Mapping[int, Vote]) -> bool:
    """Whether a majority says that the lock isn't ours any more."""
    return sum(vote.says == "no" for vote in votes.values()) >= majority(nodes)


def _say(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    return "renewed" if answer in (1, b"OK") else "not ours"


def _still_unseen(
    channel: Channel, unseen: Mapping[int, int], said: Mapping[int, Any]
) -> dict[int, int]:
    """What is still unseen: an answer to the extend comes after the one to the acquire."""
    return {
        number: serial
        for number, serial in unseen.items()
        if isinstance(said.get(number, Silence()), Silence)
        or (link := channel.links[number]) is None
        or link.serial != serial
    }


def _heal(
    channel: Channel, names: Names, grant: Grant, outcome: Outcome, keeping: Keeping
) -> dict[int, int]:
    """Put the lock back where it is missing; nobody waits for that, and it is no vote."""
    healed: dict[int, int] = {}
    record: Record | None = grant.record
    votes = outcome.votes.items()
    missing = [number for number, vote in votes if vote.says == "no" and not vote.owner]
    if record is None or not missing:
        return healed
    command = _healing(names, grant, record, outcome.valid_until - now(), keeping)
    for number in missing:
        link = channel.links[number]
        if link is not None and channel.post(number, command):
            healed[number] = link.serial
    return healed


def _healing(names: Names, grant: Grant, record: Record, left: float, keeping: Keeping) -> bytes:
    keys: tuple[str, ...] = names.lock(grant.key), names.grave(grant.key, grant.owner)
    value = record.value(grant.owner)
    words = milliseconds(left), milliseconds(keeping.longest), value
    if not record.token:
        return HEAL.call(keys, grant.owner, *words)
    keys += names.counter(grant.key), names.highest, names.epoch
    fence = keeping.epoch, record.token, milliseconds(keeping.counter_life)
    return HEAL.call(keys, grant.owner, *words, *fence)


def release(channel: Channel, names: Names, grant: Grant) -> bool:
    """Give a grant back; False if it wasn't ours any more.

    Where an answer to the acquire was not seen and it went over another connection, it may
    still arrive: there the owner is buried, so that it can't.

    Raises:
        CoordinatorUnavailable: too few servers answered.
    """
    channel.begin(tidy=False)
    first, spare = order(channel, now())
    for command, numbers, _ in _giving(channel, names, grant, first):
        channel.send(numbers, command)
    for number in spare:  # what can't be sent now is owed
        for command, _, _ in _giving(channel, names, grant, [number]):
            channel.post(number, command)
        _owe(channel, names, grant, number)
    return _count_released(channel, names, grant)


def _count_released(channel: Channel, names: Names, grant: Grant) -> bool:
    yes = no = 0
    need = majority(len(channel.nodes))
    said: dict[str, str] = {}
    for reply in channel.replies():
        node = channel.nodes[reply.node]
        if isinstance(reply.value, str):
            said[node.shown] = str(reply.value)
            _owe(channel, names, grant, reply.node)
            continue
        node.recover()
        ours = reply.value == 1
        yes, no = yes + ours, no + (not ours)
        if yes >= need or no >= need:
            return bool(yes >= need)
    if yes + no >= need:
        return True  # the rest couldn't be asked, and may have been ours
    raise CoordinatorUnavailable(
        f"lock {grant.key!r}: {need} of {len(channel.nodes)} lock servers must release it", said
    )


def _giving(
    channel: Channel, names: Names, grant: Grant, numbers: Sequence[int]
) -> Iterable[Request]:
    record: Record | None = grant.record
    native, others = _natively(channel, record, numbers, _releases)
    if record is not None and native:
        yield from _native_release(channel, names, grant, record, native)
    followed = [number for number in others if _follows(channel, record, number)]
    if followed:
        keys = names.lock(grant.key), names.grave(grant.key, grant.owner)
        yield Request(RELEASE.call(keys, grant.owner, 0), followed)
    for number in set(others).difference(followed):
        yield Request(_bury(names, grant, block=_is_under_way(record, number)), [number])


def _native_release(
    channel: Channel, names: Names, grant: Grant, record: Record, numbers: Sequence[int]
) -> Iterable[Request]:
    name, value = names.lock(grant.key), record.value(grant.owner)
    forms = {"DELIFEQ": ("DELIFEQ", name, value), "DELEX": ("DELEX", name, "IFEQ", value)}
    for form, words in forms.items():
        group = [n for n in numbers if (facts := channel.nodes[n].facts) and facts.release == form]
        if group:
            yield Request(pack(*words), group)


def _follows(channel: Channel, record: Record | None, number: int) -> bool:
    """Whether a release that is sent now can't be overtaken by the acquire."""
    if record is None:
        return False
    if number not in record.unseen:
        return True
    link = channel.links[number]
    return link is not None and link.serial == record.unseen[number]


def _is_under_way(record: Record | None, number: int) -> bool:
    """Whether an acquire that looks at no grave may still arrive, on another's connection.

    One whose connection has ended can't: it was aborted, so what had not arrived never will.
    """
    if record is None or record.channel is None or not record.natively:
        return False
    link = record.channel.links[number]
    return link is not None and link.serial == record.unseen.get(number)


def _bury(names: Names, grant: Grant, *, block: bool = False) -> bytes:
    keys = names.lock(grant.key), names.grave(grant.key, grant.owner)
    return RELEASE.call(keys, grant.owner, milliseconds(grant.ttl), _LATEST if block else 0)


def _owe(channel: Channel, names: Names, grant: Grant, number: int) -> None:
    # For a second at least, should the grant be at its end.
    until = max(now() + 1.0, grant.valid_until)
    channel.nodes[number].owe(until, _bury(names, grant))
