"""Taking one lock: the round, the raising of the token, and undoing what a loser has taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Conflict, Grant
from celery_redlock.coordinators.redis_ballot import Ballot, Record, Request
from celery_redlock.coordinators.redis_channel import Channel, Reply
from celery_redlock.coordinators.redis_commands import (
    ACQUIRE,
    NOBODY,
    RAISE,
    RELEASE,
    Names,
    milliseconds,
)
from celery_redlock.coordinators.redis_look import parse_value, say
from celery_redlock.coordinators.redis_wire import pack
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.fencing import FencingToken
from celery_redlock.quorum import Round, Vote, behind, majority, objection, wait_for_majority

__all__ = ["Acquisition", "Fence"]


_YES = Vote("yes")
_TAKE, _LIFT = "take", "lift"  # tags


@dataclass(frozen=True)
class Fence:
    """What an acquire needs besides, to get a fencing token.

    Attributes:
        epoch: the marker of the set of servers.
        floor: the servers are asked for a token of at least this, so that they agree.
        life: seconds that a counter is kept after its last use.
        saw: told the highest token of the lock that any answer named; 0 if none did.
    """

    epoch: str
    floor: int
    life: float
    saw: Callable[[int], None]


@dataclass(frozen=True)
class Acquisition:
    """One attempt to take one lock.

    Attributes:
        names: what the keys are called.
        key: the lock's name.
        owner: new for this attempt.
        holder: the holder as it is stored, JSON.
        longest: the longest ttl in seconds.
        everywhere: the numbers of all servers.
        fence: what it takes to get a fencing token; None if none is wanted.
    """

    names: Names
    key: str
    owner: str
    holder: str
    longest: float
    everywhere: frozenset[int]
    fence: Fence | None = None

    def run(self, channel: Channel, this: Round) -> Grant | Conflict:
        """Ask, and undo what was taken if it wasn't enough.

        Raises:
            CoordinatorUnavailable: too few servers answered.
        """
        channel.begin()
        ballot = _Taking(self, channel, this)
        try:
            verdict = ballot.hold(_nothing_to_learn)
        except BaseException:
            self._undo_in_haste(channel)
            raise
        if self.fence:
            self.fence.saw(max(map(_token, ballot.said.values()), default=0))
        if verdict.state == "won":
            exact = self._exact(ballot, verdict.token)
            unseen, natively = ballot.unseen(), ballot.natively
            record = Record(self.holder, verdict.token, exact, natively, unseen, channel)
            token = FencingToken(verdict.token, self.key) if self.fence else None
            return Grant(self.key, self.owner, this.ttl, verdict.valid_until, token, record)
        return self._lose(ballot)

    def script(self, ttl: float) -> bytes:
        """The command that takes the lock on a server by its script."""
        keys: tuple[str, ...] = (
            self.names.lock(self.key),
            self.names.grave(self.key, self.owner),
        )
        words = milliseconds(ttl), milliseconds(self.longest), self.holder
        fence = self.fence
        if fence is None:
            return ACQUIRE.call(keys, self.owner, *words)
        names = self.names
        keys += names.counter(self.key), names.highest, names.epoch, names.resting
        life = milliseconds(fence.life)
        return ACQUIRE.call(keys, self.owner, *words, fence.epoch, fence.floor, life)

    def native(self, ttl: float) -> bytes:
        """The command that takes the lock on a server if nobody has it, and else says who does."""
        value = f"{self.owner} 0 {self.holder}"
        return pack("SET", self.names.lock(self.key), value, "NX", "GET", "PX", milliseconds(ttl))

    def lift(self, fence: Fence, token: int) -> bytes:
        """The command that raises the lock's token on a server."""
        names = self.names
        keys = names.lock(self.key), names.counter(self.key), names.highest, names.epoch
        return RAISE.call(keys, self.owner, token, fence.epoch, milliseconds(fence.life))

    def _exact(self, ballot: Ballot, token: int) -> frozenset[int]:
        """The servers that store exactly what the grant's record says, if they store anything."""
        said = ballot.said
        if self.fence is not None:
            same = str(token).encode()
            return frozenset(number for number, answer in said.items() if answer == same)
        if any(isinstance(answer, list) and answer[0] == 1 for answer in said.values()):
            return frozenset()  # of an earlier try of this owner's, perhaps with other facts
        return self.everywhere

    # Losing

    def _lose(self, ballot: Ballot) -> Conflict:
        votes = ballot.votes
        nodes = ballot.round.nodes
        why = objection(nodes, votes, complete=True)
        too_late = sum(vote.says == "yes" for vote in votes.values()) >= majority(nodes)
        said = {
            node.shown: say(ballot.said.get(number), node)
            for number, node in enumerate(ballot.channel.nodes)
        }
        self._undo(ballot)
        if too_late or why == "unavailable":
            late = " in time" if too_late else ""
            need = majority(nodes)
            raise CoordinatorUnavailable(
                f"lock {self.key!r}: {need} of {nodes} lock servers must answer{late}", said
            )
        return self._conflict(ballot, certain=why == "held")

    def _conflict(self, ballot: Ballot, *, certain: bool) -> Conflict:
        votes = ballot.votes
        owners = Counter(vote.owner for vote in votes.values() if vote.says == "no" and vote.owner)
        holder = None
        if owners:
            strongest = owners.most_common(1)[0][0]
            number = next(n for n, vote in votes.items() if vote.owner == strongest)
            holder = parse_value(ballot.said[number][1]).holder
        retry_after = wait_for_majority(ballot.round.nodes, votes) if certain else None
        return Conflict(self.key, holder, retry_after, certain)

    def _undo(self, ballot: Ballot) -> None:
        """Release what this attempt has taken or may yet take, and wait where it surely has."""
        channel = ballot.channel
        asked = dict(channel.asked)
        plain = self._release(0.0)
        channel.begin(tidy=False)
        hear = set()
        for number, link in asked.items():
            vote = ballot.votes.get(number)
            if vote is not None and vote.says == "no":
                continue
            if channel.links[number] is not link:
                self._owe(channel, number, ballot.round.ttl)
            elif vote is not None and vote.says == "yes":
                hear.add(number)
                channel.send((number,), plain)
            else:
                channel.post(number, plain)  # follows the acquire on the same connection
        for reply in channel.replies() if hear else ():
            hear.discard(reply.node)
            if isinstance(reply.value, str):
                self._owe(channel, reply.node, ballot.round.ttl)
            if not hear:
                break

    def _undo_in_haste(self, channel: Channel) -> None:
        """The last words of an attempt that was interrupted: nothing is waited for."""
        plain = self._release(0.0)
        for number in list(channel.asked):
            channel.post(number, plain)

    def _owe(self, channel: Channel, number: int, ttl: float) -> None:
        channel.nodes[number].owe(now() + ttl, self._release(ttl))

    def _release(self, grave: float) -> bytes:
        keys = self.names.lock(self.key), self.names.grave(self.key, self.owner)
        return RELEASE.call(keys, self.owner, milliseconds(grave) if grave else 0)


