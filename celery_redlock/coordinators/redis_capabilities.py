"""What a set of Redis servers can promise, and why it may not give fencing tokens.  Asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

from celery_redlock.coordinators.aftermath import ONE_REDIS, redlock
from celery_redlock.coordinators.base import Capabilities
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.urls import CoordinatorSettings
from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["capabilities_of", "refuse_unfenceable"]


def refuse_unfenceable(nodes: Sequence[Node], capabilities: Capabilities) -> None:
    """Return if these servers may be asked for fencing tokens.

    Raises:
        ImproperlyConfigured: they may not; the message says why.
    """
    if len(nodes) == 1:
        raise ImproperlyConfigured(
            f"{nodes[0].shown} can't give fencing tokens: {capabilities.no_fencing_because}"
        )
    for node in nodes:
        if node.locate is not None:
            raise ImproperlyConfigured(
                f"{node.shown} can't give fencing tokens: a failover forgets the newest of them; "
                "name each server's own url"
            )


def capabilities_of(nodes: int, settings: CoordinatorSettings) -> Capabilities:
    """What this many servers promise.

    Args:
        nodes: how many.
        settings: what every coordinator of the application shares.
    """
    slowest = 2 * settings.node_timeout
    min_ttl = (slowest + settings.drift.fixed) / (1 - settings.drift.share)
    if nodes == 1:
        return Capabilities(
            name="one Redis",
            fencing=False,
            exclusion="lost at a failover",
            survives_failover=False,
            survives_restart=False,
            min_ttl=min_ttl,
            no_fencing_because=(
                "one Redis forgets its locks and its counters at a failover; use an odd number "
                "of at least 3 independent servers, or etcd, ZooKeeper or a database"
            ),
            after=ONE_REDIS,
        )
    return Capabilities(
        name="Redlock",
        fencing=settings.fenced,
        exclusion="depends on timing",
        survives_failover=True,
        survives_restart=settings.fenced,
        min_ttl=min_ttl,
        no_fencing_because="" if settings.fenced else "it was not asked for fencing tokens",
        after=redlock(fenced=settings.fenced),
    )
