"""One kind of lock, measured in a process of its own: ``contenders.py NAME URL...``.

Runs in the Python of the lock that it measures, so it uses nothing but the standard library and
that lock.  It reads one number a line and answers each with one line of JSON: the nanoseconds
of the cycles of acquire and release that succeeded, and what the other ones raised.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import count
from typing import Any

TTL = 1.0  # seconds
NODE_TIMEOUT = 0.05  # seconds that a lock server may take
RELEASE = (
    b'if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) end return 0'
)
Cycle = Callable[[str], Any]


def ours(urls: Sequence[str], *, fenced: bool = False) -> Cycle:
    """celery_redlock's coordinator: what a task costs at the least."""
    from celery_redlock.coordinators import CoordinatorSettings, Holder, from_urls

    settings = CoordinatorSettings(
        prefix="bench", node_timeout=NODE_TIMEOUT, max_ttl=2 * TTL, fenced=fenced
    )
    coordinator = from_urls(list(urls), settings)
    holder = Holder(task="bench", id=secrets.token_hex(16), host="here", pid=os.getpid())

    def cycle(key: str) -> None:
        grant: Any = coordinator.acquire(key, secrets.token_hex(16), TTL, holder)
        if not coordinator.release(grant):
            raise RuntimeError("the lock was not ours any more")

    return cycle


def ours_fenced(urls: Sequence[str]) -> Cycle:
    """The same with fencing tokens."""
    return ours(urls, fenced=True)


def ours_with(urls: Sequence[str]) -> Cycle:
    """celery_redlock as a program uses it: ``with locks.lock(...)``, watchdog and events too."""
    from celery import Celery

    from celery_redlock import Locks

    app = Celery("bench")
    app.conf.update(
        redlock_coordinators={"default": list(urls)},
        redlock_node_timeout=NODE_TIMEOUT,
        redlock_max_ttl=2 * TTL,
    )
    locks = Locks.for_app(app)

    def cycle(key: str) -> None:
        with locks.lock(key, ttl=TTL):
            pass

    return cycle


def redis_py(urls: Sequence[str]) -> Cycle:
    """redis-py's own Lock on the first server."""
    import redis

    client = redis.Redis.from_url(urls[0])

    def cycle(key: str) -> None:
        lock = client.lock(key, timeout=TTL, blocking=False)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        lock.release()

    return cycle


def redis_py_commands(urls: Sequence[str]) -> Cycle:
    """The two commands of a lock on one server, sent with redis-py: no Lock object around them."""
    import redis

    client = redis.Redis.from_url(urls[0])
    sha, life = client.script_load(RELEASE.decode()), int(TTL * 1000)

    def cycle(key: str) -> None:
        owner = secrets.token_hex(16)
        if not client.set(key, owner, nx=True, px=life) or not client.evalsha(sha, 1, key, owner):
            raise RuntimeError("not acquired, or not ours any more")

    return cycle


def redlock_ng(urls: Sequence[str]) -> Cycle:
    """redlock-ng, its synchronous class."""
    from redlock import Redlock, RedlockConfig

    manager = Redlock(
        RedlockConfig(
            masters=list(urls), socket_timeout=NODE_TIMEOUT, socket_connect_timeout=NODE_TIMEOUT
        ),
        retry_count=0,
    )

    def cycle(key: str) -> None:
        lock = manager.acquire(key, int(TTL * 1000))
        if lock is None:
            raise RuntimeError("not acquired")
        manager.release(lock)

    return cycle


def pottery(urls: Sequence[str]) -> Cycle:
    """Pottery's Redlock."""
    import redis
    from pottery import Redlock
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    patience = {"socket_timeout": NODE_TIMEOUT, "socket_connect_timeout": NODE_TIMEOUT}
    masters = {redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **patience) for url in urls}

    def cycle(key: str) -> None:
        lock = Redlock(key=key, masters=masters, auto_release_time=TTL)
        if not lock.acquire(blocking=False):
            raise RuntimeError("not acquired")
        lock.release()

    return cycle


class RawNode:
    """A bare connection that knows how many answers are still under way."""

    def __init__(self, url: str) -> None:
        """Connect, and load the script."""
        host, _, port = url.partition("://")[2].partition("/")[0].partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(resp(b"SCRIPT", b"LOAD", RELEASE))
        self.socket.recv(4096)
        self.late = 0

    def read(self) -> bytes:
        """The answer to the newest command, or nothing if only older ones came."""
        lines = self.socket.recv(4096).split(b"\r\n")[:-1]
        if not lines:
            raise ConnectionError("closed")
        self.late -= len(lines)
        return lines[-1] if self.late == 0 else b""


def resp(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)]
    return b"".join(parts)


