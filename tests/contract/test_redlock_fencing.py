"""The fencing token of a quorum, its epoch, and the admission of servers, on real servers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import pytest

from celery_redlock.coordinators import Conflict, CoordinatorSettings
from celery_redlock.coordinators.redis_acquire import Acquisition
from celery_redlock.coordinators.redis_epoch import ADMIT, Epoch
from celery_redlock.coordinators.redlock import from_urls
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.fencing import FencingToken
from localservers import valkey_cluster
from tests.contract.redlock_set import ME, RedlockSet, eventually, grant, owner

HOUR = 3600 * 1_000_000  # microseconds, the unit of the floor


@pytest.fixture
def three(valkey_3):
    """Three servers that the other tests use too."""
    made = RedlockSet(valkey_3)
    yield made
    made.close()


@pytest.fixture
def five(valkey_5):
    """Five servers that the other tests use too."""
    made = RedlockSet(valkey_5)
    yield made
    made.close()


@pytest.fixture
def running(servers):
    """Starts a set of servers for this test alone."""
    sets = []

    def start(count, **options):
        sets.append(RedlockSet(list(servers.start(valkey_cluster, count, **options))))
        return sets[-1]

    yield start
    for made in sets:
        made.close()


def fenced(made, urls=None, **settings):
    """A coordinator that gives fencing tokens, connected to every server."""
    return made.coordinator(urls, fenced=True, **settings)


def take(coordinator, key="k"):
    """Take the lock and give it back; its token."""
    held = grant(coordinator, key)
    assert coordinator.release(held)
    return held.fencing_token


def rising(tokens: Iterable[int]) -> bool:
    """Whether each is above the one before."""
    return all(a < b for a, b in pairwise(tokens))


# Tokens


def test_each_grant_has_a_higher_token_of_its_own_lock(five):
    """Tokens rise over two processes, know their lock, and stay the same over an extend."""
    one, two = fenced(five), fenced(five)
    tokens = []
    for coordinator in (one, two, one, two):
        held = grant(coordinator, "k")
        assert isinstance(held.fencing_token, FencingToken)
        assert held.fencing_token.lock == "k"
        assert coordinator.extend(held, 20.0).fencing_token == held.fencing_token
        assert one.inspect("k").fencing_token == held.fencing_token
        assert coordinator.release(held)
        tokens.append(held.fencing_token)
    assert rising(tokens)


def test_asking_again_gives_the_same_token(three):
    """The same owner gets what it has."""
    coordinator, who = fenced(three), owner()
    first = grant(coordinator, "k", who=who).fencing_token
    eventually(lambda: len({three.value(number, "k") for number in range(3)}) == 1)
    assert grant(fenced(three), "k", who=who).fencing_token == first


def test_servers_that_agree_need_one_round_trip(five, monkeypatch):
    """On a quiet set the servers agree at once, so that none has to be raised."""
    coordinator = fenced(five)

    def raised(*_args):
        raise AssertionError("the servers disagreed")

    monkeypatch.setattr(Acquisition, "lift", raised)
    assert rising(take(coordinator) for _ in range(20))


@pytest.mark.parametrize("ahead", [[5, 0, 0], [3, 9, 1], [0, 2, 2]])
def test_servers_that_disagree_are_raised_to_one_token(three, ahead):
    """Counters that ran apart end up with one token on a majority, above all that was given."""
    coordinator = fenced(three)
    first = take(coordinator)
    for number, minutes in enumerate(ahead):
        counter = int(first) + minutes * 60_000_000
        three.admin(number).set(three.names.counter("k"), counter, px=60_000)
    held = grant(coordinator, "k")
    carried = [int(three.value(n, "k").split()[1]) for n in range(3) if three.value(n, "k")]
    assert carried.count(held.fencing_token) >= 2
    assert held.fencing_token > first
    counters = [int(three.admin(n).get(three.names.counter("k")) or 0) for n in range(3)]
    assert sum(counter >= held.fencing_token for counter in counters) >= 2
    assert coordinator.release(held)
    eventually(lambda: three.holding("k") == [])
    assert take(coordinator) > held.fencing_token


def test_tokens_rise_though_every_counter_is_lost(three):
    """A lock's counter may expire: the servers' highest token, and the floor, stand in for it."""
    coordinator = fenced(three)
    first = take(coordinator)
    for number in range(3):
        three.admin(number).delete(three.names.counter("k"))
        three.admin(number).set(three.names.highest, int(first) + HOUR // 2)
    second = take(fenced(three))
    assert second > int(first) + HOUR // 2


def test_a_floor_far_ahead_of_a_servers_clock_is_ignored(three, monkeypatch):
    """A client whose clock is a day ahead can't use the numbers up."""
    coordinator = fenced(three)
    take(coordinator)
    tomorrow = time.time_ns() + 86_400 * 10**9
    monkeypatch.setattr("celery_redlock.coordinators.redis_tokens.time.time_ns", lambda: tomorrow)
    assert take(coordinator) < time.time() * 1e6 + HOUR


