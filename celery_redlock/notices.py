"""What a pool child writes down for its guardian: a board of shared memory.  Knows no Celery.

The child announces each lock before it asks for it, and goes on noting until when it has it.  A
write to memory costs a microsecond, can't block, and is still there when the child is dead.

One board has one writer, the child, other than for two fields of each notice that only the
guardian writes: until when it has renewed the lock, and that the lock was lost.  Each of them
carries the number of the notice that it is meant for, since the place may have been used again.
Eight aligned bytes are written at once on every machine that this runs on; the byte that makes a
notice valid is written last.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Board", "Notice", "NoticeOptions"]

SLOTS = 32
SLOT_SIZE = 2048
FIRST_SLOT = 64  # before it: the guardian's period
SIZE = FIRST_SLOT + SLOTS * SLOT_SIZE

_FREE, _HELD, _ENDING = 0, 1, 2
_KILL, _ABORT = 1, 2  # flags

_FACTS = struct.Struct("=xBxxIIxxxxxxxxxxxxddd")  # flags, number, size, ttl, renew, stop_at
_NUMBER, _RENEWED_FOR, _LOST_FOR = 4, 12, 16
_VALID_UNTIL, _RENEWED_UNTIL = 48, 56
_WHAT = 64  # where the pickled key, owner and coordinator begin
# Native formats: the standard ones are written byte by byte, so a reader could see a half.
_STATE, _U32, _F64 = struct.Struct("@B"), struct.Struct("@I"), struct.Struct("@d")


@dataclass(frozen=True)
class NoticeOptions:
    """How the locks of one claimant are kept.

    Attributes:
        coordinator: what the guardian finds their coordinator by; it is pickled.
        ttl: seconds that each renewal buys.
        renew_interval: seconds between the child's own renewals.
        kill: whether the child is to be killed before it can outlive a lost lock.
        abort: whether its body is to be interrupted when a lock was lost.
        max_hold: seconds after which nobody renews any more; infinite: no bound.
    """

    coordinator: Any
    ttl: float
    renew_interval: float
    kill: bool = False
    abort: bool = True
    max_hold: float = float("inf")


@dataclass(frozen=True)
class Notice:
    """One lock that a child has or asks for, as its guardian reads it.

    Attributes:
        slot: where it stands on the board.
        number: new for each notice of a board.
        ending: whether the child is giving the lock back.
        key: the lock's name.
        owner: the random value that proves who holds it.
        coordinator: what its coordinator is found by.
        ttl: seconds that each renewal buys.
        renew_interval: seconds between the child's own renewals.
        kill: whether the child is to be killed before it can outlive a lost lock.
        abort: whether its body is to be interrupted when the lock was lost.
        stop_at: the instant after which nobody renews any more.
        valid_until: the trusted end as the child knows it; 0.0 before the lock was granted.
        renewed_until: the trusted end of the guardian's own renewals; 0.0 without any.
        lost: whether the guardian has said that the lock was lost.
    """

    slot: int
    number: int
    ending: bool
    key: str
    owner: str
    coordinator: Any
    ttl: float
    renew_interval: float
    kill: bool
    abort: bool
    stop_at: float
    valid_until: float
    renewed_until: float
    lost: bool

    @property
    def trusted_until(self) -> float:
        """The later of the two trusted ends."""
        return max(self.valid_until, self.renewed_until)


class Board:
    """The notices of one child.

    Args:
        fd: a file of :data:`SIZE` bytes to share; closed once it is mapped.
    """

    def __init__(self, fd: int) -> None:
        """Map it."""
        try:
            self._memory = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._free = list(range(SLOTS))
        self._numbers = 0

    @staticmethod
    def new_file() -> int:
        """An empty file for a board, without a name; whoever gets it closes it."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("celery_redlock-notices")
        else:
            fd, path = tempfile.mkstemp()
            os.unlink(path)  # noqa: PTH108 - a plain descriptor, plainly
        os.ftruncate(fd, SIZE)
        return fd

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()

    # The child's side.

    def put_up(self, key: str, owner: str, options: NoticeOptions, stop_at: float) -> int | None:
        """Announce a lock before it is asked for; its slot, or None if there is no room."""
        what = pickle.dumps((key, owner, options.coordinator), pickle.HIGHEST_PROTOCOL)
        if len(what) > SLOT_SIZE - _WHAT or not self._free:
            return None
        slot, memory = self._free.pop(), self._memory
        start = FIRST_SLOT + slot * SLOT_SIZE
        self._numbers += 1
        flags = _KILL * options.kill | _ABORT * options.abort
        facts = options.ttl, options.renew_interval, stop_at
        _FACTS.pack_into(memory, start, flags, self._numbers, len(what), *facts)
        _F64.pack_into(memory, start + _VALID_UNTIL, 0.0)
        memory[start + _WHAT : start + _WHAT + len(what)] = what
        _STATE.pack_into(memory, start, _HELD)
        return slot

    def note(self, slot: int, valid_until: float) -> None:
        """Write down until when the lock is trusted."""
        _F64.pack_into(self._memory, FIRST_SLOT + slot * SLOT_SIZE + _VALID_UNTIL, valid_until)

    def finish(self, slot: int) -> None:
        """Write down that the lock is being given back: nobody renews it any more."""
        _STATE.pack_into(self._memory, FIRST_SLOT + slot * SLOT_SIZE, _ENDING)

    def take_down(self, slot: int) -> None:
        """Take a notice down: the lock was given back, or never granted."""
        _STATE.pack_into(self._memory, FIRST_SLOT + slot * SLOT_SIZE, _FREE)
        self._free.append(slot)

    def renewed_until(self, slot: int) -> float:
        """The trusted end of the guardian's renewals of this notice's lock; 0.0 without any."""
        return self._said(FIRST_SLOT + slot * SLOT_SIZE, _RENEWED_FOR)

    def is_lost(self, slot: int) -> bool:
        """Whether the guardian has said that this notice's lock was lost."""
        start = FIRST_SLOT + slot * SLOT_SIZE
        return self._u32(start + _LOST_FOR) == self._u32(start + _NUMBER)

    @property
    def period(self) -> float:
        """Seconds between two looks of the guardian at this board."""
        return float(_F64.unpack_from(self._memory)[0])

    # The guardian's side.

    def set_period(self, period: float) -> None:
        """Tell the child how often the board is looked at, in seconds."""
        _F64.pack_into(self._memory, 0, period)

    def notices(self) -> Iterator[Notice]:
        """The notices that are up, as far as they can be read while the child goes on writing."""
        for slot in range(SLOTS):
            start = FIRST_SLOT + slot * SLOT_SIZE
            if self._memory[start] != _FREE:
                try:
                    yield self._read(slot, start)
                except Exception:  # noqa: S112, BLE001 - it is being written anew just now
                    continue

    def renew(self, notice: Notice, until: float) -> None:
        """Tell the child that its lock was renewed, and until when it is trusted."""
        start = FIRST_SLOT + notice.slot * SLOT_SIZE
        _U32.pack_into(self._memory, start + _RENEWED_FOR, 0)
        _F64.pack_into(self._memory, start + _RENEWED_UNTIL, until)
        _U32.pack_into(self._memory, start + _RENEWED_FOR, notice.number)

    def lose(self, notice: Notice) -> None:
        """Tell the child that its lock was lost."""
        start = FIRST_SLOT + notice.slot * SLOT_SIZE
        _U32.pack_into(self._memory, start + _LOST_FOR, notice.number)

    def is_up(self, notice: Notice) -> bool:
        """Whether this very notice is still up, and its lock not being given back."""
        start = FIRST_SLOT + notice.slot * SLOT_SIZE
        return self._memory[start] == _HELD and self._u32(start + _NUMBER) == notice.number

    def _read(self, slot: int, start: int) -> Notice:
        memory = self._memory
        flags, number, size, ttl, renew_interval, stop_at = _FACTS.unpack_from(memory, start)
        what = bytes(memory[start + _WHAT : start + _WHAT + size])
        key, owner, coordinator = pickle.loads(what)  # noqa: S301 - written by our own child
        return Notice(
            slot=slot,
            number=number,
            ending=memory[start] == _ENDING,
            key=key,
            owner=owner,
            coordinator=coordinator,
            ttl=ttl,
            renew_interval=renew_interval,
            kill=bool(flags & _KILL),
            abort=bool(flags & _ABORT),
            stop_at=stop_at,
            valid_until=_F64.unpack_from(memory, start + _VALID_UNTIL)[0],
            renewed_until=self._said(start, _RENEWED_FOR),
            lost=self._u32(start + _LOST_FOR) == number,
        )

    def _said(self, start: int, said_for: int) -> float:
        if self._u32(start + said_for) != self._u32(start + _NUMBER):
            return 0.0
        return float(_F64.unpack_from(self._memory, start + _RENEWED_UNTIL)[0])

    def _u32(self, position: int) -> int:
        return int(_U32.unpack_from(self._memory, position)[0])
