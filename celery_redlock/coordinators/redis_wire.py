"""The Redis protocol (RESP2), packed and parsed.  No socket here.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/.  The client library's own
parser is not used, because it blocks on a reply of which only a part has arrived.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ErrorReply", "Parser", "ProtocolError", "pack", "pack_words"]

# What nearly every answer is, so that it need not be taken apart.
_USUAL: dict[bytes, Any] = {
    b":1\r\n": 1,
    b":0\r\n": 0,
    b":-1\r\n": -1,
    b"$-1\r\n": None,
    b"+OK\r\n": b"OK",
}


class ProtocolError(Exception):
    """The peer doesn't speak RESP2."""


class ErrorReply(str):
    """What a server says when it refuses a command, as ``"NOPERM this user has no ..."``."""

    __slots__ = ()

    @property
    def code(self) -> str:
        """The first word."""
        return self.partition(" ")[0]


class _Incomplete(Exception):
    """The rest of a reply has not arrived yet."""


def pack(*words: str | int) -> bytes:
    """One command as it goes over the wire."""
    return b"*%d\r\n%b" % (len(words), pack_words(*words))


def pack_words(*words: str | int) -> bytes:
    """A part of a command, without the count of words that it begins with."""
    texts = [str(word) for word in words]
    packed = "".join([f"${len(text)}\r\n{text}\r\n" for text in texts])
    if packed.isascii():
        return packed.encode()
    data = [text.encode() for text in texts]
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in data])


class Parser:
    """Turns what arrives on one connection into replies, however it is cut into pieces."""

    def __init__(self) -> None:
        """Start with nothing received."""
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """The replies that ``data`` completes: int, bytes, None, list or :class:`ErrorReply`.

        Raises:
            ProtocolError: this is not RESP2; the connection is of no more use.
        """
        if data in _USUAL and not self._rest:
            return [_USUAL[data]]
        if self._rest:
            data = self._rest + data
        replies: list[Any] = []
        position, end = 0, len(data)
        try:
            while position < end:
                reply, position = _parse(data, position)
                replies.append(reply)
        except _Incomplete:
            pass
        except ValueError as exc:
            raise ProtocolError(f"malformed length in {data[position : position + 40]!r}") from exc
        self._rest = data[position:]
        return replies


def _parse(data: bytes, start: int) -> tuple[Any, int]:
    end = data.find(b"\r\n", start)
    if end < 0:
        raise _Incomplete
    kind, line, after = data[start : start + 1], data[start + 1 : end], end + 2
    if kind == b":":
        return int(line), after
    if kind == b"$":
        return _bulk(data, after, int(line))
    if kind == b"*":
        return _array(data, after, int(line))
    if kind == b"+":
        return line, after
    if kind == b"-":
        return ErrorReply(line.decode(errors="replace")), after
    raise ProtocolError(f"unexpected {data[start : start + 40]!r}")


def _bulk(data: bytes, start: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, start
    end = start + length
    if len(data) < end + 2:
        raise _Incomplete
    return data[start:end], end + 2


def _array(data: bytes, position: int, length: int) -> tuple[list[Any] | None, int]:
    if length < 0:
        return None, position
    items: list[Any] = []
    for _ in range(length):
        item, position = _parse(data, position)
        items.append(item)
    return items, position
