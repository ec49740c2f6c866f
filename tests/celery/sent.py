"""What beats have put into the queue, read from the broker itself, so that no worker is in between."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import redis


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        task: the task's name.
        slot: our header's slot; empty without one.
        pid: the process that sent it.
        at: when it was seen, by ``time.monotonic``.
        headers: all of its headers.
    """

    task: str
    slot: str
    pid: int
    at: float
    headers: dict[str, Any]


class Sent:
    """Takes every message from the queue as it comes.

    Args:
        url: of the broker.
        queue: the queue's name.
    """

    def __init__(self, url: str, queue: str = "celery") -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=None)
        self._queue = queue
        self._messages: list[Message] = []
        self._came = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closed:
            found = self._client.blpop([self._queue], timeout=0.5)
            if found is not None:
                headers = json.loads(found[1])["headers"]
                slot = (headers.get("redlock") or {}).get("slot") or {}
                pid = int(headers["origin"].partition("@")[0].removeprefix("gen"))
                message = Message(
                    headers["task"], slot.get("at", ""), pid, time.monotonic(), headers
                )
                with self._came:
                    self._messages.append(message)
                    self._came.notify_all()

    def of(self, task: str) -> list[Message]:
        """The messages of one task so far."""
        with self._came:
            return [message for message in self._messages if message.task == task]

    def wait_for(self, task: str, count: int, timeout: float = 30.0) -> list[Message]:
        """Wait until there are so many messages of a task, and give them.

        Raises:
            AssertionError: there aren't in time.
        """
        deadline = time.monotonic() + timeout
        while len(found := self.of(task)) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(found)} and not {count} messages of {task} in {timeout:g} s"
            with self._came:
                self._came.wait(min(left, 0.2))
        return found

    def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._reader.join(5)
        self._client.close()


def twice(messages: list[Message]) -> list[str]:
    """The slots that were sent more than once."""
    return [slot for slot, count in Counter(m.slot for m in messages).items() if count > 1]


def longest_gap(messages: list[Message]) -> float:
    """The longest time between two messages, in seconds."""
    times = [message.at for message in messages]
    return max((b - a for a, b in itertools.pairwise(times)), default=0.0)
