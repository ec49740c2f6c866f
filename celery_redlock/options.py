"""The options of a lock: one frozen value, layered from four levels and validated whole.  Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
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

    def says(self, name: str, value: Any) -> str:
        """An option as a reader finds it, as in ``"lock_ttl=-1 (task shop.pay)"``."""
        return f"{self.spell(name)}={value!r} ({self.where})"


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
    coordinator: str | tuple[str, ...] = field(default="default", repr=False)  # logins in urls
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
            if level.values.get("mode") is not None:
                _check_choice("mode", level.values["mode"], level)  # even a farther one counts
            for name, value in level.values.items():
                if name not in values:
                    values[name], source[name] = value, level
        strict = next((lv for lv in levels if lv.values.get("mode") == "correctness"), None)
        if strict is not None:
            values["mode"], source["mode"] = "correctness", strict
        _settle_key_and_args(values, source, levels)
        return cls(**_normalised(values, lambda name: source.get(name, _DEFAULTS)))


_DEFAULTS = Level("the default", {})


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
            iter(difflib.get_close_matches(str(name), OPTION_NAMES, 1, 0.5)), None
        )
        hint = f"; did you mean {level.spell(meant)}?" if meant else ""
        known = ", ".join(level.spell(known) for known in OPTION_NAMES)
        raise ImproperlyConfigured(
            f"unknown option {level.spell(name)} ({level.where}){hint} (known: {known})"
        )


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond what a float can hold
        return False


def seconds(
    value: Any, name: str, *, least: float, open_end: bool = False, where: str = ""
) -> float:
    """A duration as ``float`` seconds.

    Args:
        value: an ``int``, ``float`` or ``timedelta``.
        name: the option as it is written, for the message.
        least: the smallest value allowed.
        open_end: whether ``least`` itself is refused.
        where: the place where the option is written, for the message.

    Raises:
        ImproperlyConfigured: anything else, or a value that is too small or not finite.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    fits = (
        isinstance(number, (int, float))
        and not isinstance(number, bool)
        and _finite(number)
        and (number > least if open_end else number >= least)
    )
    if not fits:
        bound = f"more than {least:g}" if open_end else f"{least:g} or more"
        place = f" ({where})" if where else ""
        raise ImproperlyConfigured(
            f"{name}={value!r}{place}: must be a finite number of seconds, {bound} (or a timedelta)"
        )
    return float(number)


_Source = Callable[[str], Level]


def _settle_key_and_args(
    values: dict[str, Any], source: dict[str, Level], levels: Sequence[Level]
) -> None:
    """Let the nearer of ``key`` and ``args`` win; side by side they are refused later."""
    if values.get("key") is None or values.get("args") is None:
        return
    if source["key"] is not source["args"]:
        _nearer, farther = sorted(("key", "args"), key=lambda name: levels.index(source[name]))
        del values[farther]


def _normalised(values: dict[str, Any], source: _Source) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    defaults = {f.name: f.default for f in fields(LockOptions)}
    out: dict[str, Any] = {**defaults, **given}
    for name in _CHOICES:
        if out[name] is not None:
            _check_choice(name, out[name], source(name))
    for name, choice in _BY_MODE.items():
        out[name] = out[name] if out[name] is not None else choice[out["mode"]]
    out["coordinator"] = _coordinator(out["coordinator"], source("coordinator"))
    out["key"] = _key(out["key"], source("key"))
    out["args"] = _names(out["args"], source("args"))
    _check_times(out, source)
    _check_pairs(out, source)
    return out


def _check_choice(name: str, value: Any, level: Level) -> None:
    allowed = _CHOICES[name]
    if value not in allowed:
        raise ImproperlyConfigured(
            f"{level.says(name, value)}: must be one of {', '.join(map(repr, allowed))}"
        )


# Every duration, and whether 0 is refused.  The ttl comes before what depends on it.
_TIMES = {
    "ttl": True,
    "renew_interval": True,
    "wait": False,
    "min_hold": False,
    "max_hold": True,
    "queue_ttl": True,
    "give_up_after": True,
}


