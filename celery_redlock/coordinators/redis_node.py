"""One lock server: how to reach it, what it has told about itself, and when to leave it alone.

Sends no command of its own accord; connects, but only when it is told to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_redlock.coordinators.redis_wire import ErrorReply, pack

__all__ = ["Facts", "Node", "greeting", "learn"]

_FIRST_COOLDOWN, _LONGEST_COOLDOWN = 1.0, 10.0  # seconds


@dataclass(frozen=True)
class Facts:
    """What a server tells about itself on a new connection; None where it didn't tell.

    Attributes:
        run_id: random, new at each start of the server.
        role: ``"master"`` or ``"slave"``.
        version: as ``"valkey 9.1.2"``.
        up_since: the instant by which it had surely been started.
        appendonly: the setting of that name.
        appendfsync: the setting of that name.
        eviction: its ``maxmemory-policy``.
        marker: the epoch marker, if it has one.
        release: the native command that deletes a key of a known value, if it has one.
        extends: whether it can natively set the life of a key of a known value.
        takes: whether it can natively set a key that isn't there, or else say what is.
        refused: what it refused to do that can't be done without.
    """

    run_id: str | None
    role: str | None
    version: str
    up_since: float | None
    appendonly: str | None
    appendfsync: str | None
    eviction: str | None
    marker: str | None
    release: str | None
    extends: bool
    takes: bool
    refused: str

    @property
    def durable(self) -> bool:
        """Whether each change is on disk before it is answered."""
        return self.appendonly == "yes" and self.appendfsync == "always"


def greeting(epoch: str, probe: str, scripts: Sequence[bytes]) -> list[bytes]:
    """The commands that a new connection begins with; :func:`learn` reads their answers.

    The compare commands are tried on a key that doesn't exist: a server that knows them
    changes nothing, one that doesn't says so.

    Args:
        epoch: name of the epoch marker.
        probe: name of a key that never exists for longer than an instant.
        scripts: the commands that load the scripts.
    """
    return [
        pack("INFO", "server"),
        pack("INFO", "replication"),
        pack("CONFIG", "GET", "appendonly"),
        pack("CONFIG", "GET", "appendfsync"),
        pack("CONFIG", "GET", "maxmemory-policy"),
        pack("GET", epoch),
        pack("DELIFEQ", probe, "-"),
        pack("DELEX", probe, "IFEQ", "-"),
        pack("SET", probe, "-", "IFEQ", "-", "PX", 1),
        pack("SET", probe, "-", "NX", "GET", "PX", 1),
        *scripts,
    ]


def learn(answers: Sequence[Any], now: float) -> Facts:
    """The facts that the answers to :func:`greeting` tell, at instant ``now``."""
    server, replication = _info(answers[0]), _info(answers[1])
    needed = [answers[5], *answers[10:]]
    uptime = server.get("uptime_in_seconds")
    # Whole seconds of a wall clock: up to one too many.
    up_since = now - max(0.0, float(uptime) - 1.0) if uptime else None
    name = "valkey" if "valkey_version" in server else "redis"
    version = server.get("valkey_version") or server.get("redis_version") or "(version unknown)"
    return Facts(
        run_id=server.get("run_id"),
        role=replication.get("role"),
        version=f"{name} {version}",
        up_since=up_since,
        appendonly=_setting(answers[2]),
        appendfsync=_setting(answers[3]),
        eviction=_setting(answers[4]),
        marker=answers[5].decode() if isinstance(answers[5], bytes) else None,
        release=_native_release(answers[6], answers[7]),
        extends=not isinstance(answers[8], ErrorReply),
        takes=not isinstance(answers[9], ErrorReply),
        refused=next((str(one) for one in needed if isinstance(one, ErrorReply)), ""),
    )


def _info(answer: Any) -> dict[str, str]:
    if not isinstance(answer, bytes):
        return {}
    lines = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
    return {name: value.strip() for name, separator, value in lines if separator}


def _setting(answer: Any) -> str | None:
    if isinstance(answer, list) and len(answer) == 2 and isinstance(answer[1], bytes):
        return answer[1].decode(errors="replace")
    return None


def _native_release(delifeq: Any, delex: Any) -> str | None:
    if not isinstance(delifeq, ErrorReply):
        return "DELIFEQ"  # Valkey 9: DELIFEQ key value
    if not isinstance(delex, ErrorReply):
        return "DELEX"  # Redis 8.4: DELEX key IFEQ value
    return None


class Node:
    """One lock server, shared by all threads of a process.

    Args:
        shown: its address as people may see it, without a password.
        connection_class: redis-py's class for the kind of connection.
        options: what that class is constructed with.
        timeout: seconds that it may take to answer.
        locate: asks where the server is at present; None where its address is fixed.
        keep: kept alive as long as the node is.

    Attributes:
        facts: what it told last.
        identity: the ``run_id`` of the server that was last reached under this address; None
            since the last broken connection, for it may be another server by now.
        trouble: what was seen when it last failed; empty if it answers.
        cooling_until: the instant until which it is left out.
    """

    def __init__(
        self,
        shown: str,
        connection_class: Callable[..., Any],
        options: Mapping[str, Any],
        timeout: float,
        *,
        locate: Callable[[], tuple[str, int]] | None = None,
        keep: object = None,
    ) -> None:
        """Nothing is connected yet."""
        self.shown = shown
        self.connection_class = connection_class
        self.options = _tamed(options, timeout)
        self.timeout = timeout
        self.locate = locate
        self.facts: Facts | None = None
        self.identity: str | None = None
        self.trouble = ""
        self.cooling_until = 0.0
        self._owed: deque[tuple[float, bytes]] = deque(maxlen=1000)
        self._failures = 0
        self._keep = keep

    def trip(self, reason: str, now: float) -> None:
        """Leave the node out for a while, longer each time in a row, since it failed.

        Args:
            reason: what was seen, for messages.
            now: the present instant.
        """
        pause = min(_LONGEST_COOLDOWN, _FIRST_COOLDOWN * 2**self._failures)
        self._failures = min(self._failures + 1, 8)
        self.trouble = reason
        self.identity = None
        # Spread, so that the processes of a worker don't all come back at one instant.
        self.cooling_until = now + pause * random.uniform(0.5, 1.0)  # noqa: S311  # no secret

    def recover(self) -> None:
        """Forget earlier failures, since the node has answered."""
        if self._failures:
            self._failures, self.cooling_until, self.trouble = 0, 0.0, ""

    def owe(self, until: float, command: bytes) -> None:
        """Have a command sent on the next connection, if that comes before instant ``until``."""
        self._owed.append((until, command))

    def take_owed(self, now: float) -> list[bytes]:
        """The owed commands that are still worth sending, each of them once."""
        worth: list[bytes] = []
        while self._owed:
            try:
                until, command = self._owed.popleft()
            except IndexError:  # another thread took the last one
                break
            if until > now:
                worth.append(command)
        return worth

    def __repr__(self) -> str:
        return f"<Node {self.shown}{f' ({self.trouble})' if self.trouble else ''}>"


def _tamed(options: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """The user's options, with nothing in them that retries, waits or switches protocols.

    A retry would make a lost reply look like a stranger's lock, and one refused connection
    cost seconds.
    """
    foreign = ("maint", "oss_cluster_maint", "orig_", "himport", "event_dispatcher")
    kept = {name: value for name, value in options.items() if not name.startswith(foreign)}
    return {
        **kept,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": None,
        "retry_on_error": [],
        "retry_on_timeout": False,
        "health_check_interval": 0,
        "protocol": 2,
    }
