"""What tasks did, in the order they did it, and gates that hold them until a test says so.

Tasks write with :func:`record` and wait with :func:`pass_gate`; a test reads with
:class:`Journal`.  It is kept in the broker's server, which no test about lock servers breaks.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

import redis
from celery import current_app

from celery_redlock.clock import now

_LIST = "tests:journal"


def record(event: str, **facts: Any) -> None:
    """Write down that something happened in this process."""
    entry = {"event": event, "pid": os.getpid(), "at": now(), **facts}
    _client(current_app.conf["tests_journal"]).rpush(_LIST, json.dumps(entry, default=str))


def pass_gate(name: str, timeout: float = 30.0) -> None:
    """Wait until the test opens this gate; each opening lets one pass.

    Raises:
        TimeoutError: it stays shut.
    """
    if _client(current_app.conf["tests_journal"]).blpop([_gate(name)], timeout) is None:
        raise TimeoutError(f"gate {name} stayed shut for {timeout:g} s")


class Journal:
    """The test's view.

    Args:
        url: of the server and database where it is kept.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def entries(self, event: str = "", **facts: Any) -> list[dict[str, Any]]:
        """What was recorded so far: of one event, and with these facts, if given."""
        everything = [json.loads(line) for line in self._client.lrange(_LIST, 0, -1)]
        return [
            entry
            for entry in everything
            if (not event or entry["event"] == event)
            and all(entry.get(name) == value for name, value in facts.items())
        ]

    def wait_for(
        self, event: str, count: int = 1, timeout: float = 20.0, **facts: Any
    ) -> list[dict[str, Any]]:
        """Wait until an event has been recorded ``count`` times, and give its entries.

        Raises:
            AssertionError: it hasn't after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while len(found := self.entries(event, **facts)) < count:
            assert time.monotonic() < deadline, (
                f"{event} {facts or ''} was recorded {len(found)} and not {count} times in "
                f"{timeout:g} s; the journal has {self.entries()}"
            )
            time.sleep(0.01)
        return found

    def open_gate(self, name: str, times: int = 1) -> None:
        """Let ``times`` tasks pass a gate, those that wait already and those that come."""
        self._client.rpush(_gate(name), *["open"] * times)

    def most_at_once(self, start: str = "start", end: str = "end", **facts: Any) -> int:
        """How many were between their start and their end at the same time, at most.

        An attempt that never reached its end counts until the pid that began it starts again.
        """
        inside: set[int] = set()
        most = 0
        for entry in self.entries(**facts):
            if entry["event"] == start:
                inside.add(entry["pid"] if "run" not in entry else entry["run"])
            elif entry["event"] == end:
                inside.discard(entry["pid"] if "run" not in entry else entry["run"])
            most = max(most, len(inside))
        return most

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _gate(name: str) -> str:
    return f"tests:gate:{name}"


@functools.cache
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=None)  # a gate is waited for longer than that
