"""From a task's call to the name of its lock.  Pure: no clock, socket, thread or Celery."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from inspect import Parameter
from typing import Any

from celery_redlock.canonical import NotCanonical, canonical, plain
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.options import OneKey
from celery_redlock.templates import Template

__all__ = ["KeyMaker", "explicit_name"]

SCHEME = 1
"""Goes into every hash: a new scheme makes new names, so that two are never mixed up."""

_START = 100  # characters of the readable start
_LONGEST = 400  # bytes of an explicit key that is used as it is
_SUPPORTED = (
    "None, bool, int, float, str, bytes, UUID, Decimal, dates and times, Enum members, lists, "
    "tuples, sets and dicts of those, dataclasses, models with model_dump(), and objects with "
    "__json__()"
)


class KeyMaker:
    """The lock names of one task: made once for a task, asked at every publish and run.

    The default name is a readable start and a hash over the task's name and its arguments, so
    that no argument is ever shown.  Calls that Python would treat alike get the same name:
    defaults are filled in, and it makes no difference how an argument is spelt or which
    serializer carried it.

    Args:
        task_name: the task's full name.
        signature: the signature of its body, without ``self``.
        key: the option ``key``: a template, a callable, a sequence of those, or None.
        args: the option ``args``: the names of the arguments that matter; None: all.
        exclude: names of arguments that are never part of a key.

    Raises:
        ImproperlyConfigured: ``args`` or a template names something that is no argument, a
            template is malformed, or a callable needs something that is no argument.
    """

    def __init__(
        self,
        task_name: str,
        signature: inspect.Signature,
        *,
        key: OneKey | Sequence[OneKey] | None = None,
        args: Sequence[str] | None = None,
        exclude: Sequence[str] = ("fencing_token",),
    ) -> None:
        """Check the options against the signature, and prepare all that can be."""
        self._task = task_name
        self._arguments = tuple(n for n in signature.parameters if n not in exclude)
        for name in args or ():
            self.require(name, f"lock_args names {name!r}", exclude)
        chosen = self._arguments if args is None else tuple(dict.fromkeys(args))
        # In the order of their names: to reorder a signature changes no key.
        self._labels = {name: f"{len(name)}:{name}=" for name in sorted(chosen)}
        self._head = f"{SCHEME};{len(task_name)}:{task_name};"
        self._start = task_name[:_START]
        self._chosen = _binder(task_name, signature, exclude, tuple(self._labels))
        self._bind = _binder(task_name, signature, exclude, self._arguments)
        keys = () if key is None else (key,) if isinstance(key, str) or callable(key) else key
        self._sources = tuple(self._source(one, exclude) for one in keys)

    def names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """The lock names of one call, sorted, none of them twice; one unless a list was given.

        Args:
            args: the positional arguments, without the task itself.
            kwargs: the keyword arguments.

        Raises:
            TypeError: the arguments don't fit the signature; in Python's own words.
            ImproperlyConfigured: an argument is of a type that can't be part of a key, or an
                explicit key has no usable result for this call.
        """
        if self._sources:
            bound = dict(zip(self._arguments, self._bind(*args, **kwargs), strict=True))
            found = {n for source in self._sources for n in source(bound, args, kwargs)}
            return tuple(sorted(found))
        parts = [self._head]
        values = self._chosen(*args, **kwargs)
        for (name, label), value in zip(self._labels.items(), values, strict=True):
            try:
                parts += label, canonical(value)
            except NotCanonical as exc:
                raise self._unsupported(name, exc.path, exc.problem) from exc
            except RecursionError as exc:
                raise self._unsupported(name, "", "is nested too deeply") from exc
        return (f"{self._start}:{_hash(''.join(parts))}",)

    def require(self, name: str, what: str, exclude: Sequence[str] = ()) -> None:
        """Refuse a name that is no argument of the task, and suggest the right one.

        Raises:
            ImproperlyConfigured: it is none.
        """
        if name in self._arguments:
            return
        if name in exclude:
            raise self._error(f"{what}, which is never part of a key; leave it out")
        near = difflib.get_close_matches(name, self._arguments, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(map(repr, self._arguments)) or "none"
        raise self._error(f"{what}, which is no argument of it{hint} (its arguments: {known})")

    def _error(self, problem: str) -> ImproperlyConfigured:
        return ImproperlyConfigured(f"task {self._task}: {problem}")

    def _unsupported(self, name: str, path: str, problem: str) -> ImproperlyConfigured:
        others = [other for other in self._labels if other != name]
        return self._error(
            f"argument {name!r}{path} {problem}, so it can't be part of the lock's key; a key "
            f"can be made of {_SUPPORTED}. Leave this argument out with lock_args={others!r}, "
            f"or make the key yourself with lock_key='{self._start}:{{...}}' or a callable"
        )

    def _source(self, key: OneKey, exclude: Sequence[str]) -> _Source:
        if isinstance(key, str):
            return self._from_template(Template(key, self._task), exclude)
        return self._from_callable(key)

    def _from_template(self, template: Template, exclude: Sequence[str]) -> _Source:
        for name in template.names:
            self.require(name, f"lock_key={template.text!r} names {name!r}", exclude)

        def source(bound: dict[str, Any], *_call: Any) -> list[str]:
            return [self._finished(template.format(bound), f"lock_key={template.text!r}")]

        return source

    def _from_callable(self, key: Callable[..., Any]) -> _Source:
        call = self._caller(key)
        shown = f"the callable lock_key {getattr(key, '__qualname__', type(key).__name__)}"

        def source(bound: dict[str, Any], args: Any, kwargs: Any) -> list[str]:
            result = call(bound, args, kwargs)
            several = isinstance(result, (list, tuple, set, frozenset))
            results = list(result) if several else [result]
            for one in results:
                if not isinstance(one, (str, int)) or isinstance(one, bool):
                    within = "a list with a " if several else "a "
                    raise self._error(
                        f"{shown} gave {within}{type(one).__name__}; it must give a str that is "
                        "not empty, an int, or a list of those"
                    )
            if not results:
                raise self._error(f"{shown} gave an empty list; a call needs a key at least")
            return [self._finished(str(plain(one)), shown) for one in results]

        return source

    def _caller(self, key: Callable[..., Any]) -> _Source:
        """How a callable wants to be called, read from its own signature."""
        try:
            wanted = inspect.signature(key).parameters
        except (TypeError, ValueError):
            raise self._error(
                f"the callable lock_key {key!r} doesn't tell its arguments; put it in a lambda"
            ) from None
        kinds = {parameter.kind for parameter in wanted.values()}
        if Parameter.VAR_POSITIONAL in kinds:
            return lambda bound, args, kwargs: key(*args, **kwargs)
        if len(wanted) == 1 and Parameter.VAR_KEYWORD not in kinds:
            (only,) = wanted
            if only not in self._arguments:
                by_name = wanted[only].kind is Parameter.KEYWORD_ONLY
                return lambda bound, args, kwargs: key(**{only: bound}) if by_name else key(bound)
        if Parameter.VAR_KEYWORD in kinds:
            return lambda bound, args, kwargs: key(**bound)
        for parameter in wanted.values():
            if parameter.default is Parameter.empty:
                self.require(parameter.name, f"the callable lock_key wants {parameter.name!r}")
        first = [n for n, p in wanted.items() if p.kind is Parameter.POSITIONAL_ONLY]
        rest = [n for n in wanted if n in self._arguments and n not in first]
        return lambda bound, args, kwargs: key(
            *(bound[n] for n in first if n in bound), **{n: bound[n] for n in rest}
        )

    def _finished(self, name: str, origin: str) -> str:
        if not name:
            raise self._error(f"{origin} gave an empty key; a key needs a character at least")
        return explicit_name(name)


def explicit_name(text: str) -> str:
    """The lock name that an explicit key stands for: itself, or a start and a hash of it.

    Args:
        text: the key, of any length; what is longer than 400 bytes, or holds half a
            character, can't be stored by every lock server as it is.
    """
    try:
        if len(text.encode()) <= _LONGEST:
            return text
    except UnicodeEncodeError:
        pass
    start = text[:_START].encode("utf-8", "backslashreplace").decode()
    return f"{start}:{_hash(text)}"


_KINDS = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
    Parameter.KEYWORD_ONLY,
    Parameter.VAR_KEYWORD,
)
_Source = Callable[[dict[str, Any], Sequence[Any], Mapping[str, Any]], Any]


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _binder(
    task_name: str, signature: inspect.Signature, exclude: Sequence[str], wanted: Sequence[str]
) -> Callable[..., tuple[Any, ...]]:
    """A function that is called like the task and gives the wanted arguments.

    Python itself binds them, which is ten times as fast as :meth:`inspect.Signature.bind` and
    refuses a call that doesn't fit in the words that the task's own call would use.
    """
    namespace: dict[str, Any] = {}
    written: dict[Any, list[str]] = {kind: [] for kind in _KINDS}
    for number, (name, parameter) in enumerate(signature.parameters.items()):
        kind, default = parameter.kind, parameter.default
        if name in exclude:  # tolerated, and forgotten
            kind, default = Parameter.KEYWORD_ONLY, None
        namespace[f"default_{number}"] = default
        has_default = default is not Parameter.empty
        written[kind].append(f"{name}=default_{number}" if has_default else name)
    first, positional, several, by_name, rest = written.values()
    parts = [*first, *("/" for _ in first[:1]), *positional]
    parts += [f"*{name}" for name in several] or ["*" for _ in by_name[:1]]
    parts += [*by_name, *(f"**{name}" for name in rest)]
    given = "".join(f"{name}, " for name in wanted)
    source = f"def bind({', '.join(parts)}): return ({given})"
    exec(source, namespace)  # noqa: S102 - made of checked identifiers only, as in dataclasses
    bind: Any = namespace["bind"]
    bind.__name__ = bind.__qualname__ = task_name.rpartition(".")[2]
    return bind  # type: ignore[no-any-return]
