"""What a task's class says of its body: parameters, options, and whether it can be fenced.

Looks at classes only: reads no settings and asks no lock server.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from celery_redlock.options import OPTION_NAMES, Level

__all__ = ["TOKEN", "run_signature", "task_level", "unfenceable"]

TOKEN = "fencing_token"  # noqa: S105 - a parameter's name


def run_signature(cls: type[Any]) -> inspect.Signature:
    """The parameters of a task's body, without ``self``."""
    raw: Any = inspect.getattr_static(cls, "run")
    static = isinstance(raw, staticmethod)
    function: Callable[..., Any] = getattr(raw, "__func__", raw)
    signature = inspect.signature(function)
    if static:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def task_level(cls: type[Any]) -> Level:
    """The options that a task's class carries as ``lock_<name>`` attributes, also inherited.

    A method of the user's own whose name starts with ``lock_`` is none.
    """
    values: dict[str, Any] = {}
    for klass in reversed(cls.__mro__):
        for attribute, value in vars(klass).items():
            name = attribute.removeprefix("lock_")
            if name == attribute:
                continue
            plain = value.__func__ if isinstance(value, staticmethod) else value
            if name in OPTION_NAMES or not (callable(plain) or isinstance(plain, property)):
                values[name] = plain
    return Level(f"task {cls.name}", values, "lock_{}")


def unfenceable(cls: type[Any]) -> str | None:
    """Why a task can't be in correctness mode, for its author; None if it can.

    Args:
        cls: the task's class.
    """
    parameter = run_signature(cls).parameters.get(TOKEN)
    if parameter is None:
        return (
            f"task {cls.name} is in correctness mode but its body has no parameter named "
            f"{TOKEN}: add one, as in 'def body(…, *, {TOKEN}: FencingToken)', and hand it to the "
            "resource's guard; without it a paused former owner could still write"
        )
    if parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return (
            f"task {cls.name} is in correctness mode and its parameter {parameter} collects "
            f"arguments: write {TOKEN} without a star"
        )
    if _goes_around(cls):
        return (
            f"task {cls.name}: its class overrides __call__ and doesn't call super().__call__, so "
            "the body would run without its lock; call that, or put the code into the body, "
            "before_start or after_return"
        )
    return None


def _goes_around(cls: type[Any]) -> bool:
    """Whether some ``__call__`` of the class doesn't come to ours in the end."""
    ours = getattr(cls, "_locked_call", None)
    if ours is None:  # no class of ours: what locks it is not its __call__
        return False
    for klass in cls.__mro__:
        call = vars(klass).get("__call__")
        if call is None:
            continue
        plain = inspect.unwrap(call)  # a task annotation wraps what it goes around
        if plain is ours:
            return False
        named = getattr(getattr(plain, "__code__", None), "co_names", ())
        if not {"super", "__call__"} <= set(named):
            return True
    return True
