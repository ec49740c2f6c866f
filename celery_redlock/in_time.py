"""Calls that may hang, made by helper threads and waited for only so long.  Knows no Celery.

A publisher must not wait for a lock server that hangs.  No timeout of a client library covers
everything (name resolution, a connection to each of several servers), so the calls are made in
threads of their own.  The threads are daemons and end when they have nothing to do; under gevent
and eventlet they are greenlets, so that waiting lets others run.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from celery_redlock.clock import now

__all__ = ["Helpers", "OutOfTime", "helpers"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

MOST_THREADS = 8
IDLE = 10.0  # seconds after which a thread that has nothing to do ends
LAST_WORDS = 0.25  # seconds that the end of the process waits for what is still to be said
MOST_WAITING = 10_000


class OutOfTime(Exception):
    """The answer didn't come in time; what it would have been, nobody knows."""


class _Call(Generic[T]):
    """One call that somebody waits for.

    Whoever takes the one turn first decides: the helper that the answer came in time, or the
    waiter that it didn't.
    """

    def __init__(self, ask: Callable[[], T], too_late: Callable[[T], object] | None) -> None:
        self._ask = ask
        self._too_late = too_late
        self._turn = deque([None])
        self._answered = threading.Lock()
        self._answered.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None

    def __call__(self) -> None:
        if not self._turn:  # the waiter has gone already
            return
        try:
            self._result = self._ask()
        except BaseException as exc:  # noqa: BLE001 - raised where the answer is waited for
            self._error = exc
        if self._take_turn():
            self._answered.release()
        elif self._error is not None:
            logger.debug("an answer that came too late: %s", self._error)
        else:
            self._undo()

    def wait(self, seconds: float) -> T:
        """What the call gives, if it comes within ``seconds``.

        Raises:
            OutOfTime: it doesn't.
        """
        try:
            in_time = self._answered.acquire(timeout=max(0.0, seconds))
        except BaseException:  # a signal has interrupted the wait
            if not self._take_turn() and self._error is None:
                self._undo()
            raise
        if not in_time:
            if self._take_turn():
                raise OutOfTime
            self._answered.acquire()  # it came just now
        if self._error is None:
            return cast(T, self._result)
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # with its traceback it would keep itself alive, and every caller's frame

    def _undo(self) -> None:
        if self._too_late is not None:
            try:
                self._too_late(cast(T, self._result))
            except Exception:
                logger.exception("what came too late could not be undone")

    def _take_turn(self) -> bool:
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True


class Helpers:
    """A few threads that make calls for others.

    Args:
        most: how many threads there may be.
    """

    def __init__(self, most: int = MOST_THREADS) -> None:
        """Start without a thread."""
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads = 0
        self._idle = 0

    def within(
        self,
        seconds: float,
        ask: Callable[[], T],
        too_late: Callable[[T], object] | None = None,
    ) -> T:
        """What ``ask()`` returns or raises, if that comes within ``seconds``.

        Args:
            seconds: how long the caller waits, 0 or more.
            ask: called in another thread.
            too_late: called there with the answer of ``ask`` if nobody waits for it any more,
                to undo it.

        Raises:
            OutOfTime: no answer came in time.
        """
        call = _Call(ask, too_late)
        self._post(call)
        return call.wait(seconds)

    def later(self, work: Callable[[], object]) -> None:
        """Have ``work()`` done soon, without waiting for it; what it raises is logged."""

        def do() -> None:
            try:
                work()
            except Exception:
                logger.exception("work in the background failed")

        if len(self._waiting) < MOST_WAITING:
            self._post(do)
        else:
            logger.error("too much work waits in the background; some of it is not done")

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is to be done any more, at most ``seconds``; whether that is so."""
        end = now() + seconds
        with self._changed:
            while self._waiting or self._idle < self._threads:
                left = end - now()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.01))
        return True

    def _post(self, work: Callable[[], object]) -> None:
        with self._changed:
            self._waiting.append(work)
            if self._idle >= len(self._waiting):
                self._changed.notify()
                return
            if self._threads >= self._most:
                return
            self._threads += 1
        threading.Thread(target=self._help, name="celery_redlock-helper", daemon=True).start()

    def _help(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._waiting:
                    if not self._changed.wait(IDLE) and not self._waiting:
                        self._idle -= 1
                        self._threads -= 1
                        return
                self._idle -= 1
                work = self._waiting.popleft()
            work()
            del work  # a thread that waits keeps nothing alive


_helpers = Helpers()


def helpers() -> Helpers:
    """The helpers of this process."""
    return _helpers


def _after_fork() -> None:
    global _helpers  # noqa: PLW0603 - no thread survives a fork
    _helpers = Helpers()


def _at_exit() -> None:
    _helpers.drain(LAST_WORDS)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