def test_a_floor_a_little_ahead_is_taken(three, monkeypatch):
    """Half an hour is within what clocks may differ by."""
    coordinator = fenced(three)
    soon = time.time_ns() + 1800 * 10**9
    monkeypatch.setattr("celery_redlock.coordinators.redis_tokens.time.time_ns", lambda: soon)
    assert take(coordinator) == soon // 1000


def test_numbers_that_lua_cant_tell_apart_are_never_given(three):
    """At 2**53 a server refuses, and says why."""
    coordinator = fenced(three)
    for number in range(3):
        three.admin(number).set(three.names.highest, 2**53 - 1)
    with pytest.raises(CoordinatorUnavailable, match="used up"):
        coordinator.acquire("k", owner(), 10.0, ME)


def test_both_kinds_of_client_understand_each_other(three):
    """A lock with a token excludes clients without tokens, and the other way round."""
    with_token, without = fenced(three), three.coordinator()
    held = grant(with_token, "k")
    answer = without.acquire("k", owner(), 10.0, ME)
    assert isinstance(answer, Conflict)
    assert answer.holder == ME
    assert without.inspect("k").fencing_token == held.fencing_token
    assert with_token.release(held)
    plain = grant(without, "k2")
    assert isinstance(with_token.acquire("k2", owner(), 10.0, ME), Conflict)
    assert without.release(plain)


def test_a_healed_server_carries_the_token_too(three):
    """Healing raises the server's counters, so no token is given there a second time."""
    coordinator = fenced(three)
    held = grant(coordinator, "k")
    eventually(lambda: three.holding("k") == [0, 1, 2])
    three.admin(1).delete(three.names.lock("k"), three.names.counter("k"))
    three.admin(1).set(three.names.highest, 1)
    eventually(lambda: coordinator.extend(held, 20.0) and three.holding("k") == [0, 1, 2])
    assert int(three.value(1, "k").split()[1]) == held.fencing_token
    assert int(three.admin(1).get(three.names.highest)) == held.fencing_token
    assert int(three.admin(1).get(three.names.counter("k"))) == held.fencing_token


# Who may give tokens


def test_one_server_is_refused_with_the_reason():
    """Correctness mode on one Redis is a mistake that is told at once."""
    with pytest.raises(ImproperlyConfigured, match="forgets its locks and its counters"):
        from_urls(["redis://:secret@a:1/0"], CoordinatorSettings(fenced=True))


def test_servers_behind_sentinels_are_refused():
    """A failover forgets the newest tokens."""
    urls = [f"redis+sentinel://:secret@s{n}:26379/locks/0" for n in range(3)]
    with pytest.raises(ImproperlyConfigured, match="a failover forgets") as raised:
        from_urls(urls, CoordinatorSettings(fenced=True))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("appendonly", "no", "appendonly is no, not yes"),
        ("appendfsync", "everysec", "appendfsync is everysec, not always"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy is allkeys-lru, not noeviction"),
    ],
)
def test_a_server_that_may_forget_is_named_with_its_setting(running, setting, value, said):
    """Such a server takes no part, and with too many of them nobody does."""
    made = running(3)
    for number in (0, 2):
        made.admin(number).config_set(setting, value)
    coordinator = made.coordinator(fenced=True, warm=False)
    with pytest.raises(CoordinatorUnavailable, match=said) as raised:
        coordinator.acquire("k", owner(), 10.0, ME)
    assert said in raised.value.nodes[made.urls[0]]
    errors = [one for one in coordinator.check() if one.level == "error"]
    assert {one.subject for one in errors if said in one.message} == {made.urls[0], made.urls[2]}


