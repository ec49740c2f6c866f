"""The one formula of Redlock: votes and instants in, a verdict out.

Pure: no I/O, no clock.  Acquire and extend share it, so any order of replies, losses and delays
can be tested without a socket.  Source of the formula: the Redlock algorithm as published at
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.  The rule for the
fencing token is this package's own; it is checked exhaustively in ``tests/model``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Drift", "Round", "Verdict", "Vote", "behind", "judge", "majority", "objection"]
__all__ += ["validity", "wait_for_majority"]


@dataclass(frozen=True)
class Drift:
    """How much of a ttl is not trusted, because clocks run at different speeds.

    Attributes:
        share: the part of the ttl that is not trusted, 0 or more and below 1.
        fixed: seconds that are not trusted besides, for the servers' expiry precision.
    """

    share: float = 0.01
    fixed: float = 0.002

    def of(self, ttl: float) -> float:
        """Seconds of a ttl that are not trusted."""
        return ttl * self.share + self.fixed


def majority(nodes: int) -> int:
    """The smallest number of ``nodes`` of which any two sets have a node in common."""
    return nodes // 2 + 1


def validity(ttl: float, elapsed: float, drift: Drift) -> float:
    """Seconds of trust left of a ttl when ``elapsed`` seconds have passed since the request."""
    return ttl - elapsed - drift.of(ttl)


class Vote(NamedTuple):
    """What one node said in a round; a node that has said nothing yet has no vote.

    Attributes:
        says: ``"yes"``: the lock is ours there; ``"no"``: it is somebody else's, or (in an
            extend) gone; ``"failed"``: the node can't say.
        token: the fencing token that the node carries for us; 0 where it gives none.
        owner: of a ``"no"``, who holds the lock there; empty if nobody does.
        left: of a ``"no"``, seconds until the lock ends there.
    """

    says: Literal["yes", "no", "failed"]
    token: int = 0
    owner: str = ""
    left: float = 0.0


@dataclass(frozen=True)
class Round:
    """What is fixed while one acquire or extend asks its nodes.

    Attributes:
        nodes: how many there are in the set, whether or not they can be reached.
        started: the instant before the first request was sent.
        ttl: seconds that were asked for.
        drift: how much of the ttl is not trusted.
        fenced: whether a majority must agree on a fencing token.
        until: an instant after which a majority comes too late: an extend's old deadline.
    """

    nodes: int
    started: float
    ttl: float
    drift: Drift = Drift()
    fenced: bool = False
    until: float = math.inf

    @property
    def valid_until(self) -> float:
        """The trusted end of what this round may win."""
        return self.started + validity(self.ttl, 0.0, self.drift)


class Verdict(NamedTuple):
    """What the votes amount to so far.

    Attributes:
        state: ``"won"``, ``"lost"`` (no further vote can win it), or ``"open"``.
        valid_until: the trusted end of a round that was won.
        token: the fencing token that a majority carries; 0 if not fenced.
        target: where a majority said yes but carries different tokens: the token that the
            nodes :func:`behind` it must be raised to.  0 otherwise.  Once it is set it must
            be handed in again at every later call of the same round.
    """

    state: Literal["won", "lost", "open"]
    valid_until: float = 0.0
    token: int = 0
    target: int = 0


_OPEN, _LOST = Verdict("open"), Verdict("lost")


def judge(this: Round, votes: Mapping[int, Vote], now: float, target: int = 0) -> Verdict:
    """The verdict of a round, from the votes that are in at instant ``now``.

    Args:
        this: what is fixed in the round.
        votes: one for each node that has answered or failed, by the node's number.  A node
            that was raised to ``target`` votes yes with that token; one that couldn't be
            raised has failed.
        now: the instant of the last vote's arrival.
        target: the ``target`` of an earlier verdict of this round, or 0.
    """
    if now >= this.until or now >= this.valid_until:
        return _LOST
    need = majority(this.nodes)
    waiting = this.nodes - len(votes)
    tokens = [vote.token for vote in votes.values() if vote.says == "yes"]
    if len(tokens) < need:
        return _OPEN if len(tokens) + waiting >= need else _LOST
    if not this.fenced:
        return Verdict("won", this.valid_until)
    token = target or max(set(tokens), key=lambda one: (tokens.count(one), one))
    if tokens.count(token) >= need:
        return Verdict("won", this.valid_until, token, target)
    target = target or max(tokens)
    if sum(token <= target for token in tokens) + waiting < need:
        return _LOST  # some nodes are past the target, and nothing is ever lowered
    return Verdict("open", target=target)


def behind(votes: Mapping[int, Vote], target: int) -> list[int]:
    """The nodes that said yes with a lower token than ``target``, so must be raised to it."""
    return [node for node, vote in votes.items() if vote.says == "yes" and vote.token < target]


def objection(
    nodes: int, votes: Mapping[int, Vote], *, complete: bool
) -> Literal["held", "split", "unavailable", "open"]:
    """Why an acquire that can't be won any more is lost.

    Args:
        nodes: how many there are in the set.
        votes: what has been said so far.
        complete: whether nothing more will be said.

    Returns:
        ``"held"``: one other owner is in the way on a majority.  ``"split"``: a majority
        answered, but perhaps nobody holds the lock.  ``"unavailable"``: fewer than a majority
        answered, so nobody can say.  ``"open"``: votes that are still to come decide.
    """
    need = majority(nodes)
    owners = Counter(vote.owner for vote in votes.values() if vote.says == "no" and vote.owner)
    strongest = max(owners.values(), default=0)
    if strongest >= need:
        return "held"
    answered = sum(vote.says != "failed" for vote in votes.values())
    waiting = 0 if complete else nodes - len(votes)
    if answered + waiting < need:
        return "unavailable"
    if strongest + waiting >= need or answered < need:
        return "open"
    return "split"


def wait_for_majority(nodes: int, votes: Mapping[int, Vote]) -> float | None:
    """Seconds until a majority is free if nobody renews; None if the votes can't tell."""
    lefts = sorted(vote.left for vote in votes.values() if vote.says != "failed")
    need = majority(nodes)
    return lefts[need - 1] if len(lefts) >= need else None
