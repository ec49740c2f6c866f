"""A process that takes locks and uses accounts, step by step as it is told over its pipes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from celery_redlock.coordinators import Conflict, CoordinatorSettings, Grant, Holder, from_urls
from celery_redlock.exceptions import CoordinatorUnavailable, StaleTokenError
from tests.faults.resources import RESOURCES, ThroughSQLAlchemy, balance_of, entry, set_balance

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG: also while stopped


def settings(prefix: str) -> CoordinatorSettings:
    """What a coordinator is told; patient, since the machine may be busy."""
    return CoordinatorSettings(prefix=prefix, fenced=True, node_timeout=0.3)


class HolderProcess:
    """The other end: starts such a process, and tells it what to do.

    Args:
        spec: what :class:`_Holder` needs.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.holder", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def send(self, do: str, **values: Any) -> None:
        """Tell it to do something, and don't wait."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Its next answer; ``{"died": True}`` if it never comes."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {"died": True}
        return answer

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Tell it to do something, and wait for the answer."""
        self.send(do, **values)
        return self.answer()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def halt(self) -> None:
        """SIGSTOP, and don't wait; it may be dead already."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class _Holder:
    """What the process does.

    Args:
        urls: of the coordinator.
        prefix: of its keys.
        ttl: seconds that a lock lasts; it is never renewed.
        resource: a name of ``RESOURCES``.
        url: of the resource.
        guarded: False: the tokens are left out.
    """

    def __init__(
        self,
        urls: Sequence[str],
        prefix: str,
        ttl: float,
        resource: str,
        url: str,
        *,
        guarded: bool,
    ) -> None:
        self.coordinator = from_urls(urls, settings(prefix))
        self.resource: Any = RESOURCES[resource](url)
        self.ttl, self.guarded = ttl, guarded
        self.grant: Grant | None = None
        self.seen = 0

    def token(self, grant: Grant | None) -> Any:
        assert grant
        assert grant.fencing_token
        return grant.fencing_token if self.guarded else None

    def take(self, key: str, patience: float) -> Grant | None:
        """Ask for a lock until it is ours or the patience (seconds) is over."""
        owner, give_up = secrets.token_hex(16), time.monotonic() + patience
        while True:
            with contextlib.suppress(CoordinatorUnavailable):
                got = self.coordinator.acquire(key, owner, self.ttl, Holder(pid=os.getpid()))
                if not isinstance(got, Conflict):
                    return got
            if time.monotonic() > give_up:
                return None
            time.sleep(0.005 + 0.02 * secrets.randbelow(1000) / 1000)  # there is nothing to wait on

    def give_back(self, grant: Grant) -> None:
        with contextlib.suppress(CoordinatorUnavailable):
            self.coordinator.release(grant)

    # The steps of the pause test.

    def acquire(self) -> dict[str, Any]:
        """Wait for the lock; its token."""
        self.grant = self.take("account:0", 60.0)
        assert self.grant
        assert self.grant.fencing_token
        return {"token": int(self.grant.fencing_token)}

    def look(self) -> dict[str, Any]:
        """Read the balance."""
        self.seen = self.resource.look(self.token(self.grant))
        return {"seen": self.seen}

    def save(self) -> dict[str, Any]:
        """Write 10 more than was read."""
        self.resource.save(self.token(self.grant), self.seen + 10)
        return {"saved": self.seen + 10}

    def release(self) -> dict[str, Any]:
        """Give the lock back; whether it still was ours."""
        assert self.grant
        return {"released": self.coordinator.release(self.grant)}

    def deposit_in_one(self) -> dict[str, Any]:
        """Read and write in one transaction, and wait for a line in between."""
        assert isinstance(self.resource, ThroughSQLAlchemy)
        with self.resource.transaction(self.token(self.grant)) as connection:
            seen = balance_of(connection, 0)
            _say({"seen": seen})
            sys.stdin.readline()
            set_balance(connection, 0, seen + 10)
        return {"saved": seen + 10}

    # The transfer test.

    def transfer(self, number: int, source: int, target: int, cents: int, pause: bool) -> Any:
        """Move money between two accounts, under the locks of both."""
        grants: list[Grant] = []
        try:
            for one in sorted((source, target)):
                grant = self.take(f"account:{one}", 0.2)
                if grant is None:
                    return {"busy": True}
                grants.append(grant)
            return self.moved([self.token(g) for g in grants], number, source, target, cents, pause)
        finally:
            for grant in grants:
                self.give_back(grant)

    def moved(
        self, tokens: list[Any], number: int, source: int, target: int, cents: int, pause: bool
    ) -> dict[str, Any]:
        assert isinstance(self.resource, ThroughSQLAlchemy)
        with self.resource.transaction(*tokens) as connection:
            if connection.execute(sa.select(entry).where(entry.c.id == number)).first():
                return {"done": True}  # by an attempt whose end nobody heard of
            before = [balance_of(connection, one) for one in (source, target)]
        if pause:
            _say({"pausing": True})
            os.kill(os.getpid(), signal.SIGSTOP)
        with self.resource.transaction(*tokens) as connection:
            values = {"id": number, "source": source, "target": target, "cents": cents}
            connection.execute(sa.insert(entry).values(values))
            set_balance(connection, source, before[0] - cents)
            set_balance(connection, target, before[1] + cents)
        return {"done": True}


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Do what comes over standard input until it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    holder = _Holder(**json.loads(sys.argv[1]))
    for line in sys.stdin:
        order = json.loads(line)
        try:
            _say(getattr(holder, order.pop("do"))(**order))
        except StaleTokenError as exc:
            _say({"stale": exc.fencing_token, "stored": exc.stored})
        except sa.exc.DBAPIError as exc:
            _say({"refused by the database": str(exc.orig)})


if __name__ == "__main__":
    main()
