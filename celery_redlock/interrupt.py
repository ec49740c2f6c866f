"""Stopping a running body from another thread, and keeping a release from being stopped.

Knows no Celery.  How an exception gets into another flow of control is in
:mod:`celery_redlock.places`.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from celery_redlock.exceptions import LockLost, LockLostInterrupt
from celery_redlock.main_thread import handler_of, in_main_thread
from celery_redlock.places import Place, enclosing, place_here

__all__ = ["Interruptible", "shielded"]

P = ParamSpec("P")
T = TypeVar("T")


class Interruptible:
    """One running body that another thread can stop.

    Calling :meth:`fire` raises :class:`~celery_redlock.exceptions.LockLostInterrupt` in the
    body, and nowhere else: never after the body has ended, never in another body, and in a
    body inside this one only on the way out of both.  A body that swallows it and goes on is
    interrupted again by the next :meth:`fire`.

    Args:
        lost_error: makes the error that :meth:`run` raises for a body that was stopped.
        told: whether the lock is known to be lost although nobody has called :meth:`fire`;
            asked when the process is signalled from outside.  Must not raise or block.
    """

    def __init__(
        self, lost_error: Callable[[], LockLost], told: Callable[[], bool] | None = None
    ) -> None:
        """Start as not fired."""
        self._lost_error = lost_error
        self._told = told
        self._fired = False
        self._kind: type[LockLostInterrupt] | None = None
        self._place: Place | None = None

    @property
    def fired(self) -> bool:
        """Whether the lock is known to be lost."""
        return self._fired

    @property
    def kind(self) -> type[LockLostInterrupt]:
        """The class of this body's interrupt, by which it is told from another body's."""
        if self._kind is None:
            self._kind = type(LockLostInterrupt.__name__, (LockLostInterrupt,), {})
            self._kind.__module__ = LockLostInterrupt.__module__
        return self._kind

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``fn(*args, **kwargs)`` returns or raises, unless it is stopped; call it once.

        A body that has ended keeps its result, whether or not it was fired.

        Raises:
            LockLost: the body was stopped, or its lock was lost before it began.
        """
        place = self._place = place_here()
        interrupt: LockLostInterrupt | None = None
        ended = False
        try:
            try:
                place.enter(self)
                self._stop_if_fired()
                result = fn(*args, **kwargs)
                ended = True
            except LockLostInterrupt:
                place.acknowledge()
                raise
            finally:
                place.leave(self)
        except LockLostInterrupt as exc:
            interrupt = self._left(place, exc)
        self._place = None
        if interrupt is None or (ended and type(interrupt) is self._kind):
            return result
        if type(interrupt) is not self._kind:
            raise interrupt
        raise self._lost_error() from interrupt

    @contextmanager
    def block(self) -> Iterator[None]:
        """A ``with`` block as the body, instead of a function; use it once.

        What :meth:`run` promises holds, but for the few bytecodes between the block's end and
        this manager's: an interrupt that comes just then leaves the block as it is.

        Raises:
            LockLost: the block was stopped, or its lock was lost before it began.
        """
        place = self._place = place_here()
        interrupt: LockLostInterrupt | None = None
        ended = False
        try:
            try:
                place.enter(self)
                self._stop_if_fired()
                yield
                ended = True
            except LockLostInterrupt:
                place.acknowledge()
                raise
            finally:
                place.leave(self)
        except LockLostInterrupt as exc:
            interrupt = self._left(place, exc)
        self._place = None
        if interrupt is None or (ended and type(interrupt) is self._kind):
            return
        if type(interrupt) is not self._kind:
            raise interrupt
        raise self._lost_error() from interrupt

    def fire(self) -> None:
        """Stop the body; from any thread, at any moment, any number of times."""
        self._fired = True
        place = self._place
        if place is not None:
            place.kick(self)

    def ask(self) -> bool:
        """Whether the lock is lost, by :meth:`fire` or by what the body's maker is told."""
        if not self._fired and self._told is not None:
            self._fired = self._told()
        return self._fired

    def make_interrupt(self) -> LockLostInterrupt:
        """The exception that stops the body."""
        return self.kind("the lock was lost")

    def _stop_if_fired(self) -> None:
        if self._fired:
            raise self.make_interrupt()

    def _left(self, place: Place, interrupt: LockLostInterrupt) -> LockLostInterrupt:
        """Leave the place for certain; the interrupt that counts."""
        while self._place is not None:
            try:
                place.leave(self)
                self._place = None
            except LockLostInterrupt as another:  # it came while we were leaving
                interrupt = another if type(interrupt) is self._kind else interrupt
        return interrupt


class _SoftLimit:
    """Celery's soft time limit: a handler of SIGUSR1 that raises, wherever it comes.

    Blocking the signal in the main thread would not put it off: sent to the process, it is
    delivered to another thread, and Python runs the handler in the main one all the same.  So
    the handler is wrapped, once, and the wrapper waits.
    """

    number: int | None = getattr(signal, "SIGUSR1", None)

    def __init__(self) -> None:
        """Start with nothing put off."""
        self._depth = 0
        self._came = False
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def defer(self) -> bool:
        """Put it off until :meth:`allow`; False where there is none to put off."""
        if self.number is None or not in_main_thread():
            return False
        handler = handler_of(self.number)
        if handler != self._on_signal:
            if not callable(handler):
                return False
            self._handler = handler
            signal.signal(self.number, self._on_signal)
        self._depth += 1
        return True

    def allow(self) -> bool:
        """Undo one :meth:`defer`; whether the signal came meanwhile and is due now."""
        self._depth -= 1
        due = self._came and not self._depth
        if due:
            self._came = False
        return due

    def raise_now(self) -> None:
        """What would have happened when the signal came."""
        if self._handler is not None and self.number is not None:
            self._handler(self.number, inspect.currentframe())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._came = True
        elif self._handler is not None:
            self._handler(number, frame)


_soft_limit = _SoftLimit()


class shielded:  # noqa: N801  # used as a verb: with shielded()
    """A block that neither a lost lock around it nor a soft time limit interrupts.

    What came meanwhile is raised when the block has ended.  Costs about a microsecond.
    """

    __slots__ = ("_deferred", "_place")

    def __enter__(self) -> None:
        place = self._place = enclosing()
        self._deferred = False
        if place is not None:
            place.raise_shield()
        try:
            self._deferred = _soft_limit.defer()
        except BaseException:  # a soft limit that came just before
            if place is not None:
                place.lower_shield()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        limit = _soft_limit.allow() if self._deferred else False
        interrupt = self._place.lower_shield() if self._place is not None else None
        if interrupt is not None:
            raise interrupt
        if limit:
            _soft_limit.raise_now()
