"""Queue locks without a server: taken for seconds, kept, folded into, taken from the dead."""

import itertools
import time
from dataclasses import replace

import pytest

from celery_redlock import CoordinatorUnavailable, ImproperlyConfigured, LockOptions
from celery_redlock.coordinators.base import Capabilities, Conflict, Holder
from celery_redlock.coordinators.memory import MemoryCoordinator
from celery_redlock.testing import FakeClock
from celery_redlock.uniqueness import QueueLock, Unsettled, displace, reserve

ALIVE, DEAD = (lambda conflict: True), (lambda conflict: False)
_ids = itertools.count()


@pytest.fixture
def clock():
    """Stands still until told."""
    return FakeClock(time.time())


@pytest.fixture(autouse=True)
def wall_clock(clock, monkeypatch):
    """The wall clock goes with it."""
    monkeypatch.setattr("celery_redlock.uniqueness.time.time", clock)


@pytest.fixture
def coordinator(clock):
    """Locks in memory, by that clock."""
    return MemoryCoordinator(clock)


def holder(clock):
    """A task that asks now."""
    return Holder(task="t", id=f"id-{next(_ids)}", since=clock())


def lock_of(coordinator, *keys, ttl=3600.0):
    """A queue lock, not taken yet."""
    return QueueLock(coordinator, keys or ("k",), "-", ttl)


def publish(coordinator, clock, *keys, ttl=3600.0):
    """A lock that was taken and kept, as by a publish that went well; and its holder."""
    mine = holder(clock)
    lock = reserve(lock_of(coordinator, *keys, ttl=ttl), mine, ALIVE)
    lock.confirm(ttl)
    return lock, mine


def test_a_free_lock_is_taken_for_seconds_and_then_kept(coordinator, clock):
    """Two steps: whoever dies in between blocks nobody for an hour."""
    lock = reserve(lock_of(coordinator), holder(clock), ALIVE)
    assert coordinator.inspect("k").ttl_left == 5.0
    lock.confirm(lock.ttl)
    assert coordinator.inspect("k").ttl_left == 3600.0


@pytest.mark.parametrize(("ttl", "first"), [(3600, 5.0), (20, 5.0), (8, 2.0), (1, 0.25)])
def test_the_first_life_is_short_beside_the_whole(coordinator, ttl, first):
    """It is a quarter of it at most."""
    assert lock_of(coordinator, ttl=float(ttl)).first_ttl == first


def test_the_first_life_is_long_enough_for_the_coordinator(coordinator):
    """One that can't keep a lock for so short a time is asked for longer."""
    coordinator.capabilities = replace(MemoryCoordinator.capabilities, min_ttl=2.0)
    assert lock_of(coordinator, ttl=4.0).first_ttl == 3.0
    assert isinstance(coordinator.capabilities, Capabilities)


def test_a_second_call_is_told_who_lives(coordinator, clock):
    """The conflict names the task that has the lock."""
    _, first = publish(coordinator, clock)
    clock.advance(1000)
    outcome = reserve(lock_of(coordinator), holder(clock), ALIVE)
    assert isinstance(outcome, Conflict)
    assert outcome.holder.id == first.id


def test_a_call_that_is_not_out_yet_settles_nothing(coordinator, clock):
    """Folded into it, a second call could be lost; after its short life the lock is free."""
    reserve(lock_of(coordinator), holder(clock), ALIVE)
    for seconds in (0.0, 2.5, 2.49):
        clock.advance(seconds)
        outcome = reserve(lock_of(coordinator), holder(clock), ALIVE)
        assert isinstance(outcome, Unsettled)
        assert "not out yet" in outcome.why
    clock.advance(0.02)
    assert isinstance(reserve(lock_of(coordinator), holder(clock), ALIVE), QueueLock)


def test_an_old_lock_that_is_about_to_run_out_is_settled(coordinator, clock):
    """Its little life left is not taken for the first one: it is too old for that."""
    publish(coordinator, clock)
    clock.advance(3599)
    assert isinstance(reserve(lock_of(coordinator), holder(clock), ALIVE), Conflict)


