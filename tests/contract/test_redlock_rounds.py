"""Rules 1 to 9 of a quorum lock, each against real servers, with the broken version beside it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from dataclasses import replace

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, CoordinatorSettings, Grant
from celery_redlock.coordinators.redis_commands import RELEASE
from celery_redlock.coordinators.redlock import RedlockCoordinator
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from localservers import Proxy, valkey_cluster
from tests.contract.redlock_set import ME, RedlockSet, eventually, grant, owner


@pytest.fixture
def five(valkey_5):
    """Five servers that the other tests use too."""
    made = RedlockSet(valkey_5)
    yield made
    made.close()


@pytest.fixture
def three(valkey_3):
    """Three servers that the other tests use too."""
    made = RedlockSet(valkey_3)
    yield made
    made.close()


@pytest.fixture
def behind_proxies(valkey_3, servers):
    """Three servers, each behind a proxy: the set, and the proxies."""
    proxies = [servers.start(Proxy, server.url) for server in valkey_3]
    made = RedlockSet(valkey_3, [proxy.url for proxy in proxies])
    yield made, proxies
    made.close()


@pytest.fixture
def stopped(five):
    """Stops processes, and lets them go on at the end."""
    pids = []

    def stop(*numbers):
        for number in numbers:
            pids.append(five.servers[number].pid)
            os.kill(pids[-1], signal.SIGSTOP)

    yield stop
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


# 1. Scatter, then gather


@pytest.mark.parametrize("warm", [True, False], ids=["connected", "not connected yet"])
def test_a_hung_minority_costs_nothing(five, stopped, warm):
    """Two of five servers hang: an acquire and a release don't wait for them."""
    coordinator = five.coordinator(node_timeout=3.0, warm=warm)
    stopped(0, 3)
    threads = threading.active_count()
    for _ in range(3):
        start = now()
        held = grant(coordinator, "k")
        assert coordinator.extend(held, 20.0) is not None
        assert coordinator.release(held)
        assert now() - start < 1.5
    assert threading.active_count() == threads


def test_a_hung_majority_costs_one_timeout(five, stopped):
    """Three of five hang: nobody can say, after the time that a server has, and not sooner."""
    coordinator = five.coordinator(node_timeout=0.3)
    stopped(0, 1, 3)
    start = now()
    with pytest.raises(CoordinatorUnavailable, match=r"3 of 5 .* no answer within 0\.3 s"):
        coordinator.acquire("k", owner(), 10.0, ME)
    assert 0.3 <= now() - start < 2.0


def test_servers_left_out_are_asked_when_a_majority_needs_them(behind_proxies):
    """Two servers that failed a moment ago are back when a third one goes: no grant is missed."""
    made, proxies = behind_proxies
    coordinator = made.coordinator()
    grant(coordinator, "before")
    proxies[0].refuse()
    coordinator.release(grant(coordinator, "two of three are enough"))
    assert coordinator._nodes[0].cooling_until > now()
    proxies[0].heal()
    asked = proxies[0].requests
    grant(coordinator, "still left out")
    assert proxies[0].requests == asked
    proxies[1].refuse()
    grant(coordinator, "needed")
    assert proxies[0].requests > asked


# 2. In the order of the requests, on one connection


def test_a_cycle_without_faults_leaves_nothing_behind(five):
    """Each release follows its acquire on every server, though neither waits for all of them."""
    coordinator = five.coordinator()
    for number in range(100):
        assert coordinator.release(grant(coordinator, f"cycle-{number}"))
    eventually(lambda: five.stored() == {})


@pytest.fixture(params=[False, True], ids=["natively", "by script"])
def late_acquire(behind_proxies, request):
    """A grant whose request has not arrived at server 2 yet, and a way to let it arrive."""
    made, proxies = behind_proxies
    coordinator = made.coordinator(fenced=request.param)
    coordinator.release(grant(coordinator, "the first use, which needs every server"))
    proxies[2].hold(requests=True, replies=False)
    held = grant(coordinator, "k")
    assert list(held.record.unseen) == [2]

    def arrive():
        replies = proxies[2].replies
        proxies[2].heal()
        proxies[2].wait_for(replies=replies + 1)

    channel = coordinator._channels.take()
    coordinator._channels.give(channel)
    yield made, coordinator, held, arrive
    channel.close()


def by_another_connection(made, coordinator):
    """Have the next release go over connections of its own, straight to the servers."""
    coordinator._channels.take()  # in use, as by another thread
    coordinator._nodes[2].options["port"] = made.servers[2].port


def test_a_release_follows_its_acquire_on_the_same_connection(late_acquire):
    """A release right after a grant can't overtake the acquire that is still under way."""
    made, coordinator, held, arrive = late_acquire
    assert coordinator.release(held)
    arrive()
    eventually(lambda: made.holding("k") == [])


