"""A beat of which any number may run: each slot of an entry is sent once.

``celery -A proj beat -S redlock`` on as many hosts as you like.  There is no leader: whoever
claims a slot first sends it, and if that beat dies, the others are at it already.  What is due
is the wrapped scheduler's business; whether it is still to be sent is decided here.
"""

from __future__ import annotations

import logging
import random
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery.beat import ScheduleEntry, Scheduler
from celery.utils.imports import symbol_by_name

from celery_redlock import clock
from celery_redlock.beat_claims import Settled
from celery_redlock.beat_entries import Claims, Owed, carrying
from celery_redlock.beat_slots import on_grid, until_next
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.locks import Locks

__all__ = ["LockedScheduler", "SlotClaims"]

logger = logging.getLogger(__name__)

_BUSY = 0.15  # seconds until it is looked again whether another beat has sent a slot, at most
_AGAIN = 1.0  # seconds until what could not be done is tried again
_QUIET = 0.5  # seconds for which an entry of which nothing is due isn't looked at again

_Base = Scheduler if TYPE_CHECKING else object


class SlotClaims(_Base):  # type: ignore[misc,valid-type]
    """What is put before a scheduler class so that it sends only what it has claimed.

    Args:
        app: the application.
        args: as the scheduler's own.
        kwargs: as the scheduler's own.

    Raises:
        ImproperlyConfigured: there are no lock servers in the configuration.
    """

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        """Connect to no lock server yet."""
        self._claims = Claims(app)
        self._owed: dict[str, Owed] = {}
        self._following: dict[str, Any] = {}
        self._known: dict[str, datetime] = {}
        self._quiet: dict[str, float] = {}
        self._recall_at: float | None = 0.0
        super().__init__(app, *args, **kwargs)
        if getattr(self, "lock_key", None):  # RedBeat's own, which lets one beat work at a time
            self.lock_key = None

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """One look at the schedule; gives the seconds until the next one."""
        self._recall()
        self._pay()
        interval: float = super().tick(*args, **kwargs)
        if self._owed:
            wake = min(owed.at for owed in self._owed.values())
            return max(0.0, min(interval, wake - clock.now()))
        return interval

    def is_due(self, entry: Any) -> tuple[bool, Any]:
        """As the scheduler's own, but an interval keeps to the grid that all beats share."""
        due, after = super().is_due(entry)
        if not due:
            return due, after
        quiet = self._quiet.pop(entry.name, 0.0) - clock.now()
        if quiet > 0:
            return False, quiet
        last = self._known.get(entry.name)
        if last is not None and on_grid(entry.schedule):
            try:
                now = self._claims.now()
            except CoordinatorUnavailable:
                return due, after
            after = until_next(entry.schedule, last, now).total_seconds()
        return due, after

    def reserve(self, entry: Any) -> Any:
        """As the scheduler's own; what it gives is remembered, to be set right afterwards."""
        following = self._following[entry.name] = super().reserve(entry)
        return following

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,
        advance: bool = True,  # noqa: FBT001, FBT002 - Celery's signature
        **_others: Any,
    ) -> Any:
        """Send what is due of an entry, unless another beat has sent it or is at it.

        Returns:
            what publishing gave; None if this beat has sent nothing.

        Raises:
            SchedulingError: publishing failed; it is tried again.
        """
        if not advance:
            return self._settle(entry, producer)
        result = self._settle(entry, producer, alarm=True)
        if entry.name not in self._owed:
            self.reserve(entry)
        return result

    def _settle(self, entry: Any, producer: Any, *, alarm: bool = False) -> Any:
        """Send what is due of an entry; whatever can't be decided now is owed."""

        def publish(slot: datetime) -> Any:
            return super(SlotClaims, self).apply_async(
                carrying(entry, slot), producer=producer, advance=False
            )

        self._owed.pop(entry.name, None)
        try:
            try:
                settled = self._claims.settle(entry, publish)
            except CoordinatorUnavailable as exc:
                if self._claims.unavailable(entry, exc):
                    return publish(self._claims.own_slot(entry))
                self._owe(entry, _AGAIN, alarm=alarm)
                return None
        except Exception:
            self._owe(entry, _AGAIN, alarm=alarm)
            raise
        self._take_note(entry, settled, alarm=alarm)
        return settled.results[-1] if settled.results else None

    def _take_note(self, entry: Any, settled: Settled, *, alarm: bool) -> None:
        """Draw the conclusions from what became of an entry."""
        name, last, following = entry.name, settled.last, settled.due.next
        if settled.busy:
            self._owe(entry, random.uniform(_BUSY / 3, _BUSY), alarm=alarm)  # noqa: S311
            return
        before = self._known.get(name)
        if last is not None:
            self._known[name] = last
            if on_grid(entry.schedule):
                self._keep_to_grid(entry, last)
        if settled.results:
            logger.debug("sent %s for %s", name, settled.due.slots)
            return
        logger.info("%s is not sent: slot %s has been sent", name, last)
        self._quiet[name] = clock.now() + _QUIET
        if following is None:
            return
        wait = following - settled.now
        if on_grid(entry.schedule):
            every = entry.schedule.run_every
            in_phase = before is not None and last is not None and not (last - before) % every
        else:
            in_phase = self._claims.ahead(entry) < wait  # else our clock has it due already
        if not in_phase:
            self._owe(entry, wait.total_seconds(), future=True, alarm=alarm)

    def _keep_to_grid(self, entry: Any, last: datetime) -> None:
        following = self._following.get(entry.name)
        if following is None:
            return
        following.last_run_at = self._claims.local(entry, last)
        model = getattr(following, "model", None)  # of django-celery-beat, which saves it
        if model is not None:
            model.last_run_at = following.last_run_at

    def _owe(self, entry: Any, wait: float, *, future: bool = False, alarm: bool = False) -> None:
        self._owed[entry.name] = Owed(entry, clock.now() + wait, future=future, alarm=alarm)

    def _pay(self) -> None:
        """Look at the entries that are owed and whose time has come."""
        now = clock.now()
        for name, owed in [(name, owed) for name, owed in self._owed.items() if owed.at <= now]:
            del self._owed[name]
            if owed.alarm:  # the scheduler sees it by itself
                continue
            entry = self.schedule.get(name) if owed.future else owed.entry
            if entry is None:  # it was removed before it was due
                continue
            try:
                self._settle(entry, self.producer)
            except Exception:
                logger.exception("due entry %s could not be sent; it is tried again", name)

    def _recall(self) -> None:
        """Learn once what was sent before this beat began, so that nothing is missed.

        Schedulers whose entries are in a database know it already.
        """
        if self._recall_at is None or clock.now() < self._recall_at:
            return
        self._recall_at = None
        if self.Entry is not ScheduleEntry:
            return
        try:
            for entry in self.schedule.values():
                last = self._claims.last(entry)
                if last is not None:
                    self._known[entry.name] = last
                    entry.last_run_at = self._claims.local(entry, last)
        except CoordinatorUnavailable as exc:
            logger.warning("what other beats have sent is not known yet: %s", exc)
            self._recall_at = clock.now() + _AGAIN
        self._heap = None  # to be made anew


