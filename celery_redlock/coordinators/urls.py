"""From urls to a coordinator.  Knows which module serves which scheme, and imports it late."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from celery_redlock.coordinators.base import Coordinator
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.quorum import Drift

__all__ = ["CoordinatorSettings", "Kind", "from_urls", "needs", "without_password"]

Kind = Literal["lock", "queue"]

# Every scheme, and the module in this folder with a ``from_urls(urls, settings)`` for it.
_MODULES = {
    "memory": "memory",
    "redis": "redlock",
    "rediss": "redlock",
    "unix": "redlock",
    "redis+sentinel": "redlock",
    "etcd": "etcd",
    "etcds": "etcd",
    "zookeeper": "zookeeper",
    "sqlite": "sql",
    "postgresql": "sql",
    "mysql": "sql",
    "mariadb": "sql",
}


@dataclass(frozen=True)
class CoordinatorSettings:
    """What every coordinator of one application shares.

    Attributes:
        prefix: starts every stored name, so that applications don't meet by accident.
        node_timeout: seconds that one server may take to answer, more than 0.
        drift: how much of a ttl is not trusted, for clocks that run at different speeds.
        max_ttl: the longest ttl in seconds that is ever asked for; a server's clock that
            stepped back can't make a lock last longer.
        fenced: whether grants must carry fencing tokens (correctness mode).
        kind: ``"lock"`` for run locks, ``"queue"`` for queue locks: two locks of one name that
            don't exclude each other.
    """

    prefix: str = "celery_redlock"
    node_timeout: float = 0.05
    drift: Drift = field(default_factory=Drift)
    max_ttl: float = 300.0
    fenced: bool = False
    kind: Kind = "lock"


def from_urls(urls: str | Sequence[str], settings: CoordinatorSettings) -> Coordinator:
    """The coordinator that the urls name; connects at its first use, not here.

    Args:
        urls: one url, or the urls of all nodes of a Redlock.
        settings: what every coordinator of the application shares.

    Raises:
        ImproperlyConfigured: no url, an unknown or mixed scheme, a set of nodes that can't
            work, or a client library that is not installed.
    """
    several = [urls] if isinstance(urls, str) else list(urls)
    if not several:
        raise ImproperlyConfigured("a coordinator needs at least one url, and got an empty list")
    modules = {_module_for(url) for url in several}
    if len(modules) > 1:
        shown = ", ".join(map(without_password, several))
        raise ImproperlyConfigured(f"the urls of one coordinator must be of one kind, not {shown}")
    module: Any = import_module(f"celery_redlock.coordinators.{modules.pop()}")
    coordinator: Coordinator = module.from_urls(several, settings)
    return coordinator


def without_password(url: str) -> str:
    """The url as it may be shown: no user, no password, no query."""
    # Up to the last "@", as a password may hold "/", "?" and "@" that nobody has encoded.
    return re.sub(r"//.*@", "//", url).partition("?")[0]


def needs(module: str, extra: str) -> Any:
    """Import a client library late; say what to install where it is missing.

    Raises:
        ImproperlyConfigured: the library is not installed.
    """
    try:
        return import_module(module)
    except ImportError as exc:
        raise ImproperlyConfigured(
            f"this coordinator needs {module.partition('.')[0]}, which is not installed: "
            f"pip install 'celery_redlock[{extra}]'"
        ) from exc


def _module_for(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    module = _MODULES.get(scheme) or _MODULES.get(scheme.partition("+")[0])
    if not separator or module is None or not (rest or module in {"memory", "sql"}):
        shown = without_password(url) if separator else "a text without '://'"
        raise ImproperlyConfigured(
            f"malformed coordinator url {shown!r}: expected scheme://host:port, with one of "
            f"the schemes {', '.join(_MODULES)} (or another SQLAlchemy url)"
        )
    return module
