"""Which rights a user lacks on a lock server, found by doing what the coordinator does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.coordinators.redis_commands import (
    ACQUIRE,
    EXTEND,
    HEAL,
    LOAD_SCRIPTS,
    MARK,
    RAISE,
    RELEASE,
    Names,
)
from celery_redlock.coordinators.redis_wire import ErrorReply, pack

__all__ = ["missing_rights"]

_LIFE = 5000  # ms; nothing of a probe outlives it, should the taking away be forbidden


def missing_rights(
    ask: Callable[[Sequence[bytes]], list[Any]], names: Names, owner: str
) -> list[str]:
    """What the server says to each thing that isn't allowed, each of them once.

    Every command and script is run for once as it is in use, on names of their own.

    Args:
        ask: sends commands and gives their answers.
        names: what the keys are called.
        owner: random, so that two probes at a time don't meet.
    """
    own = Names(f"{names.probe}:{owner}", names.kind)
    answers = ask([*LOAD_SCRIPTS, *_lookups(own), *_as_in_use(own, owner)])
    ask(_taking_away(own, owner))
    said = [str(answer) for answer in answers if isinstance(answer, ErrorReply)]
    return list(dict.fromkeys(said))


def _lookups(own: Names) -> list[bytes]:
    settings = ("appendonly", "appendfsync", "maxmemory-policy")
    return [
        pack("INFO", "server"),
        pack("INFO", "replication"),
        *(pack("CONFIG", "GET", setting) for setting in settings),
        pack("GET", own.lock("probe")),
        pack("PTTL", own.lock("probe")),
    ]


def _as_in_use(own: Names, owner: str) -> list[bytes]:
    lock, counter = own.lock("probe"), own.counter("probe")
    grave, other = own.grave("probe", owner), own.grave("probe", "other")
    fenced = counter, own.highest, own.epoch
    marker = "1:probe:1:0"
    return [
        MARK.call((own.epoch, own.highest, own.resting), marker, "", 1, 0),
        ACQUIRE.call(
            (lock, grave, *fenced, own.resting), owner, _LIFE, _LIFE, "{}", marker, 1, _LIFE
        ),
        ACQUIRE.call((lock, other), "other", _LIFE, _LIFE, "{}"),
        RAISE.call((lock, *fenced), owner, 2**52, marker, _LIFE),
        EXTEND.call((lock,), owner, _LIFE, _LIFE),
        RELEASE.call((lock, grave), owner, _LIFE),
        RELEASE.call((lock, grave), owner, _LIFE),  # there is nothing: it buries
        HEAL.call((lock, other, *fenced), "other", _LIFE, _LIFE, "other 3 {}", marker, 3, _LIFE),
    ]


def _taking_away(own: Names, owner: str) -> list[bytes]:
    names = own.lock("probe"), own.counter("probe"), own.grave("probe", owner)
    return [pack("DEL", *names, own.highest, own.epoch, own.resting)]
