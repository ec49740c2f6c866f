"""The one more run that ``keep_latest`` promises: its id, and its call as a note beside the lock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils import json

__all__ = ["Call", "order_now", "successor_id"]

_FAMILY = uuid.UUID("9e6c8f0e-6a55-5bd0-9d2e-1f2b7c4d8a10")

# What is kept of how a call was published; what is left out belongs to one publish only.
_KEPT = (
    "exchange",
    "routing_key",
    "queue",
    "priority",
    "serializer",
    "compression",
    "delivery_mode",
    "time_limit",
    "soft_time_limit",
    "shadow",
    "ignore_result",
    "reply_to",
    "argsrepr",
    "kwargsrepr",
    "retry",
    "retry_policy",
)


def successor_id(task_id: str, key: str) -> str:
    """The id of the one more run after a task: all callers know it without asking each other."""
    return str(uuid.uuid5(_FAMILY, f"{task_id} {key}"))


def order_now() -> int:
    """A number that rises from call to call: microseconds of the wall clock."""
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Call:
    """A call that is to be published later.

    Attributes:
        task: the task's name.
        args: its positional arguments.
        kwargs: its keyword arguments.
        options: how it is published, plain values only.
    """

    task: str
    args: Any
    kwargs: Any
    options: Mapping[str, Any]

    @classmethod
    def of(cls, app: Any, task: str, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Call:
        """The call as it was handed to Celery's ``send_task``.

        Times that count from the call on are made absolute, as Celery does when it publishes.
        """
        kept = {name: options[name] for name in _KEPT if options.get(name) is not None}
        for name in ("queue", "exchange"):
            if name in kept:
                kept[name] = getattr(kept[name], "name", kept[name])
        eta, expires = options.get("eta"), options.get("expires")
        if options.get("countdown"):
            eta = app.now() + timedelta(seconds=options["countdown"])
        if isinstance(expires, (int, float)):
            expires = app.now() + timedelta(seconds=expires)
        times = {"eta": eta, "expires": expires, "headers": options.get("headers")}
        kept.update((name, value) for name, value in times.items() if value is not None)
        return cls(task, args or (), kwargs or {}, kept)

    def to_note(self, app: Any) -> bytes:
        """The call as bytes; its arguments by the serializer that its message would have."""
        serializer = self.options.get("serializer") or app.conf.task_serializer
        kind, encoding, body = dumps((self.args, self.kwargs), serializer)
        head = {"task": self.task, "options": self.options, "type": kind, "encoding": encoding}
        data = body.encode() if isinstance(body, str) else body
        line: str = json.dumps(head)
        return line.encode() + b"\n" + bytes(data)

    @classmethod
    def from_note(cls, app: Any, note: bytes) -> Call:
        """The call that :meth:`to_note` was made from.

        Raises:
            kombu.exceptions.ContentDisallowed: the application doesn't accept this serializer.
        """
        line, _, data = note.partition(b"\n")
        head = json.loads(line)
        body: Any = data
        if head["encoding"] not in {"binary", "ascii-8bit"}:
            body = data.decode()
        accept = prepare_accept_content(app.conf.accept_content)
        args, kwargs = loads(body, head["type"], head["encoding"], accept=accept)
        return cls(head["task"], args, kwargs, head["options"])

    def publish(self, app: Any, task_id: str, headers: Mapping[str, Any]) -> Any:
        """Send it under this id, with these headers besides its own."""
        own = self.options.get("headers") or {}
        options = {**self.options, "headers": {**own, **headers}}
        return app.send_task(
            self.task, self.args, self.kwargs, task_id=task_id, add_to_parent=False, **options
        )
