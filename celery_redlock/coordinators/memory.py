"""Locks within one process, for tests and eager mode.  No server, no thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from celery_redlock.clock import Clock, now
from celery_redlock.coordinators.aftermath import MEMORY
from celery_redlock.coordinators.base import Capabilities, Conflict, Finding, Grant, Held, Holder
from celery_redlock.coordinators.notes import HandedOver
from celery_redlock.coordinators.urls import CoordinatorSettings
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.fencing import FencingToken

__all__ = ["MemoryCoordinator", "from_urls"]


@dataclass
class _Record:
    owner: str
    holder: Holder
    expires: float
    token: int


@dataclass
class _Note:
    owner: str
    order: int
    text: bytes
    expires: float


class MemoryCoordinator:
    """Locks in this process's memory; other processes don't see them.

    Args:
        clock: gives the present instant in seconds.
    """

    capabilities = Capabilities(
        name="memory",
        fencing=True,
        exclusion="one process",
        survives_failover=False,
        survives_restart=False,
        tests_only=True,
        after=MEMORY,
    )

    def __init__(self, clock: Clock = now) -> None:
        """Start with no lock held."""
        self._clock = clock
        self._mutex = threading.Lock()
        self._held: dict[str, _Record] = {}
        self._tokens: dict[str, int] = {}
        self._notes: dict[str, _Note] = {}
        self._floor = 0

    def acquire(self, key: str, owner: str, ttl: float, holder: Holder) -> Grant | Conflict:
        """Ask for the lock once."""
        with self._mutex:
            start = self._clock()
            record = self._live(key)
            if record is None:
                token = self._next_token(key)
                record = self._held[key] = _Record(owner, holder, start + ttl, token)
            elif record.owner != owner:
                return Conflict(key, record.holder, record.expires - start)
            return self._grant(key, record, ttl)

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Prolong this exact grant; None if it is not ours any more."""
        with self._mutex:
            record = self._live(grant.key)
            if record is None or record.owner != grant.owner:
                return None
            record.expires = self._clock() + ttl
            return self._grant(grant.key, record, ttl)

    def release(self, grant: Grant) -> bool:
        """Give this exact grant back; False if it was not ours any more."""
        with self._mutex:
            record = self._live(grant.key)
            if record is None or record.owner != grant.owner:
                return False
            del self._held[grant.key]
            return True

    def leave_note(self, key: str, owner: str, note: bytes, order: int, ttl: float) -> bool:
        """Leave a note with a lock; False if it isn't held by this owner."""
        with self._mutex:
            record = self._live(key)
            if record is None or record.owner != owner:
                return False
            there = self._note_for(key, owner)
            if there is None or there.order < order:
                self._notes[key] = _Note(owner, order, note, self._clock() + ttl)
            return True

    def hand_over(self, grant: Grant, heir: str, ttl: float, holder: Holder) -> HandedOver | None:
        """Give the lock back, or hand it over together with the note that was left."""
        with self._mutex:
            record, note = self._live(grant.key), self._note_for(grant.key, grant.owner)
            if note is not None:
                del self._notes[grant.key]
            if record is not None and record.owner != grant.owner:
                return None if note is None else HandedOver(note.text, None)
            self._held.pop(grant.key, None)
            if note is None:
                return None
            token = self._next_token(grant.key)
            record = _Record(heir, holder, self._clock() + ttl, token)
            self._held[grant.key] = record
            return HandedOver(note.text, self._grant(grant.key, record, ttl))

    def inspect(self, key: str) -> Held | None:
        """Who holds the lock now."""
        with self._mutex:
            record = self._live(key)
            if record is None:
                return None
            left = record.expires - self._clock()
            return Held(key, record.owner, record.holder, left, FencingToken(record.token, key))

    def server_time(self) -> float:
        """The wall clock, in seconds since the epoch."""
        return time.time()

    def raise_floor(self, floor: int) -> int:
        """Make every token from now on higher than ``floor``; the floor that is in force.

        Raises:
            ImproperlyConfigured: ``floor`` is not from 0 to 2**62.
        """
        if not 0 <= floor <= 2**62:
            raise ImproperlyConfigured(f"floor={floor!r}: must be from 0 to 2**62")
        with self._mutex:
            self._floor = max(self._floor, floor)
            return self._floor

    def check(self) -> list[Finding]:
        """One finding: this coordinator is for tests."""
        return [
            Finding(
                "warning",
                "memory://",
                "locks are kept in this process only, so other workers don't see them",
                "use it in tests and in eager mode; in production name lock servers",
            )
        ]

    def close(self) -> None:
        """Nothing to let go of: the locks stay."""

    def _next_token(self, key: str) -> int:
        token = self._tokens[key] = max(self._tokens.get(key, 0), self._floor) + 1
        return token

    def _live(self, key: str) -> _Record | None:
        record = self._held.get(key)
        if record is not None and record.expires <= self._clock():
            del self._held[key]
            return None
        return record

    def _note_for(self, key: str, owner: str) -> _Note | None:
        note = self._notes.get(key)
        usable = note is not None and note.owner == owner and note.expires > self._clock()
        return note if usable else None

    def _grant(self, key: str, record: _Record, ttl: float) -> Grant:
        token = FencingToken(record.token, key)
        return Grant(key, record.owner, ttl, record.expires, token)


_shared: dict[str, MemoryCoordinator] = {}


def from_urls(urls: Sequence[str], settings: CoordinatorSettings) -> MemoryCoordinator:
    """The one memory coordinator of this process that goes by this url, prefix and kind."""
    name = f"{settings.prefix} {settings.kind} {urls[0]}"
    return _shared.setdefault(name, MemoryCoordinator())