def raw(urls: Sequence[str]) -> Cycle:
    """Bare sockets: write to all servers, go on as soon as a majority has said yes.

    The least that the algorithm can cost in Python: no clock, no validity, no error handling.
    """
    nodes = [RawNode(url) for url in urls]
    quorum, poller = len(nodes) // 2 + 1, select.poll()
    by_fd = {node.socket.fileno(): node for node in nodes}
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    sha, life = hashlib.sha1(RELEASE).hexdigest().encode(), b"%d" % (TTL * 1000)  # noqa: S324

    def ask(command: bytes, yes: bytes) -> None:
        for node in nodes:
            node.socket.send(command)
            node.late += 1
        agreed = 0
        while agreed < quorum:
            for fd, _ in poller.poll():
                agreed += by_fd[fd].read() == yes

    def cycle(key: str) -> None:
        name, owner = key.encode(), secrets.token_hex(16).encode()
        ask(resp(b"SET", name, owner, b"NX", b"PX", life), b"+OK")
        ask(resp(b"EVALSHA", sha, b"1", name, owner), b":1")

    return cycle


def key_making(_urls: Sequence[str]) -> Cycle:
    """The name of a lock, from a task's arguments; asks no server."""
    from celery_redlock.keys import KeyMaker

    def body(account_id: int, day: str, options: dict[str, Any], size: int = 128) -> None:
        """A signature of the usual kind."""

    maker = KeyMaker("shop.tasks.build_report", inspect.signature(body))
    options = {"currency": "EUR", "with_tax": True, "tags": ["a", "b", "c"]}
    return lambda key: maker.names((42, key), {"options": options})


def key_of_scalars(_urls: Sequence[str]) -> Cycle:
    """The name of a lock, from three scalar arguments."""
    from celery_redlock.keys import KeyMaker

    def body(account_id: int, day: str, ratio: float = 0.5) -> None:
        """What most tasks take."""

    maker = KeyMaker("shop.tasks.build_report", inspect.signature(body))
    return lambda key: maker.names((42, key), {"ratio": 0.25})


def _publisher(urls: Sequence[str], **options: Any) -> Cycle:
    """A producer: the first url is the broker, the others are lock servers."""
    from celery import Celery

    app = Celery("bench", broker=urls[0])
    app.conf.update(
        redlock_coordinators={"default": list(urls[1:])},
        redlock_node_timeout=NODE_TIMEOUT,
        task_ignore_result=True,
    )

    @app.task(name="bench.task", **options)
    def task(number: int) -> None:
        """Is only published."""

    numbers = count()
    return lambda key: task.delay(next(numbers))


def publish(urls: Sequence[str]) -> Cycle:
    """A plain Celery task."""
    return _publisher(urls)


def publish_locked(urls: Sequence[str]) -> Cycle:
    """A task that takes its lock when it runs."""
    from celery_redlock import LockedTask

    return _publisher(urls, base=LockedTask)


def publish_unique(urls: Sequence[str]) -> Cycle:
    """A task that takes a queue lock before it is published."""
    from celery_redlock import LockedTask

    return _publisher(urls, base=LockedTask, lock_scope="until_executing")


def acquire(urls: Sequence[str]) -> Cycle:
    """One acquire of a lock that nobody has, and nothing else: one parallel round trip."""
    from celery_redlock.coordinators import CoordinatorSettings, Holder, from_urls

    settings = CoordinatorSettings(
        prefix="bench", node_timeout=NODE_TIMEOUT, max_ttl=60.0, kind="queue"
    )
    coordinator = from_urls(list(urls[1:]), settings)
    holder = Holder(task="bench", id=secrets.token_hex(16), host="here", pid=os.getpid())
    numbers = count()
    return lambda key: coordinator.acquire(
        f"alone {next(numbers)}", secrets.token_hex(16), 5.0, holder
    )


KINDS: dict[str, Callable[[Sequence[str]], Cycle]] = {
    kind.__name__: kind
    for kind in (
        ours,
        ours_fenced,
        ours_with,
        redis_py,
        redis_py_commands,
        redlock_ng,
        pottery,
        raw,
        key_making,
        key_of_scalars,
        publish,
        publish_locked,
        publish_unique,
        acquire,
    )
}


def library_versions() -> dict[str, str]:
    """The versions of what could matter here."""
    found = {}
    for name in ("redis", "celery", "redlock-ng", "pottery", "hiredis"):
        with suppress(Exception):
            found[name] = version(name)
    return found


def main(name: str, urls: Sequence[str]) -> None:
    """Serve until the input ends."""
    cycle, numbers = KINDS[name](urls), count()
    print(json.dumps(library_versions()), flush=True)
    for line in sys.stdin:
        times: list[int] = []
        failures: dict[str, int] = {}
        for _ in range(int(line)):
            key = f"bench:{name}:{next(numbers) % 500}"
            start = time.perf_counter_ns()
            try:
                cycle(key)
            except Exception as exc:  # noqa: BLE001 - whatever a lock raises is its answer
                said = f"{type(exc).__name__}: {exc}".replace(key, "...")[:300]
                failures[said] = failures.get(said, 0) + 1
            else:
                times.append(time.perf_counter_ns() - start)
        print(json.dumps({"ns": times, "failures": failures}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