def test_a_release_by_another_connection_buries_the_owner(late_acquire):
    """An acquire that arrives after its release meets its owner's grave, or a kept lock."""
    made, coordinator, held, arrive = late_acquire
    by_another_connection(made, coordinator)
    assert coordinator.release(held)
    grave = made.names.grave("k", held.owner)
    eventually(lambda: 0 < made.admin(2).pttl(grave) <= 30_000)
    arrive()
    assert made.value(2, "k") == ("- 0 {}" if held.record.natively else None)
    assert made.admin(2).pttl(made.names.lock("k")) <= 1000
    assert made.holding("k") in ([], [2])


def test_a_lock_that_is_kept_for_a_moment_is_nobodys(five):
    """It is no conflict and no lock to look at, and a majority elsewhere is enough."""
    coordinator = five.coordinator()
    five.put([0, 1], "k", "-")
    assert coordinator.inspect("k") is None
    coordinator.release(grant(coordinator, "k"))
    five.put([0, 1, 2], "k", "-")
    assert coordinator.inspect("k") is None
    with pytest.raises(CoordinatorUnavailable, match="kept free for a moment"):
        coordinator.acquire("k", owner(), 10.0, ME)


def test_without_the_grave_the_late_acquire_would_stay(late_acquire):
    """The broken version, which forgets which answers it hasn't seen, leaves a key behind."""
    made, coordinator, held, arrive = late_acquire
    by_another_connection(made, coordinator)
    forgetful = replace(held.record, unseen={}, exact=frozenset())
    assert coordinator.release(replace(held, record=forgetful))
    arrive()
    eventually(lambda: made.holding("k") == [2])
    assert made.value(2, "k").startswith(held.owner)


def test_a_release_that_could_not_be_sent_is_owed(five, stopped):
    """A server that hung through acquire and release gets the release when it is reached again."""
    coordinator = five.coordinator(node_timeout=0.2)
    stopped(4)
    held = grant(coordinator, "k")
    eventually(lambda: grant(coordinator, owner()).record.channel.links[4] is None)
    assert coordinator.release(held)
    os.kill(five.servers[4].pid, signal.SIGCONT)
    eventually(lambda: five.holding("k") == [4])
    coordinator._nodes[4].recover()  # its time-out is over
    eventually(lambda: grant(coordinator, owner()) and five.holding("k") == [])


# 3. The clock


def test_a_deadline_counts_from_before_the_request(behind_proxies):
    """Servers that answer after 0.3 s don't lengthen what is trusted."""
    made, proxies = behind_proxies
    coordinator = made.coordinator()
    for proxy in proxies:
        proxy.delay(0.3)
    before = now()
    held = grant(coordinator, "k", ttl=10.0)
    assert now() - before >= 0.3
    assert held.valid_until - before == pytest.approx(10.0 - 0.102, abs=0.1)
    extended_from = now()
    longer = coordinator.extend(held, 20.0)
    assert longer.valid_until - extended_from == pytest.approx(20.0 - 0.202, abs=0.1)


# 5. No retries but ours; asking again is harmless


def test_the_retries_of_a_client_are_left_behind(valkey_3, five):
    """A client with ten retries of half a second each costs nothing when its server is gone."""
    clients = [
        redis.Redis(
            port=server.port,
            retry=Retry(ConstantBackoff(0.5), 10),
            socket_timeout=30,
            health_check_interval=1,
        )
        for server in valkey_3
    ]
    gone = redis.Redis(port=1, retry=Retry(ConstantBackoff(0.5), 10))
    settings = CoordinatorSettings(prefix=five.names.prefix, node_timeout=1.0)
    coordinator = RedlockCoordinator.from_clients([*clients[:2], gone], settings)
    start = now()
    assert coordinator.release(grant(coordinator, "k"))
    assert now() - start < 0.5
    coordinator.close()
    for client in (*clients, gone):
        client.close()


def test_an_acquire_whose_answers_were_lost_can_be_asked_again(behind_proxies):
    """All three servers took the lock and none could say so: the same owner gets it all the same."""
    made, proxies = behind_proxies
    coordinator = made.coordinator()
    who = owner()
    for proxy in proxies:
        proxy.drop_reply()
    with pytest.raises(CoordinatorUnavailable, match="closed the connection"):
        coordinator.acquire("k", who, 10.0, ME)
    assert isinstance(coordinator.acquire("k", who, 10.0, ME), Grant)
    eventually(lambda: made.value(0, "k") and made.value(1, "k") and made.value(2, "k"))


