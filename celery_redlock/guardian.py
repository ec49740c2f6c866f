"""Starts a guardian in the main process of a prefork worker, and ends it.  Does nothing itself.

What a guardian does is in :mod:`celery_redlock.children`; how a child tells it of its locks is
in :mod:`celery_redlock.pool_child`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery.signals import worker_init, worker_shutdown

from celery_redlock.children import Guardian
from celery_redlock.coordinators.base import Coordinator

__all__ = ["install"]

_resolvers: WeakKeyDictionary[Any, Callable[[Any, Any], Coordinator]] = WeakKeyDictionary()
_guardian: Guardian | None = None
_waited = False


def install(app: Any, resolve: Callable[[Any, Any], Coordinator]) -> None:
    """Have prefork workers of this application look after their children.

    Args:
        app: the Celery application.
        resolve: ``resolve(app, named)`` finds a coordinator by what a
            :class:`~celery_redlock.notices.NoticeOptions` names it by.  It is called in a
            thread of the worker's main process.
    """
    _resolvers[app] = resolve


def _start(sender: Any, **_: Any) -> None:
    global _guardian  # noqa: PLW0603 - there is one for each process
    resolve = _resolvers.get(sender.app)
    if resolve is not None and _guardian is None and _is_prefork(sender.pool_cls):
        _guardian = Guardian(functools.partial(resolve, sender.app))
        _guardian.start()


def _is_prefork(pool: Any) -> bool:
    named = pool if isinstance(pool, str) else f"{pool.__module__}:{pool.__name__}"
    return named in {"prefork", "processes", "celery.concurrency.prefork:TaskPool"}


def _stop(**_: Any) -> None:
    global _guardian
    guardian, _guardian = _guardian, None
    if guardian is not None:
        guardian.stop()


def _before_fork() -> None:
    global _waited  # noqa: PLW0603 - handed from one hook to the next
    _waited = _guardian is not None and _guardian.before_fork()


def _after_fork_in_parent() -> None:
    if _waited and _guardian is not None:
        _guardian.after_fork()


def _after_fork_in_child() -> None:
    global _guardian
    guardian, _guardian = _guardian, None
    if guardian is not None:
        guardian.abandon()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
worker_init.connect(_start, weak=False, dispatch_uid="celery_redlock.guardian.start")
worker_shutdown.connect(_stop, weak=False, dispatch_uid="celery_redlock.guardian.stop")
