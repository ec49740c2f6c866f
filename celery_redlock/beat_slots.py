"""Which instants of an entry's schedule are due: its slots, the same for every beat.  Asks nobody.

A crontab, a solar or a clocked schedule has instants of its own, which every beat works out
alike.  A plain interval has none: its grid begins with the first slot that was ever sent, and
whoever knows the last slot knows the whole grid.  Every instant is in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import crontab, schedule, solar
from celery.utils.time import delta_resolution, maybe_make_aware

__all__ = [
    "Due",
    "aware",
    "due_slots",
    "is_interval",
    "newest_instant",
    "next_instant",
    "until_next",
]

UTC = timezone.utc
SLACK = timedelta(milliseconds=20)
"""How early a slot may be sent: clocks that agree don't agree to the last millisecond."""

_SAME = timedelta(seconds=0.5)  # two beats may work out a sunset a little differently
_FIRST_LOOK, _LONGEST_LOOK = timedelta(minutes=1), timedelta(days=5 * 366)
_FINE = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Due:
    """What is to be sent.

    Attributes:
        slots: the instants that are due and were not sent yet, the oldest first.
        next: the next instant, if it is known; of use where nothing is due.
        restart: the grid of an interval begins anew, because the last slot lies in the future.
    """

    slots: tuple[datetime, ...]
    next: datetime | None = None
    restart: bool = False


def is_interval(plan: Any) -> bool:
    """Whether a schedule is a plain interval, which has no instants of its own."""
    return isinstance(plan, schedule) and isinstance(getattr(plan, "run_every", None), timedelta)


def on_grid(plan: Any) -> bool:
    """Whether a schedule is an interval whose slots follow each other at equal distances."""
    return is_interval(plan) and not plan.relative and plan.run_every > timedelta(0)


def due_slots(
    plan: Any, last: datetime | None, since: datetime | None, now: datetime, most: int = 1
) -> Due:
    """The slots that are due.

    Args:
        plan: the entry's schedule.
        last: the newest slot that was sent; None if that is not known.
        since: nothing older than this is due where ``last`` is not known; None: no bound.
        now: the present instant.
        most: how many slots may be due at once, the newest of them; 1 or more.
    """
    if is_interval(plan):
        return _due_of_interval(plan, last, now, most)
    floor = since if last is None else last
    found: list[datetime] = []
    at = newest_instant(plan, now + SLACK)
    while at is not None and (floor is None or at - floor >= _SAME):
        found.append(at)
        if len(found) == most or last is None:
            break
        at = newest_instant(plan, at - _FINE)
    return Due(tuple(reversed(found)), next_instant(plan, now + SLACK))


def _due_of_interval(plan: Any, last: datetime | None, now: datetime, most: int) -> Due:
    every: timedelta = plan.run_every
    if every <= timedelta(0):
        return Due((now,))
    start = _rounded(plan, now) if plan.relative else now
    if last is None:
        return Due((start,), start + every)
    if last > now + every + SLACK:  # it can't be: the clock that judged it was set back
        return Due((start,), start + every, restart=True)
    if plan.relative:  # days differ in length, so the rounded instant decides
        fits = start > last and start - last >= every * 0.9
        return Due((start,) if fits else (), last + every)
    passed = (now + SLACK - last) // every
    first = max(1, passed - most + 1)
    slots = tuple(last + every * number for number in range(first, passed + 1))
    return Due(slots, last + every * (passed + 1))


def _rounded(plan: Any, now: datetime) -> datetime:
    local = now.astimezone(plan.tz)
    rounded: datetime = delta_resolution(local, plan.run_every)
    return rounded.astimezone(UTC)


def until_next(plan: Any, last: datetime, now: datetime) -> timedelta:
    """How long it is until the next slot of an interval's grid, for whoever has just sent one."""
    every: timedelta = plan.run_every
    passed = (now + every / 4 - last) // every
    return last + every * (passed + 1) - now


def newest_instant(plan: Any, now: datetime) -> datetime | None:
    """The newest instant of a schedule that is not after ``now``; None if there is none.

    An hour that the clocks show twice counts once, as in Celery.
    """
    after = _asker(plan, now)

    def some(start: datetime) -> bool:
        found = after(start)
        return found is not None and found <= now

    back = _FIRST_LOOK
    while not some(now - back):
        back *= 2
        if back > _LONGEST_LOOK:
            return None
    early, late = now - back, now
    while late - early > _FINE:
        middle = early + (late - early) / 2
        early, late = (middle, late) if some(middle) else (early, middle)
    found = after(early)
    return None if found is None else _once(plan, found)


def next_instant(plan: Any, now: datetime) -> datetime | None:
    """The first instant of a schedule after ``now``; None if there is none."""
    found = _asker(plan, now)(now)
    return found if found is not None and found > now else None


def _asker(plan: Any, now: datetime) -> Callable[[datetime], datetime | None]:
    """Gives the first instant after another one, whatever the time is."""
    frozen = object.__new__(type(plan))  # copy.copy() would call the class with wrong arguments
    frozen.__dict__.update(plan.__dict__)
    frozen.nowfun = lambda: now

    def after(start: datetime) -> datetime | None:
        left = frozen.remaining_estimate(start)
        if left is None:
            return None
        found: datetime = now + left
        return _to_second(found) if isinstance(plan, solar) else found

    return after


def _to_second(instant: datetime) -> datetime:
    return (instant + timedelta(seconds=0.5)).replace(microsecond=0)


def _once(plan: Any, instant: datetime) -> datetime:
    if not isinstance(plan, crontab):
        return instant
    local = instant.astimezone(plan.tz)
    return local.replace(fold=0).astimezone(UTC) if local.fold else instant


def aware(instant: datetime | None) -> datetime | None:
    """An instant in UTC; one without a zone is meant so, as in Celery."""
    if instant is None:
        return None
    found: datetime = maybe_make_aware(instant).astimezone(UTC)
    return found
