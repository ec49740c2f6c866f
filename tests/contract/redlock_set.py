"""A set of lock servers as a test sees it: coordinators over it, and what lies on each server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators import CoordinatorSettings, Grant, Holder
from celery_redlock.coordinators.redis_commands import Names
from celery_redlock.coordinators.redlock import RedlockCoordinator, from_urls
from localservers import Valkey

ME = Holder(task="shop.pay", id="4711", attempt="a1", host="h", pid=42, queue="billing")
PATIENT = 2.0  # seconds a server gets where its slowness is not what the test is about


class RedlockSet:
    """Running servers, and whatever was opened over them.

    Args:
        servers: running; they are not stopped here.
        urls: how coordinators reach them; default: the servers' own urls.
    """

    def __init__(self, servers: Sequence[Valkey], urls: Sequence[str] | None = None) -> None:
        """Open nothing yet."""
        self.servers = list(servers)
        self.urls = list(urls or [server.url for server in servers])
        self.names = Names(f"redlock-{secrets.token_hex(4)}")
        self._open: list[Any] = []
        self._admins: dict[int, Any] = {}

    def coordinator(
        self, urls: Sequence[str] | None = None, *, warm: bool = True, **settings: Any
    ) -> RedlockCoordinator:
        """A new coordinator over the set, as another process would have.

        Args:
            urls: default: those of the set.
            warm: connect to every server now; otherwise the first grant may come before the
                slowest of them are connected.
            settings: of the coordinator.
        """
        given = {"prefix": self.names.prefix, "node_timeout": PATIENT, **settings}
        made = from_urls(list(urls or self.urls), CoordinatorSettings(**given))
        self._open.append(made)
        if warm:
            made.inspect("nothing")
        return made

    def admin(self, number: int) -> Any:
        """An administrator's client of one server."""
        if number not in self._admins:
            self._admins[number] = self.servers[number].client()
            self._open.append(self._admins[number])
        return self._admins[number]

    def value(self, number: int, key: str) -> str | None:
        """What one server stores for the lock."""
        stored = self.admin(number).get(self.names.lock(key))
        return None if stored is None else stored.decode()

    def holding(self, key: str) -> list[int]:
        """The servers on which anybody holds the lock."""
        return [n for n in range(len(self.servers)) if self.value(n, key) is not None]

    def put(self, numbers: Sequence[int], key: str, owner: str, ttl: float = 60.0) -> None:
        """Have somebody else hold the lock on these servers."""
        for number in numbers:
            value = f'{owner} 0 {{"task":"other.task"}}'
            self.admin(number).set(self.names.lock(key), value, px=int(ttl * 1000))

    def stored(self) -> dict[str, list[int]]:
        """Every key of the prefix, with its remaining life in ms on each server that has it."""
        found: dict[str, list[int]] = {}
        for number in range(len(self.servers)):
            for name in self.admin(number).scan_iter(f"{self.names.prefix}:*"):
                found.setdefault(name.decode(), []).append(self.admin(number).pttl(name))
        return found

    def close(self) -> None:
        """Close what was opened."""
        while self._open:
            self._open.pop().close()


def owner() -> str:
    """Random, for one attempt."""
    return secrets.token_hex(16)


def grant(coordinator: RedlockCoordinator, key: str, ttl: float = 30.0, who: str = "") -> Grant:
    """A grant that nothing stands in the way of."""
    answer = coordinator.acquire(key, who or owner(), ttl, ME)
    assert isinstance(answer, Grant), answer
    return answer


def eventually(true: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait for what a server does in its own time."""
    end = now() + timeout
    while not true():
        assert now() < end, f"not within {timeout} s: {true}"
        time.sleep(0.005)
