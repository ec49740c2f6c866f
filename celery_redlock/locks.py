"""The locks of one Celery application: its coordinators, and what each task makes of them."""

from __future__ import annotations

import inspect
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from celery_redlock import pool_child
from celery_redlock.bodies import TOKEN, run_signature, task_level, unfenceable
from celery_redlock.censor import censor_settings
from celery_redlock.conf import NAMES, Settings
from celery_redlock.coordinators.base import Coordinator, Holder
from celery_redlock.coordinators.urls import CoordinatorSettings, Kind, from_urls
from celery_redlock.exceptions import ImproperlyConfigured, LockNotAcquired
from celery_redlock.in_time import helpers
from celery_redlock.interrupt import Interruptible
from celery_redlock.keys import KeyMaker, explicit_name
from celery_redlock.lease import Lease
from celery_redlock.lock import Claimant, Session, boot_nonce, entered
from celery_redlock.notices import NoticeOptions
from celery_redlock.options import Level, LockOptions, Mode
from celery_redlock.results import prepare_results
from celery_redlock.signals import sink_for

__all__ = ["TOKEN", "Locks", "Plan", "run_signature", "task_level"]

LONGEST_QUEUE_TTL = 30 * 86400.0
_HOST = socket.gethostname()


@dataclass(frozen=True)
class Plan:
    """How one task is locked when it comes through one queue.

    Attributes:
        options: the options that result from all four levels.
        keys: makes the locks' names from a call's arguments.
        coordinator: who grants the locks.
        token_index: where the ``fencing_token`` parameter stands; None if there is none.
        token_by_position: whether it can't be given by its name.
        guard: how the guardian of a prefork worker is to look after the locks.
    """

    options: LockOptions
    keys: KeyMaker
    coordinator: Coordinator
    token_index: int | None
    token_by_position: bool
    guard: NoticeOptions


def _guard(options: LockOptions) -> NoticeOptions:
    return NoticeOptions(
        (options.coordinator, options.mode),
        options.ttl,
        options.renew_interval,
        kill=options.on_lost == "kill",
        abort=options.on_lost != "flag",
        max_hold=math.inf if options.max_hold is None else options.max_hold,
    )


