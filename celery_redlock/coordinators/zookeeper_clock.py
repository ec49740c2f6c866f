"""What the leader's clock says about a lock's end.  Pure: instants are handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_redlock.coordinators.zookeeper_nodes import Content

__all__ = ["Seen", "Stamp", "epoch_of"]

# The stamp is whole milliseconds, cut.
PRECISION = 0.002
# A stamp this far ahead of the leader's clock was made before that stepped back.
AHEAD = 1.0
# What is known of the leader's clock is learnt anew after this, for it may have been set.
FRESH = 30.0


@dataclass(frozen=True)
class Stamp:
    """When the leader did something, by its clock and by ours.

    Attributes:
        epoch: which leader.
        time: seconds of its wall clock.
        before: an instant of ours before that.
        after: an instant of ours after that.
    """

    epoch: int
    time: float
    before: float
    after: float

    def least(self, instant: float) -> float:
        """What the leader's clock shows at the least at an instant of ours."""
        return self.time + (instant - self.after)

    def most(self, instant: float) -> float:
        """What the leader's clock shows at the most at an instant of ours."""
        return self.time + (instant - self.before)


@dataclass(frozen=True)
class Seen:
    """A lock's node as it was read.

    Attributes:
        content: what it holds, parsed.
        data: the same as it is stored.
        version: how often it was changed.
        czxid: the number of the transaction that made it.
        mzxid: the number of the one that changed it last.
        time: the seconds of the leader's clock that the latter was stamped with.
        at: the instant after which it was read.
    """

    content: Content
    data: bytes
    version: int
    czxid: int
    mzxid: int
    time: float
    at: float

    @classmethod
    def of(cls, found: tuple[bytes, Any] | None, instant: float) -> Seen | None:
        """What :meth:`~celery_redlock.coordinators.zookeeper_session.Session.read` gave."""
        if found is None:
            return None
        data, stat = found
        content, time = Content.of(data), stat.mtime / 1000.0
        return cls(content, data, stat.version, stat.czxid, stat.mzxid, time, instant)

    def left(self, stamp: Stamp | None, instant: float) -> float | None:
        """Seconds until the lock is over, 0 or less if it is; None if this stamp can't tell.

        That it is over is only said by a stamp that was made after the node was read.

        Args:
            stamp: what is known of the leader's clock.
            instant: of ours, the present one.
        """
        if stamp is None or stamp.epoch != epoch_of(self.mzxid) or stamp.after < instant - FRESH:
            return None
        if self.time > stamp.most(instant) + AHEAD:
            return None
        left = self.content.ttl + PRECISION - (stamp.least(instant) - self.time)
        return left if left > 0 or stamp.before >= self.at else None


def epoch_of(zxid: int) -> int:
    """The reign of a leader in which a change was made; the upper half of its number."""
    return zxid >> 32
