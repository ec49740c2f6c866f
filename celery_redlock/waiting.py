"""When a runner that waits inside its slot asks for its lock again.  Knows no Celery.

Where the coordinator can tell that a lock was given back, the waiter sleeps until then; where it
can't, it polls.  Either way it asks a bounded number of times a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Conflict

__all__ = ["SPLIT_TRIES", "Patience"]

# Contenders that split the votes try again this often, after a random delay that doubles.
SPLIT_TRIES = 8
SPLIT_DELAY = 0.01
POLL_FIRST, POLL_LONGEST = 0.02, 0.25
RECHECK = 1.0  # seconds after which a waiter that has heard nothing looks all the same
SPREAD_FIRST, SPREAD_LONGEST = 0.001, 0.02
ASKS_AT_ONCE, ASKS_PER_SECOND = 3.0, 8.0


class Listening(Protocol):
    """What tells a waiter that a lock was given back."""

    def free(self, timeout: float) -> bool:
        """Whether the lock is free at this moment; from now on a change is heard."""

    def wait(self, timeout: float) -> bool:
        """Wait until something changes, at most ``timeout`` seconds; whether it has."""

    def close(self) -> None:
        """Stop listening."""


class Patience:
    """How long one waiter waits, and when it asks again.

    Args:
        wait: seconds that it may wait, 0 or more.
        listen: gives something that hears of one lock's release, by the lock's name; None, or
            an answer of None, where nobody tells.
    """

    def __init__(self, wait: float, listen: Callable[[str], Any] | None) -> None:
        """Start to wait now."""
        self._until = now() + wait
        self._listen = listen
        self._listening: Listening | None = None
        self._splits = self._polls = 0
        self._spread = SPREAD_FIRST
        self._budget, self._filled = ASKS_AT_ONCE, now()

    def another_try(self, conflict: Conflict) -> bool:
        """Wait until it is time to ask again; False if it is time to give up."""
        if not conflict.certain and self._splits < SPLIT_TRIES:
            self._splits += 1
            time.sleep(random.uniform(0, SPLIT_DELAY * 2**self._splits))  # noqa: S311  # no secret
            return True
        left = self._until - now()
        if left <= 0:
            return False
        if self._listening is None and self._listen is not None:
            self._listening, self._listen = self._listen(conflict.key), None
        if self._listening is None:
            self._poll(left)
        else:
            self._hear(self._listening, conflict)
        return True

    def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _poll(self, left: float) -> None:
        longest = min(POLL_LONGEST, POLL_FIRST * 2 ** min(self._polls, 8))
        self._polls += 1
        time.sleep(min(left, random.uniform(longest / 2, longest)))  # noqa: S311  # no secret

    def _hear(self, listening: Listening, conflict: Conflict) -> None:
        """Sleep until the lock is free, or until it is time to look all the same."""
        ends = now() + (RECHECK if conflict.retry_after is None else conflict.retry_after)
        try:
            while not listening.free(RECHECK):
                left = min(self._until, ends, now() + RECHECK) - now()
                if left <= 0:
                    break
                if listening.wait(left):
                    self._step_aside()
        except OSError:  # it can't be heard any more: poll from now on
            self.close()
        self._spend()

    def _step_aside(self) -> None:
        """Let one of many waiters go first: the others see that the lock is taken again."""
        time.sleep(random.uniform(0, self._spread))  # noqa: S311  # no secret
        self._spread = min(self._spread * 2, SPREAD_LONGEST)

    def _spend(self) -> None:
        """Take one of the questions that a waiter has in a second; wait for it if need be."""
        start = now()
        grown = self._budget + (start - self._filled) * ASKS_PER_SECOND
        self._budget, self._filled = min(ASKS_AT_ONCE, grown) - 1, start
        if self._budget < 0:
            short = -self._budget / ASKS_PER_SECOND
            time.sleep(min(short, max(0.0, self._until - start)))