def test_asking_again_never_shortens_the_lock_below_its_trust(three):
    """Asked a second time with a ttl of 20 s, a lock of 5 s lasts 20 s on a majority."""
    coordinator, who = three.coordinator(), owner()
    grant(coordinator, "k", ttl=5.0, who=who)
    grant(coordinator, "k", ttl=20.0, who=who)
    lives = [three.admin(number).pttl(three.names.lock("k")) for number in range(3)]
    assert sum(life > 18_000 for life in lives) >= 2


# 7. Extending


def test_an_extend_sets_the_life_and_never_adds_to_it(three):
    """Three extends of 20 s leave 20 s, not 60."""
    coordinator = three.coordinator()
    held = grant(coordinator, "k", ttl=10.0)
    for _ in range(3):
        held = coordinator.extend(held, 20.0)
    name = three.names.lock("k")
    eventually(lambda: all(19_000 < three.admin(n).pttl(name) <= 20_000 for n in range(3)))
    assert held.ttl == 20.0


@pytest.mark.parametrize("exact", [True, False], ids=["natively", "by script"])
def test_a_lock_that_is_gone_on_a_majority_is_lost(five, exact):
    """The keys are not made again to count as votes, and what is left is not deleted."""
    coordinator = five.coordinator()
    held = grant(coordinator, "k")
    if not exact:
        held = replace(held, record=None)
    eventually(lambda: five.holding("k") == [0, 1, 2, 3, 4])
    for number in (0, 2, 4):
        five.admin(number).delete(five.names.lock("k"))
    assert coordinator.extend(held, 20.0) is None
    assert five.holding("k") == [1, 3]


def test_what_is_missing_on_a_minority_is_healed_after_the_majority_was_proven(five):
    """Two servers that lost the key get it back, with the grant's value and life."""
    coordinator = five.coordinator()
    held = grant(coordinator, "k")
    eventually(lambda: five.holding("k") == [0, 1, 2, 3, 4])
    for number in (1, 2):
        five.admin(number).delete(five.names.lock("k"))

    def healed():
        assert coordinator.extend(held, 20.0) is not None
        return five.holding("k") == [0, 1, 2, 3, 4]

    eventually(healed)
    assert len({five.value(number, "k") for number in range(5)}) == 1
    assert coordinator.release(held)
    eventually(lambda: five.holding("k") == [])


def test_another_owner_on_a_minority_is_left_alone(five):
    """An extend neither overwrites a stranger's lock nor is stopped by it."""
    coordinator = five.coordinator()
    held = grant(coordinator, "k")
    eventually(lambda: five.holding("k") == [0, 1, 2, 3, 4])
    five.put([3], "k", "stranger")
    for _ in range(3):
        assert coordinator.extend(held, 20.0) is not None
    assert coordinator.release(held)
    eventually(lambda: five.holding("k") == [3])
    assert five.value(3, "k").startswith("stranger ")


def test_a_majority_after_the_old_deadline_is_too_late(behind_proxies):
    """An extend whose answers come after the lock's trusted end has lost it."""
    made, proxies = behind_proxies
    coordinator = made.coordinator(node_timeout=0.6)
    held = grant(coordinator, "k", ttl=1.3)
    for proxy in proxies:
        proxy.delay(0.5)
    eventually(lambda: now() > held.valid_until - 0.3)
    assert coordinator.extend(held, 10.0) is None


def test_lost_is_told_from_unreachable(five, servers):
    """With a majority gone an extend says so, and the old deadline stands."""
    own = servers.start(valkey_cluster, 3)
    made = RedlockSet(own)
    coordinator = made.coordinator()
    held = grant(coordinator, "k")
    own[0].crash()
    own[1].crash()
    with pytest.raises(CoordinatorUnavailable, match="2 of 3 lock servers must renew it"):
        coordinator.extend(held, 20.0)
    with pytest.raises(CoordinatorUnavailable, match="2 of 3 lock servers must release it"):
        coordinator.release(held)
    made.close()


# 8. A partial acquisition


def test_a_loser_takes_back_what_it_got_before_it_says_so(five):
    """Held elsewhere on three of five: the other two are free again when the conflict is told."""
    coordinator = five.coordinator()
    five.put([0, 1, 2], "k", "winner")
    answer = coordinator.acquire("k", owner(), 10.0, ME)
    assert isinstance(answer, Conflict)
    assert answer.certain
    assert answer.holder.task == "other.task"
    assert 59.0 < answer.retry_after <= 60.0
    eventually(lambda: five.holding("k") == [0, 1, 2])


def test_split_votes_are_no_certain_conflict(five):
    """Two owners on two servers each: nobody holds the lock, and the answer says so."""
    coordinator = five.coordinator()
    five.put([0, 1], "k", "one")
    five.put([2, 3], "k", "two")
    answer = coordinator.acquire("k", owner(), 10.0, ME)
    assert isinstance(answer, Conflict)
    assert not answer.certain
    eventually(lambda: five.holding("k") == [0, 1, 2, 3])


