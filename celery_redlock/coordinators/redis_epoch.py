"""Which servers make up a set that gives fencing tokens: the epoch marker, and its changes.

A server that was emptied, or never belonged to the set, must not vote: it would give a number
a second time.  So each server of a set carries a marker, which dies with its data, and every
request for a token names it.  The marker reads ``number:set:nodes:base``:

* ``number`` 0: prepared, may not vote yet; 1 and more: in force; with an ``s`` before it: sealed,
  doesn't vote any more;
* ``set``: made from the servers' run ids at the first use;
* ``nodes``: how many servers the set has, since that decides what a majority is;
* ``base``: no token of an earlier epoch is above it.

At the first use, when every server can be reached and none has a marker, all are prepared, and
only when all have confirmed that, all are put in force.  So a server that is prepared has been
there from the start and has given nothing; one without a marker hasn't.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from celery_redlock.coordinators.redis_channel import Channel
from celery_redlock.coordinators.redis_commands import MARK, Names
from celery_redlock.coordinators.redis_wire import pack
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import majority

__all__ = ["ADMIT", "HIGHEST_FLOOR", "Epoch", "admit", "establish", "raise_floor"]

ADMIT = "celery -A <project> redlock admit"
"""The command that re-admits servers; :func:`admit` is what it runs."""

HIGHEST_FLOOR = 2**53 - 2
"""Above this there is no room for a token: the servers' numbers are exact up to 2**53."""

Answers = dict[int, Any]


class Epoch(NamedTuple):
    """What a marker says.

    Attributes:
        number: 0: prepared; 1 and more: in force.
        members: made from the servers' run ids at the first use of the set.
        nodes: how many servers the set has.
        base: no token of an earlier epoch is above it.
        sealed: whether it gives no tokens any more.
    """

    number: int
    members: str
    nodes: int
    base: int
    sealed: bool = False

    @classmethod
    def parse(cls, marker: str) -> Epoch | None:
        """What a marker says; None if it is none of ours."""
        sealed = marker.startswith("s")
        parts = marker.removeprefix("s").split(":")
        if len(parts) != 4 or not all(part.isdigit() for part in (parts[0], *parts[2:])):
            return None
        return cls(int(parts[0]), parts[1], int(parts[2]), int(parts[3]), sealed)

    def __str__(self) -> str:
        seal = "s" if self.sealed else ""
        return f"{seal}{self.number}:{self.members}:{self.nodes}:{self.base}"


def establish(channel: Channel, names: Names) -> str:
    """The marker in force on a majority of the servers; made at the first use of the set.

    Raises:
        CoordinatorUnavailable: too few servers answered, or too few carry one marker.
    """
    markers = _read(channel, names, _settled)
    known = _in_force(markers)
    if not known and len(markers) == len(channel.nodes):
        _found(channel, names, markers)
        markers = _read(channel, names, _settled)
        known = _in_force(markers)
    for epoch in known:
        _finish_founding(channel, names, markers, epoch)
    nodes = len(channel.nodes)
    votes = Counter(marker for marker in markers.values() if marker)
    for epoch in known:
        if epoch.nodes == nodes and votes[str(epoch)] >= majority(nodes):
            return str(epoch)
    raise CoordinatorUnavailable(_why(nodes, markers, known), _words(channel, markers))


def _read(
    channel: Channel, names: Names, enough: Callable[[Channel, Mapping[int, str]], bool]
) -> dict[int, str]:
    """The marker of each server that answers; ``""`` where there is none."""
    channel.begin()
    command = pack("GET", names.epoch)
    channel.send(range(len(channel.nodes)), command)
    markers: dict[int, str] = {}
    for reply in channel.replies():
        if not isinstance(reply.value, str):
            markers[reply.node] = (reply.value or b"").decode(errors="replace")
            if enough(channel, markers):
                break
    return markers


def _settled(channel: Channel, markers: Mapping[int, str]) -> bool:
    """Whether a majority of this very set is in force, so that the rest need not be heard."""
    marker, votes = Counter(markers.values()).most_common(1)[0]
    epoch, nodes = Epoch.parse(marker), len(channel.nodes)
    in_force = epoch is not None and epoch.number > 0 and not epoch.sealed
    return in_force and epoch is not None and epoch.nodes == nodes and votes >= majority(nodes)


