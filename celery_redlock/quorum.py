"""The one formula of Redlock: votes and instants in, a verdict out.

Pure: no I/O, no clock.  Acquire and extend share it, so any order of replies, losses and delays
can be tested without a socket.  Source of the formula: the Redlock algorithm as published at
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Drift", "majority", "validity"]


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
