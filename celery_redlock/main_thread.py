"""Signalling the main thread of this process.  Knows no Celery, and nothing of bodies.

The signal is SIGUSR2.  Its handler is installed in the main thread at first use and stays: with
the default action a late signal would end the process.  A handler that was there before is
called when a signal comes that is none of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from celery_redlock.clock import now
from celery_redlock.native import get_ident

__all__ = [
    "SIGNAL",
    "handler_of",
    "in_main_thread",
    "is_main_thread",
    "send_signal",
    "when_signalled",
]

SIGNAL: int | None = getattr(signal, "SIGUSR2", None)
"""The signal's number; None where the system has no such signal."""

# The function in C: its wrapper looks every handler up in an enum, which costs ten times more.
handler_of: Callable[[int], Any] = getattr(
    sys.modules.get("_signal"), "getsignal", signal.getsignal
)
"""The handler of a signal, as a callable; anything else means that there is none in Python."""

# A signal may come late, when the body that it was for has ended.
LATE = 1.0


@dataclass
class _Threads:
    """What is known of this process's threads.

    Attributes:
        main: the main thread's identity; None until it was seen.
        others: identities that are not the main thread's, and can't become it.
    """

    main: int | None = None
    others: set[int] = field(default_factory=set)


@dataclass
class _Handling:
    """What happens when the signal comes.

    Attributes:
        stop: raises, if what the main thread does is to be stopped.
        previous: the handler that was there before ours.
        sent_at: when this process signalled itself last.
    """

    stop: Callable[[], None] = lambda: None
    previous: Any = None
    sent_at: float = float("-inf")


_threads = _Threads()
_handling = _Handling()


def when_signalled(stop: Callable[[], None]) -> None:
    """Have ``stop()`` called in the main thread when the signal comes; it may raise there."""
    _handling.stop = stop


def is_main_thread() -> bool:
    """Whether the caller is the main thread, as far as :func:`in_main_thread` has seen it."""
    return get_ident() == _threads.main


def in_main_thread() -> bool:
    """Whether the caller is the main thread; from then on that can be signalled."""
    ident = get_ident()
    if SIGNAL is None or ident in _threads.others:
        return False
    if ident == _threads.main and handler_of(SIGNAL) is _on_signal:
        return True
    try:
        previous = signal.signal(SIGNAL, _on_signal)
    except ValueError:  # only the main thread may
        _threads.others.add(ident)
        return False
    if previous is not _on_signal:
        _handling.previous = previous
    _threads.main = ident
    return True


def send_signal() -> None:
    """Interrupt whatever the main thread does; from any thread."""
    _handling.sent_at = now()
    if SIGNAL is not None and _threads.main is not None:
        with contextlib.suppress(OSError):  # the process is ending
            signal.pthread_kill(_threads.main, SIGNAL)


def _on_signal(signum: int, frame: FrameType | None) -> None:
    _handling.stop()
    previous = _handling.previous
    late = now() - _handling.sent_at < LATE
    of_billiard = getattr(previous, "__module__", "") == "billiard.common"  # ends the process
    if callable(previous) and not late and not of_billiard:
        previous(signum, frame)


def _after_fork() -> None:
    global _threads  # noqa: PLW0603 - the child's threads are others
    _threads = _Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