def _never(channel: Channel, markers: Mapping[int, str]) -> bool:  # noqa: ARG001
    return False


def _ask(channel: Channel, commands: Mapping[int, bytes]) -> Answers:
    channel.begin()
    for number, command in commands.items():
        channel.send((number,), command)
    answers = {reply.node: reply.value for reply in channel.replies()}
    return {number: value for number, value in answers.items() if not isinstance(value, str)}


def _in_force(markers: Mapping[int, str]) -> list[Epoch]:
    epochs = {Epoch.parse(marker) for marker in markers.values()}
    return [epoch for epoch in epochs if epoch and epoch.number and not epoch.sealed]


def _mark(names: Names, new: Epoch, read: str, *, least: int = 0, rest: int = 0) -> bytes:
    keys = names.epoch, names.highest, names.resting
    return MARK.call(keys, str(new), read, least, rest)


def _done(answers: Answers) -> dict[int, int]:
    return {number: int(one[1]) for number, one in answers.items() if one[0] == 1}


def _found(channel: Channel, names: Names, markers: dict[int, str]) -> None:
    """Prepare all servers of a new set, then put all in force; stop at the first obstacle."""
    if any(marker and not marker.startswith("0:") for marker in markers.values()):
        return
    ids = sorted(str(node.facts and node.facts.run_id) for node in channel.nodes)
    members = hashlib.sha256(" ".join(ids).encode()).hexdigest()[:16]
    new = Epoch(0, members, len(channel.nodes), 0)
    prepare = {number: _mark(names, new, marker) for number, marker in markers.items()}
    if len(_done(_ask(channel, prepare))) == len(channel.nodes):
        in_force = _mark(names, new._replace(number=1), str(new))
        _ask(channel, dict.fromkeys(markers, in_force))


def _finish_founding(channel: Channel, names: Names, markers: dict[int, str], epoch: Epoch) -> None:
    """Put in force what somebody has prepared, who didn't come to the end."""
    prepared = str(epoch._replace(number=0))
    left = {number for number, marker in markers.items() if marker == prepared}
    if epoch.number == 1 and left:
        command = _mark(names, epoch, prepared)
        for number in _done(_ask(channel, dict.fromkeys(left, command))):
            markers[number] = str(epoch)


def _why(nodes: int, markers: Mapping[int, str], known: list[Epoch]) -> str:
    need = majority(nodes)
    if len(markers) < nodes and not known:
        return (
            f"fencing tokens: all {nodes} lock servers must answer at the first use of the set, "
            f"and {len(markers)} did"
        )
    if len(markers) < need:
        return f"fencing tokens: {need} of {nodes} lock servers must answer, and {len(markers)} did"
    return (
        f"fencing tokens: {need} of {nodes} lock servers must carry one epoch marker; if servers "
        f"were replaced, emptied or added, run: {ADMIT}"
    )


def _words(channel: Channel, markers: Mapping[int, str]) -> dict[str, str]:
    return {
        node.shown: (
            f"epoch {markers[number] or 'missing'}"
            if number in markers
            else node.trouble or "no answer"
        )
        for number, node in enumerate(channel.nodes)
    }


