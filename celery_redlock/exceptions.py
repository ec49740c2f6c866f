"""Every error that celery_redlock raises.  Pure.

Each error's arguments are exactly its attributes, all of them plain values, so that an error
survives pickle and Celery's JSON result format (which rebuilds it as ``type(*args)``).  No
message holds a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "CoordinatorUnavailable",
    "DuplicateTask",
    "ImproperlyConfigured",
    "LockLost",
    "LockLostInterrupt",
    "LockNotAcquired",
    "RedlockError",
    "StaleTokenError",
]


class RedlockError(Exception):
    """What every error of this package derives from."""


class ImproperlyConfigured(RedlockError):
    """A setting, an option or an argument can't be used; the message says how to mend it."""


class LockNotAcquired(RedlockError):
    """Somebody else holds the lock.

    Args:
        key: the lock's name.
        holder: readable facts about who holds it, where they are known.
        retry_after: seconds until the holder's lease ends unless it is renewed, if known.
    """

    def __init__(
        self,
        key: str,
        holder: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Keep the facts; the message is made when it is asked for."""
        self.key = key
        self.holder = dict(holder) if holder else None
        self.retry_after = retry_after
        super().__init__(key, self.holder, retry_after)

    def __str__(self) -> str:
        return f"lock {self.key!r} is held by {describe_holder(self.holder)}"


class DuplicateTask(LockNotAcquired):
    """An equal call is queued or running already, and the policy is to say so.

    Args:
        key: the lock's name.
        holder: readable facts about who holds it, where they are known.
        retry_after: seconds until the holder's lease ends unless it is renewed, if known.
        task_id: the id of the task that is alive.
    """

    def __init__(
        self,
        key: str,
        holder: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
        task_id: str | None = None,
    ) -> None:
        """Keep the facts; the message is made when it is asked for."""
        super().__init__(key, holder, retry_after)
        self.task_id = task_id
        self.args = (key, self.holder, retry_after, task_id)

    def __str__(self) -> str:
        return f"lock {self.key!r}: an equal call is alive as task {self.task_id}"


class LockLost(RedlockError):
    """The lock was lost while the body was running.

    Args:
        key: the lock's name.
        fencing_token: the token of the lost grant, if it had one.
        reason: what was seen, in words.
    """

    def __init__(self, key: str, fencing_token: int | None = None, reason: str = "") -> None:
        """Keep the facts; the message is made when it is asked for."""
        self.key = key
        self.fencing_token = fencing_token
        self.reason = reason
        super().__init__(key, None if fencing_token is None else int(fencing_token), reason)

    def __str__(self) -> str:
        token = "" if self.fencing_token is None else f" (fencing token {self.fencing_token})"
        return f"lock {self.key!r}{token} was lost: {self.reason or 'it is not ours any more'}"


class CoordinatorUnavailable(RedlockError):
    """Nobody can say whether the lock is free: too few lock servers answered.

    Args:
        message: what was asked, and how many answers it needed.
        nodes: what each server said, by its address without a password.
    """

    def __init__(self, message: str, nodes: Mapping[str, str] | None = None) -> None:
        """Keep what each server said."""
        self.message = message
        self.nodes = dict(nodes or {})
        super().__init__(message, self.nodes)

    def __str__(self) -> str:
        said = "; ".join(f"{node}: {answer}" for node, answer in self.nodes.items())
        return f"{self.message} ({said})" if said else self.message


class StaleTokenError(RedlockError):
    """A resource has seen a higher fencing token: this holder was overtaken.

    Never retried automatically: the same token stays stale for ever.

    Args:
        lock: the lock's name.
        fencing_token: the token that was refused.
        stored: the highest token that the resource has seen, where it told.
    """

    def __init__(self, lock: str, fencing_token: int | None, stored: int | None = None) -> None:
        """Keep the facts; the message is made when it is asked for."""
        self.lock = lock
        self.fencing_token = fencing_token
        self.stored = stored
        token = None if fencing_token is None else int(fencing_token)
        super().__init__(lock, token, None if stored is None else int(stored))

    def __str__(self) -> str:
        seen = "a higher one" if self.stored is None else str(self.stored)
        return (
            f"fencing token {self.fencing_token} of lock {self.lock!r} is stale: "
            f"the resource has seen {seen}"
        )


class LockLostInterrupt(BaseException):
    """Stops a running body whose lock was lost; becomes :class:`LockLost` at its edge.

    Not an ``Exception``, so that ``except Exception`` in a body doesn't swallow it.
    """


def describe_holder(holder: Mapping[str, Any] | None) -> str:
    """One readable phrase for a holder, for messages and log lines."""
    if not holder:
        return "somebody unknown"
    who = holder.get("task") or "a holder outside a task"
    task_id = f"[{holder['id']}]" if holder.get("id") else ""
    return f"{who}{task_id} on {holder.get('host', '?')} (pid {holder.get('pid', '?')})"
