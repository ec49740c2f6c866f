"""At publish: what a worker can't find out by itself travels in one message header.

A worker knows the exchange and the routing key of a message but not its queue, so the queue is
written down here, with the options of the call.  Nothing in the header is ever trusted for
ownership.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery.signals import before_task_publish

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.keys import KeyMaker
from celery_redlock.locks import run_signature, task_level
from celery_redlock.options import Level, LockOptions

__all__ = ["HEADER", "call_options", "header_of", "with_header"]

HEADER = "redlock"


def header_of(request: Any) -> Mapping[str, Any]:
    """Our header of a running task's message; empty where there is none."""
    found = getattr(request, HEADER, None) or (request.headers or {}).get(HEADER)
    return found if isinstance(found, Mapping) else {}


def with_header(headers: Mapping[str, Any] | None, **facts: Any) -> dict[str, Any]:
    """Message headers with ours added, or with ``facts`` put into the one that is there."""
    known = (headers or {}).get(HEADER)
    ours = dict(known) if isinstance(known, Mapping) else {}
    ours.update((name, value) for name, value in facts.items() if value is not None)
    return {**(headers or {}), HEADER: ours}


def call_options(
    task: Any, lock: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of one call in a form that every serializer carries.

    Args:
        task: the task that is called.
        lock: the options as the caller wrote them.
        args: the call's positional arguments.
        kwargs: the call's keyword arguments.

    Raises:
        ImproperlyConfigured: an option is unknown or not allowed.
    """
    if not isinstance(lock, Mapping):
        raise ImproperlyConfigured(
            f"lock={lock!r}: must be a dict of options such as {{'ttl': 60, 'wait': 5}}"
        )
    level = Level("the call", lock, "lock['{}']")
    options = LockOptions.layered(level, task_level(type(task)))
    plain = {name: getattr(options, name) for name in lock}
    if callable(plain.get("key")) or isinstance(plain.get("key"), tuple):
        maker = KeyMaker(task.name, run_signature(type(task)), key=options.key, args=options.args)
        plain["key"] = [_escaped(name) for name in maker.names(args, kwargs)]
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()
    }


def _escaped(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")


def _write_queue_down(
    headers: dict[str, Any] | None = None, declare: Sequence[Any] | None = None, **_: Any
) -> None:
    """Write the name of the queue that a message goes to into our header."""
    ours = (headers or {}).get(HEADER)
    name = getattr(declare[0], "name", None) if declare else None
    if name and isinstance(ours, dict):
        ours["queue"] = name


before_task_publish.connect(_write_queue_down, weak=False, dispatch_uid="celery_redlock.queue")
