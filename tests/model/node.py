"""One lock server in plain Python: what the scripts do, without time.  Nothing else.

``tests/properties/test_quorum_scripts.py`` holds it against the real scripts.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

__all__ = ["EMPTY", "NodeState", "acquire", "expire", "heal", "lift", "release"]


class NodeState(NamedTuple):
    """What a server keeps for one lock.

    Attributes:
        owner: who holds the lock; empty if nobody does.
        token: the fencing token that the lock carries.
        counter: of this lock; 0 if it is missing.
        highest: the highest token that the server has given.
        graves: the owners that were buried.
    """

    owner: str = ""
    token: int = 0
    counter: int = 0
    highest: int = 0
    graves: frozenset[str] = frozenset()


EMPTY = NodeState()

Answer = tuple[str, int]
"""What a server says, and a token: ``("yes", 7)``, ``("no", 0)`` or ``("buried", 0)``."""


@cache
def acquire(state: NodeState, owner: str, floor: int, base: int = 0) -> tuple[NodeState, Answer]:
    """Take the lock with a new token, unless somebody holds it; see ``acquire.lua``."""
    if state.owner == owner:
        return state, ("yes", state.token)
    if state.owner:
        return state, ("no", state.token)
    if owner in state.graves:
        return state, ("buried", 0)
    token = max((state.counter or state.highest) + 1, base + 1, floor)
    highest = max(state.highest, token)
    return state._replace(owner=owner, token=token, counter=token, highest=highest), ("yes", token)


@cache
def lift(state: NodeState, owner: str, token: int) -> tuple[NodeState, bool]:
    """Raise the token of our lock; see ``raise.lua``."""
    if state.owner != owner or token < state.token:
        return state, False
    counter, highest = max(state.counter, token), max(state.highest, token)
    return state._replace(token=token, counter=counter, highest=highest), True


def release(state: NodeState, owner: str, *, bury: bool) -> tuple[NodeState, bool]:
    """Give our lock back; see ``release.lua``."""
    if state.owner == owner:
        return expire(state), True
    if bury:
        return state._replace(graves=state.graves | {owner}), False
    return state, False


def heal(state: NodeState, owner: str, token: int) -> tuple[NodeState, bool]:
    """Put a lock back where it is missing; see ``heal.lua``."""
    if state.owner or owner in state.graves:
        return state, False
    counter, highest = max(state.counter, token), max(state.highest, token)
    return state._replace(owner=owner, token=token, counter=counter, highest=highest), True


def expire(state: NodeState) -> NodeState:
    """The lock's life has ended, for whatever reason."""
    return state._replace(owner="", token=0)
