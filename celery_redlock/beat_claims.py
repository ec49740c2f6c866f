"""Claiming slots: who may send one, and which was the last that was sent.  Knows no scheduler.

Three locks belong to each entry.  The *claim* is held while a slot is published, for seconds; it
is renewed while its beat lives, and runs out if that dies.  The other two are the *register*:
their holders carry the last slots that were sent, and the newer one counts.  A new slot replaces
the older of the two, so there is no instant at which the register is empty, and it is written
only once the message is out.  So a publish that fails leaves nothing behind, and after a crash
somebody else sends the slot; at worst twice, which the worker notices.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import Any

from celery_redlock import clock
from celery_redlock.beat_clock import CoordinatorClock
from celery_redlock.beat_slots import Due
from celery_redlock.coordinators.base import Conflict, Coordinator, Grant, Held, Holder
from celery_redlock.events import Event
from celery_redlock.exceptions import CoordinatorUnavailable, LockLost
from celery_redlock.lock import Claimant, Session, new_owner
from celery_redlock.options import LockOptions

__all__ = ["CLAIM_TTL", "Claim", "Register", "Settled", "name_of"]

logger = logging.getLogger(__name__)

CLAIM_TTL = 2.0
"""Seconds after which the claim of a beat that died is over, unless slots follow closely."""
LONGEST_CLAIM = 60.0  # seconds that one publish may hold up the other beats
_WRITES = 5  # tries to write down a slot whose message is out
_PAUSE = 0.1


def name_of(entry: str) -> str:
    """The start of the names of an entry's locks: readable, and different for each entry."""
    readable = re.sub(r"[^\w.-]+", "_", entry)[:60]
    return f"beat:{readable}.{blake2b(entry.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True)
class Register:
    """The last slots of an entry that were sent.

    Attributes:
        coordinator: keeps it.
        keys: the names of its two locks.
        held: what was read there.
    """

    coordinator: Coordinator
    keys: tuple[str, str]
    held: tuple[Held | None, Held | None]

    @classmethod
    def read(cls, coordinator: Coordinator, entry: str) -> Register:
        """What is known of an entry.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        name = name_of(entry)
        keys = f"{name}:a", f"{name}:b"
        return cls(coordinator, keys, (coordinator.inspect(keys[0]), coordinator.inspect(keys[1])))

    @property
    def last(self) -> datetime | None:
        """The newest slot that was sent; None if that is not known."""
        return max(filter(None, map(_slot_in, self.held)), default=None)

    def write(self, slot: datetime, holder: Holder, keep: float, *, restart: bool = False) -> bool:
        """Write down that a slot was sent; False if somebody else did so at the same time.

        Args:
            slot: in UTC.
            holder: the beat.
            keep: seconds for which it is known.
            restart: forget the other slot too, which is newer.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        oldest = datetime.min.replace(tzinfo=timezone.utc)
        place = min((0, 1), key=lambda number: _slot_in(self.held[number]) or oldest)
        for number in (0, 1) if restart else (place,):
            self._forget(number)
        facts = {**vars(holder), "attempt": slot.isoformat()}
        key, writer = self.keys[place], Holder(**facts)
        return isinstance(self.coordinator.acquire(key, new_owner(), keep, writer), Grant)

    def _forget(self, number: int) -> None:
        held = self.held[number]
        if held is not None:
            life = max(1.0, min(held.ttl_left, LONGEST_CLAIM))
            self.coordinator.release(Grant(held.key, held.owner, life, clock.now() + life))


def _slot_in(held: Held | None) -> datetime | None:
    try:
        return None if held is None else datetime.fromisoformat(held.holder.attempt)
    except ValueError:
        return None


@dataclass(frozen=True)
class Settled:
    """What became of an entry that was due.

    Attributes:
        due: what was found to be due.
        last: the newest slot that is known to be sent.
        now: the instant at which this was judged.
        busy: another beat is publishing: look again soon.
        results: what publishing gave, for each slot that we sent.
    """

    due: Due
    last: datetime | None
    now: datetime
    busy: bool = False
    results: tuple[Any, ...] = ()


@dataclass
class Claim:
    """The right to send the slots of one entry.

    Attributes:
        coordinator: grants it.
        clock: judges what is due.
        entry: the entry's name.
        holder: this beat.
        decide: what is due, given the last slot and the present instant.
        keep: for how long a slot is remembered.
        ttl: seconds after which the claim of a beat that died is over, if the coordinator can
            do that.
    """

    coordinator: Coordinator
    clock: CoordinatorClock
    entry: str
    holder: Holder
    decide: Callable[[datetime | None, datetime], Due]
    keep: Callable[[Due], timedelta]
    ttl: float = CLAIM_TTL

    def settle(self, publish: Callable[[datetime], Any]) -> Settled:
        """Send what is due, unless another beat does or has done so.

        Args:
            publish: sends one slot; what it raises is raised here, and that slot stays due.

        Raises:
            CoordinatorUnavailable: nobody can say whether anything is due; nothing was sent.
        """
        now, register = self.clock.now(), Register.read(self.coordinator, self.entry)
        due = self.decide(register.last, now)
        if not due.slots:
            return Settled(due, register.last, now)
        session = Session(self._claimant())
        try:
            conflict = session.take(0.0)
            if isinstance(conflict, Conflict) or session.hold is None:
                return Settled(due, register.last, now, busy=True)
            now, register = self.clock.now(), Register.read(self.coordinator, self.entry)
            due = self.decide(register.last, now)
            try:
                session.hold.lease.check()
            except LockLost:
                return Settled(due, register.last, now, busy=True)
            with unstopped():
                return self._send(due, register.last, now, publish)
        finally:
            session.give_back()

    def _send(
        self,
        due: Due,
        last: datetime | None,
        now: datetime,
        publish: Callable[[datetime], Any],
    ) -> Settled:
        results = []
        for slot in due.slots:
            results.append(publish(slot))
            last = slot
            self._note(slot, due)
        return Settled(due, last, now, results=tuple(results))

    def _note(self, slot: datetime, due: Due) -> None:
        """Write down that a slot was sent.  Never raises: the message is out."""
        keep = self.keep(due).total_seconds()
        for left in reversed(range(_WRITES)):
            try:
                register = Register.read(self.coordinator, self.entry)
                newer = register.last is not None and register.last >= slot
                if newer and not due.restart:
                    return
                if register.write(slot, self.holder, keep, restart=due.restart):
                    return
                why = "other beats write at the same time"
            except CoordinatorUnavailable as exc:
                why = str(exc)
            if left:
                time.sleep(_PAUSE)
        logger.error(
            "slot %s of %s was sent, but that could NOT BE WRITTEN DOWN, so another beat may send "
            "it again: %s",
            slot.isoformat(),
            self.entry,
            why,
        )

    def _claimant(self) -> Claimant:
        ttl = max(self.ttl, 2.5 * self.coordinator.capabilities.min_ttl)
        options = LockOptions(ttl=ttl, on_lost="flag", max_hold=max(LONGEST_CLAIM, ttl))
        return Claimant(self.coordinator, (name_of(self.entry),), options, self.holder, _nobody)


def _nobody(event: Event) -> None:
    """Claims are nobody's news: they are not the locks of tasks."""


@contextmanager
def unstopped() -> Iterator[None]:
    """A block that is not cut short when the process is asked to end: it is asked afterwards.

    Between the publish of a slot and the note of it, an end would send the slot twice.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is handled here
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda asked, _frame: came.append(asked))
        for number in (signal.SIGTERM, signal.SIGINT)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
