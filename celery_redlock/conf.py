"""The settings of one Celery application, read once and checked whole."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from celery_redlock.coordinators.urls import CoordinatorSettings, without_password
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.options import OPTION_NAMES, Level, LockOptions, check_names, seconds
from celery_redlock.quorum import Drift

__all__ = ["Settings"]

Urls = tuple[str, ...]

APPLICATION_ONLY = (
    "coordinators",
    "queues",
    "tasks",
    "prefix",
    "node_timeout",
    "clock_drift",
    "max_ttl",
    "beat_scheduler",
    "beat_catch_up",
    "visibility_heartbeat",
)
NAMES = tuple(f"redlock_{name}" for name in (*APPLICATION_ONLY, *OPTION_NAMES))


@dataclass(frozen=True)
class Settings:
    """What an application's configuration says about locks.

    Attributes:
        coordinators: the urls of each coordinator, by its name.
        app_level: the options that hold for the whole application.
        queues: for each queue name or glob, in the order written, the options that hold there.
        tasks: for each pattern of task names, options for tasks without our base class.
        shared: what every coordinator of the application shares.
        beat_scheduler: the scheduler class that the locked one wraps.
        beat_catch_up: how many missed slots of an entry are sent, the newest of them.
        visibility_heartbeat: whether running tasks are kept from being redelivered.
    """

    coordinators: Mapping[str, Urls]
    app_level: Level
    queues: Mapping[str, Level] = field(default_factory=dict)
    tasks: Mapping[str, Level] = field(default_factory=dict)
    shared: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    beat_scheduler: str = "celery.beat:PersistentScheduler"
    beat_catch_up: int = 1
    visibility_heartbeat: bool = True

    @classmethod
    def read(cls, app: Any) -> Settings:
        """The settings of ``app``.

        Raises:
            ImproperlyConfigured: ``redlock_coordinators`` is missing, or any setting is unknown
                or can't be used; the message says what is allowed.
        """
        conf = app.conf
        _refuse_unknown(conf)
        level = Level("the application", _given(conf, OPTION_NAMES), "redlock_{}")
        LockOptions.layered(level)
        return cls(
            coordinators=_coordinators(conf.get("redlock_coordinators")),
            app_level=level,
            queues=_queues(conf.get("redlock_queues") or {}),
            tasks=_tasks(conf.get("redlock_tasks") or {}),
            shared=_shared(conf, app.main),
            beat_scheduler=conf.get("redlock_beat_scheduler") or cls.beat_scheduler,
            beat_catch_up=_catch_up(conf.get("redlock_beat_catch_up", 1)),
            visibility_heartbeat=bool(conf.get("redlock_visibility_heartbeat", True)),
        )

    def queue_level(self, queue: str | None) -> Level:
        """The options that hold for tasks of a queue: its own entry, else the first glob's."""
        if queue:
            if queue in self.queues:
                return self.queues[queue]
            for pattern, level in self.queues.items():
                if fnmatchcase(queue, pattern):
                    return level
        return Level("no queue", {})

    def pattern_level(self, task_name: str) -> Level:
        """The options that ``redlock_tasks`` has for a task: its own entry, else the first glob's."""
        if task_name in self.tasks:
            return self.tasks[task_name]
        for pattern, level in self.tasks.items():
            if fnmatchcase(task_name, pattern):
                return level
        return Level("no pattern", {})

    def urls(self, coordinator: str | Urls) -> Urls:
        """The urls of a coordinator, given by its name or as url(s) already.

        Raises:
            ImproperlyConfigured: there is no coordinator of this name.
        """
        if not isinstance(coordinator, str):
            return coordinator
        if "://" in coordinator:
            return (coordinator,)
        if coordinator not in self.coordinators:
            known = ", ".join(map(repr, self.coordinators))
            named = repr(coordinator) if coordinator.isidentifier() else "of that name"
            raise ImproperlyConfigured(
                f"coordinator {named} is not in redlock_coordinators, which has {known}"
            )
        return self.coordinators[coordinator]