@pytest.mark.parametrize("ttl", [1.0, 2.0, 10.0, 19.0, 3600.0])
def test_a_kept_lock_is_never_taken_for_one_that_is_not_out(coordinator, clock, ttl):
    """At no instant of its life, however short that is."""
    publish(coordinator, clock, ttl=ttl)
    for _ in range(50):
        assert isinstance(reserve(lock_of(coordinator, ttl=ttl), holder(clock), ALIVE), Conflict)
        clock.advance(ttl / 51)


def test_a_dead_task_does_not_keep_its_lock(coordinator, clock):
    """The lock is taken from it, and the next attempt gets it."""
    dead, _ = publish(coordinator, clock)
    assert isinstance(reserve(lock_of(coordinator), holder(clock), DEAD), Unsettled)
    taken = reserve(lock_of(coordinator), holder(clock), DEAD)
    assert isinstance(taken, QueueLock)
    assert taken.owner != dead.owner
    assert dead.free() is False
    assert coordinator.inspect("k").owner == taken.owner


def test_every_attempt_has_an_owner_of_its_own(coordinator, clock):
    """An owner that was given up is not used again."""
    owners = set()
    acquire = coordinator.acquire

    def spy(key, owner, ttl, who):
        owners.add(owner)
        return acquire(key, owner, ttl, who)

    coordinator.acquire = spy
    publish(coordinator, clock)
    for _ in range(3):
        reserve(lock_of(coordinator), holder(clock), ALIVE)
    assert len(owners) == 4


def test_several_keys_are_all_taken_or_none(coordinator, clock):
    """A conflict on the second leaves the first one free."""
    publish(coordinator, clock, "b")
    outcome = reserve(lock_of(coordinator, "a", "b"), holder(clock), ALIVE)
    assert outcome.key == "b"
    assert coordinator.inspect("a") is None
    lock, _ = publish(coordinator, clock, "a", "c")
    assert lock.free() is True
    assert coordinator.inspect("a") is coordinator.inspect("c") is None


def test_only_its_owner_frees_a_lock(coordinator, clock):
    """Another owner's value frees nothing."""
    lock, _ = publish(coordinator, clock)
    assert replace(lock, owner="another").free() is False
    assert coordinator.inspect("k") is not None
    assert lock.free() is True
    assert lock.free() is False


def test_keeping_a_lock_that_is_gone_does_not_bring_it_back(coordinator, clock):
    """The task was so quick that it is over before its publisher has said that it is out."""
    lock = reserve(lock_of(coordinator), holder(clock), ALIVE)
    lock.free()
    lock.confirm(3600.0)
    assert coordinator.inspect("k") is None
    assert lock.keep(10.0) is False


def test_keeping_is_tried_again_and_then_given_up_loudly(coordinator, clock, caplog, monkeypatch):
    """A lock that can't be kept runs out in seconds, and that is said."""
    lock = reserve(lock_of(coordinator), holder(clock), ALIVE)
    tries = []

    def extend(grant, ttl):
        tries.append(ttl)
        raise CoordinatorUnavailable("nobody answers")

    monkeypatch.setattr("celery_redlock.uniqueness.CONFIRM_PAUSE", 0.0)
    coordinator.extend = extend
    lock.confirm(3600.0)
    assert len(tries) == 4
    assert "runs out in seconds" in caplog.text


def test_a_queued_task_is_displaced_by_its_id(coordinator, clock):
    """Whoever takes its place is told which one it was."""
    _, first = publish(coordinator, clock)
    conflict = reserve(lock_of(coordinator), holder(clock), ALIVE)
    assert displace(lock_of(coordinator), conflict, MemoryCoordinator(clock)) == first.id
    assert coordinator.inspect("k") is None
    assert displace(lock_of(coordinator), conflict, None) is None


def test_a_running_task_is_not_displaced(coordinator, clock):
    """Its queue lock goes to the newer call, but it isn't to be revoked."""
    _, first = publish(coordinator, clock)
    running = MemoryCoordinator(clock)
    running.acquire("k", "o", 30.0, first)
    conflict = reserve(lock_of(coordinator), holder(clock), ALIVE)
    assert displace(lock_of(coordinator), conflict, running) is None
    assert coordinator.inspect("k") is None


def test_a_note_that_nobody_would_read_is_refused():
    """``until_expired`` has no end of a run at which the newest call could follow."""
    with pytest.raises(ImproperlyConfigured, match="keep_latest.*until_expired"):
        LockOptions(scope="until_expired", on_duplicate="keep_latest")
