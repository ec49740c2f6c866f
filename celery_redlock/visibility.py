"""Keeps the messages of running tasks from being delivered again by a Redis broker.

Redis has no acknowledgements of its own, so kombu keeps unacknowledged messages in a sorted set,
``unacked_index``, scored by the time of delivery, and any worker delivers those again whose
score is older than the transport's ``visibility_timeout``.  While a body runs, its message is
scored anew from time to time.  Only members that are there are touched, so nothing that was
acknowledged comes back.

It never raises into a task, and has a thread and a connection of its own: a broker that hangs
delays no lease's renewal.  A worker that dies stops scoring, so its messages are delivered again
as usual.  (Source: ``kombu/transport/redis.py``, class ``QoS``.)
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from celery_redlock.clock import Clock, now
from celery_redlock.native import Condition, native_thread

__all__ = ["VisibilityHeartbeat"]

logger = logging.getLogger(__name__)

FIRST = 1.0  # most tasks are over by then, and cost the broker nothing
LONGEST = 60.0
SHARE = 5  # so that several tries fit into a visibility timeout
LINGER = 30.0  # seconds that the idle thread goes on looking, so that no task needs to wake it
BROKER_TIMEOUT = 1.0  # seconds that the broker may take to answer
FOREVER = float("inf")
KOMBU_DEFAULT = 3600.0  # kombu's visibility timeout, in seconds

Touch = Callable[[list[str], float], object]


@dataclass
class _Message:
    """How many runs of a message there are in this process, and when it is scored next."""

    runs: int
    next_at: float


class VisibilityHeartbeat:
    """Scores the unacknowledged messages of this process's running tasks anew.

    :meth:`for_app` gives the one of an application.  It does nothing for brokers other than
    Redis (or Valkey, with or without Sentinel), and nothing if the setting
    ``redlock_visibility_heartbeat`` is False.  After a fork it starts anew, without messages.

    Args:
        app: the Celery application.
        touch: scores messages: takes their delivery tags and the wall time in seconds.
            Default: in the application's broker.
        clock: gives the present instant.
    """

    def __init__(self, app: Any, touch: Touch | None = None, clock: Clock = now) -> None:
        """Look at the settings; connects to nothing."""
        self._clock = clock
        self._broker = _Broker(app)
        self._touch = self._broker.touch if touch is None else touch
        wanted = app.conf.get("redlock_visibility_heartbeat", True)
        self.active = bool(wanted) and (touch is not None or self._broker.emulates_acks())
        timeout = self._broker.visibility_timeout()
        self.first = min(FIRST, timeout / SHARE)
        self.interval = min(LONGEST, timeout / SHARE)
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._messages: dict[str, _Message] = {}
        self._changed = Condition()
        self._running = False
        self._wakes_at = FOREVER
        self._failing = False

    @classmethod
    def for_app(cls, app: Any) -> VisibilityHeartbeat:
        """The heartbeat of ``app`` in this process."""
        heartbeat = _by_app.get(app)
        if heartbeat is None:
            heartbeat = _by_app[app] = cls(app)
        return heartbeat

    def add(self, request: Any, *, acks_late: bool) -> None:
        """Keep a running task's message from being delivered again, until :meth:`remove`.

        Args:
            request: the task's request, as Celery gives it.
            acks_late: whether the message is acknowledged after the task; others are
                acknowledged by now.
        """
        tag = self._tag(request) if acks_late and self.active else None
        if tag is None:
            return
        if self._pid != os.getpid():
            self._start_anew()
        with self._changed.lock:
            message = self._messages.setdefault(tag, _Message(0, self._clock() + self.first))
            message.runs += 1
            if not self._running:
                self._running = True
                native_thread(self._run, "celery_redlock-visibility")
            elif message.next_at < self._wakes_at:
                self._changed.notify()

    def remove(self, request: Any) -> None:
        """Leave a message alone again; does nothing for one that was never added."""
        tag = self._tag(request) if self.active else None
        if tag not in self._messages or self._pid != os.getpid():
            return
        with self._changed.lock:
            message = self._messages[tag]
            message.runs -= 1
            if not message.runs:
                del self._messages[tag]

    def beat(self, instant: float) -> float:
        """Score what is due; seconds until the next pass is due, infinite if nothing is added.

        Never raises: a broker that can't be reached is tried again, and reported in the log.

        Args:
            instant: now, by the clock.
        """
        with self._changed.lock:
            due = [tag for tag, message in self._messages.items() if message.next_at <= instant]
        if due:
            pause = self.interval if self._touched(due) else min(self.interval, 2 * FIRST)
            with self._changed.lock:
                for tag in due:
                    if tag in self._messages:
                        self._messages[tag].next_at = instant + pause
        with self._changed.lock:
            next_at = min((m.next_at for m in self._messages.values()), default=FOREVER)
        return max(0.0, next_at - instant)

    def _touched(self, tags: list[str]) -> bool:
        try:
            self._touch(tags, time.time())
        except Exception as exc:  # noqa: BLE001 - whatever it is, no task may notice
            level = logging.DEBUG if self._failing else logging.WARNING
            logger.log(
                level,
                "the broker can't be told that %d tasks are still running, so their messages "
                "may be delivered again: %s: %s",
                len(tags),
                type(exc).__name__,
                exc,
            )
            self._failing = True
            return False
        if self._failing:
            logger.info("the broker is told again which tasks are still running")
        self._failing = False
        return True

    def _run(self) -> None:
        idle_since = self._clock()
        while True:
            pause = self.beat(self._clock())
            with self._changed.lock:
                instant = self._clock()
                if self._messages:
                    idle_since = instant
                idle = instant - idle_since > LINGER
                longest = FOREVER if idle else self.first
                self._wakes_at = instant + min(pause, longest)
                self._changed.wait(None if min(pause, longest) == FOREVER else min(pause, longest))
                if idle:
                    idle_since = self._clock()

    @staticmethod
    def _tag(request: Any) -> str | None:
        properties = getattr(request, "properties", None) or {}
        tag = properties.get("delivery_tag")
        return None if tag is None or getattr(request, "is_eager", False) else str(tag)


_by_app: WeakKeyDictionary[Any, VisibilityHeartbeat] = WeakKeyDictionary()


class _Broker:
    """A connection of our own to an application's broker, made at first use in each process."""

    def __init__(self, app: Any) -> None:
        """Connects to nothing."""
        self._app = app
        self._pid = 0
        self._connection: Any = None
        self._channel: Any = None

    def _options(self) -> dict[str, Any]:
        return dict(self._app.conf.broker_transport_options or {})

    def emulates_acks(self) -> bool:
        """Whether the broker keeps unacknowledged messages in a sorted set."""
        transport = self._app.connection_for_read().get_transport_cls()
        redis = getattr(transport, "driver_type", None) == "redis"
        return redis and bool(self._options().get("ack_emulation", True))

    def visibility_timeout(self) -> float:
        """Seconds after which an unacknowledged message is delivered again."""
        return max(1e-3, float(self._options().get("visibility_timeout", KOMBU_DEFAULT)))

    def touch(self, tags: list[str], score: float) -> None:
        """Give the messages that are still unacknowledged this score.

        Raises whatever the client library raises if the broker can't be reached.
        """
        channel = self._open()
        try:
            with channel.conn_or_acquire() as client:
                scores = dict.fromkeys(tags, score)
                client.zadd(channel.unacked_index_key, scores, xx=True, ch=True)
        except Exception:
            self._drop()
            raise

    def _open(self) -> Any:
        if self._pid != os.getpid():
            self._pid, self._connection, self._channel = os.getpid(), None, None
        if self._channel is None:
            if self._connection is None:
                self._connection = self._connect()
            try:
                self._channel = self._connection.channel()
            except Exception:
                self._connection.maybe_switch_next()  # of several broker urls, try the next one
                raise
        return self._channel

    def _connect(self) -> Any:
        timeouts = {
            "socket_timeout": BROKER_TIMEOUT,
            "socket_connect_timeout": BROKER_TIMEOUT,
            "retry_on_timeout": False,
        }
        return self._app.connection_for_read(transport_options=timeouts)

    def _drop(self) -> None:
        """Connect anew the next time."""
        channel, self._channel = self._channel, None
        try:
            channel.close()
        except Exception:  # it is broken: that is why it is dropped
            logger.debug("closing a broken connection to the broker failed", exc_info=True)
