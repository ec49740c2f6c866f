"""What stands under etcd's keys, as values; and the requests that read and write it.  Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery_redlock.coordinators.base import Holder
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.fencing import FencingToken

__all__ = ["Entry", "Floor", "binary", "created_at", "put", "read", "the_only", "written_at"]


def binary(text: str) -> str:
    """A text as the gateway wants its bytes."""
    return base64.b64encode(text.encode()).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode(errors="replace")


@dataclass(frozen=True)
class Floor:
    """The number that is added to each revision, so that tokens continue another's.

    Attributes:
        value: 0 or more.
        written: the revision that wrote it; 0 if it was never raised.
    """

    value: int = 0
    written: int = 0

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Floor:
        """The floor that a range response found.

        Raises:
            CoordinatorUnavailable: it is no number.
        """
        if found is None:
            return cls()
        digits = _text(found.get("value", ""))
        if not digits.isdigit():
            raise CoordinatorUnavailable("the key of the floor holds something else than a number")
        return cls(int(digits), int(found["mod_revision"]))


@dataclass(frozen=True)
class Entry:
    """A lock's key.

    Attributes:
        owner: the random value of the grant; empty if a stranger wrote the key.
        holder: who holds it, where the value tells.
        ttl: whole seconds of the lease that it was bound to.
        floor: what was in force when it was put.
        revision: the revision that created it.
        lease: the number of the lease that it is bound to.
    """

    owner: str
    holder: Holder | None
    ttl: int
    floor: int
    revision: int = 0
    lease: str = "0"

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Entry | None:
        """The entry that a range response found; None if there is none."""
        if found is None:
            return None
        revision, lease = int(found["create_revision"]), str(found.get("lease", "0"))
        try:
            value = json.loads(_text(found.get("value", "")))
            return cls(
                str(value["owner"]),
                Holder.from_dict(value["holder"]),
                int(value["ttl"]),
                int(value["floor"]),
                revision,
                lease,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls("", None, 0, 0, revision, lease)

    def value(self) -> str:
        """What is stored under the key."""
        holder = self.holder.to_dict() if self.holder else {}
        return json.dumps(
            {"owner": self.owner, "holder": holder, "ttl": self.ttl, "floor": self.floor}
        )

    def token(self, lock: str) -> FencingToken:
        """The fencing token of the grant."""
        return FencingToken(self.floor + self.revision, lock)

    def bound_to(self, lease: str, ttl: int) -> Entry:
        """The same grant on another lease."""
        return replace(self, lease=lease, ttl=ttl)


def created_at(name: str, revision: int) -> dict[str, Any]:
    """A comparison: the key was created by this revision (0: it doesn't exist)."""
    return _compare(name, "CREATE", "createRevision", revision)


def written_at(name: str, revision: int) -> dict[str, Any]:
    """A comparison: the key was written last by this revision (0: it doesn't exist)."""
    return _compare(name, "MOD", "modRevision", revision)


def _compare(name: str, target: str, field: str, revision: int) -> dict[str, Any]:
    return {"key": binary(name), "target": target, "result": "EQUAL", field: str(revision)}


def put(name: str, value: str, lease: str = "0") -> dict[str, Any]:
    """An operation of a transaction: write the key."""
    return {"requestPut": {"key": binary(name), "value": binary(value), "lease": lease}}


def read(name: str) -> dict[str, Any]:
    """An operation of a transaction: read the key."""
    return {"requestRange": {"key": binary(name)}}


def the_only(answer: Mapping[str, Any], part: int | None = None) -> Mapping[str, Any] | None:
    """The one key that a range found, or the one at a place in a transaction's answer."""
    if part is not None:
        answer = answer["responses"][part].get("response_range", {})
    found: list[Mapping[str, Any]] = answer.get("kvs", [])
    return found[0] if found else None