def test_unknown_is_never_taken_for_held(servers):
    """Held on the only server that is left of three: nobody can say."""
    own = servers.start(valkey_cluster, 3)
    made = RedlockSet(own)
    made.put([2], "k", "somebody")
    own[0].crash()
    own[1].crash()
    with pytest.raises(CoordinatorUnavailable) as raised:
        made.coordinator(warm=False).acquire("k", owner(), 10.0, ME)
    said = [raised.value.nodes[server.url] for server in own]
    assert "refused" in said[0]
    assert "refused" in said[1]
    made.close()


# 9. Owners


@pytest.mark.parametrize("bad", ["", "two words", "line\nbreak", " edge", "-"])
def test_an_owner_with_blanks_is_refused(three, bad):
    """Blanks part the stored value, so an owner that has one could pass for another."""
    with pytest.raises(ImproperlyConfigured, match="owner must be a text without blanks"):
        three.coordinator().acquire("k", bad, 10.0, ME)


def test_an_owner_that_begins_like_another_is_another(three):
    """The whole owner is compared, not how it begins."""
    coordinator = three.coordinator()
    held = grant(coordinator, "k", who="abcd")
    assert isinstance(coordinator.acquire("k", "abc", 10.0, ME), Conflict)
    assert not coordinator.release(replace(held, owner="abc", record=None))
    assert coordinator.extend(replace(held, owner="abc", record=None), 20.0) is None
    assert coordinator.release(replace(held, record=None))


# 13. State belongs to one grant


def test_a_grant_goes_to_another_process_and_is_released_there(three):
    """A pickled grant is enough, or just its key and owner."""
    coordinator, other = three.coordinator(), three.coordinator()
    sent = pickle.loads(pickle.dumps(grant(coordinator, "k")))
    assert sent.record.channel is None
    longer = other.extend(sent, 20.0)
    assert other.release(longer)
    bare = replace(grant(coordinator, "k"), record=None)
    assert other.extend(bare, 20.0) is not None
    assert other.release(bare)
    eventually(lambda: three.holding("k") == [])


def test_a_forked_process_makes_connections_of_its_own(three):
    """Parent and child go on with the same coordinator, on connections that don't mix."""
    coordinator = three.coordinator()
    held = grant(coordinator, "parent's")
    mine = {link.serial for link in held.record.channel.links if link}
    child = os.fork()
    if child == 0:
        status = 1
        try:
            got = grant(coordinator, "child's")
            theirs = {link.serial for link in got.record.channel.links if link}
            status = 0 if coordinator.release(got) and not mine & theirs else 2
        finally:
            os._exit(status)
    for number in range(50):
        assert coordinator.release(grant(coordinator, f"meanwhile-{number}"))
    assert os.waitpid(child, 0)[1] == 0
    assert {link.serial for link in held.record.channel.links if link} == mine
    assert coordinator.release(held)


def test_threads_never_share_a_connection_at_one_time(three):
    """Eight threads with one coordinator take and release a hundred locks without a mix-up."""
    coordinator = three.coordinator()
    wrong = []

    def work(name):
        for number in range(12):
            held = coordinator.acquire(f"{name}-{number}", owner(), 10.0, ME)
            if not (isinstance(held, Grant) and coordinator.release(held)):
                wrong.append(held)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    eventually(lambda: three.stored() == {})


def test_an_interrupted_acquire_leaves_nothing_behind(three, monkeypatch):
    """An exception from outside, in the middle of the round, takes the request back."""
    coordinator = three.coordinator()

    class Stop(BaseException):
        pass

    def interrupted(*_args):
        raise Stop

    monkeypatch.setattr("celery_redlock.coordinators.redis_ballot.judge", interrupted)
    with pytest.raises(Stop):
        coordinator.acquire("k", owner(), 10.0, ME)
    monkeypatch.undo()
    eventually(lambda: three.holding("k") == [])
    assert coordinator.release(grant(coordinator, "k"))


def test_a_broken_release_script_would_be_noticed(three):
    """Negative control of the owner check: a release for everybody deletes a stranger's lock."""
    three.put([0], "k", "stranger")
    deletes = "return redis.call('DEL', KEYS[1])"
    sound = [0, 0]
    keys = three.names.lock("k"), three.names.grave("k", "me")
    sound[0] = three.admin(0).eval(RELEASE.text, 2, *keys, "me", 0)
    assert three.value(0, "k") is not None
    sound[1] = three.admin(0).eval(deletes, 2, *keys, "me", 0)
    assert sound == [0, 1]
    assert three.value(0, "k") is None