# The epoch


def test_the_first_use_needs_every_server(running):
    """With one of three missing a new set gives no token; once all have answered, two suffice."""
    made = running(3)
    made.servers[2].crash()
    with pytest.raises(CoordinatorUnavailable, match="all 3 lock servers must answer at the first"):
        made.coordinator(fenced=True, warm=False).acquire("k", owner(), 10.0, ME)
    made.servers[2].start()
    first = take(fenced(made))
    made.servers[2].crash()
    assert take(made.coordinator(fenced=True, warm=False)) > first


def test_a_first_use_that_stopped_half_way_is_finished(three):
    """All are prepared and one is in force: the next process puts the others in force too."""
    coordinator = fenced(three)
    take(coordinator)
    marker = three.admin(0).get(three.names.epoch).decode()
    epoch = Epoch.parse(marker)
    assert (epoch.number, epoch.nodes, epoch.base) == (1, 3, 0)
    for number in (1, 2):
        three.admin(number).set(three.names.epoch, str(epoch._replace(number=0)))
    take(fenced(three))
    assert {three.admin(n).get(three.names.epoch).decode() for n in range(3)} == {marker}


def test_a_server_that_was_emptied_doesnt_vote(three):
    """Emptied, it would give a number again; it is left out, and the error names the cure."""
    coordinator = fenced(three)
    first = take(coordinator)
    three.admin(0).flushall()
    second = take(coordinator)
    held = grant(coordinator, "k")
    assert second > first
    assert three.holding("k") == [1, 2]
    assert coordinator.release(held)
    three.admin(1).flushall()
    for asked in (coordinator, three.coordinator(fenced=True, warm=False)):
        with pytest.raises(CoordinatorUnavailable) as raised:
            for _ in range(2):  # the second answer is from a fresh look at the markers
                asked.acquire("k", owner(), 10.0, ME)
        assert "emptied" in str(raised.value)
    message = " ".join(one.message + one.cure for one in coordinator.check())
    assert ADMIT in message


def test_an_emptied_server_that_voted_would_repeat_a_token(three):
    """Negative control: with the marker put back by hand, a token is given twice."""
    coordinator = fenced(three)
    given = {take(coordinator)}
    marker = three.admin(0).get(three.names.epoch)
    for number in (0, 1):
        three.admin(number).flushall()
        three.admin(number).set(three.names.epoch, marker)
    three.admin(2).set(three.names.lock("k"), "dead 0 {}", px=60_000)
    low = fenced(three)
    low._tokens._seen.clear()
    with pytest.MonkeyPatch.context() as patch:
        name = "celery_redlock.coordinators.redis_tokens.time.time_ns"
        patch.setattr(name, lambda: int(next(iter(given))) * 1000)
        assert take(low) in given


def test_the_other_set_is_refused(running):
    """A client with three of the five urls, or with two servers of a stranger, gets nothing."""
    made = running(5)
    first = take(fenced(made))
    with pytest.raises(CoordinatorUnavailable, match="must carry one epoch marker"):
        take(made.coordinator(made.urls[:3], fenced=True, warm=False))
    assert take(fenced(made)) > first


# Admission


def test_a_replaced_server_is_admitted_above_every_token(running):
    """The new server starts above the highest token, and votes after the longest ttl."""
    made = running(4)
    old, new = made.urls[:3], [*made.urls[:2], made.urls[3]]
    before = fenced(made, old, max_ttl=40.0)
    first = take(before)
    held = grant(before, "long")
    coordinator = made.coordinator(new, fenced=True, max_ttl=40.0)
    take(coordinator)  # two of the old ones are a majority
    said = coordinator.admit()
    assert said == {
        new[0]: "in epoch 2",
        new[1]: "in epoch 2",
        new[2]: "in epoch 2, votes after 40 s",
    }
    assert take(coordinator) > first
    assert int(made.admin(3).get(made.names.highest)) >= first
    assert 0 < made.admin(3).pttl(made.names.resting) <= 40_000
    assert made.admin(3).get(made.names.lock("k")) is None
    assert before.extend(held, 15.0) is not None  # leases go on
    with pytest.raises(CoordinatorUnavailable):  # the old epoch is over
        before.acquire("k2", owner(), 10.0, ME)
    assert take(before) > first  # it has learnt the new one, and leaves server 2 out
    made.admin(3).delete(made.names.resting)  # the longest ttl has passed
    made.servers[0].crash()
    assert take(coordinator) > first