def admit(channel: Channel, names: Names, rest: float, floor: int = 0) -> dict[str, str]:
    """Make the configured servers one set again, after some were replaced, emptied or added.

    A majority of the old set must be among them, since only that knows the highest token:

    1. it is sealed: from then on the old epoch gives no token any more;
    2. the highest token that it has given is read;
    3. all servers get the marker of a new epoch that starts above it.

    New servers know nothing of the locks that are held, so they rest for the longest ttl before
    they vote; all do, if the number of servers has changed.  Safe to repeat: an admission that
    stopped half-way is taken up again, and until then no tokens are given.  Leases that are
    held go on.

    Args:
        channel: over the new set of servers.
        names: what the keys are called.
        rest: the longest ttl of a lock, seconds.
        floor: the new epoch starts above this, too.

    Returns:
        what each server was made, by its address.

    Raises:
        CoordinatorUnavailable: too few of the old set answered; or the servers changed
            meanwhile, and it is worth repeating.
    """
    markers = _resume(channel, names, rest)
    old = _old_set(channel, markers)
    sealed = old._replace(sealed=True)
    survivors = [n for n, marker in markers.items() if marker in {str(old), str(sealed)}]
    answers = _ask(channel, {number: _mark(names, sealed, markers[number]) for number in survivors})
    highest = _done(answers)
    if len(highest) < majority(old.nodes):
        raise _too_few(channel, markers, old)
    nodes = len(channel.nodes)
    base = max(floor, *highest.values())
    new = Epoch(old.number + 1, old.members, nodes, base)
    pause = {
        number: 0 if number in highest and nodes == old.nodes else int(rest * 1000)
        for number in markers
    }
    commands = {
        number: _mark(
            names,
            new,
            str(sealed) if number in highest else marker,
            least=base,
            rest=pause[number],
        )
        for number, marker in markers.items()
    }
    done = _done(_ask(channel, commands))
    return {
        node.shown: _admitted(new, pause[number]) if number in done else "not reached: repeat this"
        for number, node in enumerate(channel.nodes)
    }


def raise_floor(channel: Channel, names: Names, rest: float, floor: int) -> int:
    """Begin a new epoch above ``floor``, unless this one is; what no later token is at or below.

    Args:
        channel: over the servers.
        names: what the keys are called.
        rest: the longest ttl of a lock, seconds.
        floor: the highest token that any resource has seen, from 0 to :data:`HIGHEST_FLOOR`.

    Raises:
        CoordinatorUnavailable: a server did not answer, which would be left behind in the old
            epoch; or the servers changed meanwhile, and it is worth repeating.
    """
    if _base(establish(channel, names)) < floor:
        markers = _read(channel, names, _never)
        if len(markers) < len(channel.nodes):
            message = "the floor can't be raised: all lock servers must answer"
            raise CoordinatorUnavailable(message, _words(channel, markers))
        admit(channel, names, rest, floor)
    return _base(establish(channel, names))


def _base(marker: str) -> int:
    epoch = Epoch.parse(marker)
    return epoch.base if epoch is not None else 0


def _resume(channel: Channel, names: Names, rest: float) -> dict[int, str]:
    """Finish an admission that stopped half-way, and read all markers.

    A sealed server of which another one is already in the next epoch may follow it: that
    epoch's base was read after a majority had been sealed.
    """
    markers = _read(channel, names, _never)
    commands = {}
    for number, marker in markers.items():
        epoch = Epoch.parse(marker)
        if epoch is None or not epoch.sealed:
            continue
        for following in _in_force(markers):
            if following[:2] == (epoch.number + 1, epoch.members):
                pause = 0 if following.nodes == epoch.nodes else int(rest * 1000)
                least = following.base
                commands[number] = _mark(names, following, marker, least=least, rest=pause)
    if commands:
        _ask(channel, commands)
        markers = _read(channel, names, _never)
    return markers


def _old_set(channel: Channel, markers: Mapping[int, str]) -> Epoch:
    epochs = [Epoch.parse(marker) for marker in markers.values()]
    counted = Counter(epoch._replace(sealed=False) for epoch in epochs if epoch and epoch.number)
    for epoch, votes in sorted(counted.items(), reverse=True):
        if votes >= majority(epoch.nodes):
            return epoch
    raise _too_few(channel, markers, None)


def _too_few(
    channel: Channel, markers: Mapping[int, str], old: Epoch | None
) -> CoordinatorUnavailable:
    need = f"{majority(old.nodes)} of its {old.nodes}" if old else "a majority of its"
    return CoordinatorUnavailable(
        f"the set can't be changed: {need} former servers must answer, since nobody else knows "
        "the highest fencing token. If they are lost for good, choose another redlock_prefix",
        _words(channel, markers),
    )


def _admitted(new: Epoch, pause: int) -> str:
    return f"in epoch {new.number}" + (f", votes after {pause // 1000} s" if pause else "")
