"""Taking, holding and giving back, over a coordinator whose answers are written down."""

import time

import pytest

from celery_redlock import events, pool_child
from celery_redlock.coordinators.base import Conflict, Grant, Holder
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.lock import Claimant, Session, entered, held_leases
from celery_redlock.notices import NoticeOptions
from celery_redlock.options import LockOptions
from celery_redlock.testing import MemoryCoordinator
from celery_redlock.waiting import SPLIT_TRIES
from celery_redlock.watchdog import watchdog

SPLIT = Conflict("k", certain=False)
HELD = Conflict("k", Holder(task="other"), 5.0)


class Scripted(MemoryCoordinator):
    """A memory coordinator that first gives the answers that are written down for it."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)
        self.owners = []

    def acquire(self, key, owner, ttl, holder):
        self.owners.append(owner)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        return super().acquire(key, owner, ttl, holder)


def session_on(coordinator, *keys, guard=None, **options):
    """A session for these keys, and the list of what it told."""
    told = []
    claimant = Claimant(
        coordinator, keys or ("k",), LockOptions(**options), Holder(), told.append, guard
    )
    return Session(claimant), told


def test_a_split_vote_is_decided_by_asking_again():
    """Where perhaps nobody holds the lock it is asked for again, also with wait=0."""
    session, told = session_on(Scripted(SPLIT, SPLIT, SPLIT))
    assert session.take(0) is None
    session.give_back()
    assert [type(event) for event in told] == [events.Acquired, events.Released]


def test_a_split_vote_is_not_asked_for_ever():
    """After a bounded number of tries a split vote counts as held."""
    coordinator = Scripted(*[SPLIT] * 100)
    session, _ = session_on(coordinator)
    assert session.take(0) == SPLIT
    assert len(coordinator.owners) == SPLIT_TRIES + 1


def test_each_try_has_an_owner_of_its_own():
    """An owner is random and never used twice, so a late message of one try can't help another."""
    coordinator = Scripted(SPLIT, HELD, HELD)
    session, _ = session_on(coordinator)
    assert session.take(5) is None
    session.give_back()
    assert len(set(coordinator.owners)) == 4
    assert min(map(len, coordinator.owners)) >= 32


def test_without_wait_a_held_lock_is_said_at_once():
    """wait=0 means one question."""
    coordinator = Scripted(HELD, HELD)
    session, told = session_on(coordinator)
    assert session.take(0) == HELD
    session.give_back()
    assert len(coordinator.owners) == 1
    assert told == []


def test_waiting_ends_when_its_time_is_over():
    """A waiter gives up after its wait, having asked a bounded number of times."""
    coordinator = Scripted(*[HELD] * 1000)
    session, _ = session_on(coordinator)
    start = time.monotonic()
    assert session.take(0.5) == HELD
    assert time.monotonic() - start >= 0.5
    assert len(coordinator.owners) <= 20


def test_several_keys_are_taken_all_or_none():
    """If one of several locks is held, those taken before it are given back."""
    coordinator = MemoryCoordinator()
    other = coordinator.acquire("b", "other", 30, Holder())
    session, _ = session_on(coordinator, "a", "b", "c")
    assert session.take(0) == Conflict("b", Holder(), pytest.approx(30, abs=1))
    assert coordinator.inspect("a") is None
    coordinator.release(other)
    assert session.take(0) is None
    assert session.hold.lease.key == "a, b, c"
    assert set(session.hold.lease.fencing_tokens) == {"a", "b", "c"}
    session.give_back()
    assert [coordinator.inspect(key) for key in "abc"] == [None, None, None]


def test_unavailable_in_the_middle_gives_back_what_was_taken():
    """When nobody can say about the second lock, the first one doesn't stay behind."""

    class Half(MemoryCoordinator):
        def acquire(self, key, owner, ttl, holder):
            if key == "b":
                raise CoordinatorUnavailable("acquire 'b': no majority")
            return super().acquire(key, owner, ttl, holder)

    coordinator = Half()
    session, _ = session_on(coordinator, "a", "b")
    with pytest.raises(CoordinatorUnavailable):
        session.take(0)
    session.give_back()
    assert coordinator.inspect("a") is None


