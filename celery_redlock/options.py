"""The options of a lock: one frozen value, layered from four levels and validated whole.  Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, get_args

from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["Level", "LockOptions", "Mode", "seconds"]

Mode = Literal["efficiency", "correctness"]
Scope = Literal[
    "while_executing",
    "until_executing",
    "until_and_while_executing",
    "until_executed",
    "until_expired",
]
OnConflict = Literal["skip", "revoke", "reschedule", "raise"]
OnDuplicate = Literal["return_existing", "raise", "keep_latest", "replace"]
OnUnavailable = Literal["run", "reschedule", "raise"]
OnLost = Literal["abort", "flag", "kill"]
OneKey = str | Callable[..., Any]

_CHOICES: dict[str, tuple[str, ...]] = {
    "mode": get_args(Mode),
    "scope": get_args(Scope),
    "on_conflict": get_args(OnConflict),
    "on_duplicate": get_args(OnDuplicate),
    "on_unavailable": get_args(OnUnavailable),
    "on_lost": get_args(OnLost),
}
_BY_MODE: dict[str, dict[str, str]] = {
    "on_conflict": {"efficiency": "skip", "correctness": "reschedule"},
    "on_unavailable": {"efficiency": "run", "correctness": "reschedule"},
}
# What other plugins call the same thing, for people who come from them.
_FOREIGN = {
    "timeout": "ttl",
    "lock_expiry": "queue_ttl",
    "expiry": "ttl",
    "unique_on": "args",
    "keys": "args",
    "graceful": "on_duplicate",
    "raise_on_duplicate": "on_duplicate",
    "blocking_timeout": "wait",
}


@dataclass(frozen=True)
class Level:
    """One of the four places where options are written.

    Attributes:
        where: for messages, as in ``"task shop.pay"`` or ``"queue 'billing'"``.
        values: the options written there, under their plain names.
        spelling: how a name is written there, as in ``"lock_{}"``.
    """

    where: str
    values: Mapping[str, Any]
    spelling: str = "{}"

    def spell(self, name: str) -> str:
        """How option ``name`` is written at this level."""
        return self.spelling.format(name)


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """Everything that decides how one lock is taken, kept and given up.

    Times are seconds, as ``int``, ``float`` or ``timedelta``, kept as ``float``.

    Attributes:
        mode: ``"efficiency"`` avoids double work; ``"correctness"`` hands out fencing tokens.
        coordinator: a name in ``redlock_coordinators``, one url, or several urls.
        key: an explicit key: a template over the task's arguments, a callable, or a list of
            those; None makes the key from the task's name and its arguments.
        args: names of the arguments that make the key; None: all; ``()``: none matter.
        scope: from when to when equal calls exclude each other.
        ttl: what one acquire or extend buys, more than 0.
        renew_interval: seconds between renewals, at most half of ``ttl``; default a third.
        wait: how long a runner may wait inside its slot, 0 or more.
        on_conflict: ``"skip"``, ``"revoke"``, ``"reschedule"`` or ``"raise"``.
        on_duplicate: ``"return_existing"``, ``"raise"``, ``"keep_latest"`` or ``"replace"``.
        on_unavailable: ``"run"`` (not in correctness mode), ``"reschedule"`` or ``"raise"``.
        on_lost: ``"abort"``, ``"flag"`` or ``"kill"``.
        min_hold: keep the lock at least this long after it was taken, 0 or more.
        max_hold: stop renewing after this, as if lost; None: no bound.
        queue_ttl: life of a queue lock, more than 0.
        reschedule_delay: whole seconds of at least 1, or a (first, longest) pair of them.
        give_up_after: a rescheduled task that has waited this long fails; None: never.

    Raises:
        ImproperlyConfigured: a value is not allowed, or two of them make no sense together.
    """

    mode: Mode = "efficiency"
    coordinator: str | tuple[str, ...] = "default"
    key: OneKey | tuple[OneKey, ...] | None = None
    args: tuple[str, ...] | None = None
    scope: Scope = "while_executing"
    ttl: float = 30.0
    renew_interval: float = None  # type: ignore[assignment]  # a third of the ttl
    wait: float = 0.0
    on_conflict: OnConflict = None  # type: ignore[assignment]  # by mode
    on_duplicate: OnDuplicate = "return_existing"
    on_unavailable: OnUnavailable = None  # type: ignore[assignment]  # by mode
    on_lost: OnLost = "abort"
    min_hold: float = 0.0
    max_hold: float | None = None
    queue_ttl: float = 3600.0
    reschedule_delay: tuple[float, float] = (1.0, 30.0)
    give_up_after: float | None = None

    def __post_init__(self) -> None:
        """Normalise and validate; a frozen value is whole or not there at all."""
        own = Level("LockOptions", {f.name: getattr(self, f.name) for f in fields(self)})
        for name, value in _normalised(dict(own.values), lambda name: own).items():
            object.__setattr__(self, name, value)

    @classmethod
    def layered(cls, *levels: Level) -> LockOptions:
        """The options that result from several levels, the nearest first.

        For ``mode`` the stricter level wins.  A nearer ``args`` puts a farther ``key`` out of
        use, and the other way round.

        Args:
            levels: where options are written, the nearest first.

        Raises:
            ImproperlyConfigured: an unknown name, a value that is not allowed, or a pair that
                makes no sense; the message names the option as it is written and its level.
        """
        values: dict[str, Any] = {}
        source: dict[str, Level] = {}
        for level in levels:
            check_names(level)
            for name, value in level.values.items():
                if name not in values:
                    values[name], source[name] = value, level
        strict = next((lv for lv in levels if lv.values.get("mode") == "correctness"), None)
        if strict is not None:
            values["mode"], source["mode"] = "correctness", strict
        _settle_key_and_args(values, source, levels)
        fallback = levels[0] if levels else Level("LockOptions", {})
        return cls(**_normalised(values, lambda name: source.get(name, fallback)))


OPTION_NAMES = tuple(f.name for f in fields(LockOptions))


def check_names(level: Level) -> None:
    """Refuse a name that is no option, and suggest the right one.

    Raises:
        ImproperlyConfigured: the level has an unknown option.
    """
    for name in level.values:
        if name in OPTION_NAMES:
            continue
        meant = _FOREIGN.get(name) or next(
            iter(difflib.get_close_matches(name, OPTION_NAMES, 1, 0.5)), None
        )
        hint = f"; did you mean {level.spell(meant)}?" if meant else ""
        known = ", ".join(level.spell(known) for known in OPTION_NAMES)
        raise ImproperlyConfigured(
            f"unknown option {level.spell(name)} at {level.where}{hint} (known: {known})"
        )


def seconds(value: Any, name: str, *, least: float, open_end: bool = False) -> float:
    """A duration as ``float`` seconds.

    Args:
        value: an ``int``, ``float`` or ``timedelta``.
        name: the option as it is written, for the message.
        least: the smallest value allowed.
        open_end: whether ``least`` itself is refused.

    Raises:
        ImproperlyConfigured: anything else, or a value that is too small or not finite.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    fits = (
        isinstance(number, (int, float))
        and not isinstance(number, bool)
        and math.isfinite(number)
        and (number > least if open_end else number >= least)
    )
    if not fits:
        bound = f"more than {least:g}" if open_end else f"{least:g} or more"
        raise ImproperlyConfigured(
            f"{name}={value!r}: must be a finite number of seconds, {bound} (or a timedelta)"
        )
    return float(number)


