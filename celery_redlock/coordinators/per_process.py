"""A value that each process makes for itself at first use.  Shares nothing over a fork."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from celery_redlock.native import get_ident

__all__ = ["PerProcess"]

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value with connections in it, which must not be used by another process.

    Under gevent and eventlet each operating system thread gets a value of its own as well,
    because a connection belongs to the hub of the thread that opened it.

    Args:
        make: makes the value.  It must not connect or wait: of two threads that come first at
            the same time both call it, and one of the results is dropped.
        close: lets go of a value's connections.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], None]) -> None:
        """Start without a value."""
        self._make = make
        self._close = close
        self._values: dict[tuple[int, int], T] = {}

    def get(self) -> T:
        """The value of the calling process."""
        mine = (os.getpid(), _hub())
        value = self._values.get(mine)
        if value is None:
            # A parent's value stays in the table of its child: what closes a connection when
            # it is collected must not do so in the wrong process.
            value = self._values.setdefault(mine, self._make())
        return value

    def close(self) -> None:
        """Close what :meth:`get` gives; the next one makes a new value.

        What another thread's hub serves stays: only that hub can close it.
        """
        value = self._values.pop((os.getpid(), _hub()), None)
        if value is not None:
            self._close(value)


def _hub() -> int:
    """What distinguishes the threads that must not share connections."""
    gevent = sys.modules.get("gevent.monkey")
    eventlet = sys.modules.get("eventlet.patcher")
    patched = (gevent is not None and gevent.is_module_patched("socket")) or (
        eventlet is not None and eventlet.is_monkey_patched("socket")
    )
    return get_ident() if patched else 0
