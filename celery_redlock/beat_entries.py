"""What is asked and decided about the entries of one beat's schedule.  Schedules nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_redlock import events
from celery_redlock.beat_claims import CLAIM_TTL, Claim, Register, Settled
from celery_redlock.beat_clock import CoordinatorClock
from celery_redlock.beat_slots import Due, aware, due_slots, is_interval, newest_instant
from celery_redlock.coordinators.base import Coordinator
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.locks import LONGEST_QUEUE_TTL, Locks
from celery_redlock.options import LockOptions
from celery_redlock.publish import with_header

__all__ = ["Claims", "Owed", "carrying"]

logger = logging.getLogger(__name__)

OFF = timedelta(seconds=2)
"""How wrong a beat's clock may be without a warning."""
_REMEMBERED = timedelta(hours=1)  # how long a slot is remembered at the least


@dataclass(frozen=True)
class Owed:
    """An entry that is looked at again, whatever its scheduler thinks.

    Attributes:
        entry: as it was when it was due.
        at: the instant of :data:`celery_redlock.clock.now` at which it is looked at.
        future: its slot is not due yet, so that it may be changed or removed before.
        alarm: the scheduler looks at it itself if it is only woken in time.
    """

    entry: Any
    at: float
    future: bool = False
    alarm: bool = False


def carrying(entry: Any, slot: datetime) -> Any:
    """A copy of an entry whose message carries the slot; the entry itself stays as it is."""
    copied = object.__new__(type(entry))  # copy.copy() would call the class with wrong arguments
    copied.__dict__.update(entry.__dict__)
    options = dict(entry.options or {})
    facts = {"entry": entry.name, "at": slot.isoformat()}
    options["headers"] = with_header(options.get("headers"), slot=facts)
    copied.options = options
    return copied


class Claims:
    """The claims of one beat.

    Args:
        app: the application.

    Raises:
        ImproperlyConfigured: its settings can't be used, or there are no lock servers in them.
    """

    def __init__(self, app: Any) -> None:
        """Connect to nothing yet."""
        self._app = app
        locks = self._locks
        options = LockOptions.layered(locks.settings.app_level)
        self._most = locks.settings.beat_catch_up
        self._coordinator: Coordinator = locks.coordinator(
            options.coordinator, "efficiency", "queue"
        )
        self._clock = CoordinatorClock(self._coordinator)
        self._warned = timedelta(0)
        if self._coordinator.capabilities.tests_only:
            logger.warning(
                "the coordinator %s is seen by this process only: other beats will send the same "
                "slots again",
                self._coordinator.capabilities.name,
            )

    def settle(self, entry: Any, publish: Callable[[datetime], Any]) -> Settled:
        """Send what is due of an entry, unless another beat has sent it or is at it.

        Raises:
            CoordinatorUnavailable: nobody can say whether anything is due; nothing was sent.
        """
        since, plan = self._since(entry), entry.schedule

        def decide(last: datetime | None, now: datetime) -> Due:
            return due_slots(plan, last, since, now, self._most)

        def keep(due: Due) -> timedelta:
            gap = timedelta(0)
            if is_interval(plan):
                gap = plan.run_every
            elif due.next is not None and due.slots:
                gap = due.next - due.slots[-1]
            longest = timedelta(seconds=LONGEST_QUEUE_TTL)
            return min(longest, max(_REMEMBERED, gap * 2))

        holder = self._locks.holder(task=entry.task)
        claim = Claim(
            self._coordinator, self._clock, entry.name, holder, decide, keep, _claim_ttl(plan)
        )
        settled = claim.settle(publish)
        self._look_at_clocks(entry)
        if settled.due.restart:
            logger.warning(
                "the last slot of %s lay in the future (%s, and it is %s by the lock servers' "
                "clock), so that clock was set back: its interval begins anew",
                entry.name,
                settled.last,
                settled.now,
            )
        return settled

    def last(self, entry: Any) -> datetime | None:
        """The newest slot of an entry that is known to be sent.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        return Register.read(self._coordinator, entry.name).last

    def now(self) -> datetime:
        """The present instant by the coordinator's clock.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        return self._clock.now()

    def ahead(self, entry: Any) -> timedelta:
        """How far this beat's clock is ahead of the coordinator's; negative: behind.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        return _wall(entry) - self._clock.now()

    def local(self, entry: Any, instant: datetime) -> datetime:
        """An instant of the coordinator's clock as this beat's clock shows it, for its scheduler.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        shown, zone = instant + self.ahead(entry), entry.default_now().tzinfo
        return shown.astimezone(zone) if zone else shown.replace(tzinfo=None)

    def own_slot(self, entry: Any) -> datetime:
        """The newest slot by this beat's own clock, which nobody has judged."""
        now = _wall(entry)
        return now if is_interval(entry.schedule) else newest_instant(entry.schedule, now) or now

    def unavailable(self, entry: Any, exc: CoordinatorUnavailable) -> bool:
        """Tell that nobody can say; whether the entry is to be sent all the same."""
        options = self._options(entry)
        policy, holder = options.on_unavailable, self._locks.holder(task=entry.task)
        what = "is sent WITHOUT A CLAIM" if policy == "run" else "is not sent yet"
        logger.warning(
            "due entry %s %s, as on_unavailable=%r says: %s", entry.name, what, policy, exc
        )
        facts = {"key": entry.name, "mode": options.mode, "holder": holder}
        self._locks.sink(events.Unavailable(policy=policy, error=str(exc), **facts))
        return policy == "run"

    def _options(self, entry: Any) -> LockOptions:
        """The options of an entry's task, which needn't be imported here, and needn't be locked."""
        locks, task = self._locks, self._app.tasks.get(entry.task)
        queue = (entry.options or {}).get("queue")
        queue = queue if isinstance(queue, str) else None
        if task is not None and hasattr(task.__class__, "_lock_error"):
            return locks.plan(task, queue, None).options
        settings = locks.settings
        return LockOptions.layered(
            settings.pattern_level(entry.task), settings.queue_level(queue), settings.app_level
        )

    @property
    def _locks(self) -> Locks:
        return Locks.for_app(self._app)

    def _since(self, entry: Any) -> datetime | None:
        ran = aware(entry.last_run_at)
        return None if ran is None else ran - self.ahead(entry)

    def _look_at_clocks(self, entry: Any) -> None:
        ahead = self.ahead(entry)
        if abs(ahead - self._warned) < OFF:
            return
        self._warned = ahead if abs(ahead) >= OFF else timedelta(0)
        if self._warned:
            logger.warning(
                "this beat's CLOCK IS WRONG: it is %+.1f s off the lock servers' clock, which "
                "decides what is due; set the clocks of all machines by the same time service",
                ahead.total_seconds(),
            )
        else:
            logger.warning("this beat's clock agrees with the lock servers' again")


def _claim_ttl(plan: Any) -> float:
    """A claim is over within a tick of an interval, so that a death in it makes no longer gap."""
    every = plan.run_every.total_seconds() if is_interval(plan) else CLAIM_TTL
    return min(CLAIM_TTL, max(1.0, every))


def _wall(entry: Any) -> datetime:
    """What this beat's clock shows."""
    found = aware(entry.default_now())
    return datetime.now(timezone.utc) if found is None else found
