"""A lease: trusted until the instant of its grant, and lost for good."""

import threading

import pytest

from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.exceptions import LockLost
from celery_redlock.fencing import FencingToken
from celery_redlock.lease import Lease


class Clock:
    """Stands still until it is told to move."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """The one clock of a test."""
    return Clock()


def grant(key="a", valid_until=110.0, token=7):
    """A grant of ten seconds by the clock above."""
    fencing_token = None if token is None else FencingToken(token, key)
    return Grant(key, "owner", 10.0, valid_until, fencing_token)


@pytest.fixture
def lease(clock):
    """A lease of ten seconds."""
    return Lease([grant()], "correctness", Holder(task="shop.pay"), clock)


def test_a_fresh_lease_is_held(lease):
    """It shows its lock, its token and the time that is left."""
    assert (lease.key, lease.mode, lease.fencing_token) == ("a", "correctness", 7)
    assert (lease.lost, lease.lost_because, lease.remaining()) == (False, "", 10.0)
    assert (lease.since, lease.valid_until, lease.ended) == (100.0, 110.0, False)
    lease.check()


def test_it_is_lost_at_its_deadline_though_nobody_noticed(lease, clock):
    """To the instant: trust ends by the clock, and not when somebody looks."""
    clock.now = 109.999
    lease.check()
    clock.now = 110.0
    assert lease.lost
    assert lease.remaining() == 0.0
    with pytest.raises(LockLost) as caught:
        lease.check()
    assert (caught.value.key, caught.value.fencing_token) == ("a", 7)
    assert caught.value.reason == "its ttl ran out before a renewal succeeded"


def test_a_renewal_moves_the_deadline_and_keeps_the_token(lease, clock):
    """Renewed grants take the place of the old ones."""
    clock.now = 105.0
    lease.renew([grant(valid_until=115.0)])
    clock.now = 114.0
    assert not lease.lost
    assert (lease.remaining(), lease.fencing_token) == (1.0, 7)


def test_a_loss_is_marked_once(lease):
    """The first one to say so is told that it was the first."""
    assert lease.mark_lost("refused by the majority")
    assert not lease.mark_lost("again")
    assert (lease.lost, lease.remaining()) == (True, 0.0)
    with pytest.raises(LockLost, match="refused by the majority"):
        lease.check()


def test_a_lost_lease_stays_lost(lease):
    """A renewal that comes late can't bring it back."""
    lease.mark_lost("refused")
    lease.renew([grant(valid_until=1000.0)])
    assert lease.lost
    assert lease.valid_until == 110.0


def test_nothing_is_lost_after_the_end(lease, clock):
    """A body that has ended keeps its result, whatever happens to the lock."""
    lease.end()
    clock.now = 200.0
    assert not lease.mark_lost("late")
    assert (lease.lost, lease.ended) == (False, True)
    lease.check()


def test_several_keys_end_with_the_first(clock):
    """The earliest deadline counts, and each key has its own token."""
    grants = [grant("a", 112.0, 5), grant("b", 105.0, 9), grant("c", 120.0, None)]
    lease = Lease(grants, "correctness", Holder(), clock)
    assert (lease.key, lease.valid_until, lease.fencing_token) == ("a, b, c", 105.0, 5)
    assert lease.fencing_tokens == {"a": 5, "b": 9}
    assert lease.fencing_tokens["b"].lock == "b"


def test_callbacks_are_taken_once(lease):
    """Each goes to exactly one taker."""
    calls = []
    lease.on_lost(calls.append)
    lease.on_lost(calls.append)
    assert lease.take_callbacks() == [calls.append, calls.append]
    assert lease.take_callbacks() == []
    assert calls == []


def test_a_callback_after_the_loss_is_called_at_once(lease):
    """Whoever asks late is told all the same."""
    calls = []
    lease.mark_lost("refused")
    lease.on_lost(calls.append)
    assert calls == [lease]
    assert lease.take_callbacks() == []


def test_a_late_callback_leaves_the_others_to_the_watchdog(lease):
    """Between the mark and the calls, nobody else's callback may get lost."""
    early, late = [], []
    lease.on_lost(early.append)
    lease.mark_lost("refused")
    lease.on_lost(late.append)
    assert late == [lease]
    assert lease.take_callbacks() == [early.append]


def test_no_callback_is_lost_or_doubled_between_threads(clock):
    """While one thread marks and calls, another registers: each is called once."""
    for _ in range(200):
        lease = Lease([grant()], "efficiency", Holder(), clock)
        calls, barrier = [], threading.Barrier(2)

        def watchdog(lease=lease, barrier=barrier):
            barrier.wait()
            lease.mark_lost("refused")
            for callback in lease.take_callbacks():
                callback(lease)

        thread = threading.Thread(target=watchdog)
        thread.start()
        barrier.wait()
        for number in range(20):
            lease.on_lost(lambda _lease, n=number, calls=calls: calls.append(n))
        thread.join()
        assert sorted(calls) == list(range(20))


@pytest.mark.parametrize(
    "change, state",
    [
        (lambda lease: None, "held token=7 remaining=10.000s"),
        (lambda lease: lease.mark_lost("x"), "lost token=7 remaining=0.000s"),
        (lambda lease: lease.end(), "over token=7 remaining=10.000s"),
    ],
)
def test_its_state_is_shown(lease, change, state):
    """What a debugger or a log line prints."""
    change(lease)
    assert repr(lease) == f"<Lease 'a' {state}>"


def test_a_lease_without_a_token_shows_none(clock):
    """Efficiency mode doesn't need one."""
    lease = Lease([grant(token=None)], "efficiency", Holder(), clock)
    assert lease.fencing_token is None
    assert lease.fencing_tokens == {}
    assert repr(lease) == "<Lease 'a' held remaining=10.000s>"
