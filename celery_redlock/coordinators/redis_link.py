"""One connection to one lock server.  Nothing here waits, apart from the blocking connect."""

from __future__ import annotations

import itertools
import math
import ssl
from collections import deque
from typing import Any, NamedTuple

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import Parser, ProtocolError

__all__ = ["Broken", "Expected", "Link", "connect"]

_READ_SIZE = 65536
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_serials = itertools.count(1)


class Broken(Exception):
    """The connection is of no more use; the message says what was seen."""


class Expected(NamedTuple):
    """A reply that is still to come.

    Attributes:
        round: the number of the round that asked; 0 if nobody wants the answer.
        tag: what the asker knows the request by.
        sent: the instant at which it was asked.
        command: what was asked, packed.
    """

    round: int
    tag: Any
    sent: float
    command: bytes


class Link:
    """A connected socket that never blocks, and the replies that are due on it.

    Replies come in the order of the requests, so a reply that nobody waits for any more is
    still counted, and read before later ones.

    Args:
        node: the server at the other end.
        sock: connected; made non-blocking here.
        keep: kept alive as long as the link is, and told to ``disconnect()`` at its end.
    """

    def __init__(self, node: Node, sock: Any, keep: Any = None) -> None:
        """Nothing is sent yet."""
        self.node = node
        self.socket = sock
        self.serial = next(_serials)
        self.due: deque[Expected] = deque()
        self.unsent = b""
        self.answers: list[Any] | None = []  # to the greeting; None once it is over
        self.queued: list[Expected] = []  # what waits for the greeting's end
        self.opened = now()
        self._parser = Parser()
        self._keep = keep
        self._encrypted = hasattr(sock, "pending")
        sock.setblocking(False)

    @property
    def oldest(self) -> float:
        """The instant since which something is due; infinite if nothing is."""
        if self.answers is not None:
            return self.opened
        return self.due[0].sent if self.due else math.inf

    def ask(self, expected: Expected) -> None:
        """Send a request, and count its reply as due.

        Raises:
            Broken: the connection has failed.
        """
        self.due.append(expected)
        self.write(expected.command)

    def write(self, data: bytes) -> None:
        """Send what can be sent at once, and keep the rest for :meth:`flush`.

        Raises:
            Broken: the connection has failed.
        """
        if self.unsent:
            self.unsent += data
            return
        try:
            sent = self.socket.send(data)
        except _NOT_NOW:
            sent = 0
        except OSError as exc:
            raise Broken(describe(exc)) from exc
        if sent < len(data):
            self.unsent = data[sent:]

    def flush(self) -> None:
        """Send more of what is kept.

        Raises:
            Broken: the connection has failed.
        """
        data, self.unsent = self.unsent, b""
        self.write(data)

    def read(self) -> list[Any]:
        """The replies that have arrived; none if there are none.

        Raises:
            Broken: the connection has failed, or the server has closed it.
        """
        replies: list[Any] = []
        while True:
            try:
                data = self.socket.recv(_READ_SIZE)
            except _NOT_NOW:
                return replies
            except OSError as exc:
                raise Broken(describe(exc)) from exc
            if not data:
                raise Broken("it closed the connection")
            try:
                replies += self._parser.feed(data)
            except ProtocolError as exc:
                raise Broken(f"it doesn't speak the Redis protocol: {exc}") from exc
            if not self._encrypted and len(data) < _READ_SIZE:
                return replies

    def close(self) -> None:
        """Close it; what was sent still reaches the server, if anything does."""
        if self._keep is not None:
            self._keep.disconnect()
        self.socket.close()

    def __repr__(self) -> str:
        return f"<Link {self.serial} to {self.node.shown}, {len(self.due)} replies due>"


def connect(node: Node) -> Link:
    """A new link, by the client library's own means: addresses, TLS, users and databases.

    Raises:
        Broken: it can't be made.
    """
    options = dict(node.options)
    try:
        if node.locate is not None:
            options["host"], options["port"] = node.locate()
        connection = node.connection_class(**options)
        connection.connect()
    except Exception as exc:  # the library's errors have no common base with the socket's
        raise Broken(describe(exc)) from exc
    return Link(node, connection._sock, connection)  # noqa: SLF001  # it has no other way in


def describe(error: BaseException) -> str:
    """An error in one line: its message, or the name of its class where it has none."""
    return str(error) or type(error).__name__
