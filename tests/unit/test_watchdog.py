"""One pass of the watchdog: a plain function over leases and a clock."""

import logging

import pytest

from celery_redlock import clock, events
from celery_redlock.coordinators.base import Conflict, Grant, Holder
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.lease import Lease
from celery_redlock.native import Event
from celery_redlock.testing import FakeClock, MemoryCoordinator
from celery_redlock.watchdog import Hold, Watchdog, renew_due

TTL = 30.0
EVERY = 10.0


class Scene:
    """A held lease with everything that a pass needs, and what the pass did."""

    def __init__(self, **options):
        self.clock = FakeClock()
        self.coordinator = MemoryCoordinator(self.clock)
        self.told = []
        self.stopped = []
        grant = self.coordinator.acquire("k", "mine", TTL, Holder())
        lease = Lease([grant], "efficiency", Holder(), self.clock)
        chosen = {"max_hold": None, "stop_body": self.stopped.append, **options}
        self.hold = Hold(lease, self.coordinator, TTL, EVERY, sink=self.told.append, **chosen)
        self.lease = lease

    def after(self, seconds):
        """Let time pass and look after the lease; the instant of the next look, from now."""
        self.clock.advance(seconds)
        return renew_due([self.hold], self.clock) - self.clock()

    def names(self):
        return [type(event).__name__ for event in self.told]


@pytest.fixture
def scene():
    """A lease of 30 s that is renewed every 10 s."""
    return Scene()


class Silent:
    """A coordinator that nobody hears from."""

    def extend(self, grant, ttl):
        raise CoordinatorUnavailable("extend 'k': no majority", {"node": "timed out"})


def test_nothing_is_renewed_before_its_time(scene):
    """A lease that is not due yet costs no call."""
    assert scene.after(9.9) == pytest.approx(0.1)
    assert scene.told == []
    assert scene.lease.remaining() == pytest.approx(TTL - 9.9)


def test_a_due_lease_is_renewed_for_its_whole_ttl(scene):
    """A renewal sets the deadline to one ttl from now, and the next one is an interval away."""
    assert scene.after(10) == pytest.approx(EVERY)
    assert scene.lease.remaining() == pytest.approx(TTL)
    assert scene.names() == ["Renewed"]
    assert scene.told[0].remaining == pytest.approx(TTL - 10)


def test_a_lease_outlives_its_ttl_many_times_over(scene):
    """A body of ten ttls keeps its lock, and the next owner is kept out all the time."""
    for _ in range(30):
        scene.after(EVERY)
        outcome = scene.coordinator.acquire("k", "other", TTL, Holder())
        assert isinstance(outcome, Conflict)
    assert not scene.lease.lost


def test_without_renewal_the_lease_is_lost(scene):
    """The control of the test above: if nobody looks after it, the lock goes to the next one."""
    scene.clock.advance(TTL)
    assert isinstance(scene.coordinator.acquire("k", "other", TTL, Holder()), Grant)
    assert scene.lease.lost


def test_a_refused_renewal_is_loss_at_once(scene):
    """Somebody else's lock is noticed at the next renewal: event, callback, and the body stops."""
    called = []
    scene.lease.on_lost(called.append)
    scene.coordinator.release(scene.lease.grants[0])
    scene.coordinator.acquire("k", "other", TTL, Holder())
    assert scene.after(EVERY) == pytest.approx(EVERY)
    assert scene.names() == ["Lost"]
    assert "refused" in scene.told[0].reason
    assert called == scene.stopped == [scene.lease]


def test_loss_is_told_once(scene):
    """However often a lost lease is looked at, its end is told a single time."""
    scene.clock.advance(TTL + 1)
    for _ in range(3):
        scene.after(0.1)
    assert scene.names() == ["Lost"]
    assert scene.stopped == [scene.lease]


def test_a_body_that_goes_on_is_stopped_again(scene):
    """Each renewal period, until it has ended: it may have swallowed the first interrupt."""
    assert scene.after(TTL + 1) == pytest.approx(EVERY)
    assert scene.after(EVERY) == pytest.approx(EVERY)
    assert scene.stopped == [scene.lease] * 2
    assert scene.names() == ["Lost"]
    scene.lease.end()
    scene.after(EVERY)
    assert len(scene.stopped) == 2


