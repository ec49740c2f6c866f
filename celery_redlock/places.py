"""Where a body runs, and how an exception is raised there from another thread.  No Celery.

A *place* is one flow of control: the main thread, another thread, or a greenlet.  It knows the
interruptible bodies that run in it, the outermost first, and raises the interrupt of the
outermost one whose lock was lost.

=================================  ============================================================
the main thread                    a signal whose handler raises; breaks blocking calls too
a greenlet of gevent or eventlet   the hub throws into it while it waits, the signal's handler
                                   raises while it is the current one
any other thread                   ``PyThreadState_SetAsyncExc``, which acts at the next
                                   bytecode: a call that blocks is not broken
=================================  ============================================================
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any, Protocol

from celery_redlock import main_thread
from celery_redlock.exceptions import LockLostInterrupt
from celery_redlock.hubs import CallInHub, caller_of_hub, current_greenlet
from celery_redlock.native import Lock, get_ident

__all__ = ["Place", "Target", "enclosing", "place_here"]


class Target(Protocol):
    """What a place knows of a body that runs in it."""

    @property
    def fired(self) -> bool:
        """Whether its lock was lost."""

    def ask(self) -> bool:
        """Whether its lock was lost, asked anew."""

    def make_interrupt(self) -> LockLostInterrupt:
        """The exception that stops it."""

    @property
    def kind(self) -> type[LockLostInterrupt]:
        """The class of that exception, its own."""


class Place:
    """One flow of control, with the bodies that run in it.

    Only the flow of control itself calls its methods, other than :meth:`kick`.
    """

    def __init__(self) -> None:
        """Start without a body."""
        self.stack: list[Target] = []
        self._pending = False
        self._shields = 0
        self._process = os.getpid()

    def is_here(self) -> bool:
        """Whether the caller runs in this place."""
        return self._process == os.getpid() and self._is_current()

    def _is_current(self) -> bool:
        raise NotImplementedError

    def _send(self) -> None:
        """Have :meth:`take` called in this place soon, and what it gives raised there."""
        raise NotImplementedError

    def enter(self, target: Target) -> None:
        """From here on ``target`` can be interrupted."""
        self.stack.append(target)

    def leave(self, target: Target) -> None:
        """From here on ``target`` can't be interrupted any more; does nothing the second time."""
        if target in self.stack:
            self.stack.remove(target)

    def kick(self, target: Target) -> None:
        """Interrupt the flow of control on behalf of ``target``, whose lock was lost."""
        if self._first_fired() is target:  # else a body around it is being interrupted already
            self._pending = True
            if not self._shields:
                self._send()

    def _first_fired(self) -> Target | None:
        return next((target for target in tuple(self.stack) if target.fired), None)

    def take(self) -> LockLostInterrupt | None:
        """What to raise now; None if nothing is due."""
        if self._shields:
            return None
        if not self._pending:  # looked at first: another thread may be setting it
            return None
        self._pending = False
        first = self._first_fired()
        return first.make_interrupt() if first is not None else None

    def ask(self) -> None:
        """Look again which locks were lost: somebody outside of the process may have said so."""
        for target in self.stack:
            if not target.fired and target.ask():
                self._pending = True

    def acknowledge(self) -> None:
        """Say that an interrupt has arrived."""

    def raise_shield(self) -> None:
        """Put interrupts off until :meth:`lower_shield`."""
        self._shields += 1

    def lower_shield(self) -> LockLostInterrupt | None:
        """Undo one :meth:`raise_shield`; what has become due meanwhile."""
        self._shields -= 1
        return self.take()


class _MainThread(Place):
    """The main thread of a process that uses no hub."""

    def _is_current(self) -> bool:
        return main_thread.is_main_thread()

    def enter(self, target: Target) -> None:
        """From here on ``target`` can be interrupted."""
        if not self.stack:
            self._shields = 0  # an exception out of nowhere may have left one up
        self.stack.append(target)

    def _send(self) -> None:
        main_thread.send_signal()


