"""A grant that is being held by a running body.  Pure: its clock is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.exceptions import LockLost
from celery_redlock.fencing import FencingToken, FencingTokens
from celery_redlock.options import Mode

__all__ = ["Lease"]

LostCallback = Callable[["Lease"], Any]


def _by_nobody(_owner: str) -> float:
    """Nobody but the lease's own renewals prolongs it."""
    return 0.0


def _token_of(grants: Sequence[Grant]) -> FencingToken | None:
    tokens = [grant.fencing_token for grant in grants if grant.fencing_token is not None]
    return FencingTokens(tokens) if len(tokens) > 1 else grants[0].fencing_token


class Lease:
    """What a body sees of its lock, from the grant to the release.

    A lease is trusted until the instant that its grant carries, and not a moment longer,
    whether or not somebody has noticed yet.  A lease over several keys holds all of them and
    ends with the first that is lost.

    Args:
        grants: one grant for each key, in the order of the keys.
        mode: ``"efficiency"`` or ``"correctness"``.
        holder: who holds it.
        clock: gives the present instant; the clock that the grants were made by.
        renewed_until: until when somebody else has renewed the lock of an owner; 0.0 if nobody
            has.
    """

    def __init__(
        self,
        grants: Sequence[Grant],
        mode: Mode,
        holder: Holder,
        clock: Callable[[], float],
        renewed_until: Callable[[str], float] = _by_nobody,
    ) -> None:
        """Start as held."""
        self._renewed_until = renewed_until
        self.mode = mode
        self.holder = holder
        self.since = clock()
        self._clock = clock
        self._grants = tuple(grants)
        self._token = _token_of(self._grants)  # the same after each renewal
        self._lost_because: str | None = None
        self._ended = False
        self._callbacks: list[LostCallback] = []

    @property
    def key(self) -> str:
        """The lock's name; of several keys, all of them joined by ``", "``."""
        return ", ".join(grant.key for grant in self._grants)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The present grant of each key, with the trusted end of whoever renewed it last."""
        return tuple(map(self._as_renewed, self._grants))

    def _as_renewed(self, grant: Grant) -> Grant:
        until = self._renewed_until(grant.owner)
        return grant if until <= grant.valid_until else replace(grant, valid_until=until)

    @property
    def fencing_token(self) -> FencingToken | None:
        """The token of the grant; None where the coordinator gives none.

        Of several keys it is the first key's, and ``fencing_token[key]`` is that of each.
        """
        return self._token

    @property
    def fencing_tokens(self) -> dict[str, FencingToken]:
        """The token of each key's grant that has one, by the key."""
        return {g.key: g.fencing_token for g in self._grants if g.fencing_token is not None}

    @property
    def valid_until(self) -> float:
        """The trusted end, which is the earliest one of the grants."""
        ends = (max(g.valid_until, self._renewed_until(g.owner)) for g in self._grants)
        return min(ends)

    def remaining(self) -> float:
        """Seconds of trust left; 0.0 once the lease is lost or over."""
        if self._lost_because is not None:
            return 0.0
        return max(0.0, self.valid_until - self._clock())

    @property
    def lost(self) -> bool:
        """Whether the lock may be somebody else's by now."""
        if self._lost_because is not None:
            return True
        return not self._ended and self.valid_until <= self._clock()

    @property
    def lost_because(self) -> str:
        """What was seen when the lock was lost; empty while it is held."""
        if self._lost_because is not None:
            return self._lost_because
        return "its ttl ran out before a renewal succeeded" if self.lost else ""

    def check(self) -> None:
        """Return if the lock is held.

        Raises:
            LockLost: it may be somebody else's by now.
        """
        if self.lost:
            raise LockLost(self.key, self.fencing_token, self.lost_because)

    def on_lost(self, callback: LostCallback) -> None:
        """Have ``callback(lease)`` called when the lock is lost; at once if it already is.

        It is called from the watchdog's thread, so that it can cancel a blocking call.  What
        it raises is logged and goes no further.
        """
        self._callbacks.append(callback)
        if self._lost_because is None:
            return
        try:
            self._callbacks.remove(callback)
        except ValueError:  # whoever marked the loss has taken it, and calls it
            return
        callback(self)

    def take_callbacks(self) -> list[LostCallback]:
        """The callbacks that nobody has taken yet, each of them once."""
        taken: list[LostCallback] = []
        while self._callbacks:
            try:
                taken.append(self._callbacks.pop(0))
            except IndexError:  # another thread took the last one
                break
        return taken

    def renew(self, grants: Sequence[Grant]) -> None:
        """Put renewed grants in the place of the old ones; a lost lease stays lost."""
        if self._lost_because is None:
            self._grants = tuple(grants)

    def mark_lost(self, reason: str) -> bool:
        """Record that the lock is lost; True the first time, False if it was known or over."""
        if self._lost_because is not None or self._ended:
            return False
        self._lost_because = reason
        return True

    @property
    def ended(self) -> bool:
        """Whether the body is over."""
        return self._ended

    def end(self) -> None:
        """Record that the body is over: from here on nothing can be lost any more."""
        self._ended = True

    def __repr__(self) -> str:
        state = "lost" if self.lost else "over" if self._ended else "held"
        token = "" if self.fencing_token is None else f" token={self.fencing_token}"
        return f"<Lease {self.key!r} {state}{token} remaining={self.remaining():.3f}s>"
