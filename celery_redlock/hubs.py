"""The event loops of gevent and eventlet, as far as we need them.  Imports neither of them.

A greenlet that waits is resumed by its hub, so an exception is thrown into it from there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["CallInHub", "caller_of_hub", "current_greenlet"]

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
    """How to call something in this thread's gevent hub; None if there is none."""
    local: Any = sys.modules.get("gevent._hub_local")
    if local is None:
        return None
    monkey: Any = sys.modules.get("gevent.monkey")
    patched = main and monkey is not None and monkey.is_module_patched("time")
    hub = local.get_hub() if patched else local.get_hub_if_exists()
    call: CallInHub | None = None if hub is None else hub.loop.run_callback_threadsafe
    return call


def _eventlet(*, main: bool) -> CallInHub | None:
    """How to call something in this thread's eventlet hub; None if there is none."""
    patcher: Any = sys.modules.get("eventlet.patcher")
    if patcher is None or not main or not patcher.is_monkey_patched("time"):
        return None
    hub = sys.modules["eventlet.hubs"].get_hub()
    waker: _EventletWaker | None = hub.__dict__.get("_celery_redlock_waker")
    if waker is None:
        waker = hub.__dict__["_celery_redlock_waker"] = _EventletWaker(hub)
    return waker.call


class _EventletWaker:
    """Calls things in an eventlet hub on behalf of other threads, which the hub can't do."""

    def __init__(self, hub: Any) -> None:
        """Let the hub listen to a pipe."""
        self._hub = hub
        self._calls: list[Callable[[], None]] = []
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        hub.add(hub.READ, self._read_end, self._woken, self._woken, lambda: None)

    def call(self, function: Callable[[], None]) -> None:
        """Have the hub call ``function()`` soon; from any thread."""
        import posix  # eventlet replaces os.read and os.write

        self._calls.append(function)
        with contextlib.suppress(BlockingIOError):  # it is awake already
            posix.write(self._write_end, b"!")

    def _woken(self, *_: Any) -> None:
        import posix

        with contextlib.suppress(BlockingIOError):
            posix.read(self._read_end, 4096)
        while self._calls:
            # Later, since an exception that left a greenlet would close this listener.
            self._hub.schedule_call_global(0, self._calls.pop(0))