class _Thread(Place):
    """A thread other than the main one, without a hub."""

    def __init__(self) -> None:
        """Start without a body."""
        super().__init__()
        import ctypes

        self._ident = get_ident()
        self._mutex = Lock()
        self._sent = False
        self._set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
        self._as_ident, self._as_object = ctypes.c_ulong(self._ident), ctypes.py_object

    def _is_current(self) -> bool:
        return get_ident() == self._ident

    def _send(self) -> None:
        with self._mutex:
            self._send_if_due()

    def _send_if_due(self) -> None:
        first = self._first_fired()
        if self._pending and not self._shields and first is not None:
            self._pending, self._sent = False, True
            self._set_async_exc(self._as_ident, self._as_object(first.kind))

    def _take_back(self) -> bool:
        """Clear an interrupt that has not arrived yet; whether there may have been one."""
        sent, self._sent = self._sent, False
        if sent:
            self._set_async_exc(self._as_ident, self._as_object())  # NULL clears; None raises
        return sent

    def enter(self, target: Target) -> None:
        """From here on ``target`` can be interrupted."""
        with self._mutex:
            self.stack.append(target)

    def leave(self, target: Target) -> None:
        """From here on ``target`` can't be interrupted any more; does nothing the second time."""
        with self._mutex:
            if target in self.stack:
                self.stack.remove(target)
                if self._take_back() and self.stack:
                    self._pending = True  # perhaps it was meant for one further out
                    self._send_if_due()

    def acknowledge(self) -> None:
        """Say that an interrupt has arrived."""
        self._sent = False

    def raise_shield(self) -> None:
        """Put interrupts off until :meth:`lower_shield`."""
        with self._mutex:
            self._shields += 1
            self._pending = self._take_back() or self._pending

    def lower_shield(self) -> LockLostInterrupt | None:
        """Undo one :meth:`raise_shield`; what has become due meanwhile."""
        with self._mutex:
            return super().lower_shield()


class _Greenlet(Place):
    """A greenlet of gevent or eventlet, in any thread."""

    def __init__(self, greenlet: Any, call_in_hub: CallInHub, *, main: bool) -> None:
        """Start without a body."""
        super().__init__()
        self._greenlet = greenlet
        self._call_in_hub = call_in_hub
        self._main = main

    def _is_current(self) -> bool:
        return current_greenlet() is self._greenlet

    def enter(self, target: Target) -> None:
        """From here on ``target`` can be interrupted."""
        self.stack.append(target)
        if self._main:
            _greenlets[self._greenlet] = self

    def leave(self, target: Target) -> None:
        """From here on ``target`` can't be interrupted any more; does nothing the second time."""
        super().leave(target)
        if not self.stack:
            _greenlets.pop(self._greenlet, None)
            _place.set(None)  # the greenlet's context would keep the greenlet alive

    def _send(self) -> None:
        self._call_in_hub(self._throw)
        if self._main:
            main_thread.send_signal()

    def _throw(self) -> None:
        """Throw into the greenlet, which waits; runs in the hub."""
        interrupt = self.take()
        if interrupt is not None:
            self._greenlet.throw(interrupt)


_main_place: _MainThread | None = None
_greenlets: dict[Any, _Greenlet] = {}  # those of the main thread in which a body runs
_place: ContextVar[Place | None] = ContextVar("celery_redlock_place", default=None)


def _stop_main_thread() -> None:
    """Raise in the flow of control that is current in the main thread, if it is to be stopped."""
    place = _greenlets.get(current_greenlet(), _main_place) if _greenlets else _main_place
    if place is not None:
        place.ask()
        interrupt = place.take()
        if interrupt is not None:
            raise interrupt


main_thread.when_signalled(_stop_main_thread)


def enclosing() -> Place | None:
    """The place that the caller runs in, if a body runs in it already."""
    place = _place.get()
    return place if place is not None and place.stack and place.is_here() else None


def place_here() -> Place:
    """The place that the caller runs in."""
    place = _place.get()
    if place is None or not place.is_here():
        place = _new_place()
        _place.set(place)
    elif isinstance(place, _MainThread):
        main_thread.in_main_thread()  # somebody may have replaced the handler
    return place


def _new_place() -> Place:
    global _main_place  # noqa: PLW0603 - there is only one main thread
    main = main_thread.in_main_thread()
    hub = caller_of_hub(main=main)
    if hub is not None:
        return _Greenlet(current_greenlet(), hub, main=main)
    if not main:
        return _Thread()
    if _main_place is None:
        _main_place = _MainThread()
    return _main_place


def _after_fork() -> None:
    global _main_place  # noqa: PLW0603 - the child's main thread is another one
    _main_place = None
    _greenlets.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