def _check_times(out: dict[str, Any], source: _Source) -> None:
    for name, above_zero in _TIMES.items():
        level = source(name)
        if out[name] is not None:
            out[name] = seconds(
                out[name], level.spell(name), least=0, open_end=above_zero, where=level.where
            )
        elif name == "renew_interval":
            out[name] = out["ttl"] / 3
    out["reschedule_delay"] = _delay(out["reschedule_delay"], source("reschedule_delay"))


def _delay(value: Any, level: Level) -> tuple[float, float]:
    name = "reschedule_delay"
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise ImproperlyConfigured(
            f"{level.says(name, value)}: must be seconds, or a pair (first, longest)"
        )
    first, longest = (seconds(p, level.spell(name), least=1, where=level.where) for p in pair)
    if first > longest:
        raise ImproperlyConfigured(
            f"{level.says(name, value)}: the first delay must not be above the longest"
        )
    return float(math.ceil(first)), float(math.ceil(longest))


def _check_pairs(out: dict[str, Any], source: _Source) -> None:
    def says(name: str) -> str:
        return source(name).says(name, out[name])

    if out["key"] is not None and out["args"] is not None:
        raise ImproperlyConfigured(
            f"{says('args')}: makes no sense beside {says('key')}, which already says which "
            "arguments matter; give one of the two"
        )
    if out["mode"] == "correctness" and out["on_unavailable"] == "run":
        raise ImproperlyConfigured(
            f"{says('on_unavailable')}: must be 'reschedule' or 'raise' beside {says('mode')}, "
            "where a body never runs without its lock"
        )
    if out["scope"] == "until_expired" and out["on_duplicate"] == "keep_latest":
        raise ImproperlyConfigured(
            f"{says('on_duplicate')}: makes no sense beside {says('scope')}, where no end of a "
            "run gives the lock back for the next one; use 'until_executed'"
        )
    if out["renew_interval"] * 2 > out["ttl"]:
        raise ImproperlyConfigured(
            f"{says('renew_interval')}: must be {out['ttl'] / 2:g} or less beside {says('ttl')}, "
            "to leave time for two tries before the ttl is over"
        )
    if out["max_hold"] is not None and out["min_hold"] > out["max_hold"]:
        raise ImproperlyConfigured(
            f"{says('min_hold')}: must be {out['max_hold']:g} or less beside {says('max_hold')}"
        )


def _coordinator(value: Any, level: Level) -> str | tuple[str, ...]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (list, tuple)) and value:
        urls = tuple(value)
        if all(isinstance(url, str) and url for url in urls):
            return urls
    # Its value is not shown: it may hold a password.
    raise ImproperlyConfigured(
        f"{level.spell('coordinator')} ({level.where}) is {_article(value)}: must be a name in "
        "redlock_coordinators, a url, or a list of urls"
    )


def _article(value: Any) -> str:
    if isinstance(value, (str, list, tuple)):
        return "empty" if not value else "a list with something else than urls"
    return f"a {type(value).__name__}"


def _key(value: Any, level: Level) -> OneKey | tuple[OneKey, ...] | None:
    if value is None:
        return None
    several = isinstance(value, (list, tuple))
    parts = tuple(value) if several else (value,)
    if not parts or not all((isinstance(p, str) and p) or callable(p) for p in parts):
        raise ImproperlyConfigured(
            f"{level.says('key', value)}: must be a template such as 'account:{{account_id}}', "
            "a callable, or a list of those that is not empty"
        )
    return parts if several else parts[0]


def _names(value: Any, level: Level) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        hint = f", as in [{value!r}]" if isinstance(value, str) else ""
        raise ImproperlyConfigured(
            f"{level.says('args', value)}: must be a list of argument names{hint}"
        )
    if not all(isinstance(name, str) for name in value):
        raise ImproperlyConfigured(
            f"{level.says('args', value)}: every argument name must be a string"
        )
    return tuple(value)
