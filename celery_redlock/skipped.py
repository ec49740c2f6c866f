"""The result of a task that was skipped because somebody else holds its lock.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Skipped"]


class Skipped(dict[str, Any]):
    """A plain dict, so that every result backend shows it as it is.

    It reads ``{"skipped": True, "key": <lock's name>, "holder": {…}}``.

    Args:
        key: the lock's name.
        holder: readable facts about who holds it.
    """

    def __init__(self, key: str, holder: Mapping[str, Any]) -> None:
        """Put the facts in."""
        super().__init__(skipped=True, key=key, holder=dict(holder))

    def __reduce__(self) -> tuple[type[Skipped], tuple[str, dict[str, Any]]]:
        """Pickle by the arguments that made it."""
        return Skipped, (self["key"], self["holder"])