_Source = Callable[[str], Level]


def _settle_key_and_args(
    values: dict[str, Any], source: dict[str, Level], levels: Sequence[Level]
) -> None:
    """Let the nearer of ``key`` and ``args`` win; written side by side they make no sense."""
    if values.get("key") is None or values.get("args") is None:
        return
    if source["key"] is source["args"]:
        level = source["key"]
        raise ImproperlyConfigured(
            f"{level.spell('key')} and {level.spell('args')} at {level.where}: an explicit key "
            f"already says which arguments matter; give one of the two"
        )
    nearer, farther = sorted(("key", "args"), key=lambda name: levels.index(source[name]))
    del values[farther]


def _normalised(values: dict[str, Any], source: _Source) -> dict[str, Any]:
    def name_of(name: str) -> str:
        level = source(name)
        return f"{level.spell(name)} at {level.where}"

    given = {name: value for name, value in values.items() if value is not None}
    defaults = {f.name: f.default for f in fields(LockOptions)}
    out: dict[str, Any] = {**defaults, **given}
    _check_choices(out, name_of)
    for name, choice in _BY_MODE.items():
        out[name] = out[name] if out[name] is not None else choice[out["mode"]]
    out["coordinator"] = _coordinator(out["coordinator"], name_of("coordinator"))
    out["key"] = _key(out["key"], name_of("key"))
    out["args"] = _names(out["args"], name_of("args"))
    _check_times(out, name_of)
    _check_pairs(out, name_of)
    return out