class _Taking(Ballot):
    """The votes of an acquire.

    Where a server can, a free lock is taken by a native command, which costs it a third of what
    the script does.  What that can't tell (since when, until when, and whether it is ours), the
    script is asked for afterwards.  One server alone is always asked by the script, which looks
    at graves: there is no other one to go on with should a late request leave a lock behind.
    """

    def __init__(self, attempt: Acquisition, channel: Channel, this: Round) -> None:
        super().__init__(channel, this, self._requests, _READ[attempt.fence is not None])
        self._attempt = attempt
        self._script = b""
        self._raised: set[int] = set()
        self.natively = attempt.fence is None and this.nodes > 1

    def _requests(self, numbers: Sequence[int]) -> Iterable[Request]:
        nodes = self.channel.nodes
        native: list[int] = []
        others: list[int] = []
        for number in numbers:
            facts = nodes[number].facts
            fit = self.natively and facts is not None and facts.takes
            (native if fit else others).append(number)
        if native:
            yield Request(self._attempt.native(self.round.ttl), native, _TAKE)
        if others:
            yield Request(self._by_script(), others)

    def _by_script(self) -> bytes:
        self._script = self._script or self._attempt.script(self.round.ttl)
        return self._script

    def count(self, reply: Reply) -> None:
        """Take one answer in; ask on where it isn't the last word."""
        if reply.tag == _LIFT:
            carried = reply.value == 1
            target = self.verdict.target
            self.votes[reply.node] = Vote("yes", target) if carried else Vote("failed")
        elif reply.tag == _TAKE and reply.value is None:
            super().count(Reply(reply.node, None, 1))
        elif reply.tag == _TAKE and isinstance(reply.value, bytes):
            self.channel.send((reply.node,), self._by_script())
        else:
            super().count(reply)

    def raise_laggards(self) -> None:
        """Have the servers behind the verdict's target raised to it, each of them once."""
        fence, target = self._attempt.fence, self.verdict.target
        laggards = set(behind(self.votes, target)) - self._raised
        if fence is not None and laggards:
            self._raised |= laggards
            self.channel.send(laggards, self._attempt.lift(fence, target), _LIFT)


def read_acquire(answer: Any) -> Vote:
    """The vote that an answer of ``acquire.lua`` stands for."""
    if not isinstance(answer, list):
        return _YES if answer == 1 else Vote("yes", int(answer))
    if answer[0] == 1:
        return Vote("yes", int(answer[1]))
    if answer[0] == 0:
        owner = parse_value(answer[1]).owner
        if owner != NOBODY:
            return Vote("no", owner=owner, left=answer[2] / 1000)
    return Vote("failed")


def _read_fenced(answer: Any) -> Vote:
    vote = read_acquire(answer)
    # Without a token it was taken by this owner before, when it didn't ask for one.
    return vote if vote.says != "yes" or vote.token else Vote("failed")


_READ = {False: read_acquire, True: _read_fenced}


def _token(answer: Any) -> int:
    if not isinstance(answer, list):
        return int(answer) if isinstance(answer, bytes) else 0
    return int(answer[1]) if answer[0] == 1 else answer[0] == 0 and parse_value(answer[1]).token


def _nothing_to_learn(ballot: Ballot) -> bool:
    return objection(ballot.round.nodes, ballot.votes, complete=False) != "open"
