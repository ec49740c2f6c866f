"""Looking after the child processes of this one that have announced locks.  Knows no Celery.

A guardian gives back what a dead child held, within milliseconds of the death and never before it; it
renews for a child whose own watchdog can't (a call that keeps the interpreter's lock), unless
the child is stopped; it interrupts the body whose lock was lost; and, where ``on_lost`` is
``"kill"``, it kills the child before the child can outlive its lock.

Its one thread talks to the lock servers, so no event loop waits for them, and it talks to none
while the process forks: a child would inherit a lock in the hands of a thread that it hasn't.

Limits: without pidfds (Linux before 5.3, other systems) a death is noticed by looking every
50 ms; without ``/proc`` nobody can tell a stopped child from a busy one, so nothing is renewed;
children that are started by ``spawn`` inherit no hotline, and are not looked after.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_redlock.clock import Clock, now
from celery_redlock.coordinators.base import Coordinator, Grant
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.guarding import Todo, what_to_do
from celery_redlock.main_thread import SIGNAL
from celery_redlock.native import Event, Lock, NativeThread, native_thread
from celery_redlock.notices import Board, Notice
from celery_redlock.pool_child import HELLO, Hotline, is_stopped, start_ticks, use_hotline

__all__ = ["Guardian", "Resolve"]

logger = logging.getLogger(__name__)

Resolve = Callable[[Any], Coordinator]
"""From what a notice names a coordinator by, to the coordinator."""

PERIOD = 0.4  # seconds between two looks while nothing is urgent
WITHOUT_PIDFD = 0.05
LONGEST_PASS = 1.0  # seconds that a fork waits for what is under way
FOREVER = float("inf")


@dataclass(eq=False)
class _Child:
    """A pool child that has announced a lock.

    Attributes:
        pid: its process id.
        board: what it writes down.
        pidfd: a descriptor of the process; None where there is no such thing.
    """

    pid: int
    board: Board
    pidfd: int | None

    def send(self, number: int) -> None:
        """Signal it, and nobody who has got its process id since."""
        with contextlib.suppress(ProcessLookupError):
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)

    def is_dead(self) -> bool:
        """Whether it has ended; looks without taking the news from who waits for it."""
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:
            return True


@dataclass(eq=False)
class _Owed:
    """A release that could not be said yet."""

    coordinator: Coordinator
    grant: Grant
    next_at: float
    pause: float = 0.1


class Guardian:
    """Looks after the children of this process that have announced locks.

    Args:
        resolve: finds a coordinator by what a notice names it by; called in the guardian's
            thread.
        clock: gives the present instant.
    """

    def __init__(self, resolve: Resolve, clock: Clock = now) -> None:
        """Open the hotline that children will inherit; nothing runs yet."""
        self._resolve = resolve
        self._clock = clock
        self._hotline = Hotline()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._hotline.ear, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}
        self._owed: list[_Owed] = []
        self._busy = Lock()
        self._stopping = False
        self._thread: NativeThread | None = None

    def start(self) -> None:
        """Begin to look after children; call it before the first of them is started."""
        use_hotline(self._hotline)
        self._thread = native_thread(self._run, "celery_redlock-guardian")

    def stop(self, patience: float = 2.0) -> None:
        """Wait up to ``patience`` seconds for what dead children held, then end."""
        pause, end = Event(), self._clock() + patience
        while (self._children or self._owed) and self._clock() < end:
            pause.wait(0.01)
        use_hotline(None)
        self._stopping = True
        self._hotline.kick()
        if self._thread is not None and self._thread.join(patience):
            self._close()

    def _close(self) -> None:
        self._selector.close()
        self._hotline.close()
        for child in self._children.values():
            self._forget_descriptor(child)

    def _run(self) -> None:
        again = 0.0
        while not self._stopping:
            seen = self._selector.select(min(max(again - self._clock(), 0.001), PERIOD))
            with self._busy:
                try:
                    for key, _ in seen:
                        self._hear() if key.data is None else self._bury(key.data)
                    again = self._look()
                except Exception:  # it must not end while there is a child
                    logger.exception("the guardian of this worker's children has failed once")
                    again = self._clock() + PERIOD

    # Children come and go.

    def _hear(self) -> None:
        """Read one message from a child: its board, or only a wish to be looked at."""
        try:
            message, fds, _, _ = socket.recv_fds(self._hotline.ear, HELLO.size, 1)
        except BlockingIOError:
            return
        if len(message) != HELLO.size or len(fds) != 1:
            return
        pid, started = HELLO.unpack(message)
        child = _Child(pid, Board(fds[0]), None)
        child.board.set_period(PERIOD)
        try:
            child.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        except ProcessLookupError:  # it has died already
            started = -1
        except OSError:  # this kernel has none
            logger.debug("no pidfd here: deaths are noticed by looking")
        self._children[pid] = child
        if started != start_ticks(pid):  # dead, and its number perhaps somebody else's
            self._bury(child)
        elif child.pidfd is not None:
            self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    def _forget_descriptor(self, child: _Child) -> None:
        if child.pidfd is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = None

    def _bury(self, child: _Child) -> None:
        """Give back what a dead child held."""
        self._children.pop(child.pid, None)
        self._forget_descriptor(child)
        for notice in child.board.notices():
            grant = _grant(notice, self._clock() + notice.ttl)
            try:
                owed = _Owed(self._resolve(notice.coordinator), grant, self._clock())
            except Exception:  # one that can't be found must not keep the others
                logger.exception("the coordinator of lock %r can't be found", notice.key)
                continue
            logger.warning("child %d died with lock %r: giving it back", child.pid, notice.key)
            self._give_back(owed)
        child.board.close()

    def _give_back(self, owed: _Owed) -> None:
        try:
            owed.coordinator.release(owed.grant)
        except CoordinatorUnavailable as exc:
            owed.next_at, owed.pause = self._clock() + owed.pause, min(owed.pause * 2, 5.0)
            if owed.next_at < owed.grant.valid_until:
                self._owed.append(owed)
            else:
                logger.warning("lock %r is left to its ttl: %s", owed.grant.key, exc)
        except Exception:
            logger.exception("releasing %r failed", owed.grant.key)

    # Children live.

    def _look(self) -> float:
        """Do what is due; the instant at which to look again."""
        instant, again = self._clock(), FOREVER
        owed = [one for one in self._owed if one.next_at <= instant]
        self._owed = [one for one in self._owed if one.next_at > instant]
        for one in owed:
            self._give_back(one)
        for child in list(self._children.values()):
            if child.pidfd is None:
                again = min(again, instant + WITHOUT_PIDFD)
                if child.is_dead():
                    self._bury(child)
                    continue
            for notice in child.board.notices():
                again = min(again, self._look_after(child, notice))
        return min(again, *(one.next_at for one in self._owed), FOREVER)

    def _look_after(self, child: _Child, notice: Notice) -> float:
        todo, again = what_to_do(notice, self._clock())
        if todo is Todo.NOTHING:
            return again
        if not child.board.is_up(notice):
            return FOREVER
        if todo is Todo.RENEW:
            return self._renew(child, notice)
        if todo is Todo.KILL:
            logger.warning("killing child %d: its lock %r is at its end", child.pid, notice.key)
            child.send(signal.SIGKILL)
            return again
        self._lose(child, notice)
        return self._clock()

    def _renew(self, child: _Child, notice: Notice) -> float:
        """Renew for a child whose watchdog is late; never for one that is stopped."""
        later = self._clock() + notice.ttl / 20
        if is_stopped(child.pid) is not False:
            return later
        grant = _grant(notice, notice.trusted_until)
        try:
            fresh = self._resolve(notice.coordinator).extend(grant, notice.ttl)
        except CoordinatorUnavailable as exc:
            logger.debug("renewing %r for child %d failed: %s", notice.key, child.pid, exc)
            return later
        if fresh is None:
            self._lose(child, notice)
            return self._clock()
        child.board.renew(notice, fresh.valid_until)
        logger.info("renewed lock %r for child %d, which is busy", notice.key, child.pid)
        if not child.board.is_up(notice):  # it was given back just now: let that stand
            self._give_back(_Owed(self._resolve(notice.coordinator), grant, self._clock()))
        return later

    @staticmethod
    def _lose(child: _Child, notice: Notice) -> None:
        if not child.board.is_up(notice):
            return
        child.board.lose(notice)
        logger.warning("lock %r of child %d was lost", notice.key, child.pid)
        if notice.abort and SIGNAL is not None:
            child.send(SIGNAL)

    # The process forks.

    def before_fork(self) -> bool:
        """Let what is under way end, for a second at most; whether it has."""
        return bool(self._busy.acquire(True, LONGEST_PASS))

    def after_fork(self) -> None:
        """Go on."""
        self._busy.release()

    def abandon(self) -> None:
        """In a child: let go of what is the parent's."""
        self._selector.close()
        for child in self._children.values():
            child.board.close()
            if child.pidfd is not None:
                os.close(child.pidfd)


def _grant(notice: Notice, valid_until: float) -> Grant:
    return Grant(notice.key, notice.owner, notice.ttl, valid_until)
