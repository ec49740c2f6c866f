"""What an operator should know of a set of lock servers: each is asked and tried in turn.

Slow on purpose: a server gets a second to answer, so that a slow one is told from a dead one.
Writes only below the prefix's ``node:probe``, and takes that away again.
"""

from __future__ import annotations

import secrets
import selectors
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Finding
from celery_redlock.coordinators.redis_commands import LOAD_SCRIPTS, Names
from celery_redlock.coordinators.redis_connect import begin_link, settle
from celery_redlock.coordinators.redis_epoch import ADMIT, Epoch
from celery_redlock.coordinators.redis_fitness import undurable
from celery_redlock.coordinators.redis_link import Broken, Link
from celery_redlock.coordinators.redis_node import Facts, Node, greeting, learn
from celery_redlock.coordinators.redis_probe import missing_rights
from celery_redlock.coordinators.redis_wire import ErrorReply, pack
from celery_redlock.quorum import majority

__all__ = ["check_servers"]

_PATIENCE = 1.0  # seconds
_SAMPLES = 5
_OLDEST = (6, 0)  # SET ... KEEPTTL
_CLOCK_LIMIT = 1.0  # seconds

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class _Seen:
    """One server that answered.

    Attributes:
        node: which.
        facts: what it told.
        round_trip: seconds, the best of several.
        offset: seconds by which its wall clock is ahead of ours.
        lacks: the rights that its user lacks, in the server's words.
    """

    node: Node
    facts: Facts
    round_trip: float
    offset: float
    lacks: Sequence[str]


def check_servers(
    nodes: Sequence[Node], names: Names, *, fenced: bool, timeout: float, rest: float
) -> list[Finding]:
    """Everything that was seen, the worst last of each server's.

    Args:
        nodes: the servers.
        names: what the keys are called.
        fenced: whether they must give fencing tokens.
        timeout: seconds that a server may take to answer in use.
        rest: seconds that a server that isn't durable must have been up, to vote.
    """
    findings: list[Finding] = []
    seen: list[_Seen] = []
    for node in nodes:
        try:
            one = _look(node, names)
        except Broken as exc:
            cure = "start it, or mend the url, the login or the network"
            findings.append(Finding("warning", node.shown, f"can't be used: {exc}", cure))
            continue
        seen.append(one)
        findings += _about(one, len(nodes), fenced=fenced, timeout=timeout, rest=rest)
    findings += _together(seen, len(nodes), fenced=fenced)
    return findings


def _look(node: Node, names: Names) -> _Seen:
    link = begin_link(_patient(node))
    try:
        link = _connected(link)
        hello = greeting(names.epoch, names.probe, LOAD_SCRIPTS)
        facts = learn(_ask(link, hello), now())
        samples = [_time(link) for _ in range(_SAMPLES)]
        round_trip, offset = min(samples)
        lacks = missing_rights(lambda commands: _ask(link, commands), names, secrets.token_hex(4))
    except OSError as exc:
        raise Broken(str(exc) or type(exc).__name__) from exc
    finally:
        link.close()
    return _Seen(node, facts, round_trip, offset, lacks)


def _connected(link: Link) -> Link:
    while link.connecting:
        if not _wait(link, selectors.EVENT_WRITE, now() + _PATIENCE):
            raise Broken(f"no connection within {_PATIENCE:g} s")
        settled = settle(link)
        if settled is not link:
            link.close()
        link = settled
    for answer in _ask(link, link.preamble):
        if isinstance(answer, ErrorReply):
            raise Broken(answer)
    return link


def _wait(link: Link, event: int, end: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(link.socket, event)
        return bool(selector.select(max(0.0, end - now())))


def _patient(node: Node) -> Node:
    """The same server, given more time to answer."""
    return Node(node.shown, node.connection_class, node.options, _PATIENCE, locate=node.locate)


def _ask(link: Link, commands: Sequence[bytes]) -> list[Any]:
    answers: list[Any] = []
    end = now() + _PATIENCE
    link.write(b"".join(commands))
    while len(answers) < len(commands):
        answers += link.read()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.unsent else 0)
        if len(answers) < len(commands) and not _wait(link, wanted, end):
            raise Broken(f"no answer within {_PATIENCE:g} s")
        if link.unsent:
            link.flush()
    return answers


def _time(link: Link) -> tuple[float, float]:
    before, start = time.time(), now()
    (answer,) = _ask(link, [pack("TIME")])
    took = now() - start
    if not isinstance(answer, list):
        return took, 0.0
    return took, int(answer[0]) + int(answer[1]) / 1e6 - (before + took / 2)