def _check_choices(out: dict[str, Any], name_of: Callable[[str], str]) -> None:
    for name, allowed in _CHOICES.items():
        value = out[name]
        if value is None and name in _BY_MODE:
            continue
        if value not in allowed:
            raise ImproperlyConfigured(
                f"{name_of(name)}={value!r}: must be one of {', '.join(map(repr, allowed))}"
            )


def _check_times(out: dict[str, Any], name_of: Callable[[str], str]) -> None:
    for name in ("ttl", "queue_ttl"):
        out[name] = seconds(out[name], name_of(name), least=0, open_end=True)
    for name in ("wait", "min_hold"):
        out[name] = seconds(out[name], name_of(name), least=0)
    for name in ("max_hold", "give_up_after"):
        if out[name] is not None:
            out[name] = seconds(out[name], name_of(name), least=0, open_end=True)
    if out["renew_interval"] is None:
        out["renew_interval"] = out["ttl"] / 3
    out["renew_interval"] = seconds(
        out["renew_interval"], name_of("renew_interval"), least=0, open_end=True
    )
    out["reschedule_delay"] = _delay(out["reschedule_delay"], name_of("reschedule_delay"))


def _delay(value: Any, name: str) -> tuple[float, float]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ImproperlyConfigured(f"{name}={value!r}: must be seconds, or (first, longest)")
    first, longest = (seconds(part, name, least=1) for part in pair)
    if first > longest:
        raise ImproperlyConfigured(f"{name}={value!r}: the first delay is above the longest")
    return float(math.ceil(first)), float(math.ceil(longest))


def _check_pairs(out: dict[str, Any], name_of: Callable[[str], str]) -> None:
    if out["mode"] == "correctness" and out["on_unavailable"] == "run":
        raise ImproperlyConfigured(
            f"{name_of('on_unavailable')}='run': in correctness mode a body never runs without "
            "its lock; use 'reschedule' or 'raise'"
        )
    if out["renew_interval"] * 2 > out["ttl"]:
        raise ImproperlyConfigured(
            f"{name_of('renew_interval')}={out['renew_interval']:g}: must leave time for two tries "
            f"before the ttl of {out['ttl']:g} s is over: at most {out['ttl'] / 2:g}"
        )
    if out["max_hold"] is not None and out["min_hold"] > out["max_hold"]:
        raise ImproperlyConfigured(
            f"{name_of('min_hold')}={out['min_hold']:g}: must not be above "
            f"max_hold={out['max_hold']:g}"
        )


def _coordinator(value: Any, name: str) -> str | tuple[str, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise ImproperlyConfigured(
        "a coordinator must be a name in redlock_coordinators, a url, or a list of urls; "
        f"{name} is a {type(value).__name__}"
    )


def _key(value: Any, name: str) -> OneKey | tuple[OneKey, ...] | None:
    if value is None:
        return None
    several = isinstance(value, (list, tuple))
    parts = tuple(value) if several else (value,)
    if not parts or not all((isinstance(p, str) and p) or callable(p) for p in parts):
        raise ImproperlyConfigured(
            f"{name}={value!r}: must be a template such as 'account:{{account_id}}', a callable, "
            "or a list of those that is not empty"
        )
    return parts if several else parts[0]


def _names(value: Any, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        raise ImproperlyConfigured(f"{name}={value!r}: must be a list of argument names")
    if not all(isinstance(v, str) for v in value):
        raise ImproperlyConfigured(f"{name}={value!r}: every argument name must be a string")
    return tuple(value)
