"""What the options and the errors of a publish mean.  Publishes nothing."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery.utils.time import maybe_iso8601

__all__ = ["is_promised", "life_in_queue", "surely_not_sent"]

# Whoever sets one of these has promised the id, or waits for this very message: a member of a
# chain, group or chord, a retry, a replacement, a callback, or a caller with an id of its own.
_PROMISES = (
    "task_id",
    "group_id",
    "chord",
    "chain",
    "link",
    "link_error",
    "root_id",
    "parent_id",
    "retries",
    "replaced_task_nesting",
)
_NEVER_CONNECTED = (ConnectionRefusedError, socket.gaierror)
_OF_CONNECTIONS = ("OperationalError", "ConnectionError", "TimeoutError", "ConnectionClosed")


def is_promised(options: Mapping[str, Any]) -> bool:
    """Whether somebody waits for this very message, so that no other task can answer for it.

    Args:
        options: what ``send_task`` was given.
    """
    return any(options.get(name) for name in _PROMISES)


def life_in_queue(app: Any, options: Mapping[str, Any], queue_ttl: float) -> float:
    """Seconds that a queue lock lives: its ttl counts from when the message may start.

    A message that expires may be dropped by the broker without anybody being told, so its lock
    doesn't outlive it.

    Args:
        app: the application.
        options: what ``send_task`` was given.
        queue_ttl: the option of that name.
    """
    delay = options.get("countdown") or _seconds_until(app, options.get("eta")) or 0.0
    life = queue_ttl + max(0.0, float(delay))
    expires = _seconds_until(app, options.get("expires"))
    return life if expires is None else min(life, max(1.0, expires + 1.0))


def _seconds_until(app: Any, when: Any) -> float | None:
    """Seconds until a time as Celery takes it: a number, a datetime or its ISO text."""
    if when is None or isinstance(when, (int, float)):
        return when
    instant = maybe_iso8601(when)
    if not isinstance(instant, datetime):
        return None
    present = app.now()
    if instant.tzinfo is None:
        present = present.replace(tzinfo=None)
    return float((instant - present).total_seconds())


def surely_not_sent(exc: BaseException) -> bool:
    """Whether a failed publish has surely put no message into the broker.

    An error that is none of the connection's (an argument that can't be serialized, say) came
    before anything was sent, and so did a refused connection.  After any other error of the
    connection, and after an interrupt, nobody knows.
    """
    if not isinstance(exc, Exception):
        return False
    chain: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    if any(isinstance(one, _NEVER_CONNECTED) for one in chain):
        return True
    return not any(
        isinstance(one, OSError) or type(one).__name__ in _OF_CONNECTIONS for one in chain
    )
