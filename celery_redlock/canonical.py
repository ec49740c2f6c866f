"""One text for equal arguments, whichever serializer carried them.  Pure.

The text is made to be hashed, never shown.  Two rules decide what is equal: what a serializer
of Celery can't keep apart is one value (a tuple is a list, a dict key of 1 is "1"), and values
of one type that compare equal are one value (``Decimal("1.0")`` and ``Decimal("1.00")``, one
instant in two time zones).  Everything else stays apart, so each kind has its own tag, and each
piece either says how long it is or ends with a sign that can't be part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from kombu.utils.json import JSONEncoder, object_hook

__all__ = ["MAX_DEPTH", "NotCanonical", "canonical", "key_text", "plain", "reduced", "well_formed"]

MAX_DEPTH = 100
"""How many levels of nesting an argument may have; a cycle has no end of them."""

_ENVELOPE = {"__type__", "__value__"}  # what kombu's JSON puts around a UUID, a date, ...
_REGISTERED: Any = JSONEncoder()
_LAZY_TEXT = ("django.utils.functional", "Promise")  # kombu's JSON sends these as text
_YEAR_ONE = datetime(1, 1, 1)  # noqa: DTZ001 - subtracted from naive ones only
_MICROSECOND = timedelta(microseconds=1)


class NotCanonical(Exception):
    """An argument has a part that no text can be made for.

    Args:
        problem: what is wrong with it, without its value.
    """

    def __init__(self, problem: str) -> None:
        """Start at the part itself; whoever passes it on adds a step."""
        super().__init__(problem)
        self.problem = problem
        self._steps: list[str] = []

    def under(self, step: str) -> NotCanonical:
        """The same, seen from one level further out, as in ``under("[2]")``."""
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        """The way from the argument to the part, the middle left out where it is long."""
        steps = self._steps[::-1]
        if len(steps) > 8:
            steps = [*steps[:5], "…", *steps[-2:]]
        return "".join(steps)


def canonical(value: Any, depth: int = 0) -> str:
    """The text of a value: the same for equal values, different for different ones.

    Args:
        value: an argument of a task.
        depth: how many levels the value is nested in already.

    Raises:
        NotCanonical: the value, or a part of it, is of a type that is not supported, or is
            nested deeper than :data:`MAX_DEPTH` levels.
    """
    kind = type(value)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return scalar(value)
    if depth > MAX_DEPTH:
        raise NotCanonical(f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if kind is list or kind is tuple:
        return f"[{''.join(_items(value, depth))}]"
    if kind is dict:
        return _mapping(value, depth)
    return _rare(value, kind, depth)


def plain(value: Any) -> Any:
    """What a serializer makes of a scalar of a type of one's own.

    An ``Enum`` member gives its value, a subclass of ``str``, ``int`` or ``float`` the plain
    value that JSON would send; everything else is returned as it is.
    """
    kind = type(value)
    if issubclass(kind, str):
        return well_formed(str.__str__(value))
    if issubclass(kind, int):
        return value if kind is bool else int.__pos__(value)
    if issubclass(kind, float):
        return float.__pos__(value)
    return plain(value.value) if issubclass(kind, Enum) else value


def key_text(key: Any) -> str | None:
    """The text that JSON makes of a dict key; None where it takes no such key."""
    key = plain(key)
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, float):
        text = repr(key)
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
    if isinstance(key, int) and key.bit_length() < 10_000:
        return repr(key)
    return None


def reduced(value: Any) -> Any:
    """The plain data that stands for an object.

    Sources: ``__json__()`` and registered types as in :mod:`kombu.utils.json`, the fields of a
    dataclass, ``model_dump()`` as in pydantic.

    Raises:
        NotCanonical: the object is of a type that is not supported, or its own method failed.
    """
    kind = type(value)
    if isinstance(value, type):
        raise NotCanonical("is a class, not a value")
    try:
        return _own_data(value, kind)
    except _NoData:
        pass
    except Exception as exc:
        problem = f"is of type {_name(kind)}, and to ask it for its data raised"
        raise NotCanonical(f"{problem} {type(exc).__name__}") from exc
    try:
        return _REGISTERED.default(value)  # of a type that was registered with kombu
    except TypeError:
        raise NotCanonical(f"is of type {_name(kind)}") from None


def well_formed(text: str) -> str:
    """The text with the two halves of a character put together, as JSON does on the way."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


class _NoData(Exception):
    pass