def _about(
    one: _Seen, nodes: int, *, fenced: bool, timeout: float, rest: float
) -> Iterator[Finding]:
    strict: Level = "error" if fenced else "warning"
    name, facts = one.node.shown, one.facts
    trip = f"{one.round_trip * 1000:.2f} ms"
    yield Finding("ok", name, f"{facts.version}, {facts.role or 'role unknown'}, answers in {trip}")
    if _version(facts) < _OLDEST:
        yield Finding(
            strict, name, f"{facts.version} is too old", "use Redis 6.0, Valkey, or newer"
        )
    if facts.role not in {"master", None}:
        yield Finding(strict, name, f"is a {facts.role}", "name a master; a replica can't be asked")
    for lack in one.lacks:
        yield Finding(strict, name, f"the user lacks a right: {lack}", "grant it with ACL SETUSER")
    if one.round_trip > timeout / 3:
        level: Level = strict if one.round_trip > timeout else "warning"
        message = f"answers in {trip}, and is given {timeout * 1000:g} ms (redlock_node_timeout)"
        cure = "raise redlock_node_timeout to several round trips"
        yield Finding(level, name, message, cure, passing=True)
    yield from _memory(one, nodes, fenced=fenced, rest=rest)


def _memory(one: _Seen, nodes: int, *, fenced: bool, rest: float) -> Iterator[Finding]:
    name, facts = one.node.shown, one.facts
    if fenced:
        lacking = undurable(facts)
        if lacking:
            cure = "set appendonly yes, appendfsync always, maxmemory-policy noeviction"
            yield Finding("error", name, lacking, cure)
        return
    if facts.eviction not in {"noeviction", None}:
        message = f"may evict locks when memory is short (maxmemory-policy {facts.eviction})"
        yield Finding("warning", name, message, "set maxmemory-policy noeviction")
    if not facts.durable and nodes > 1:
        message = f"forgets locks when it crashes, so it votes only {rest:g} s after each start"
        cure = "set appendonly yes and appendfsync always, or lower redlock_max_ttl"
        yield Finding("warning", name, message, cure)


def _together(seen: Sequence[_Seen], nodes: int, *, fenced: bool) -> Iterator[Finding]:
    need = majority(nodes)
    if len(seen) < need:
        message = f"{need} of {nodes} must answer, and {len(seen)} did"
        yield Finding("error", "lock servers", message, "start the others", passing=True)
    by_run_id: dict[str | None, str] = {}
    for one in seen:
        twin = by_run_id.setdefault(one.facts.run_id, one.node.shown)
        if one.facts.run_id is not None and twin != one.node.shown:
            message = f"is the same server as {twin}"
            cure = "list each server once; two majorities could hold one lock"
            yield Finding("error", one.node.shown, message, cure)
    offsets = sorted(one.offset for one in seen)
    if offsets and offsets[-1] - offsets[0] > _CLOCK_LIMIT:
        message = f"the wall clocks differ by {offsets[-1] - offsets[0]:.1f} s"
        yield Finding(
            "warning", "lock servers", message, "run NTP on each; a step ends locks early"
        )
    if fenced:
        yield from _epochs(seen, nodes)


def _epochs(seen: Sequence[_Seen], nodes: int) -> Iterator[Finding]:
    markers = [one.facts.marker or "" for one in seen]
    if not any(markers):
        missing = nodes - len(seen)
        if missing:
            message = f"all must answer at the first use of the set, and {missing} didn't"
            yield Finding("error", "lock servers", message, "start them", passing=True)
        return
    common = max(set(markers), key=markers.count)
    epoch = Epoch.parse(common)
    fine = epoch is not None and epoch.number > 0 and not epoch.sealed and epoch.nodes == nodes
    if not fine or markers.count(common) < majority(nodes):
        message = "no majority is in one epoch, so no fencing tokens are given"
        passing = len(seen) < nodes  # the others may make up the majority
        yield Finding("error", "lock servers", message, f"run: {ADMIT}", passing=passing)
        return
    for one, marker in zip(seen, markers, strict=True):
        if marker != common:
            message = "was replaced or emptied, or belongs to another set: it doesn't vote"
            yield Finding("warning", one.node.shown, message, f"run: {ADMIT}")


def _version(facts: Facts) -> tuple[int, ...]:
    digits = facts.version.rpartition(" ")[2].split(".")
    return tuple(int(part) for part in digits[:2] if part.isdigit()) or _OLDEST
