"""The one monotonic clock that leases are judged by.

Wall time never decides anything about a lease: it may jump.  The clock here also counts the
time that the machine was suspended (``CLOCK_BOOTTIME``), because the lock servers went on
counting while it slept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "now"]

Clock = Callable[[], float]
"""A function that gives the present instant in seconds; only differences have a meaning."""


def _suspend_proof() -> Clock:
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:  # macOS, Windows: their monotonic clock is the best there is
        return time.monotonic
    clock_id, read = boottime, time.clock_gettime
    return lambda: read(clock_id)


now: Clock = _suspend_proof()
"""The present instant in seconds on a clock that never jumps and counts suspend."""