def _given(conf: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: conf.get(f"redlock_{name}") for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _refuse_unknown(conf: Any) -> None:
    for key in conf:
        name = str(key).lower()
        name = name.removeprefix("celery_")
        if name.startswith("redlock_") and name not in NAMES:
            meant = difflib.get_close_matches(name, NAMES, 1, 0.6)
            hint = f"; did you mean {meant[0]}?" if meant else f" (known: {', '.join(NAMES)})"
            raise ImproperlyConfigured(f"unknown setting {key}{hint}")


def _coordinators(value: Any) -> dict[str, Urls]:
    example = '{"default": "redis://lock1:6379/0"}'
    if not value:
        raise ImproperlyConfigured(
            "redlock_coordinators is missing: name the lock servers, for example "
            f"redlock_coordinators = {example}, or five independent urls for a majority"
        )
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(
            f"redlock_coordinators must be a dict from names to urls, as in {example}, "
            f"not a {type(value).__name__}"
        )
    return {_name(name): _urls(name, urls) for name, urls in value.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or "://" in name:
        raise ImproperlyConfigured(
            f"redlock_coordinators: a coordinator's name must be a short text, not "
            f"{without_password(name) if isinstance(name, str) else name!r}"
        )
    return name


def _urls(name: str, value: Any) -> Urls:
    urls = (value,) if isinstance(value, str) else value
    fits = isinstance(urls, (list, tuple)) and urls
    if not fits or not all(isinstance(url, str) and "://" in url for url in urls):
        raise ImproperlyConfigured(
            f"redlock_coordinators[{name!r}] must be a url such as redis://lock1:6379/0, or a "
            "list of them that is not empty"
        )
    return tuple(urls)


def _queues(value: Any) -> dict[str, Level]:
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(
            'redlock_queues must be a dict such as {"billing": {"ttl": 60}}, '
            f"not a {type(value).__name__}"
        )
    levels = {}
    for queue, options in value.items():
        if not isinstance(options, Mapping):
            raise ImproperlyConfigured(
                f"redlock_queues[{queue!r}] must be a dict of options, not a "
                f"{type(options).__name__}"
            )
        levels[queue] = Level(f"queue {queue!r}", options, f"redlock_queues[{queue!r}]['{{}}']")
        LockOptions.layered(levels[queue])
    return levels


def _tasks(value: Any) -> dict[str, Level]:
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise ImproperlyConfigured(
            'redlock_tasks must be a dict such as {"reports.*": {"ttl": 60}}, '
            f"from patterns of task names to options, not a {type(value).__name__}"
        )
    levels = {}
    for pattern, options in value.items():
        spelling = f"redlock_tasks[{pattern!r}]['{{}}']"
        levels[pattern] = Level(f"tasks {pattern!r}", options, spelling)
        check_names(levels[pattern])
    return levels


def _shared(conf: Any, main: str | None) -> CoordinatorSettings:
    prefix = conf.get("redlock_prefix") or main or "celery"
    if not isinstance(prefix, str) or not re.fullmatch(r"[^\s{}]{1,100}", prefix):
        raise ImproperlyConfigured(
            f"redlock_prefix={prefix!r}: must be a text of 1 to 100 characters without white "
            "space or braces; give one if the application's name is none"
        )
    timeout = conf.get("redlock_node_timeout", 0.05)
    longest = conf.get("redlock_max_ttl", 300.0)
    return CoordinatorSettings(
        prefix=prefix,
        node_timeout=seconds(timeout, "redlock_node_timeout", least=0, open_end=True),
        drift=_drift(conf.get("redlock_clock_drift", 0.01)),
        max_ttl=seconds(longest, "redlock_max_ttl", least=0, open_end=True),
    )


def _catch_up(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ImproperlyConfigured(
            f"redlock_beat_catch_up={value!r}: must be how many missed slots of an entry are sent, "
            "a whole number of 1 or more"
        )
    return value


def _drift(value: Any) -> Drift:
    share, fixed = value if isinstance(value, (list, tuple)) and len(value) == 2 else (value, None)
    numeric = isinstance(share, (int, float)) and not isinstance(share, bool)
    if not numeric or not 0 <= share < 0.5:
        raise ImproperlyConfigured(
            f"redlock_clock_drift={value!r}: must be the share of a ttl that is not trusted, from "
            "0 to below 0.5, or a pair (share, seconds)"
        )
    if fixed is None:
        return Drift(float(share))
    return Drift(float(share), seconds(fixed, "redlock_clock_drift's second part", least=0))