class Locks:
    """The locks of one Celery application; :meth:`for_app` gives it.

    Attributes:
        settings: what the application's configuration says.
        sink: where events go.
        on_made: called with an application when its locks are made for it.
    """

    on_made: ClassVar[list[Callable[[Any], object]]] = []

    def __init__(self, app: Any) -> None:
        """Read the settings of ``app``; connects to nothing.

        Raises:
            ImproperlyConfigured: the settings can't be used.
        """
        self.settings = Settings.read(app)
        censor_settings()
        prepare_results(app.conf)
        self.sink = sink_for(app)
        self._coordinators: dict[tuple[tuple[str, ...], bool, Kind], Coordinator] = {}
        self._plans: dict[Any, Plan] = {}

    @classmethod
    def for_app(cls, app: Any) -> Locks:
        """The locks of ``app``, made at first use and again when a setting was changed.

        Raises:
            ImproperlyConfigured: the settings can't be used.
        """
        changes = app.conf.changes
        seen = tuple(map(changes.get, NAMES))
        known: tuple[Any, Locks] | None = app.__dict__.get("_celery_redlock")
        if known is not None and known[0] == seen:
            return known[1]
        locks = cls(app)
        app.__dict__["_celery_redlock"] = (seen, locks)
        if known is not None:
            known[1].let_go()
        for prepare in cls.on_made:
            prepare(app)
        return locks

    def coordinator(
        self, name: str | tuple[str, ...], mode: Mode, kind: Kind = "lock"
    ) -> Coordinator:
        """The coordinator for locks of a mode, by its name or url(s).

        Args:
            name: as in the option ``coordinator``.
            mode: the mode of the locks; a queue lock is never fenced.
            kind: ``"lock"`` for run locks, ``"queue"`` for queue locks.

        Raises:
            ImproperlyConfigured: it is unknown, or can't serve this mode.
        """
        urls, fenced = self.settings.urls(name), mode == "correctness" and kind == "lock"
        if (urls, fenced, kind) not in self._coordinators:
            made = from_urls(urls, self._shared(kind, fenced=fenced))
            if fenced and not made.capabilities.fencing:
                able = made.capabilities
                raise ImproperlyConfigured(
                    f"coordinator {able.name} can't be used in correctness mode: "
                    f"{able.no_fencing_because or 'it gives no fencing token'}"
                )
            self._coordinators[urls, fenced, kind] = made
        return self._coordinators[urls, fenced, kind]

    def _shared(self, kind: Kind, *, fenced: bool) -> CoordinatorSettings:
        if kind == "queue":  # a queue may be long, so its locks are
            return replace(self.settings.shared, kind=kind, max_ttl=LONGEST_QUEUE_TTL)
        return replace(self.settings.shared, kind=kind, fenced=fenced)

    def plan(self, task: Any, queue: str | None, call: Mapping[str, Any] | None) -> Plan:
        """How ``task`` is locked when it comes through ``queue`` with the call's own options.

        Raises:
            ImproperlyConfigured: the options can't be used, or not with this coordinator.
        """
        mark = (task.name, queue, repr(sorted(call.items())) if call else None)
        plan = self._plans.get(mark)
        if plan is None:
            plan = self._plans[mark] = self._make_plan(task, queue, call or {})
        return plan

    def forget(self, task_name: str) -> None:
        """Make the plans of a task anew at their next use, because its options were changed."""
        self._plans = {mark: plan for mark, plan in self._plans.items() if mark[0] != task_name}

    def _make_plan(self, task: Any, queue: str | None, call: Mapping[str, Any]) -> Plan:
        cls = task.__class__  # not type(): a shared task is a proxy
        options = LockOptions.layered(
            Level("the call", call, "lock['{}']"),
            task_level(cls),
            self.settings.pattern_level(task.name),
            self.settings.queue_level(queue),
            self.settings.app_level,
        )
        where = f"task {task.name}" + (f" in queue {queue!r}" if queue else "")
        coordinator = self._fitting(options, where)
        if options.queue_ttl > LONGEST_QUEUE_TTL:
            raise ImproperlyConfigured(
                f"queue_ttl={options.queue_ttl:g} of {where} is too long: at most "
                f"{LONGEST_QUEUE_TTL:g} s (30 days), so that a lost message can't block for ever"
            )
        signature = run_signature(cls)
        names = list(signature.parameters)
        index = names.index(TOKEN) if TOKEN in names else None
        if options.mode == "correctness" and (reason := unfenceable(cls)):
            raise ImproperlyConfigured(reason)
        only = index is not None and (
            signature.parameters[TOKEN].kind is inspect.Parameter.POSITIONAL_ONLY
        )
        keys = KeyMaker(task.name, signature, key=options.key, args=options.args)
        return Plan(options, keys, coordinator, index, only, _guard(options))

    def _fitting(self, options: LockOptions, where: str) -> Coordinator:
        """The coordinator of these options, if their times fit it."""
        coordinator = self.coordinator(options.coordinator, options.mode)
        shared, ttl = self.settings.shared, options.ttl
        if ttl > shared.max_ttl or options.min_hold > shared.max_ttl:
            name = "ttl" if ttl > shared.max_ttl else "min_hold"
            raise ImproperlyConfigured(
                f"{name}={getattr(options, name):g} of {where} is above redlock_max_ttl="
                f"{shared.max_ttl:g}: a lock is renewed while its body runs, so its ttl need not "
                "cover the body; shorten it, or raise redlock_max_ttl"
            )
        least = max(4 * shared.node_timeout, coordinator.capabilities.min_ttl)
        if ttl <= least:
            raise ImproperlyConfigured(
                f"ttl={ttl:g} of {where} is too short: it must be more than {least:g} s, which is "
                f"four times redlock_node_timeout={shared.node_timeout:g} or what the "
                f"coordinator ({coordinator.capabilities.name}) needs"
            )
        return coordinator

    def close(self) -> None:
        """Let go of the calling thread's connections; they are made again if need be.

        What is still being said in the background may be said first, for a second at most.
        """
        helpers().drain(1.0)
        self.let_go()

    def let_go(self) -> None:
        """Let go of the calling thread's connections at once."""
        for coordinator in self._coordinators.values():
            coordinator.close()

    def holder(self, **facts: Any) -> Holder:
        """Readable facts about a holder in this process."""
        return Holder(
            host=_HOST, pid=os.getpid(), boot_nonce=boot_nonce(), since=time.time(), **facts
        )

    @contextmanager
    def lock(self, key: str | Sequence[str], *, task: str = "", **options: Any) -> Iterator[Lease]:
        """Hold a lock for the time of a ``with`` block, outside of any task.

        Leaving the block never raises because of the lock: look at ``lease.lost``, or call
        ``lease.check()``, where it matters.  With ``on_lost="abort"`` the block is stopped when
        the lock is lost, as a task's body is, and ends with ``LockLost``.

        Args:
            key: the lock's name as it is, or several names; a task's ``lock_key`` of the same
                text names the same lock.
            task: who is shown as the holder, where somebody else is in the way.
            options: as in :class:`~celery_redlock.LockOptions`: ``ttl``, ``wait``, ``mode``,
                ``coordinator`` and so on; what isn't given comes from the application.

        Raises:
            LockNotAcquired: somebody else holds it, also after ``wait`` seconds.
            CoordinatorUnavailable: nobody can say.
            LockLost: with ``on_lost="abort"``, the lock was lost and the block was stopped.
            ImproperlyConfigured: an option can't be used.
        """
        given = tuple(key) if isinstance(key, (list, tuple, set, frozenset)) else (key,)
        if not given or not all(isinstance(name, str) and name for name in given):
            raise ImproperlyConfigured(f"key={key!r}: must be the lock's name, not empty")
        names = tuple(sorted(set(map(explicit_name, given))))
        level = Level("Locks.lock", {"on_lost": "flag", **options})
        chosen = LockOptions.layered(level, self.settings.app_level)
        coordinator = self._fitting(chosen, f"lock {', '.join(names)!r}")
        if chosen.on_lost == "kill" and not pool_child.is_looked_after():
            raise ImproperlyConfigured(
                "on_lost='kill' (Locks.lock): only the main process of a prefork worker kills, and "
                "only its own children; use 'abort' or 'flag' here"
            )
        holder = self.holder(task=task)
        claimant = Claimant(coordinator, names, chosen, holder, self.sink, _guard(chosen))
        with _held(claimant) as lease:
            yield lease


@contextmanager
def _held(claimant: Claimant) -> Iterator[Lease]:
    session = Session(claimant)
    stops = claimant.options.on_lost != "flag"
    body = Interruptible(session.lost_error, session.is_told_lost)
    try:
        conflict = session.take(claimant.options.wait, (lambda _: body.fire()) if stops else None)
        if conflict is not None or session.hold is None:
            holder = conflict.holder.to_dict() if conflict and conflict.holder else None
            raise LockNotAcquired(
                ", ".join(claimant.keys), holder, conflict.retry_after if conflict else None
            )
        with entered(session.hold.lease) as lease, body.block() if stops else nullcontext():
            yield lease
    finally:
        session.give_back()