class Interrupted(BaseException):
    """What a signal raises, anywhere."""


def test_an_acquire_that_was_interrupted_is_undone_by_the_watchdog(monkeypatch):
    """What was granted when an acquire is interrupted nobody knows: its owner is released."""
    undone = []
    monkeypatch.setattr(
        watchdog(), "release_later", lambda coordinator, grant: undone.append(grant)
    )
    coordinator = Scripted(Interrupted())
    session, _ = session_on(coordinator)
    with pytest.raises(Interrupted):
        session.take(0)
    assert [(grant.key, grant.owner) for grant in undone] == [("k", coordinator.owners[0])]


def test_owner_and_key_are_announced_before_the_acquire(monkeypatch):
    """Whoever cleans up after a death knows the owner before any server does."""
    order = []

    class Noting(MemoryCoordinator):
        def acquire(self, key, owner, ttl, holder):
            order.append(("acquire", key, owner))
            return super().acquire(key, owner, ttl, holder)

    for name in ("finish", "retract"):
        monkeypatch.setattr(pool_child, name, lambda owner, name=name: order.append((name, owner)))
    monkeypatch.setattr(
        pool_child, "announce", lambda key, owner, guard: order.append(("told", key, owner))
    )
    session, _ = session_on(Noting(), guard=NoticeOptions("here", 30, 10))
    session.take(0)
    session.give_back()
    assert [what for what, *_ in order] == ["told", "acquire", "finish", "retract"]
    assert {owner for *_, owner in order} == {order[0][2]}


def test_a_release_never_raises_and_is_repeated_later(monkeypatch):
    """What goes wrong in a release is told and repeated, and the body's result stands."""
    later = []
    monkeypatch.setattr(
        watchdog(), "release_later", lambda coordinator, grant: later.append(grant.key)
    )

    class Deaf(MemoryCoordinator):
        def release(self, grant):
            raise CoordinatorUnavailable("release: no majority")

    session, told = session_on(Deaf())
    session.take(0)
    session.give_back()
    assert later == ["k"]
    assert events.ReleaseFailed in [type(event) for event in told]


def test_a_lock_found_gone_at_the_release_is_told_as_lost():
    """If only the release finds that the lock had gone, that is reported."""
    coordinator = MemoryCoordinator()
    session, told = session_on(coordinator)
    session.take(0)
    coordinator.release(session.hold.lease.grants[0])
    session.give_back()
    assert [type(event) for event in told] == [events.Acquired, events.Lost]


def test_it_is_given_back_once():
    """Giving back twice releases once: the second time it may be somebody else's."""
    coordinator = MemoryCoordinator()
    session, told = session_on(coordinator)
    session.take(0)
    session.give_back()
    session.give_back()
    assert [type(event) for event in told] == [events.Acquired, events.Released]


def test_min_hold_keeps_the_lock_after_the_body():
    """A short body's lock runs out min_hold after it was taken, instead of being given back."""
    coordinator = MemoryCoordinator()
    session, _ = session_on(coordinator, min_hold=20)
    session.take(0)
    session.give_back()
    held = coordinator.inspect("k")
    assert 15 < held.ttl_left <= 20
    assert watchdog().leases == []


def test_a_lease_is_current_only_in_its_block():
    """Leases nest, and the outer one is current again after the inner block."""
    coordinator = MemoryCoordinator()
    outer, inner = session_on(coordinator, "a")[0], session_on(coordinator, "b")[0]
    outer.take(0)
    inner.take(0)
    with entered(outer.hold.lease):
        with entered(inner.hold.lease):
            assert [lease.key for lease in held_leases()] == ["a", "b"]
        assert [lease.key for lease in held_leases()] == ["a"]
    assert held_leases() == ()
    outer.give_back()
    inner.give_back()


def test_a_grant_of_the_memory_coordinator_is_immutable():
    """A grant is a value: an extend gives a new one, and the old one stays as it was."""
    coordinator = MemoryCoordinator()
    grant = coordinator.acquire("k", "mine", 30, Holder())
    longer = coordinator.extend(grant, 60)
    assert isinstance(longer, Grant)
    assert longer.valid_until > grant.valid_until
    with pytest.raises(AttributeError):
        grant.ttl = 5
