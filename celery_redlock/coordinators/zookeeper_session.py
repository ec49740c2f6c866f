"""One process's session with a ZooKeeper ensemble, through kazoo.  Knows no locks.

kazoo has threads of its own that keep the session alive.  Nothing depends on the session here:
if it ends, the next one goes on with the same locks.  Nothing but an undo is left to kazoo's
queue while there is no connection, where it could be carried out much later.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.addresses import Addresses
from celery_redlock.coordinators.urls import needs
from celery_redlock.coordinators.zookeeper_clock import Stamp, epoch_of
from celery_redlock.exceptions import CoordinatorUnavailable

__all__ = ["Outcome", "Session"]

# Seconds until kazoo gives up a server that is silent, about.  Short, because another server
# can go on at once; servers don't allow less than two of their ticks.
SESSION_TIMEOUT = 4.0
AWAY = 0.5  # seconds without a request after which a connection may have gone unnoticed


@dataclass(frozen=True)
class Outcome:
    """What a transaction came to.

    Attributes:
        stat: of the node that it wrote last; None if it failed.
        failed: the class of the error; empty if it succeeded.
        at: the place of the operation that failed.
    """

    stat: Any = None
    failed: str = ""
    at: int = 0


class Session:
    """A client that is connected at first use.

    Args:
        addresses: the ensemble.

    Attributes:
        stamp: the latest that is known of the leader's clock.
    """

    def __init__(self, addresses: Addresses) -> None:
        """Make the client; connects to nothing yet."""
        client_module, handler = needs("kazoo.client", "zookeeper"), _handler()
        pause = {"sleep_func": handler.sleep_func}
        self.errors: Any = needs("kazoo.exceptions", "zookeeper")
        self._shown = ",".join(map(str, addresses.hosts))
        self.client: Any = client_module.KazooClient(
            hosts=self._shown,
            timeout=SESSION_TIMEOUT,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0, **pause},
            command_retry={"max_tries": 0, **pause},
            handler=handler,
            **_access(addresses),
        )
        self._late = self.client.handler.timeout_exception
        self._starting = threading.Lock()
        self._live: Any = None
        self._greenlets = "threading" not in handler.name
        self._used = now()
        self.stamp: Stamp | None = None

    def transact(self, fill: Callable[[Any], None], until: float, also: str = "") -> Any:
        """Carry out a transaction; its outcome.

        Args:
            fill: adds the operations to a transaction of kazoo's.
            until: the instant by which there must be an answer.
            also: a path that is read in the same round trip, after the transaction.

        Returns:
            The outcome; with ``also``, a pair of that and what :meth:`read` gives.

        Raises:
            CoordinatorUnavailable: there is no answer; it may have been carried out.
        """
        self._connect(until)
        transaction = self.client.transaction()
        fill(transaction)
        before = now()
        pending = transaction.commit_async()
        reading = self.client.get_async(also) if also else None
        outcome = self._outcome(self._wait(pending, until), before)
        return (outcome, self._found(reading, until)) if also else outcome

    def read(self, path: str, until: float, *, latest: bool = False) -> tuple[bytes, Any] | None:
        """A node's data and stat; None if there is no such node.

        Args:
            path: the node.
            until: the instant by which there must be an answer.
            latest: whether the server must first catch up with the leader; it has anyway with
                everything that this session has been told of.

        Raises:
            CoordinatorUnavailable: there is no answer.
        """
        self._connect(until)
        if latest:
            self.client.sync_async(path)  # the read comes after it, in one round trip
        return self._found(self.client.get_async(path), until)

    def children(self, path: str, until: float) -> list[str]:
        """The names of a node's children; none if there is no such node.

        Raises:
            CoordinatorUnavailable: there is no answer.
        """
        self._connect(until)
        found = self._wait(self.client.get_children_async(path), until, "NoNodeError")
        return [] if found is None else list(found)

    def ensure(self, path: str, until: float) -> None:
        """Make a node and those above it, where they are missing.

        Raises:
            CoordinatorUnavailable: there is no answer.
        """
        self._connect(until)
        self._wait(self.client.ensure_path_async(path), until)

    def undo(self, fill: Callable[[Any], None]) -> None:
        """Send a transaction behind whatever is under way, and don't wait for it.

        The connection keeps the order, so it can't overtake what it undoes; without one it is
        sent at the next.

        Args:
            fill: adds operations that do no harm however late they are.
        """
        transaction = self.client.transaction()
        fill(transaction)
        transaction.commit_async()

    def time(self, path: str, until: float) -> Stamp:
        """What the leader's clock shows, learnt by writing the node ``path``.

        Raises:
            CoordinatorUnavailable: there is no answer.
        """
        before = now()
        pending = self._written(path, until)
        if pending is None:
            self.ensure(path, until)
            before = now()
            pending = self._written(path, until)
        self.note(pending, before)
        assert self.stamp is not None  # noqa: S101 - just noted
        return self.stamp

    def note(self, stat: Any, before: float) -> None:
        """Remember what a write of our own told about the leader's clock."""
        self.stamp = Stamp(epoch_of(stat.mzxid), stat.mtime / 1000.0, before, now())

    def close(self) -> None:
        """End the session."""
        if self._live is not None:
            self.client.stop()
            self.client.close()

    def unavailable(self, said: str) -> CoordinatorUnavailable:
        """The error for a question without an answer."""
        return CoordinatorUnavailable("the ZooKeeper ensemble gave no answer", {self._shown: said})

    def _written(self, path: str, until: float) -> Any:
        self._connect(until)
        return self._wait(self.client.set_async(path, b""), until, "NoNodeError")

    def _connect(self, until: float) -> None:
        with self._starting:
            if self._live is None:
                self._live = self.client.start_async()
                # At the end of the process another thread would stop it, whose greenlets are
                # others; and nothing is lost with the session.
                atexit.unregister(self.client.handler.stop)
        if self._greenlets and now() - self._used > AWAY:
            # Its greenlets slept while this thread did other things: let them see what came.
            self.client.handler.sleep_func(0.02)
        self._used = now()
        if not self._live.is_set():
            self._live.wait(max(0.0, until - now()) / 2)  # leave time for the answer
        if not self.client.connected:
            raise self.unavailable(f"not connected ({self.client.client_state})")

    def _found(self, pending: Any, until: float) -> tuple[bytes, Any] | None:
        found: tuple[bytes, Any] | None = self._wait(pending, until, "NoNodeError")
        return found

    def _wait(self, pending: Any, until: float, expected: str = "") -> Any:
        """What came of a request; None if it failed as expected."""
        try:
            return pending.get(timeout=max(0.0, until - now()))
        except self._late:
            raise self.unavailable("timed out") from None
        except self.errors.KazooException as exc:
            name = type(exc).__name__
            if name == expected:
                return None
            raise self.unavailable(_MEANING.get(name) or f"{name} {exc}".strip()) from exc

    def _outcome(self, results: Sequence[Any], before: float) -> Outcome:
        followers = (self.errors.RolledBackError, self.errors.RuntimeInconsistency)
        for place, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, followers):
                name = type(result).__name__
                if name in _MEANING:
                    raise self.unavailable(_MEANING[name])
                return Outcome(None, name, place)
        stats = [result for result in results if hasattr(result, "czxid")]
        if stats:
            self.note(stats[-1], before)
        return Outcome(stats[-1] if stats else None)


