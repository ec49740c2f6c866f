"""How long a service that writes its log to several disks may take to answer.  Pure."""

from __future__ import annotations

__all__ = ["ANSWER_TIMEOUT", "answer_timeout"]

ANSWER_TIMEOUT = 1.0
"""Seconds for one answer of etcd, ZooKeeper or a database, unless the ttl is short."""


def answer_timeout(node_timeout: float, ttl: float | None = None) -> float:
    """Seconds that one request may take.

    ``redlock_node_timeout`` is meant for a Redis node that answers from memory.  What writes a
    log first needs longer, up to a second; with a short ttl a quarter of it, so that an answer
    in time leaves something of the lock.  A longer node timeout is respected as it is.

    Args:
        node_timeout: the setting, in seconds.
        ttl: seconds that are asked for; None where there is no ttl.
    """
    least = ANSWER_TIMEOUT if ttl is None else min(ANSWER_TIMEOUT, ttl / 4)
    return max(node_timeout, least)
