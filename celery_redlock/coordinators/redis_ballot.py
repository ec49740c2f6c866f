"""One acquire, extend or release of one lock, asked of all servers over one channel.

Turns replies into votes and leaves the verdict to :mod:`celery_redlock.quorum`.  Opens nothing,
keeps nothing: what must be known later is in the grant's :class:`Record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_channel import Channel, Reply, Silence
from celery_redlock.coordinators.redis_wire import ErrorReply
from celery_redlock.quorum import Round, Verdict, Vote, judge, majority

__all__ = ["Ballot", "Outcome", "Record", "Request", "order"]

_NOTHING = Silence("nothing was heard")
# Answers of a server that must be asked again what it is: another role, state or set of rights.
_UNFIT = frozenset({"READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM", "BUSY"})


@dataclass(frozen=True)
class Record:
    """What a grant must remember, to be extended and released exactly.

    Attributes:
        holder: the holder as it is stored, JSON.
        token: the fencing token; 0 if there is none.
        exact: the servers that store exactly :meth:`value` if they store anything, by number.
        natively: whether it was asked for by a command that looks at no grave.
        unseen: the servers whose answer to a request that may have taken the lock was not
            seen, by number, each with the serial number of the connection that it went over.
        channel: the channel that all of it went over.
    """

    holder: str
    token: int = 0
    exact: frozenset[int] = frozenset()
    natively: bool = False
    unseen: Mapping[int, int] = field(default_factory=dict)
    channel: Channel | None = None

    def value(self, owner: str) -> str:
        """What the servers store for the lock."""
        return f"{owner} {self.token} {self.holder}"

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process none of the connections is the same.
        unseen = dict(self.unseen)
        return Record, (self.holder, self.token, self.exact, self.natively, unseen, None)


class Outcome(NamedTuple):
    """What a round that was won has come to.

    Attributes:
        ttl: seconds that were asked for.
        valid_until: the trusted end.
        votes: those that were in, by the server's number.
        said: what each server answered.
    """

    ttl: float
    valid_until: float
    votes: Mapping[int, Vote]
    said: Mapping[int, Any]


class Request(NamedTuple):
    """A command, and the servers that it is for.

    Attributes:
        command: packed.
        numbers: of the servers.
        tag: comes back with each answer.
    """

    command: bytes
    numbers: Iterable[int]
    tag: Any = None


def order(channel: Channel, instant: float) -> tuple[list[int], list[int]]:
    """The servers to ask at once, and those to leave out unless a majority fails without them."""
    first: list[int] = []
    spare: list[int] = []
    for number, node in enumerate(channel.nodes):
        (spare if node.cooling_until > instant else first).append(number)
    if len(first) < majority(len(channel.nodes)):
        return first + spare, []
    return first, spare


class Ballot:
    """The votes of one round, as they come in.

    Args:
        channel: where it is asked; :meth:`Channel.begin` has been called.
        this: what is fixed in the round.
        ask: makes the requests for some servers.
        read: makes a vote of a server's answer.
    """

    def __init__(
        self,
        channel: Channel,
        this: Round,
        ask: Callable[[Sequence[int]], Iterable[Request]],
        read: Callable[[Any], Vote],
    ) -> None:
        """Nobody has been asked yet."""
        self.channel = channel
        self.round = this
        self.votes: dict[int, Vote] = {}
        self.said: dict[int, Any] = {}
        self.verdict = Verdict("open")
        self._ask, self._read = ask, read
        self._need = majority(this.nodes)
        self._spare: Sequence[int] = ()
        self._to_hear = 0

    def hold(self, enough: Callable[[Ballot], bool]) -> Verdict:
        """Ask, and hear the answers until the round is won or ``enough`` of them are in.

        Args:
            enough: whether nothing more needs to be heard of a round that is lost.
        """
        first, self._spare = order(self.channel, self.round.started)
        self._call(first)
        for reply in self.channel.replies():
            self.count(reply)
            if self._spare and self._hopes() < self._need:
                self._call(self._spare)
                self._spare = ()
            # With fewer votes than a majority nothing is won, and nothing is lost either.
            if len(self.votes) < self._need:
                continue
            self.verdict = judge(self.round, self.votes, now(), self.verdict.target)
            if self.verdict.state == "won" or (self.verdict.state == "lost" and enough(self)):
                break
            if self.verdict.target:
                self.raise_laggards()
        return self.verdict

    def count(self, reply: Reply) -> None:
        """Take one answer in."""
        self._to_hear -= 1
        answer = self.said[reply.node] = reply.value
        if not isinstance(answer, str):
            self.channel.nodes[reply.node].recover()
            self.votes[reply.node] = self._read(answer)
            return
        self.votes[reply.node] = Vote("failed")
        if isinstance(answer, ErrorReply) and answer.code in _UNFIT:
            self.channel.dismiss(reply.node, answer)

    def raise_laggards(self) -> None:
        """Have the servers behind the verdict's target raised to it."""
        raise NotImplementedError("this round gets no fencing token")

    def outcome(self) -> Outcome:
        """What a round that was won has come to."""
        return Outcome(self.round.ttl, self.verdict.valid_until, self.votes, self.said)

    def unseen(self) -> dict[int, int]:
        """The servers that were asked but not heard, with the connection's serial number."""
        return {
            number: link.serial
            for number, link in self.channel.asked.items()
            if isinstance(self.said.get(number, _NOTHING), Silence)
        }

    def _call(self, numbers: Sequence[int]) -> None:
        self._to_hear += len(numbers)
        for command, group, tag in self._ask(numbers):
            self.channel.send(group, command, tag)

    def _hopes(self) -> int:
        return self._to_hear + sum(vote.says == "yes" for vote in self.votes.values())