_MEANING = {
    "ConnectionLoss": "the connection broke",
    "ConnectionClosedError": "the connection was closed",
    "SessionExpiredError": "the session has expired",
    "NoAuthError": "permission denied: the nodes belong to another user",
    "AuthFailedError": "it refused the user and password",
}


def _handler() -> Any:
    """What kazoo runs on: threads, or the greenlets of whoever has patched the sockets."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("socket"):
        return needs("kazoo.handlers.gevent", "zookeeper").SequentialGeventHandler()
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("socket"):
        return needs("kazoo.handlers.eventlet", "zookeeper").SequentialEventletHandler()
    return needs("kazoo.handlers.threading", "zookeeper").SequentialThreadingHandler()


def _access(addresses: Addresses) -> dict[str, Any]:
    """What lets us in, and keeps others out."""
    options: dict[str, Any] = {}
    if addresses.user:
        security = needs("kazoo.security", "zookeeper")
        options["auth_data"] = [("digest", f"{addresses.user}:{addresses.password}")]
        acl = security.make_digest_acl(addresses.user, addresses.password, all=True)
        options["default_acl"] = [acl]
    given = addresses.options
    if given:
        options |= {"use_ssl": True, "ca": given.get("ca")}
        options |= {"certfile": given.get("cert"), "keyfile": given.get("key")}
    return options
