"""What a guardian does about one lock of a living child, and when.  Pure: no clock, no I/O."""

from __future__ import annotations

from enum import Enum

from celery_redlock.notices import Notice

__all__ = ["Todo", "what_to_do"]

FOREVER = float("inf")
KILL_BEFORE = 0.1  # seconds before the end at most, so that the child is gone by then


class Todo(Enum):
    """What there is to do."""

    NOTHING = "nothing"
    RENEW = "renew"
    LOSE = "lose"
    KILL = "kill"


def what_to_do(notice: Notice, instant: float) -> tuple[Todo, float]:
    """What to do about a lock now, and the instant at which to look again if that is nothing.

    The child renews for itself every ``renew_interval``.  Only when a third of what then
    remains of the ttl has passed without that is its watchdog late, and is renewed for.

    Args:
        notice: what the child has written down.
        instant: now.
    """
    if notice.ending:
        return Todo.NOTHING, FOREVER
    if not notice.valid_until:  # asked for, and not granted yet
        return Todo.NOTHING, instant + notice.ttl / 4
    end = min(notice.trusted_until, notice.stop_at)
    kill_at = end - min(KILL_BEFORE, notice.ttl / 20) if notice.kill else FOREVER
    lose_at = end - notice.ttl / 10 if notice.kill else end  # time to unwind before the kill
    if instant >= kill_at:
        return Todo.KILL, instant + KILL_BEFORE
    if notice.lost:
        return Todo.NOTHING, kill_at
    if instant >= lose_at:
        return Todo.LOSE, instant
    late_at = notice.trusted_until - (notice.ttl - notice.renew_interval) * 2 / 3
    if late_at < notice.stop_at and instant >= late_at:
        return Todo.RENEW, instant
    return Todo.NOTHING, min(late_at if late_at > instant else FOREVER, lose_at, kill_at)
