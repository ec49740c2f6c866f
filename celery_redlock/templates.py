"""Explicit keys that are written as templates over a task's arguments.  Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from string import Formatter
from typing import Any, NamedTuple
from uuid import UUID

from celery_redlock.canonical import NotCanonical, canonical, key_text, plain, reduced
from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["Template"]

_FIELD = re.compile(r"([^\W\d]\w*)((?:\.\w+|\[[^\[\]]+\])*)")
_WITH_A_TEXT = (str, int, float, Decimal, UUID, timedelta)
_AS_SENT = (*_WITH_A_TEXT, bytes, bytearray, memoryview, datetime, date, time)
_STEP = re.compile(r"\.(\w+)|\[([^\[\]]+)\]")
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


class _Part(NamedTuple):
    literal: str
    name: str = ""
    steps: tuple[str, ...] = ()
    conversion: str = ""
    spec: str = ""
    shown: str = ""


class Template:
    """A text such as ``"account:{account_id}"`` or ``"{order.id}:{day:%Y-%m}"``.

    The syntax is that of :meth:`str.format`, with names only.  ``{order.id}`` and ``{order[id]}``
    mean the same, because an object at the caller may be a dict at the worker.

    Args:
        text: the template; without any placeholder it is one key for every call.
        task_name: the task's name, for messages.

    Raises:
        ImproperlyConfigured: the template is malformed, or has a placeholder without a name.
    """

    def __init__(self, text: str, task_name: str) -> None:
        """Take the template apart, once."""
        self.text = text
        self._where = f"task {task_name}: lock_key={text!r}"
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as exc:
            raise self._error(
                f"is malformed ({exc}); a brace that is meant as itself is written twice"
            ) from None
        self._parts = tuple(
            _Part(literal)
            if field is None
            else self._placeholder(literal, field, spec or "", conversion or "")
            for literal, field, spec, conversion in parsed
        )
        self.names = tuple(dict.fromkeys(part.name for part in self._parts if part.name))

    def format(self, bound: Mapping[str, Any]) -> str:
        """The key for one call.

        Args:
            bound: the value of each argument by its name.

        Raises:
            ImproperlyConfigured: an argument has no such part, or one that makes no text.
        """
        return "".join(
            part.literal + (self._value(part, bound) if part.name else "") for part in self._parts
        )

    def _error(self, problem: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f"{self._where} {problem}")

    def _placeholder(self, literal: str, field: str, spec: str, conversion: str) -> _Part:
        shown = f"{{{field}}}"
        match = _FIELD.fullmatch(field)
        if match is None:
            which = "has no name" if not field or field[0].isdigit() else "is malformed"
            raise self._error(
                f"has the placeholder {shown}, which {which}; name an argument, "
                "as in {account_id}, {order.id} or {order[id]}"
            )
        if "{" in spec or conversion not in {"", *_CONVERSIONS}:
            raise self._error(
                f"has the placeholder {shown} with a format that is not supported; "
                "use a plain format such as {day:%Y-%m} or {n:05d}"
            )
        steps = tuple(dot or index for dot, index in _STEP.findall(match[2]))
        return _Part(literal, match[1], steps, conversion, spec, shown)

    def _value(self, part: _Part, bound: Mapping[str, Any]) -> str:
        value = bound[part.name]
        try:
            for step in part.steps:
                value = _inner(value, step)
            value = _same_everywhere(value)
            if part.conversion:
                value = _CONVERSIONS[part.conversion](value)
            return format(value, part.spec)
        except LookupError:
            problem = f"has the placeholder {part.shown}, and this call's argument has no such part"
        except NotCanonical as exc:
            problem = f"has the placeholder {part.shown}, which {exc.problem}; name a part of it"
        except (TypeError, ValueError):
            problem = (
                f"has the placeholder {part.shown} with the format {part.spec!r}, which doesn't "
                f"fit a {type(value).__name__}"
            )
        raise self._error(problem)


def _inner(value: Any, step: str) -> Any:
    """The attribute or item of a value, whichever it has.

    Raises:
        LookupError: it has neither.
        NotCanonical: the value's own ``__json__`` failed.
    """
    if not isinstance(value, (dict, list, tuple)) and hasattr(value, "__json__"):
        value = reduced(value)  # what a worker will see of it
    if isinstance(value, dict):
        # The last one, as for JSON, where 1 and "1" are one key.
        return [item for key, item in value.items() if key_text(key) == step][-1]
    if isinstance(value, (list, tuple)) and step.isdecimal():
        return value[int(step)]
    try:
        return getattr(value, step)
    except AttributeError:
        raise LookupError(step) from None


def _same_everywhere(value: Any) -> Any:
    """A value that formats alike at the caller and at the worker.

    Raises:
        NotCanonical: it is, or contains, something of a type that is not supported.
    """
    value = plain(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "backslashreplace")
    for kind in (datetime, date, time):
        if isinstance(value, kind):  # as JSON does: the name of a time zone doesn't travel
            return kind.fromisoformat(kind.isoformat(value))  # type: ignore[arg-type]
    if value is None or isinstance(value, _WITH_A_TEXT):
        return value
    canonical(value)  # from here on nothing is endless or unknown
    return json.dumps(_jsonable(value), ensure_ascii=False, separators=(",", ":"))


def _jsonable(value: Any) -> Any:
    """Plain data for a readable text of a container, in an order that is always the same."""
    if isinstance(value, dict):
        named = {key_text(key) or canonical(key): item for key, item in value.items()}
        return {name: _jsonable(named[name]) for name in sorted(named)}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [_jsonable(item) for item in sorted(value, key=canonical)]
    if isinstance(value, (*_AS_SENT, Enum)) or value is None:
        scalar = _same_everywhere(value)
        known = scalar is None or isinstance(scalar, (bool, int, float, str))
        return scalar if known else str(scalar)
    return _jsonable(reduced(value))
