"""The names of the keys, and the commands of one lock as they go over the wire.  No socket here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from celery_redlock.coordinators.redis_wire import pack, pack_words

__all__ = ["ACQUIRE", "EXTEND", "HAND_OVER", "HEAL", "LEAVE", "LOAD_SCRIPTS", "MARK", "RAISE"]
__all__ += ["RELEASE", "SCRIPTS"]
__all__ += ["NOBODY", "Kind", "Names", "Script", "milliseconds"]

NOBODY = "-"
"""The owner of a lock that is kept from everybody for a moment, by ``release.lua``."""

Kind = Literal["lock", "queue"]
"""A run lock, or a queue lock: two locks of one name that don't exclude each other."""


class Script:
    """One Lua script, called by its hash.

    Args:
        name: of the file in the folder ``lua``, without its ending.
    """

    def __init__(self, name: str) -> None:
        """Read the script."""
        folder = resources.files("celery_redlock.coordinators") / "lua"
        self.name = name
        self.text = (folder / f"{name}.lua").read_text("utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self._start = pack_words("EVALSHA", self.sha)

    def call(self, keys: tuple[str, ...], *words: str | int) -> bytes:
        """The packed command that runs it."""
        count = 3 + len(keys) + len(words)
        return b"*%d\r\n%b%b" % (count, self._start, pack_words(len(keys), *keys, *words))


ACQUIRE, RAISE, RELEASE = Script("acquire"), Script("raise"), Script("release")
EXTEND, HEAL, MARK = Script("extend"), Script("heal"), Script("mark")
LEAVE, HAND_OVER = Script("leave"), Script("hand_over")
SCRIPTS = (ACQUIRE, RAISE, RELEASE, EXTEND, HEAL, MARK, LEAVE, HAND_OVER)
LOAD_SCRIPTS = [pack("SCRIPT", "LOAD", script.text) for script in SCRIPTS]


@dataclass(frozen=True)
class Names:
    """What the keys of one application are called.

    All keys of one lock share a hash tag; those of the node don't, so the servers may not be
    members of a Redis Cluster.

    Attributes:
        prefix: starts every name.
        kind: ``"lock"`` for run locks, ``"queue"`` for queue locks.
    """

    prefix: str
    kind: Kind = "lock"

    def lock(self, key: str) -> str:
        """The lock itself: who holds it, until when."""
        return f"{self.prefix}:{{{key}}}:{self.kind}"

    def counter(self, key: str) -> str:
        """The highest fencing token of this lock; it may expire."""
        return f"{self.prefix}:{{{key}}}:token"

    def grave(self, key: str, owner: str) -> str:
        """Says for a while that ``owner`` has given up, should its request still arrive."""
        return f"{self.prefix}:{{{key}}}:dead:{owner}"

    def note(self, key: str) -> str:
        """What was left with this lock for whoever comes next."""
        return f"{self.prefix}:{{{key}}}:note"

    @property
    def highest(self) -> str:
        """The highest fencing token that the node has ever given; never expires."""
        return f"{self.prefix}:node:highest"

    @property
    def epoch(self) -> str:
        """Which set of nodes this one belongs to; never expires."""
        return f"{self.prefix}:node:epoch"

    @property
    def resting(self) -> str:
        """There while a re-admitted node may not vote yet."""
        return f"{self.prefix}:node:resting"

    @property
    def probe(self) -> str:
        """Never exists for longer than an instant: what a server can do is tried on it."""
        return f"{self.prefix}:node:probe"


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded up, of at least 1."""
    return max(1, -int(-seconds * 1000 // 1))
