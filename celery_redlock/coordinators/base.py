"""What every coordinator speaks: the protocol and its plain values.  Pure.

Expected outcomes are values (:class:`Grant`, :class:`Conflict`, ``None``); an exception means
that nobody can say (:class:`~celery_redlock.exceptions.CoordinatorUnavailable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, runtime_checkable

from celery_redlock.fencing import FencingToken

__all__ = ["Aftermath", "Capabilities", "Conflict", "Coordinator", "Failure", "Finding"]
__all__ += ["Grant", "Held", "Holder"]
__all__ += ["TellsTime"]

Failure = Literal["pause", "failover", "amnesia", "clock_jump", "partition"]
"""What can go wrong: the holder is frozen for longer than the ttl; a server is lost for good and
another takes its place; a server restarts without what it knew; a server's wall clock is set;
the holder, or some servers, can't reach the others."""


@dataclass(frozen=True)
class Holder:
    """Readable facts about who asks for a lock; no decision is ever based on them alone.

    Attributes:
        task: the task's name; empty outside a task.
        id: the task's id; empty outside a task.
        attempt: random, new for each delivery of the task's message.
        host: the machine's name.
        pid: the process id on that machine.
        boot_nonce: random, new for each process, since a pid is used again.
        since: wall time in seconds since the epoch at which the holder asked; for people.
        queue: the name of the queue that the task came through, where it is known.
    """

    task: str = ""
    id: str = ""
    attempt: str = ""
    host: str = ""
    pid: int = 0
    boot_nonce: str = ""
    since: float = 0.0
    queue: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The facts as a plain dict, as results and errors carry them."""
        return dict(vars(self))  # flat: no need for the deep copy of asdict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Holder:
        """The holder that :meth:`to_dict` was made from; unknown names are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass(frozen=True)
class Grant:
    """What an acquire answers when the lock is ours.  Immutable; an extend gives a new one.

    Attributes:
        key: the lock's name.
        owner: the random value that proves who holds the lock, new for each attempt.
        ttl: seconds that this acquire or extend bought.
        valid_until: the trusted end, an instant of :data:`celery_redlock.clock.now`.
        fencing_token: the ordering number, the same after each extend; None where the
            coordinator gives none.
        record: what the coordinator needs to name the exact grant again; opaque to others.
    """

    key: str
    owner: str
    ttl: float
    valid_until: float
    fencing_token: FencingToken | None = None
    record: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Conflict:
    """What an acquire answers when somebody else is in the way.

    Attributes:
        key: the lock's name.
        holder: who holds it, where that is known.
        retry_after: seconds until the holder's lease ends unless it is renewed, if known.
        certain: True if one owner is known to hold the lock.  False if contenders split the
            votes, so that perhaps nobody holds it: asking again after a random delay decides.
    """

    key: str
    holder: Holder | None = None
    retry_after: float | None = None
    certain: bool = True


@dataclass(frozen=True)
class Held:
    """What a look at a lock shows.

    Attributes:
        key: the lock's name.
        owner: the random value of its present grant.
        holder: who holds it.
        ttl_left: seconds until the lease ends unless it is renewed.
        fencing_token: the grant's ordering number, if it has one.
        nodes: what each server said, by its address without a password, where there are several.
    """

    key: str
    owner: str
    holder: Holder
    ttl_left: float
    fencing_token: FencingToken | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One thing that a check saw.

    Attributes:
        level: ``"error"`` if correctness mode must not start with it, ``"warning"`` if it
            should be mended, ``"ok"`` for the record.
        subject: the server (without a password), task or setting that it is about.
        message: what was seen.
        cure: how to mend it; empty where nothing needs mending.
        passing: whether it may be over by itself, as a server that is down may be up again: no
            reason to keep a worker from starting.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    cure: str = ""
    passing: bool = False


@dataclass(frozen=True)
class Aftermath:
    """What is left of a coordinator's promises after one kind of failure.

    Attributes:
        exclusion: whether a lock that is held still keeps everybody else out.
        order: whether every later fencing token is still higher than all before it; False too
            where there is none.
        when: under which condition, in a few words; empty where there is none.
    """

    exclusion: bool
    order: bool
    when: str = ""


@dataclass(frozen=True)
class Capabilities:
    """What a coordinator promises; the documentation's table of guarantees is made from it.

    Attributes:
        name: what people call the coordinator.
        fencing: whether each grant carries a fencing token that rises.
        exclusion: in a few words, what mutual exclusion rests on.
        survives_failover: whether a granted lock outlives the loss of one server.
        survives_restart: whether a granted lock outlives a restart of its servers.
        min_ttl: the shortest ttl in seconds that works.
        tests_only: whether it must not be used across processes.
        no_fencing_because: why correctness mode is refused, where ``fencing`` is False.
        after: what is left of the promises after each kind of failure.
    """

    name: str
    fencing: bool
    exclusion: str
    survives_failover: bool
    survives_restart: bool
    min_ttl: float = 0.0
    tests_only: bool = False
    no_fencing_because: str = ""
    after: Mapping[Failure, Aftermath] = field(default_factory=dict)


@runtime_checkable
class Coordinator(Protocol):
    """A service that grants locks.

    No implementation retries, sleeps or starts a thread.  Every method may be called from
    several threads and after a fork.  Foreign exceptions never leave it: what can't be
    answered is :class:`~celery_redlock.exceptions.CoordinatorUnavailable`.
    """

    capabilities: Capabilities

    def acquire(self, key: str, owner: str, ttl: float, holder: Holder) -> Grant | Conflict:
        """Ask for the lock once.

        Args:
            key: the lock's name, not empty.
            owner: random and new for this attempt; asking again with the same owner while it
                holds the lock gives the same grant (and token) again.
            ttl: seconds, more than ``capabilities.min_ttl``.
            holder: readable facts, shown to others.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Prolong this exact grant to ``ttl`` seconds from now; None if it is not ours any more.

        Never re-creates a lock, and deletes nothing when it fails.

        Raises:
            CoordinatorUnavailable: nobody can say; the old grant's deadline still stands.
        """

    def release(self, grant: Grant) -> bool:
        """Give this exact grant back; False if it was not ours any more.

        Raises:
            CoordinatorUnavailable: it could not be said everywhere; worth repeating until
                the grant has run out.
        """

    def inspect(self, key: str) -> Held | None:
        """Who holds the lock now; None if nobody does.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """

    def raise_floor(self, floor: int) -> int:
        """Make every fencing token from now on higher than ``floor``; the floor that is in force.

        For a move from another coordinator, whose tokens were higher.  A floor is never lowered,
        and a lock that is held keeps its token.

        Args:
            floor: the highest token that any resource has seen, 0 or more.

        Raises:
            CoordinatorUnavailable: it could not be raised everywhere; ask again.
            ImproperlyConfigured: this coordinator gives no tokens, or none so high.
        """

    def check(self) -> list[Finding]:
        """What an operator should know of this coordinator.  Never raises."""

    def close(self) -> None:
        """Let go of connections; the coordinator may be used again afterwards."""


@runtime_checkable
class TellsTime(Protocol):
    """A coordinator that also tells the wall clock that it goes by.

    One whose clock shows whole seconds only says so with ``server_time_step = 1.0``.
    """

    def server_time(self) -> float:
        """The wall clock, in seconds since the epoch.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
