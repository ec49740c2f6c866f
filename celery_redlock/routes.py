"""To which queue a message goes, as Celery's router has decided.  Publishes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

__all__ = ["queue_of"]


def queue_of(app: Any, routed: Mapping[str, Any]) -> str | None:
    """The name of the queue that a message goes to; None if no queue of the app is bound so.

    Where an exchange is named, the queue is the first one of the application's that is bound to
    it by this routing key: Celery's router fills in the default queue then, but the message
    doesn't go there.

    Args:
        app: the application.
        routed: the options of the publish, after the router.
    """
    queue, exchange = routed.get("queue"), _name(routed.get("exchange"))
    if exchange is None or exchange == _name(getattr(queue, "exchange", None)):
        return _name(queue)
    key = routed.get("routing_key") or ""
    if exchange == "":  # the anonymous exchange: the routing key is the queue's name
        return key or _name(queue)
    for bound in app.amqp.queues.values():
        if bound.exchange.name == exchange and _fits(bound, key):
            return str(bound.name)
    return None


def _name(thing: Any) -> str | None:
    if thing is None or isinstance(thing, str):
        return thing
    name = getattr(thing, "name", None)
    return name if isinstance(name, str) else None


def _fits(queue: Any, key: str) -> bool:
    kind, pattern = queue.exchange.type, queue.routing_key or ""
    if kind == "topic":
        return _topic(pattern).fullmatch(f".{key}") is not None
    return kind == "fanout" or pattern == key


@lru_cache(maxsize=256)
def _topic(pattern: str) -> re.Pattern[str]:
    """AMQP's patterns: words between dots, ``*`` for one word, ``#`` for none or several.

    Each word is written with the dot before it, so that ``a.#`` fits ``a`` as well.
    """
    words = {"*": r"\.[^.]+", "#": r"(?:\.[^.]*)*"}
    parts = [words.get(word, rf"\.{re.escape(word)}") for word in pattern.split(".")]
    return re.compile("".join(parts))
