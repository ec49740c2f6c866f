"""Where locks lie in ZooKeeper's tree, what is stored there, and how it is removed.  Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_redlock.coordinators.base import Holder
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.fencing import FencingToken

__all__ = ["Content", "Floor", "Paths", "child", "deletion", "safe_name"]

_LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class Paths:
    """The paths of one kind of locks of one application.

    ::

        <chroot>/<prefix>/floor
        <chroot>/<prefix>/clock
        <chroot>/<prefix>/<kind>/<two hex digits>/<lock>/<owner>

    The two digits spread the locks, because the list of one node's children is limited to a
    megabyte.

    Attributes:
        chroot: starts with a slash and ends without; or empty.
        prefix: of the application.
        kind: of the locks.
    """

    chroot: str
    prefix: str
    kind: str

    @property
    def base(self) -> str:
        """What all the application's nodes lie under."""
        return f"{self.chroot}/{safe_name(self.prefix)}"

    @property
    def floor(self) -> str:
        """The number that is added to each token."""
        return f"{self.base}/floor"

    @property
    def clock(self) -> str:
        """A node that is written to learn what time it is."""
        return f"{self.base}/clock"

    @property
    def locks(self) -> str:
        """What the locks lie under, two levels deeper."""
        return f"{self.base}/{self.kind}"

    def lock(self, key: str) -> str:
        """A lock's node, for any key."""
        name = safe_name(key)
        digest = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        if len(name) > _LONGEST:
            name = f"{name[:_LONGEST]}#{digest}"
        return f"{self.locks}/{digest[:2]}/{name}"


def safe_name(name: str) -> str:
    """A name without slashes or anything else that a path can't hold."""
    quoted = quote(name, safe=" :;,+=@()[]{}<>|^~!$&'*", errors="surrogatepass")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


@dataclass(frozen=True)
class Content:
    """What a lock's node holds.

    Attributes:
        owner: the random value of the grant; empty if a stranger wrote the node.
        holder: who holds it, where that is known.
        ttl: seconds from the node's last change to the lock's end.
    """

    owner: str
    holder: Holder | None
    ttl: float

    @classmethod
    def of(cls, data: bytes) -> Content:
        """The content that :meth:`to_bytes` was made from."""
        try:
            value: Any = json.loads(data)
            holder = Holder.from_dict(value["holder"])
            return cls(str(value["owner"]), holder, float(value["ttl"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls("", None, float("inf"))

    def to_bytes(self) -> bytes:
        """What is stored."""
        holder = self.holder.to_dict() if self.holder else {}
        return json.dumps({"owner": self.owner, "holder": holder, "ttl": self.ttl}).encode()


class Floor(NamedTuple):
    """The number that is added to each czxid.

    Attributes:
        value: 0 if it was never raised.
        written: the number of the transaction that raised it.
    """

    value: int
    written: int

    @classmethod
    def of(cls, found: tuple[bytes, Any] | None) -> Floor:
        """The floor that a read found.

        Raises:
            CoordinatorUnavailable: it is no number.
        """
        if found is None:
            return cls(0, 0)
        if not found[0].isdigit():
            raise CoordinatorUnavailable("the node of the floor holds something else than a number")
        return cls(int(found[0]), found[1].mzxid)

    def token(self, key: str, czxid: int) -> FencingToken:
        """The fencing token of the lock that was made by transaction ``czxid``.

        Raises:
            CoordinatorUnavailable: the floor was raised after that, so what it was is not known.
        """
        if self.written > czxid:
            raise CoordinatorUnavailable("the floor of the tokens was raised meanwhile; ask again")
        return FencingToken(self.value + czxid, key)


def child(path: str, owner: str) -> str:
    """The node that names the exact grant of a lock's node."""
    return f"{path}/{safe_name(owner)}"


def deletion(path: str, owner: str) -> Callable[[Any], None]:
    """Delete the lock of exactly this owner."""

    def fill(transaction: Any) -> None:
        transaction.delete(child(path, owner))
        transaction.delete(path)

    return fill