def _own_data(value: Any, kind: type) -> Any:
    if hasattr(value, "__json__"):
        return value.__json__()
    if any((base.__module__, base.__name__) == _LAZY_TEXT for base in kind.__mro__):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if callable(getattr(kind, "model_dump", None)):
        return value.model_dump()
    raise _NoData


def _name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _text(value: str) -> str:
    value = well_formed(value)
    return f"s{len(value)}:{value}"


_SCALARS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: lambda value: f"i{value:x};",  # hexadecimal: Python refuses long decimals
    bool: lambda value: "T" if value else "F",
    float: lambda value: f"f{value + 0.0!r};",  # adding 0.0 makes -0.0 and 0.0 one
    type(None): lambda value: "N",
}


def _items(values: Iterable[Any], depth: int) -> Iterator[str]:
    for index, value in enumerate(values):
        try:
            yield canonical(value, depth + 1)
        except NotCanonical as exc:
            raise exc.under(f"[{index}]")  # noqa: B904 - the same error, passed on


def _members(values: Iterable[Any], depth: int) -> Iterator[str]:
    for value in values:
        try:
            yield canonical(value, depth + 1)
        except NotCanonical as exc:
            raise exc.under("{…}")  # noqa: B904 - the same error, passed on


def _mapping(value: Any, depth: int) -> str:
    if len(value) == 2 and value.keys() == _ENVELOPE:
        unpacked = _unpacked(value)
        if unpacked is not value:
            return canonical(unpacked, depth + 1)
    pairs: dict[str, str] = {}
    for key, item in value.items():
        try:
            text = key_text(key)
            label = canonical(key, depth + 1) if text is None else _text(text)
            # Of two keys that are one to JSON, such as 1 and "1", the later one stays.
            pairs[label] = canonical(item, depth + 1)
        except NotCanonical as exc:
            raise exc.under(_shown(key))  # noqa: B904 - the same error, passed on
    return f"{{{''.join(label + pairs[label] for label in sorted(pairs))}}}"


def _shown(key: Any) -> str:
    text = repr(key) if isinstance(key, (str, int)) else f"a {type(key).__name__}"
    return f"[{text if len(text) <= 40 else text[:39] + '…'}]"


def _unpacked(envelope: dict[str, Any]) -> Any:
    """What a worker sees of a dict that looks as if kombu's JSON had packed a value."""
    try:
        value = object_hook(envelope)
    except Exception:  # noqa: BLE001 - no decoder takes it, so it is an ordinary dict
        return envelope
    return value if isinstance(value, tuple(_RARE_SCALARS)) else envelope


def _rare(value: Any, kind: type, depth: int) -> str:
    if issubclass(kind, (str, int, float)):
        return canonical(plain(value), depth)
    if issubclass(kind, (list, tuple)):
        return f"[{''.join(_items(value, depth))}]"
    if issubclass(kind, dict):
        return _mapping(value, depth)
    if not hasattr(value, "__json__"):
        for base, text in _RARE_SCALARS.items():
            if issubclass(kind, base):
                return text(value)
        if issubclass(kind, Enum):
            return canonical(value.value, depth + 1)
        if issubclass(kind, (set, frozenset)):
            return f"<{''.join(sorted(set(_members(value, depth))))}>"
    return canonical(reduced(value), depth + 1)


def _tagged(tag: str, text: str) -> str:
    return f"{tag}{len(text)}:{text}"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return _tagged("b", bytes(value).decode("latin-1"))


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    naive = value.replace(tzinfo=None)
    if offset is None:
        return _tagged("d", naive.isoformat())
    # Counted, not converted: in the first and the last year UTC may be out of range.
    return f"D{(naive - _YEAR_ONE - offset) // _MICROSECOND};"


def _time(value: time) -> str:
    offset = value.utcoffset()
    naive = value.replace(tzinfo=None)
    if offset is None:
        return _tagged("t", naive.isoformat())
    return f"O{(datetime.combine(_YEAR_ONE, naive) - _YEAR_ONE - offset) // _MICROSECOND};"


def _decimal(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # NaN and the infinities
        return _tagged("m", str(value))
    number = "".join(map(str, digits)).lstrip("0")
    short = number.rstrip("0")
    if not short:
        return "m0:"
    return _tagged("m", f"{'-' * sign}{short}e{exponent + len(number) - len(short)}")


_RARE_SCALARS: dict[type, Callable[[Any], str]] = {
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    datetime: _datetime,  # before date, which it derives from
    date: lambda value: _tagged("a", value.isoformat()),
    time: _time,
    timedelta: lambda value: f"e{value // _MICROSECOND};",
    Decimal: _decimal,
    UUID: lambda value: f"u{value.hex}",
}
