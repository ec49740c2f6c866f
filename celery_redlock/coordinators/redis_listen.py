"""Hearing at once that a lock was given back: the server tells, nobody polls.

One connection for each waiter, in the server's client-side caching mode: whoever has read a key
is told when it changes, expires or is deleted.  Source:
https://redis.io/docs/latest/develop/reference/client-side-caching/.  A server or an account that
can't do that (it needs ``+client|tracking``) is no error: the waiter polls instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import pack

__all__ = ["Listener", "listen_to_holder"]

_FREE = b"_\r\n"
_FLUSHED = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


class Listener:
    """Hears when one key changes on one server.

    Args:
        connection: of redis-py, connected, with RESP3 and tracking switched on.
        name: of the key.
    """

    def __init__(self, connection: Any, name: str) -> None:
        """Nothing is heard yet: :meth:`free` begins to listen."""
        key = name.encode()
        self._changed = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(key), key)
        self._read = pack("GET", name)
        self._connection = connection
        self._socket: Any = connection._sock  # noqa: SLF001  # it has no other way in
        self._buffer = b""

    def free(self, timeout: float) -> bool:
        """Whether the key is gone at this moment; from now on a change is heard.

        Args:
            timeout: seconds to wait for the answer.

        Raises:
            OSError: the server can't be heard any more.
        """
        self._socket.settimeout(timeout)
        self._socket.sendall(self._read)
        until = now() + timeout
        while True:
            self._strip_news()
            answer = self._take_answer()
            if answer is not None:
                return answer
            self._receive(until - now())

    def wait(self, timeout: float) -> bool:
        """Wait until the key changes; False if it hasn't after ``timeout`` seconds.

        Raises:
            OSError: the server can't be heard any more.
        """
        until = now() + timeout
        while not self._strip_news():
            left = until - now()
            if left <= 0:
                return False
            try:
                self._receive(left)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Stop listening."""
        self._connection.disconnect()

    def _receive(self, timeout: float) -> None:
        self._socket.settimeout(max(timeout, 0.001))
        data = self._socket.recv(4096)
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._buffer += data

    def _strip_news(self) -> bool:
        """Take the notices of changes out of what has arrived; whether there were any."""
        before = len(self._buffer)
        self._buffer = self._buffer.replace(self._changed, b"").replace(_FLUSHED, b"")
        return len(self._buffer) < before

    def _take_answer(self) -> bool | None:
        """Take the answer to ``GET`` out of what has arrived; None if it isn't all there."""
        if self._buffer.startswith(_FREE):
            self._buffer = self._buffer[len(_FREE) :]
            return True
        head, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            return None
        if not head.startswith(b"$"):
            raise ConnectionResetError(f"it answered {head[:60]!r}")
        length = int(head[1:])
        if len(rest) < length + 2:
            return None
        self._buffer = rest[length + 2 :]
        return False


def listen_to_holder(nodes: Sequence[Node], name: str) -> Listener | None:
    """A listener for key ``name`` on one of the servers that have it; None where that can't be.

    Args:
        nodes: the servers.
        name: of the key.
    """
    heard = None
    for node in sorted(nodes, key=lambda node: node.cooling_until > now()):
        fresh = _listen(node, name)
        if fresh is None:
            continue
        if heard is not None:
            heard.close()
        heard = fresh
        if not _seems_free(heard, node.timeout):
            break
    return heard


def _seems_free(listener: Listener, timeout: float) -> bool:
    try:
        return listener.free(timeout)
    except OSError:
        return True


def _listen(node: Node, name: str) -> Listener | None:
    options = {**node.options, "protocol": 3}
    try:
        if node.locate is not None:
            options["host"], options["port"] = node.locate()
        connection = node.connection_class(**options)
        connection.connect()
        connection.send_command("CLIENT", "TRACKING", "ON")
        connection.read_response()
    except Exception:  # noqa: BLE001  # whatever it is, there is another way to wait
        return None
    return Listener(connection, name)
