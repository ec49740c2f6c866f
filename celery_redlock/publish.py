"""At publish: what a worker can't find out by itself travels in one message header.

A worker knows the exchange and the routing key of a message but not its queue, so the queue is
written down here, with the options of the call and the ticket of its queue lock.  Nothing in the
header is ever trusted for ownership: a ticket's lock is given back only by its owner's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.keys import KeyMaker
from celery_redlock.locks import Locks, run_signature, task_level
from celery_redlock.options import OPTION_NAMES, Level, LockOptions
from celery_redlock.uniqueness import QUEUE_SCOPES, QueueLock

__all__ = ["HEADER", "Line", "Ticket", "call_options", "current_line", "header_of", "options_in"]
__all__ += ["with_header"]

HEADER = "redlock"
_TICKET = "ticket"


def header_of(request: Any) -> Mapping[str, Any]:
    """Our header of a running task's message; empty where there is none."""
    found = getattr(request, HEADER, None) or (request.headers or {}).get(HEADER)
    return found if isinstance(found, Mapping) else {}


def with_header(headers: Mapping[str, Any] | None, **facts: Any) -> dict[str, Any]:
    """Message headers with ours added, or with ``facts`` put into the one that is there."""
    known = (headers or {}).get(HEADER)
    ours = dict(known) if isinstance(known, Mapping) else {}
    ours.update((name, value) for name, value in facts.items() if value is not None)
    return {**(headers or {}), HEADER: ours}


def options_in(header: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of the call, as far as this version knows them; None if there are none.

    A producer that is deployed before its workers may send an option that they don't know yet.
    """
    found = header.get("options")
    if not isinstance(found, Mapping):
        return None
    return {name: value for name, value in found.items() if name in OPTION_NAMES} or None


@dataclass(frozen=True)
class Ticket:
    """The queue lock that a message carries, in a form that every serializer carries.

    Attributes:
        id: the task id of the message that it was made for; of no use in another one.
        keys: the names of the lock.
        owner: whose it is.
        scope: until when it is kept.
        ttl: its life in seconds while the message waits.
        coordinator: the name of who granted it; empty where it was named by its url, which may
            hold a password.
        policy: what is done about duplicates.
    """

    id: str
    keys: tuple[str, ...]
    owner: str
    scope: str
    ttl: float
    coordinator: str = ""
    policy: str = "return_existing"

    def into(self, header: dict[str, Any]) -> None:
        """Write it into our header."""
        header[_TICKET] = {**vars(self), "keys": list(self.keys)}

    @classmethod
    def pop(cls, header: dict[str, Any], task_id: str | None) -> Ticket | None:
        """Take it out of our header; None unless there is one that was made for this task id."""
        found = cls.of(header, task_id)
        header.pop(_TICKET, None)
        return found

    @classmethod
    def of(cls, header: Mapping[str, Any], task_id: str | None) -> Ticket | None:
        """The ticket in our header; None unless there is one that was made for this task id."""
        facts = header.get(_TICKET)
        if not isinstance(facts, Mapping) or not task_id or facts.get("id") != task_id:
            return None
        keys, texts = facts.get("keys"), ("id", "owner", "scope", "coordinator", "policy")
        if not isinstance(keys, (list, tuple)) or not all(isinstance(k, str) and k for k in keys):
            return None
        plain = {name: str(facts.get(name) or "") for name in texts}
        ttl = facts.get("ttl")
        if not isinstance(ttl, (int, float)) or ttl <= 0 or not plain["owner"] or not keys:
            return None
        return cls(keys=tuple(keys), ttl=float(ttl), **plain) if _known(plain["scope"]) else None

    def lock(self, locks: Locks, otherwise: str | tuple[str, ...] = "default") -> QueueLock:
        """The lock itself.

        Args:
            locks: the locks of the application.
            otherwise: who granted it, where the ticket doesn't say.

        Raises:
            ImproperlyConfigured: this process knows no such coordinator.
        """
        known = self.coordinator in locks.settings.coordinators
        name = self.coordinator if known else otherwise
        coordinator = locks.coordinator(name, "efficiency", "queue")
        return QueueLock(coordinator, self.keys, self.owner, self.ttl)


def _known(scope: str) -> bool:
    return scope in QUEUE_SCOPES


class Line(Protocol):
    """What a running body stands in: the line of calls with its keys."""

    def shares(self, keys: Sequence[str]) -> bool:
        """Whether one of these is a key of the running task."""

    def holds(self, keys: Sequence[str]) -> bool:
        """Whether the running task has the queue lock of these keys."""

    def adopt(self, ticket: Ticket, task: str) -> None:
        """Let the message with this ticket have the queue lock next."""


_line: ContextVar[Line | None] = ContextVar("celery_redlock_line", default=None)


def current_line() -> ContextVar[Line | None]:
    """Where the line of the running body is kept."""
    return _line


def call_options(
    task: Any, lock: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of one call in a form that every serializer carries.

    Args:
        task: the task that is called.
        lock: the options as the caller wrote them.
        args: the call's positional arguments.
        kwargs: the call's keyword arguments.

    Raises:
        ImproperlyConfigured: an option is unknown or not allowed.
    """
    if not isinstance(lock, Mapping):
        raise ImproperlyConfigured(
            f"lock=<{type(lock).__name__}>: must be a dict of options such as {{'ttl': 60, 'wait': 5}}"
        )
    level = Level("the call", lock, "lock['{}']")
    cls = task.__class__
    options = LockOptions.layered(level, task_level(cls))
    plain = {name: getattr(options, name) for name in lock}
    if callable(plain.get("key")) or isinstance(plain.get("key"), tuple):
        maker = KeyMaker(task.name, run_signature(cls), key=options.key, args=options.args)
        plain["key"] = [_escaped(name) for name in maker.names(args, kwargs)]
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()
    }


def _escaped(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")
