"""One connection to one lock server.  Nothing here waits."""

from __future__ import annotations

import itertools
import math
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import ErrorReply, Parser, ProtocolError

__all__ = ["Broken", "Expected", "Greeter", "Link", "Reply", "Silence", "describe"]

_READ_SIZE = 65536
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ABORT = struct.pack("ii", 1, 0)  # linger for no time at all
_serials = itertools.count(1)


class Broken(Exception):
    """The connection is of no more use; the message says what was seen."""


class Silence(str):
    """Stands for a reply that won't come; its text says why."""

    __slots__ = ()


class Reply(NamedTuple):
    """One reply of the present round.

    Attributes:
        node: the number of the server.
        tag: what the request was tagged with.
        value: what the server said, an :class:`ErrorReply`, or a :class:`Silence`.
    """

    node: int
    tag: Any
    value: Any


class Greeter(NamedTuple):
    """What a new connection begins with.

    Attributes:
        commands: what is asked.
        judge: takes the node and the answers; says why the node may not be asked, or ``""``.
        reload: what is sent before a request is repeated that met a server without scripts.
    """

    commands: Sequence[bytes]
    judge: Callable[[Node, Sequence[Any]], str]
    reload: Sequence[bytes] = ()


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
        sock: connected or connecting; made non-blocking here.
        preamble: the commands that come before everything else.
        connecting: whether the socket is still being connected.
        keep: kept alive as long as the link is, and told to ``disconnect()`` at its end.

    Attributes:
        serial: differs from that of any other link of this process.
        due: the replies to come, in their order.
        unsent: what there was no room for yet.
        answers: to the preamble and the greeting; None once those are over.
        opened: the instant since which the connecting, and then the greeting, takes.
        queued: the requests that wait for that.
        others: further addresses to try, should this one not answer.
    """

    def __init__(
        self,
        node: Node,
        sock: Any,
        *,
        preamble: Sequence[bytes] = (),
        connecting: bool = False,
        keep: Any = None,
    ) -> None:
        """Nothing is sent yet."""
        self.node = node
        self.socket = sock
        self.serial = next(_serials)
        self.due: deque[Expected] = deque()
        self.unsent = b""
        self.answers: list[Any] | None = []
        self.queued: list[Expected] = []
        self.others: list[Any] = []
        self.preamble = preamble
        self.connecting = connecting
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
                raise Broken(self._farewell(replies))
            try:
                replies += self._parser.feed(data)
            except ProtocolError as exc:
                raise Broken(f"it doesn't speak the Redis protocol: {exc}") from exc
            if not self._encrypted and len(data) < _READ_SIZE:
                return replies

    def _farewell(self, replies: Sequence[Any]) -> str:
        words = [*(self.answers or ()), *replies][-1:]
        said = f", after {words[0]}" if words and isinstance(words[0], ErrorReply) else ""
        return f"it closed the connection{said}"

    def close(self, *, abort: bool = False) -> None:
        """Close it.

        Args:
            abort: what has not reached the server never shall; otherwise the system goes on
                trying to deliver it, perhaps until long after we have given up.
        """
        if abort:
            with suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self.socket.close()
        if self._keep is not None:
            self._keep.disconnect()

    def __repr__(self) -> str:
        return f"<Link {self.serial} to {self.node.shown}, {len(self.due)} replies due>"


def describe(error: BaseException) -> str:
    """An error in one line: its message, or the name of its class where it has none."""
    return str(error) or type(error).__name__
