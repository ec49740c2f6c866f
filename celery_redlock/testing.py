"""For your own tests: a clock that stands still until told, and locks without a server."""

from __future__ import annotations

from celery_redlock.coordinators.memory import MemoryCoordinator

__all__ = ["FakeClock", "MemoryCoordinator"]


class FakeClock:
    """A clock that moves only when it is told to; call it to read it.

    Args:
        start: the first instant, in seconds.
    """

    def __init__(self, start: float = 1000.0) -> None:
        """Stand still at ``start``."""
        self.instant = start

    def __call__(self) -> float:
        """The present instant in seconds."""
        return self.instant

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``, which may be negative for a clock that is set back."""
        self.instant += seconds
