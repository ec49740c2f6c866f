"""Messages whose body never ran, or whose process died: their queue locks are given back, too.

Celery tells of them by signals, and of a message that can't be decoded not at all, so the
consumer is asked.  All of it happens in the worker; what has to be said to lock servers is said
in the background, since most of these are told in the main process's event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from celery import bootsteps, signals
from celery.states import RETRY

from celery_redlock.endings import finish_later
from celery_redlock.publish import HEADER, Ticket

__all__ = ["DecodeErrors", "mark_handled"]

_handled: WeakSet[Any] = WeakSet()
_received: WeakValueDictionary[tuple[int, str], Any] = WeakValueDictionary()


def mark_handled(request: Any) -> None:
    """Whoever calls this gives the queue lock of a running task back, however it ends."""
    _handled.add(request)


class DecodeErrors(bootsteps.StartStopStep):
    """Has the consumer tell of messages that it throws away because it can't decode them."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Stand before the consumer's own handler, once."""
        tell = parent.on_decode_error
        if getattr(tell, "celery_redlock", False):
            return

        def on_decode_error(message: Any, exc: BaseException) -> Any:
            _finish_message(parent.app, message)
            return tell(message, exc)

        on_decode_error.celery_redlock = True  # type: ignore[attr-defined]
        parent.on_decode_error = on_decode_error


def _finish_message(app: Any, message: Any) -> None:
    headers = getattr(message, "headers", None)
    if isinstance(headers, Mapping):
        finish_later(app, _header_in(headers), headers.get("id"))


def _header_in(headers: Any) -> Mapping[str, Any]:
    found = headers.get(HEADER)
    return found if isinstance(found, Mapping) else {}


def _on_received(request: Any = None, **_: Any) -> None:
    if request is not None and Ticket.of(_header_in(request.request_dict), request.id):
        _received[os.getpid(), request.id] = request


def _on_revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
    """Revoked, expired, or terminated while it ran."""
    if request is not None:
        finish_later(sender.app, _header_in(vars(request)), request.id)


def _on_rejected(sender: Any = None, message: Any = None, **_: Any) -> None:
    """A message that is no call, or one whose content is not allowed."""
    _finish_message(sender.app, message)


def _on_unknown(sender: Any = None, message: Any = None, **_: Any) -> None:
    """A task that this worker doesn't know."""
    _finish_message(sender.app, message)


def _on_failure(sender: Any = None, task_id: str | None = None, **_: Any) -> None:
    """The main process has found a child dead or over its time; a body's own errors are handled."""
    request = _received.pop((os.getpid(), task_id or ""), None)
    if request is not None and sender.request not in _handled:
        finish_later(sender.app, _header_in(request.request_dict), task_id)


def _on_postrun(
    task: Any = None, task_id: str | None = None, state: str | None = None, **_: Any
) -> None:
    """What ended before its body was reached, as by an error in ``before_start``."""
    request = task.request
    if state != RETRY and request not in _handled:
        finish_later(task.app, _header_in(vars(request)), task_id)


def _connect() -> None:
    for signal, receiver in (
        (signals.task_received, _on_received),
        (signals.task_revoked, _on_revoked),
        (signals.task_rejected, _on_rejected),
        (signals.task_unknown, _on_unknown),
        (signals.task_failure, _on_failure),
        (signals.task_postrun, _on_postrun),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"celery_redlock.{receiver.__name__}")


_connect()
