"""The event loops of gevent and eventlet, as far as we need them.  Imports neither of them.

A greenlet that waits is resumed by its hub, so an exception is thrown into it from there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

if sys.platform != "win32":
    import posix  # eventlet replaces os.read and os.write; there is none for Windows here

__all__ = ["CallInHub", "caller_of_hub", "current_greenlet"]

_ATTRIBUTE = "_celery_redlock_waker"

CallInHub = Callable[[Callable[[], None]], Any]
"""Has a function called in a hub soon; may be called from any thread."""


def current_greenlet() -> Any:
    """The greenlet that runs; only where the greenlet package has been imported."""
    return sys.modules["greenlet"].getcurrent()


def caller_of_hub(*, main: bool) -> CallInHub | None:
    """How to have something called in this thread's hub; None if there is no hub.

    Args:
        main: whether this is the main thread, the only one where a missing hub is made, if the
            process has been monkey patched.
    """
    return _gevent(main=main) or _eventlet(main=main)


def _gevent(*, main: bool) -> CallInHub | None:
    local: Any = sys.modules.get("gevent._hub_local")
    if local is None:
        return None
    monkey: Any = sys.modules.get("gevent.monkey")
    patched = main and monkey is not None and monkey.is_module_patched("time")
    hub = local.get_hub() if patched else local.get_hub_if_exists()
    return None if hub is None else _waker_of(hub, _GeventWaker).call


def _eventlet(*, main: bool) -> CallInHub | None:
    patcher: Any = sys.modules.get("eventlet.patcher")
    if patcher is None or not main or not patcher.is_monkey_patched("time"):
        return None
    return _waker_of(sys.modules["eventlet.hubs"].get_hub(), _EventletWaker).call


class _Waker:
    """Has functions called in a hub on behalf of other threads, which neither hub can do.

    (gevent's ``run_callback_threadsafe`` touches the loop's watchers from the calling thread;
    under load greenlets were seen to be forgotten.)
    """

    def __init__(self, schedule: CallInHub) -> None:
        """Start with nothing to call; ``schedule`` is for the hub's own thread."""
        self._schedule = schedule
        self._calls: list[Callable[[], None]] = []

    def call(self, function: Callable[[], None]) -> None:
        """Have the hub call ``function()`` soon; from any thread."""
        self._calls.append(function)
        self._wake()

    def _wake(self) -> None:
        raise NotImplementedError

    def _woken(self) -> None:
        while self._calls:
            # Each by itself: what an ended greenlet hands to its hub must not stop the others.
            self._schedule(self._calls.pop(0))


class _GeventWaker(_Waker):
    """Wakes a hub by an asynchronous watcher, which any thread may trigger."""

    def __init__(self, hub: Any) -> None:
        """Make the watcher; runs in the hub's thread."""
        super().__init__(hub.loop.run_callback)
        self._watcher = hub.loop.async_(ref=False)  # it doesn't keep the loop going
        self._watcher.start(self._woken)

    def _wake(self) -> None:
        self._watcher.send()


class _EventletWaker(_Waker):
    """Wakes a hub by a pipe that it listens to."""

    def __init__(self, hub: Any) -> None:
        """Make the pipe; runs in the hub's thread."""
        super().__init__(functools.partial(hub.schedule_call_global, 0))
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        hub.add(hub.READ, self._read_end, self._readable, self._readable, lambda: None)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is awake already
            posix.write(self._write_end, b"!")

    def _readable(self, *_: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            posix.read(self._read_end, 4096)
        self._woken()


def _waker_of(hub: Any, kind: Callable[[Any], _Waker]) -> _Waker:
    waker: _Waker | None = vars(hub).get(_ATTRIBUTE)
    if waker is None:
        waker = kind(hub)
        setattr(hub, _ATTRIBUTE, waker)
    return waker
