"""What a process knows about the fencing tokens of one set of servers.  Starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from celery_redlock.coordinators.base import Conflict, Grant
from celery_redlock.coordinators.redis_acquire import Acquisition, Fence
from celery_redlock.coordinators.redis_channel import Channel
from celery_redlock.coordinators.redis_epoch import establish
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import Round

__all__ = ["Tokens"]

_REMEMBERED = 10_000  # locks


class Tokens:
    """The epoch that a majority is in, and the highest token seen of each lock.

    Nothing depends on either being right: the servers refuse another epoch, and the floor only
    makes them agree on a number at once.

    Args:
        life: seconds that the servers keep a counter after its last use.
    """

    def __init__(self, life: float) -> None:
        """Nothing is known yet."""
        self.life = life
        self.epoch = ""
        self._seen: dict[str, int] = {}

    def forget_epoch(self) -> None:
        """Have it read again before the next acquire."""
        self.epoch = ""

    def acquire(
        self, channel: Channel, attempt: Acquisition, start: Callable[[], Round]
    ) -> Grant | Conflict:
        """Run an attempt that gets a fencing token.

        Args:
            channel: over the servers.
            attempt: what is wanted.
            start: makes the round, from the instant at which it is called.

        Raises:
            CoordinatorUnavailable: too few servers answered, or too few are in one epoch.
        """
        key = attempt.key
        if not self.epoch:
            self.epoch = establish(channel, attempt.names)
        # Wall time only makes numbers that differ little: what matters is that they rise.
        floor = max(self._seen.get(key, 0) + 1, time.time_ns() // 1000)
        fence = Fence(self.epoch, floor, self.life, partial(self._remember, key))
        try:
            return replace(attempt, fence=fence).run(channel, start())
        except CoordinatorUnavailable:
            self.forget_epoch()  # it may have changed; if not, reading it costs little now
            raise

    def _remember(self, key: str, token: int) -> None:
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        if token > self._seen.get(key, 0):
            self._seen[key] = token