class LockedScheduler:
    """The scheduler to name on the command line: ``-S redlock``.

    Calling it gives an object of a class that is derived from the one that the setting
    ``redlock_beat_scheduler`` names: Celery's persistent scheduler, unless it was set.

    Args:
        app: the application.
        args: as the scheduler's own.
        kwargs: as the scheduler's own.

    Raises:
        ImproperlyConfigured: there are no lock servers in the configuration, or the scheduler
            class can't be used.
    """

    def __new__(cls, app: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the scheduler."""
        return locked(Locks.for_app(app).settings.beat_scheduler)(app, *args, **kwargs)


def locked(base: str | type[Any]) -> type[Any]:
    """A scheduler class that sends only what it has claimed.

    Args:
        base: the class that it is derived from, or where that is found.

    Raises:
        ImproperlyConfigured: that is no scheduler class.
    """
    try:
        found = symbol_by_name(base)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ImproperlyConfigured(
            f"redlock_beat_scheduler={base!r} can't be imported: {exc}"
        ) from exc
    if not (isinstance(found, type) and issubclass(found, Scheduler)):
        raise ImproperlyConfigured(
            f"redlock_beat_scheduler={base!r} must be a scheduler class that locks nothing itself, "
            "such as 'celery.beat:PersistentScheduler' or "
            "'django_celery_beat.schedulers:DatabaseScheduler'"
        )
    if issubclass(found, SlotClaims):
        return found
    return type(f"Locked{found.__name__}", (SlotClaims, found), {"__module__": __name__})
