"""What the coordinators declare of themselves: complete, and without contradictions."""

from typing import get_args

import pytest

from celery_redlock.coordinators import CoordinatorSettings, from_urls
from celery_redlock.coordinators.base import Coordinator, Failure

THREE = ["redis://a", "redis://b", "redis://c"]
DECLARED = [
    pytest.param("redis://a", False, id="one Redis"),
    pytest.param(THREE, False, id="Redlock"),
    pytest.param(THREE, True, id="durable Redlock"),
    pytest.param("etcd://a", True, id="etcd"),
    pytest.param("zookeeper://a", True, id="ZooKeeper"),
    pytest.param("sqlite:///locks.db", True, id="SQL"),
    pytest.param("memory://", True, id="memory"),
]
every_coordinator = pytest.mark.parametrize(("urls", "fenced"), DECLARED)


def made(urls, fenced):
    """A coordinator that connects to nothing."""
    coordinator = from_urls(urls, CoordinatorSettings(fenced=fenced))
    assert isinstance(coordinator, Coordinator)
    return coordinator.capabilities


@every_coordinator
def test_every_failure_is_declared(urls, fenced):
    """None is left out of the table of guarantees."""
    assert set(made(urls, fenced).after) == set(get_args(Failure))


@every_coordinator
def test_the_declarations_agree_with_each_other(urls, fenced):
    """No order without tokens, and one answer to whether a lock survives a failover."""
    able = made(urls, fenced)
    assert able.fencing == fenced
    assert able.fencing or not any(left.order for left in able.after.values())
    assert able.after["failover"].exclusion == able.survives_failover
    assert bool(able.no_fencing_because) != able.fencing


@every_coordinator
def test_nobody_promises_exclusion_over_a_pause(urls, fenced):
    """No lock with a ttl can; where there is a token, it is what is left."""
    left = made(urls, fenced).after["pause"]
    assert not left.exclusion
    assert left.order == fenced