def test_an_admission_after_an_emptying(three):
    """The emptied server rests, and then votes again."""
    coordinator = fenced(three)
    first = take(coordinator)
    three.admin(1).flushall()
    assert coordinator.admit()[three.urls[1]] == "in epoch 2, votes after 300 s"
    assert take(coordinator) > first
    assert [one.level for one in coordinator.check()] == ["ok"] * 3


@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 3)])
def test_a_set_of_another_size_starts_above_the_old_one(running, before, after):
    """More or fewer servers: all rest, then tokens go on above every former one."""
    made = running(5)
    first = take(fenced(made, made.urls[:before]))
    for number in range(after):  # counters of this lock that never saw its newest grants
        made.admin(number).set(made.names.counter("k"), 7, px=60_000)
    coordinator = made.coordinator(made.urls[:after], fenced=True, warm=False)
    with pytest.raises(CoordinatorUnavailable):
        take(coordinator)
    assert set(coordinator.admit().values()) == {"in epoch 2, votes after 300 s"}
    with pytest.raises(CoordinatorUnavailable, match="doesn't vote yet"):
        take(coordinator)
    for number in range(after):
        made.admin(number).delete(made.names.resting)
    with pytest.MonkeyPatch.context() as patch:  # without the help of the clock
        patch.setattr("celery_redlock.coordinators.redis_tokens.time.time_ns", lambda: 1000)
        assert take(coordinator) > first


def test_without_a_majority_of_the_old_set_nobody_is_admitted(running):
    """Nobody else knows the highest token, so guessing is refused, and nothing is changed."""
    made = running(5)
    take(fenced(made, made.urls[:3]))
    markers = [made.admin(number).get(made.names.epoch) for number in range(5)]
    coordinator = made.coordinator([made.urls[0], *made.urls[3:]], fenced=True, warm=False)
    with pytest.raises(CoordinatorUnavailable, match="2 of its 3 former servers|a majority of its"):
        coordinator.admit()
    assert [made.admin(number).get(made.names.epoch) for number in range(5)] == markers


@pytest.mark.parametrize("done", [1, 2, 3])
def test_an_admission_that_stopped_half_way_is_taken_up_again(three, done):
    """Sealed servers, some of them in the next epoch already: repeating it ends well."""
    coordinator = fenced(three)
    first = take(coordinator)
    old = Epoch.parse(three.admin(0).get(three.names.epoch).decode())
    following = old._replace(number=2, base=int(first))
    for number in range(3):
        marker = following if number >= done else old._replace(sealed=True)
        three.admin(number).set(three.names.epoch, str(marker))
    stopped = three.coordinator(fenced=True, warm=False)
    if done > 1:
        with pytest.raises(CoordinatorUnavailable, match="must carry one epoch marker"):
            take(stopped)
    stopped.admit()
    assert take(stopped) > first
    assert len({three.admin(number).get(three.names.epoch) for number in range(3)}) == 1


def test_admission_is_for_fencing_tokens_only(three):
    """Without tokens there is nothing to admit to."""
    with pytest.raises(ImproperlyConfigured, match="only servers that give fencing tokens"):
        three.coordinator().admit()


def test_a_running_client_notices_a_new_epoch(three):
    """The attempt that meets the new epoch fails; the next one is in it."""
    coordinator, other = fenced(three), fenced(three)
    first = take(coordinator)
    other.admit()
    with pytest.raises(CoordinatorUnavailable, match="another epoch"):
        take(coordinator)
    assert take(coordinator) > first