def test_could_not_ask_is_not_loss_until_the_deadline(scene):
    """While nobody answers the lease stands, the tries come closer, and the deadline ends it."""
    scene.hold.coordinator = Silent()
    assert scene.after(10) == pytest.approx(EVERY / 4)
    assert not scene.lease.lost
    assert scene.told[0].remaining == pytest.approx(20)
    while not scene.lease.lost:
        scene.after(renew_due([scene.hold], scene.clock) - scene.clock())
    assert scene.clock.instant - 1000 == pytest.approx(TTL)
    assert scene.names().count("RenewalFailed") >= 3
    scene.after(0)
    assert scene.names()[-1] == "Lost"


def test_max_hold_ends_a_lease_as_if_lost():
    """After max_hold the watchdog stops renewing and says why."""
    scene = Scene(max_hold=25.0)
    for _ in range(2):
        scene.after(EVERY)
    assert not scene.lease.lost
    scene.after(5)
    assert scene.lease.lost
    assert "max_hold" in scene.told[-1].reason


def test_a_broken_coordinator_does_not_end_the_pass(scene, caplog):
    """An unexpected error of one lease is logged, and the next lease is renewed all the same."""
    other = Scene()
    other.clock = scene.clock

    class Broken:
        def extend(self, grant, ttl):
            raise ZeroDivisionError

    scene.hold.coordinator = Broken()
    scene.clock.advance(EVERY)
    renew_due([scene.hold, other.hold], scene.clock)
    assert "ZeroDivisionError" in caplog.text
    assert not scene.lease.lost
    assert other.names() == ["Renewed"]


def test_a_callback_that_raises_does_not_keep_the_body_running(scene, caplog):
    """A user's callback may fail; the others are called and the body is stopped."""
    called = []
    scene.lease.on_lost(lambda lease: 1 / 0)
    scene.lease.on_lost(called.append)
    with caplog.at_level(logging.ERROR):
        scene.clock.advance(TTL)
        scene.after(0)
    assert called == scene.stopped == [scene.lease]
    assert "ZeroDivisionError" in caplog.text


def test_a_renewal_that_comes_after_the_release_is_undone(scene):
    """If the body ended while a renewal was under way, what that renewal healed goes as well."""
    released = []

    class Late:
        def extend(self, grant, ttl):
            scene.lease.end()
            return grant

        def release(self, grant):
            released.append(grant.owner)
            return True

    scene.hold.coordinator = Late()
    scene.after(EVERY)
    assert released == ["mine"]


class Flaky:
    """A coordinator whose release can't be said the first times."""

    def __init__(self, failures):
        self.failures = failures
        self.tries = 0
        self.done = Event()

    def release(self, grant):
        self.tries += 1
        if self.tries <= self.failures:
            raise CoordinatorUnavailable("release: no majority")
        self.done.set()
        return True


def test_a_release_is_repeated_until_it_is_heard():
    """A release that could not be said is repeated by the watchdog's own thread."""
    flaky = Flaky(failures=2)
    Watchdog().release_later(flaky, Grant("k", "mine", TTL, 0.0))
    assert flaky.done.wait(10)
    assert flaky.tries == 3


def test_a_release_is_not_repeated_for_ever():
    """Once the ttl is over the lock has gone by itself, and nobody is asked any more."""
    flaky, dog = Flaky(failures=10**9), Watchdog()
    dog.release_later(flaky, Grant("k", "mine", 0.25, 0.0))
    dog.release_later(Flaky(0), Grant("k", "later", TTL, 0.0))
    last = Flaky(0)
    dog.release_later(last, Grant("k", "last", TTL, 0.0))
    assert last.done.wait(10)
    flaky.done.wait(1.0)
    assert 1 <= flaky.tries <= 3


def test_the_thread_renews_by_itself():
    """A watched lease is renewed without anybody calling, by a thread of its own."""
    coordinator, renewed = MemoryCoordinator(), Event()

    def sink(event):
        if isinstance(event, events.Renewed):
            renewed.set()

    grant = coordinator.acquire("k", "mine", 0.6, Holder())
    lease = Lease([grant], "efficiency", Holder(), clock.now)
    dog = Watchdog()
    hold = Hold(lease, coordinator, 0.6, 0.2, None, sink)
    dog.watch(hold)
    assert renewed.wait(10)
    dog.forget(hold)
    assert dog.leases == []
