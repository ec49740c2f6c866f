"""Many grants renewed at once: for each what a single extend would have given."""

from __future__ import annotations

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators import Grant
from celery_redlock.coordinators.redis_batch import CHUNK
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from localservers import Proxy, valkey_cluster
from tests.contract.redlock_set import RedlockSet, eventually, grant


@pytest.fixture
def five(valkey_5):
    """Five servers that the other tests use too."""
    made = RedlockSet(valkey_5)
    yield made
    made.close()


def names(answers):
    """What kind of answer each is."""
    return [type(answer).__name__ for answer in answers]


@pytest.mark.parametrize("fenced", [False, True])
def test_a_mixed_batch(five, fenced):
    """Kept, deleted, taken over, released, out of time and foreign grants, each as it must be."""
    coordinator = five.coordinator(fenced=fenced)
    kept, deleted, stolen, released, old, bare = (
        grant(coordinator, key) for key in ("kept", "deleted", "stolen", "released", "old", "bare")
    )
    eventually(lambda: five.holding("bare") == five.holding("kept") == [0, 1, 2, 3, 4])
    coordinator.release(released)
    for number in (0, 1, 2):
        five.admin(number).delete(five.names.lock("deleted"))
    five.put([2, 3, 4], "stolen", "thief")
    old = Grant("old", old.owner, old.ttl, now() - 0.001, old.fencing_token, old.record)
    bare = Grant("bare", bare.owner, bare.ttl, bare.valid_until)
    answers = coordinator.extend_all([kept, deleted, stolen, released, old, bare], 20.0)
    assert names(answers) == ["Grant", "NoneType", "NoneType", "NoneType", "NoneType", "Grant"]
    assert answers[0].ttl == answers[5].ttl == 20.0
    assert answers[0].fencing_token == kept.fencing_token
    assert answers[0].valid_until == pytest.approx(now() + 20.0 - 0.202, abs=1.0)
    assert sorted(five.holding("deleted")) == [3, 4]
    assert five.value(3, "stolen").startswith("thief ")
    assert coordinator.release(answers[0])
    assert coordinator.release(answers[5])


def test_more_than_a_chunk(five):
    """A thousand and one leases are renewed in order, in a fraction of their life."""
    coordinator = five.coordinator()
    grants = [grant(coordinator, f"k{number}") for number in range(2 * CHUNK + 1)]
    start = now()
    answers = coordinator.extend_all(grants, 20.0)
    assert now() - start < 5.0
    assert [answer.key for answer in answers] == [one.key for one in grants]
    pttl = five.admin(0).pttl(five.names.lock("k0"))
    eventually(lambda: pttl <= 20_000)


def test_what_is_missing_is_healed_in_a_batch_too(five):
    """A server that lost many locks has them again after one renewal."""
    coordinator = five.coordinator()
    grants = [grant(coordinator, f"k{number}") for number in range(20)]
    eventually(lambda: all(len(five.holding(one.key)) == 5 for one in grants))
    five.admin(3).delete(*(five.names.lock(one.key) for one in grants))

    def healed():
        assert all(coordinator.extend_all(grants, 20.0))
        return all(len(five.holding(one.key)) == 5 for one in grants)

    eventually(healed)


def test_a_batch_without_a_majority_says_so_for_each(servers):
    """Two of three servers are gone: every answer is the error that an extend would raise."""
    own = servers.start(valkey_cluster, 3)
    made = RedlockSet(own)
    coordinator = made.coordinator()
    grants = [grant(coordinator, f"k{number}") for number in range(10)]
    own[0].crash()
    assert all(coordinator.extend_all(grants, 20.0))
    own[1].crash()
    answers = coordinator.extend_all(grants, 20.0)
    assert {type(answer) for answer in answers} == {CoordinatorUnavailable}
    assert "must renew it" in str(answers[0])
    own[0].start()
    assert all(isinstance(one, Grant) for one in coordinator.extend_all(grants, 20.0))
    made.close()


def test_a_batch_is_bounded_by_its_deadlines(valkey_3, servers):
    """Answers that come after a lease's end renew nothing."""
    proxies = [servers.start(Proxy, server.url) for server in valkey_3]
    made = RedlockSet(valkey_3, [proxy.url for proxy in proxies])
    coordinator = made.coordinator(node_timeout=0.6)
    short, long = grant(coordinator, "short", ttl=1.3), grant(coordinator, "long", ttl=20.0)
    for proxy in proxies:
        proxy.delay(0.5)
    eventually(lambda: now() > short.valid_until - 0.3)
    assert names(coordinator.extend_all([short, long], 20.0)) == ["NoneType", "Grant"]
    made.close()


def test_an_empty_batch_and_a_bad_ttl(five):
    """Nothing to do is done at once; a ttl that isn't allowed is refused."""
    coordinator = five.coordinator()
    assert coordinator.extend_all([], 20.0) == []
    with pytest.raises(ImproperlyConfigured, match="redlock_max_ttl"):
        coordinator.extend_all([grant(coordinator, "k")], 1000.0)
