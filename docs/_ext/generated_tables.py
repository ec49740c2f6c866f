"""Tables of the reference, made from the code, so that they can't fall behind it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from celery_redlock import events, signals
from celery_redlock.conf import APPLICATION_ONLY
from celery_redlock.coordinators.base import Aftermath, Capabilities, Failure
from celery_redlock.coordinators.urls import CoordinatorSettings, from_urls
from celery_redlock.options import LockOptions

# What stands in for a default that depends on another option.
_DERIVED = {
    "renew_interval": "a third of `ttl`",
    "on_conflict": '`"skip"`; in correctness mode `"reschedule"`',
    "on_unavailable": '`"run"`; in correctness mode `"reschedule"`',
}

# Each row of the table of guarantees: urls, and whether fencing tokens are asked for.
_COORDINATORS: tuple[tuple[tuple[str, ...], bool], ...] = (
    (("redis://a",), False),
    (("redis://a", "redis://b", "redis://c"), False),
    (("redis://a", "redis://b", "redis://c"), True),
    (("etcd://a",), True),
    (("zookeeper://a",), True),
    (("sqlite:///locks.sqlite3",), True),
    (("memory://",), True),
)

_FAILURES: dict[Failure, str] = {
    "pause": "the holder is frozen for longer than the ttl",
    "failover": "a server is lost, another takes its place",
    "amnesia": "a server restarts without its data",
    "clock_jump": "a server's wall clock is set",
    "partition": "a part can't be reached",
}

_SETTINGS = {
    "coordinators": (
        "required",
        "a dict from names to one url, or to the urls of all nodes of a Redlock",
    ),
    "queues": ("`{}`", "a dict from names of queues, or globs, to the options that hold there"),
    "tasks": ("`{}`", "a dict from globs of task names to options, for tasks of other packages"),
    "prefix": ("the application's name", "starts every name in the lock servers"),
    "node_timeout": ("`0.05`", "seconds that one lock server may take to answer"),
    "clock_drift": (
        "`(0.01, 0.002)`",
        "the share of a ttl that is not trusted, or a pair (share, seconds) of it",
    ),
    "max_ttl": ("`300`", "the longest ttl in seconds that is ever asked for"),
    "beat_scheduler": (
        "Celery's persistent one",
        "the scheduler class that the locked one wraps",
    ),
    "beat_catch_up": (
        "`1`",
        "how many missed slots of a schedule's entry are sent, the newest of them",
    ),
    "visibility_heartbeat": (
        "`True`",
        "whether a Redis broker is kept from delivering a running task a second time",
    ),
}


def described(cls: type) -> dict[str, str]:
    """The text of each attribute in a class's docstring."""
    _, _, section = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if match := re.match(r"    (\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif line.startswith("        ") and name:
            found[name] += " " + line.strip()
        elif line.strip():
            break
    return {name: _markdown(text) for name, text in found.items()}


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`").replace("|", r"\|")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown, line by line."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def options() -> Iterator[str]:
    """Every option, its default and its meaning."""
    meanings = described(LockOptions)
    rows = []
    for each in fields(LockOptions):
        default = _DERIVED.get(each.name) or f"`{each.default!r}`"
        rows.append((f"`{each.name}`", default, meanings[each.name]))
    return table(("option", "default", "meaning"), rows)


def settings() -> Iterator[str]:
    """Every setting that only the application has."""
    if set(_SETTINGS) != set(APPLICATION_ONLY):
        different = ", ".join(sorted(set(_SETTINGS) ^ set(APPLICATION_ONLY)))
        raise ValueError(f"the table of settings and the code differ in: {different}")
    rows = [(f"`redlock_{name}`", *_SETTINGS[name]) for name in APPLICATION_ONLY]
    return table(("setting", "default", "meaning"), rows)


def guarantees() -> Iterator[str]:
    """What each coordinator promises, from its ``Capabilities``."""
    heads = (
        "coordinator",
        "mutual exclusion",
        "fencing token",
        "a granted lock survives the loss of a server",
        "… a restart of its servers",
        "shortest ttl (s)",
        "correctness mode",
    )
    return table(heads, [_guarantee(urls, fenced=fenced) for urls, fenced in _COORDINATORS])


def _guarantee(urls: tuple[str, ...], *, fenced: bool) -> tuple[str, ...]:
    kind = _capabilities(urls, fenced=fenced)
    use = "tests only" if kind.tests_only else "yes" if kind.fencing else "refused"
    return (
        _name(urls, fenced=fenced),
        kind.exclusion,
        *("yes" if yes else "no" for yes in (kind.fencing, kind.survives_failover)),
        "yes" if kind.survives_restart else "no",
        f"{kind.min_ttl:.2g}",
        use,
    )


def _capabilities(urls: tuple[str, ...], *, fenced: bool) -> Capabilities:
    return from_urls(urls, CoordinatorSettings(fenced=fenced)).capabilities


def _name(urls: tuple[str, ...], *, fenced: bool) -> str:
    name = _capabilities(urls, fenced=fenced).name
    if len(urls) > 1:
        name += ", durable nodes" if fenced else ", nodes not durable"
    return name


def after_failures() -> Iterator[str]:
    """What is left of each coordinator's promises after each kind of failure."""
    rows = []
    for urls, fenced in _COORDINATORS:
        able = _capabilities(urls, fenced=fenced)
        cells = [_left(able.after[failure], fencing=able.fencing) for failure in _FAILURES]
        rows.append((_name(urls, fenced=fenced), *cells))
    return table(("coordinator", *_FAILURES.values()), rows)


def _left(after: Aftermath, *, fencing: bool) -> str:
    lock = "exclusion kept" if after.exclusion else "exclusion **lost**"
    token = "the token rises" if after.order else "the token **may go back**"
    said = f"{lock}, {token if fencing else 'no token'}"
    return f"{said} ({after.when})" if after.when else said


def all_events() -> Iterator[str]:
    """Every signal with its event, when it comes and what it carries."""
    rows = []
    for event, signal in signals.BY_EVENT.items():
        first = (inspect.getdoc(event) or "").partition("\n")[0]
        carried = "; ".join(f"`{name}`: {text}" for name, text in described(event).items())
        rows.append((f"`{signal.name}`", f"`{event.__name__}`", first, carried))
    return table(("signal", "event", "when", "carries besides"), rows)


def event_fields() -> Iterator[str]:
    """What every event carries."""
    rows = [(f"`{name}`", text) for name, text in described(events.Event).items()]
    return table(("attribute", "meaning"), rows)


_TABLES = {
    "options": options,
    "settings": settings,
    "guarantees": guarantees,
    "after-failures": after_failures,
    "events": all_events,
    "event-fields": event_fields,
}


class Generated(SphinxDirective):
    """The ``{generated}`` directive: a table by its name."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Put the table into the page."""
        lines = list(_TABLES[self.arguments[0]]())
        holder = nodes.container(classes=["generated"])
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, holder)
        return holder.children


def setup(app: Any) -> dict[str, bool]:
    """Make the directive known to Sphinx."""
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True}
