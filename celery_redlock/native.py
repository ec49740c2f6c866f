"""Threads and locks of the operating system, whatever has been monkey patched.  Knows no Celery.

Under gevent and eventlet the standard library's threads are greenlets and its locks switch to
the hub.  A watchdog must run while a greenlet hogs the hub, so it needs the real ones.

Two rules for whoever uses these in a patched process: never switch greenlets while holding a
lock from here (another greenlet of the same thread that wants it would block the hub for ever),
and never wait in a greenlet for longer than the hub may stand still.
"""

from __future__ import annotations

import _thread as _plain
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_redlock.clock import now

__all__ = ["Condition", "Event", "Lock", "NativeThread", "get_ident", "native_thread"]


def _original(name: str) -> Any:
    """What ``_thread.<name>`` was before anybody patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("_thread"):
        return monkey.get_original("_thread", name)
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        return getattr(patcher.original("_thread"), name)
    return getattr(_plain, name)  # no import here: an interrupted one may keep its lock


def get_ident() -> int:
    """The calling operating system thread's identity, as ``signal.pthread_kill`` takes it."""
    ident: int = _original("get_ident")()
    return ident


def Lock() -> Any:  # noqa: N802  # stands for a class, like threading.Lock
    """A new lock with ``acquire(blocking, timeout)``, ``release`` and ``with``."""
    return _original("allocate_lock")()


class Condition:
    """A condition variable over a plain lock; hold it with ``with condition.lock``.

    It can't be entered itself: an exception that a signal raises between the call of the lock's
    ``acquire`` and the block would leave the lock taken.  Python takes a lock that is named in
    ``with`` in one step.

    Attributes:
        lock: from :func:`Lock`, shared with others if need be.

    Args:
        lock: None makes a new one.
    """

    def __init__(self, lock: Any = None) -> None:
        """Start with nobody waiting."""
        self.lock = Lock() if lock is None else lock
        self._waiters: deque[Any] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until somebody notifies; then hold it again.  Call it with the lock.

        Args:
            timeout: seconds, 0 or more; None waits for ever.

        Returns:
            False if the time was over first.
        """
        waiter = Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        self.lock.release()
        notified = False
        try:
            notified = waiter.acquire(True, -1 if timeout is None else max(0.0, timeout))
        finally:
            self.lock.acquire()
            if not notified:
                notified = waiter not in self._waiters  # told just as the time was over
                if not notified:
                    self._waiters.remove(waiter)
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate()`` is true; False if the time was over first.

        Args:
            predicate: called with the lock held.
            timeout: seconds, 0 or more; None waits for ever.
        """
        end = None if timeout is None else now() + timeout
        while not predicate():
            left = None if end is None else end - now()
            if left is not None and left <= 0:
                return False
            self.wait(left)
        return True

    def notify(self, count: int = 1) -> None:
        """Wake up to ``count`` waiters; call it with the lock held."""
        for _ in range(min(count, len(self._waiters))):
            self._waiters.popleft().release()

    def notify_all(self) -> None:
        """Wake every waiter; call it with the lock held."""
        self.notify(len(self._waiters))


class Event:
    """A flag that threads can wait for, as ``threading.Event``."""

    def __init__(self) -> None:
        """Start as not set."""
        self._changed = Condition()
        self._set = False

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag and wake every waiter."""
        with self._changed.lock:
            self._set = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Take the flag back."""
        with self._changed.lock:
            self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag, for at most ``timeout`` seconds; whether it is set."""
        with self._changed.lock:
            return self._changed.wait_for(self.is_set, timeout)


class NativeThread:
    """A started thread of the operating system; :func:`native_thread` makes it.

    It never keeps the process from ending.

    Attributes:
        name: for people.
        ident: its identity, as ``signal.pthread_kill`` takes it; None until it runs.
    """

    def __init__(self, target: Callable[[], Any], name: str) -> None:
        """Start it."""
        self.name = name
        self.ident: int | None = None
        self._target: Callable[[], Any] | None = target
        self._ended = Event()
        with _all_signals_blocked():
            _original("start_new_thread")(self._run, ())

    def _run(self) -> None:
        self.ident = get_ident()
        target, self._target = self._target, None
        try:
            if target is not None:
                target()
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        """Whether its target is still running; wrong after a fork, which no thread survives."""
        return not self._ended.is_set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until its target has ended, at most ``timeout`` seconds; whether it has."""
        return self._ended.wait(timeout)

    def __repr__(self) -> str:
        state = "alive" if self.is_alive() else "ended"
        return f"<NativeThread {self.name!r} {state}>"


@contextmanager
def _all_signals_blocked() -> Iterator[None]:
    """A block in which started threads inherit that no signal is theirs.

    Signals are for the main thread: one that is delivered to another thread doesn't end what the
    main thread waits for, and a terminated task would run on.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def native_thread(target: Callable[[], Any], name: str) -> NativeThread:
    """Run ``target()`` in a new operating system thread, also in a monkey patched process.

    An exception that leaves ``target`` is printed as an unhandled thread's is, and goes no
    further.

    Args:
        target: what to run; it must not use the hub of the greenlets.
        name: for people.

    Raises:
        RuntimeError: the system has no room for another thread.
    """
    return NativeThread(target, name)
