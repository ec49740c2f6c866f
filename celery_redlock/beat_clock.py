"""The wall clock that slots are judged by: the coordinator's, since each beat's own may be wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

from celery_redlock import clock
from celery_redlock.coordinators.base import Coordinator, TellsTime

__all__ = ["CoordinatorClock"]

FRESH = 5.0  # seconds for which a reading is used
_DRIFT = 0.001  # how much faster or slower than another a clock may run


class CoordinatorClock:
    """The wall clock of a coordinator, so that a beat's own may be wrong.

    Each reading says in which bounds the clock lies; several of them say it more exactly, where
    a server tells only whole seconds.  Between readings the monotonic clock goes on.

    Args:
        coordinator: is asked by its ``server_time``; the machine's own wall clock is taken if it
            has none.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        """Ask nothing yet."""
        self._read: Callable[[], float] = time.time
        if isinstance(coordinator, TellsTime):
            self._read = coordinator.server_time
        self._step: float = getattr(coordinator, "server_time_step", 0.001)
        self._bounds: tuple[float, float] | None = None
        self._read_at = 0.0

    def now(self) -> datetime:
        """The present instant in UTC.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        if self._bounds is None or clock.now() - self._read_at > FRESH:
            self._learn()
        assert self._bounds is not None  # noqa: S101 - just learnt
        seconds = clock.now() + sum(self._bounds) / 2
        return datetime.fromtimestamp(seconds, timezone.utc)

    def _learn(self) -> None:
        before = clock.now()
        said = self._read()
        after = clock.now()
        low, high = said - after, said + self._step - before
        if self._bounds is not None:
            aged = (after - self._read_at) * _DRIFT
            closer = max(low, self._bounds[0] - aged), min(high, self._bounds[1] + aged)
            if closer[0] <= closer[1]:  # else one of the two clocks was set
                low, high = closer
        self._bounds, self._read_at = (low, high), after
