"""The channels of one process that are not in use.  Opens and closes, but sends nothing."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable

from celery_redlock.coordinators.redis_channel import Channel
from celery_redlock.native import get_ident

__all__ = ["Channels"]


class Channels:
    """The channels of one process that are not in use; made anew after a fork.

    Args:
        make: makes a new channel.
    """

    def __init__(self, make: Callable[[], Channel]) -> None:
        """Start with none."""
        self._make = make
        self._process = 0
        self._free: dict[int, deque[Channel]] = {}
        self._apart = False

    def take(self, preferred: Channel | None = None) -> Channel:
        """A channel for the caller alone: the preferred one if it is free, else any."""
        free = self._mine()
        if preferred is not None:
            try:
                free.remove(preferred)
            except ValueError:  # in use, closed, or another process's
                pass
            else:
                return preferred
        try:
            return free.pop()
        except IndexError:
            return self._make()

    def give(self, channel: Channel) -> None:
        """Take a channel back."""
        self._mine().append(channel)

    def close(self) -> None:
        """Close the calling thread's share of the channels that are not in use."""
        free = self._mine()
        while free:
            try:
                free.pop().close()
            except IndexError:  # another thread took the last one
                break

    def _mine(self) -> deque[Channel]:
        if os.getpid() != self._process:
            self._start_anew()
        share = get_ident() if self._apart else 0
        return self._free.get(share) or self._free.setdefault(share, deque())

    def _start_anew(self) -> None:
        inherited, self._free = self._free, {}
        self._process = os.getpid()
        self._apart = _patched()
        for channel in (one for several in inherited.values() for one in several):
            channel.abandon()


def _patched() -> bool:
    """Whether sockets are gevent's or eventlet's, so that one belongs to the thread it is of."""
    for name, asks in (
        ("gevent.monkey", "is_module_patched"),
        ("eventlet.patcher", "is_monkey_patched"),
    ):
        patcher = sys.modules.get(name)
        if patcher is not None and getattr(patcher, asks)("socket"):
            return True
    return False
