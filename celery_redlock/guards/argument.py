"""What every guard makes sure of before it touches its resource.  Pure: it reaches nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.fencing import FencingToken

__all__ = ["LONGEST_LOCK", "checked", "each_checked", "library"]

LONGEST_LOCK = 512
"""Bytes of UTF-8 that the name of a fenced lock may have; what each database can index."""

_WHERE_FROM = (
    "a task in correctness mode gets it through its parameter fencing_token, "
    "and other code from lease.fencing_token"
)


def checked(fencing_token: int | None, lock: str | None = None) -> FencingToken:
    """The token that a guard was given, once it is sure of which lock it is.

    Args:
        fencing_token: a :class:`FencingToken`, or a plain int if ``lock`` is given.
        lock: the name of the lock that this resource belongs to, if it is to be checked.

    Raises:
        ImproperlyConfigured: the token is missing, is no integer, is of another lock or, without
            ``lock``, of several, or is a plain int without ``lock``; or the lock's name is too
            long to be stored.
    """
    if fencing_token is None:
        raise ImproperlyConfigured(
            f"the fencing token is missing (None), and a write without one is not fenced; "
            f"{_WHERE_FROM}"
        )
    if not isinstance(fencing_token, int) or isinstance(fencing_token, bool):
        raise ImproperlyConfigured(
            f"malformed fencing token of type {type(fencing_token).__name__}: it must be a "
            "FencingToken, or an int beside lock= (a float is not exact above 2**53)"
        )
    token = _with_lock(fencing_token, lock)
    if len(token.lock.encode()) > LONGEST_LOCK or "\0" in token.lock:
        raise ImproperlyConfigured(
            f"lock {token.lock[:40]!r}…: the name of a fenced lock may have at most "
            f"{LONGEST_LOCK} bytes and no zero byte; use a shorter key"
        )
    return token


def each_checked(fencing_token: int | None, lock: str | None = None) -> tuple[FencingToken, ...]:
    """The tokens that a guard is to claim: all of a body's locks, unless one was named.

    Args:
        fencing_token: as for :func:`checked`.
        lock: as for :func:`checked`.

    Returns:
        them in the sorted order of their locks' names, in which they must be claimed.

    Raises:
        ImproperlyConfigured: as for :func:`checked`.
    """
    if lock is None and isinstance(fencing_token, FencingToken):
        return tuple(map(checked, fencing_token.tokens))
    return (checked(fencing_token, lock),)


def _with_lock(fencing_token: int, lock: str | None) -> FencingToken:
    if isinstance(fencing_token, FencingToken):
        several = fencing_token.tokens
        if lock is not None and len(several) > 1:
            return fencing_token[lock]
        if len(several) > 1:
            names = ", ".join(repr(token.lock) for token in several)
            raise ImproperlyConfigured(
                f"this fencing token is of several locks ({names}): hand in that of the lock "
                f"which this resource belongs to, as in fencing_token[{several[0].lock!r}]"
            )
        if lock is not None and lock != fencing_token.lock:
            raise ImproperlyConfigured(
                f"fencing token {fencing_token} is of lock {fencing_token.lock!r}, and this "
                f"resource belongs to lock {lock!r}: tokens of two locks can't be compared"
            )
        return fencing_token
    if not lock:
        raise ImproperlyConfigured(
            f"fencing token {fencing_token} is a plain int, which doesn't know its lock (a "
            "token that went through a message or a database is one): say lock= beside it"
        )
    return FencingToken(fencing_token, lock)


def library(module: str, install: str) -> Any:
    """Import a guard's client library; say what to install where it is missing.

    Raises:
        ImproperlyConfigured: the library is not installed.
    """
    try:
        return import_module(module)
    except ImportError as exc:
        raise ImproperlyConfigured(
            f"this guard needs {module.partition('.')[0]}, which is not installed: "
            f"pip install '{install}'"
        ) from exc
