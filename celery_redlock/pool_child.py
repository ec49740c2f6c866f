"""A pool child's side of the guardian: telling it which locks this process has.  No Celery.

It tells by a board of shared memory, which it hands over once, at its first lock, through a
socket that it inherited from the worker's main process.  In any other process nothing is told,
and everything here does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from celery_redlock.notices import Board, NoticeOptions

__all__ = [
    "HELLO",
    "Hotline",
    "announce",
    "finish",
    "is_looked_after",
    "is_lost",
    "is_stopped",
    "note",
    "renewed_until",
    "retract",
    "start_ticks",
    "use_hotline",
]

HELLO = struct.Struct("@qq")  # the child's process id, and when it was started
KICK = b"!"


class Hotline:
    """A socket from the pool's children to the main process, which makes it before they start.

    Attributes:
        pid: the main process.
        mouth: the children's end.
        ear: the main process's end.
    """

    def __init__(self) -> None:
        """Open both ends."""
        self.pid = os.getpid()
        self.ear, self.mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ear.setblocking(False)
        self.mouth.setblocking(False)

    def say_hello(self, fd: int) -> None:
        """Hand over this process's board.

        Raises:
            OSError: the main process doesn't listen, or its mailbox is full.
        """
        pid = os.getpid()
        socket.send_fds(self.mouth, [HELLO.pack(pid, start_ticks(pid))], [fd])

    def kick(self) -> None:
        """Have the boards looked at now."""
        with contextlib.suppress(OSError):  # a full mailbox has the same effect
            self.mouth.send(KICK)

    def close(self) -> None:
        """Close both ends."""
        self.ear.close()
        self.mouth.close()


def start_ticks(pid: int) -> int:
    """When a process was started, in ticks since the boot; 0 where that can't be known."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def is_stopped(pid: int) -> bool | None:
    """Whether a process is stopped, as by SIGSTOP or a debugger; None where nobody can say."""
    fields = _stat(pid)
    return fields[0] in {b"T", b"t"} if fields else None


def _stat(pid: int) -> list[bytes]:
    """The fields after the program's name (which may hold anything), from the state on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - no Path on the hot path
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


class _ThisProcess:
    """What this process has told its guardian."""

    def __init__(self) -> None:
        """Start without a board."""
        self.board: Board | None = None
        self.slots: dict[str, int] = {}
        self.asked = False

    def open_board(self) -> Board | None:
        """The board, made at first use; None if nobody looks after this process."""
        if self.asked:
            return self.board
        self.asked = True
        if _hotline is not None and os.getppid() == _hotline.pid:
            fd = Board.new_file()
            try:
                _hotline.say_hello(fd)
            except OSError:
                self.asked = False  # its mailbox is full: try again with the next lock
                os.close(fd)
            else:
                self.board = Board(fd)
        return self.board


_hotline: Hotline | None = None
_here = _ThisProcess()


def use_hotline(hotline: Hotline | None) -> None:
    """Make this the hotline that children of this process inherit."""
    global _hotline  # noqa: PLW0603 - there is one for each process
    _hotline = hotline


def announce(key: str, owner: str, options: NoticeOptions) -> bool:
    """Say that a lock is about to be asked for; whether somebody looks after it from now on.

    Then :func:`note` the grant and each renewed one, :func:`finish` before the release, and
    :func:`retract` after it, or if nothing was granted.  Each of these costs about a
    microsecond and never raises; all but this one do nothing for an owner that isn't announced.

    Args:
        key: the lock's name.
        owner: the random value that will prove who holds it.
        options: how it is kept.
    """
    board = _here.open_board()
    if board is None:
        return False
    slot = board.put_up(key, owner, options, now() + options.max_hold)
    if slot is None:
        return False
    _here.slots[owner] = slot
    if board.period > options.ttl / 4 and _hotline is not None:
        _hotline.kick()
    return True


def is_looked_after() -> bool:
    """Whether a guardian looks after this process."""
    return _here.open_board() is not None


def note(grant: Grant) -> None:
    """Say until when a lock is trusted: after the acquire and after each renewal."""
    slot = _here.slots.get(grant.owner)
    if slot is not None and _here.board is not None:
        _here.board.note(slot, grant.valid_until)


def finish(owner: str) -> None:
    """Say that a lock is about to be given back: from here on nobody else renews it."""
    slot = _here.slots.get(owner)
    if slot is not None and _here.board is not None:
        _here.board.finish(slot)


def retract(owner: str) -> None:
    """Say that a lock was given back, or not granted, or is left to its ttl."""
    slot = _here.slots.pop(owner, None)
    if slot is not None and _here.board is not None:
        _here.board.take_down(slot)


def renewed_until(owner: str) -> float:
    """Until when the guardian has renewed a lock; 0.0 if it hasn't.

    It does so only while this process's own watchdog is late.
    """
    slot = _here.slots.get(owner)
    return _here.board.renewed_until(slot) if slot is not None and _here.board else 0.0


def is_lost(owner: str) -> bool:
    """Whether the guardian has seen that a lock was lost."""
    slot = _here.slots.get(owner)
    return slot is not None and _here.board is not None and _here.board.is_lost(slot)


def _after_fork() -> None:
    global _here  # noqa: PLW0603 - the child's locks are its own
    _here = _ThisProcess()
    if _hotline is not None:
        _hotline.ear.close()


os.register_at_fork(after_in_child=_after_fork)
