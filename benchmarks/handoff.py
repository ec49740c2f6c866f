"""How long a waiter inside its slot takes to follow a release, and how many commands it sends.

Run it as ``python -m benchmarks.handoff``.  Servers are local; nothing else is measured here.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators import CoordinatorSettings, from_urls
from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.lock import Claimant, Session
from celery_redlock.options import LockOptions
from localservers import Valkey, valkey_cluster

WAIT = 60.0


def main() -> None:
    """Measure with one server and with three, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=50, help="hand-offs (default 50)")
    parser.add_argument("--waiters", type=int, default=4, help="waiters beside each other")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long they wait")
    chosen = parser.parse_args()
    for count in (1, 3):
        with valkey_cluster(count) as servers:
            coordinator = from_urls(servers.urls, CoordinatorSettings(prefix="handoff"))
            times = sorted(_hand_over(coordinator, servers) for _ in range(chosen.rounds))
            asked = _commands_of_waiters(coordinator, servers, chosen.waiters, chosen.seconds)
            coordinator.close()
        median, worst = statistics.median(times) * 1000, times[-1] * 1000
        print(
            f"{count} server{'s' if count > 1 else ''}: a waiter follows a release after "
            f"{median:.1f} ms (median; worst {worst:.1f} ms), and sends {asked:.1f} commands a "
            "second to each server"
        )


class _Waiter(threading.Thread):
    """Waits for the lock, and notes when it has got it."""

    def __init__(self, coordinator: Any, wait: float) -> None:
        super().__init__()
        self._coordinator, self._wait = coordinator, wait
        self.got_at = 0.0

    def run(self) -> None:
        """Wait, then give back what was got."""
        claimant = Claimant(self._coordinator, ("k",), LockOptions(), Holder(), lambda _: None)
        session = Session(claimant)
        try:
            if session.take(self._wait) is None:
                self.got_at = now()
        finally:
            session.give_back()
            self._coordinator.close()


def _hold(coordinator: Any) -> Grant:
    grant = coordinator.acquire("k", "holder", 2 * WAIT, Holder())
    assert isinstance(grant, Grant), grant
    return grant


def _listeners(servers: Any) -> int:
    """How many connections of all servers wait for changes."""
    found = 0
    for server in servers:
        with server.client() as client:
            found += sum("t" in entry["flags"] for entry in client.client_list())
    return found


def _until_listening(servers: Any, count: int) -> None:
    end = now() + WAIT
    while _listeners(servers) < count:
        assert now() < end, "nobody listens"


def _hand_over(coordinator: Any, servers: Any) -> float:
    """Seconds from a release to the waiter's having the lock."""
    grant, waiter = _hold(coordinator), _Waiter(coordinator, WAIT)
    waiter.start()
    _until_listening(servers, 1)
    start = now()
    coordinator.release(grant)
    waiter.join(WAIT)
    return waiter.got_at - start


def _commands_of_waiters(coordinator: Any, servers: Any, count: int, seconds: float) -> float:
    """Commands a second that one waiter sends to one server while nobody gives the lock back."""
    grant = _hold(coordinator)
    before = sum(map(_commands, servers))
    waiters = [_Waiter(coordinator, seconds) for _ in range(count)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    asked = sum(map(_commands, servers)) - before
    coordinator.release(grant)
    return asked / len(servers) / count / seconds


def _commands(server: Valkey) -> int:
    with server.client() as client:
        return int(client.info("stats")["total_commands_processed"])


if __name__ == "__main__":
    main()
