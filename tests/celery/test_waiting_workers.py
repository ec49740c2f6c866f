"""Waiting for a lock on real workers: it costs no retry and no slot, and loses nothing."""

import re
import uuid

import pytest
import redis

from celery_redlock import LockNotAcquired, Locks
from celery_redlock.clock import now
from localservers import Valkey
from tests.celery import waiting_tasks as tasks

SOON = 30.0
TRANSPORT = {"visibility_timeout": 4}
pytestmark = pytest.mark.config(
    include=["tests.celery.waiting_tasks"],
    broker_transport_options=TRANSPORT,
    redlock_node_timeout=0.3,
)


class Obstacle:
    """Holds the lock of a task's call."""

    def __init__(self, app, task, name):
        """Take it."""
        plan = Locks.for_app(app).plan(task, "celery", None)
        self.key = plan.keys.names((name,), {})[0]
        self._coordinator = plan.coordinator
        holder = Locks.for_app(app).holder()
        self._grant = plan.coordinator.acquire(self.key, uuid.uuid4().hex, 200.0, holder)

    def give_back(self):
        """Give it back; the instant just before."""
        instant = now()
        assert self._coordinator.release(self._grant)
        return instant


@pytest.fixture
def obstacle(app):
    """Takes locks, which are given back when their servers are emptied."""
    return lambda task, name: Obstacle(app, task, name)


def countdowns(running):
    """The delays that a worker has logged."""
    return [int(found) for found in re.findall(r"rescheduled in (\d+) s", running.log)]


def test_waiting_costs_no_retry_and_is_capped(app, worker, journal, obstacle):
    """Whole seconds, under half the visibility timeout whatever was asked for; a counter of its own."""
    running = worker(concurrency=1)
    block = obstacle(tasks.is_capped, "a")
    result = tasks.is_capped.delay("a")
    running.wait_for_log("rescheduled in", count=3)
    assert result.state == "RETRY"
    block.give_back()
    assert result.get(timeout=SOON) == "a"
    assert set(countdowns(running)) <= {1, 2}
    assert [entry["retries"] for entry in journal.entries("start")] == [0]
    assert journal.entries("start")[0]["id"] == result.id


def test_waiting_ends_when_it_is_to_end(app, worker, journal, obstacle):
    """``give_up_after``: the task fails, names who is in the way, and has never run."""
    running = worker(concurrency=1)
    block = obstacle(tasks.gives_up, "a")
    with pytest.raises(LockNotAcquired) as caught:
        tasks.gives_up.delay("a").get(timeout=SOON)
    assert caught.value.key == block.key
    assert caught.value.holder["host"]
    assert sum(countdowns(running)) >= 2
    assert journal.entries("start") == []


def seconds_until_start(journal, name):
    """How long an unrelated task takes from its call to its start."""
    begin = now()
    tasks.unrelated.delay(name)
    return journal.wait_for("start", name=name)[0]["at"] - begin


def test_waiters_do_not_delay_an_unrelated_task(app, worker, journal, obstacle):
    """Two of them on a worker of two: less than half a second more than without them."""
    running = worker(concurrency=2)
    seconds_until_start(journal, "first")
    without = max(seconds_until_start(journal, f"alone {number}") for number in range(3))
    blocks = [obstacle(tasks.leaves_its_slot, name) for name in "ab"]
    waiters = [tasks.leaves_its_slot.delay(name) for name in "ab"]
    running.wait_for_log("rescheduled in", count=2)
    delays = [seconds_until_start(journal, f"beside {number}") for number in range(5)]
    assert max(delays) < without + 0.5
    for block in blocks:
        block.give_back()
    assert [waiter.get(timeout=SOON) for waiter in waiters] == ["a", "b"]


def test_waiters_in_their_slots_do(app, worker, journal, obstacle):
    """The control: with ``wait`` both slots are taken, and an unrelated task comes after them.

    The release wakes them: they run before they would have looked again by themselves.
    """
    worker(concurrency=2)
    blocks = [obstacle(tasks.stays_in_its_slot, name) for name in "ab"]
    waiters = [tasks.stays_in_its_slot.delay(name) for name in "ab"]
    waiting(journal, app, 2)
    tasks.unrelated.delay("beside")
    instants = [block.give_back() for block in blocks]
    assert [waiter.get(timeout=SOON) for waiter in waiters] == ["a", "b"]
    assert journal.wait_for("start", name="beside")[0]["at"] > min(instants)


def waiting(journal, app, count):
    """Wait until so many waiters listen to the lock servers."""
    urls = app.conf.redlock_coordinators["default"]
    clients = [redis.Redis.from_url(url) for url in urls]
    end = now() + SOON
    while sum("t" in one["flags"] for c in clients for one in c.client_list()) < count:
        assert now() < end, "nobody listens"
    for client in clients:
        client.close()


@pytest.fixture
def own_broker(servers):
    """A broker that a test may break."""
    return servers.start(Valkey)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_broker_that_is_away_loses_no_waiter(
    config, worker, journal, own_broker, obstacle, app, late
):
    """What can't be published again waits in its slot until the broker is back, and then runs once."""
    app.conf.broker_url = own_broker.url
    settings = {"broker_url": own_broker.url, "task_acks_late": late}
    running = worker(concurrency=1, config=settings)
    block = obstacle(tasks.stays_then_leaves, "a")
    result = tasks.stays_then_leaves.delay("a")
    waiting(journal, app, 1)
    own_broker.kill()
    running.wait_for_log("could not be published again", timeout=60)
    own_broker.start()
    block.give_back()
    end = now() + 60
    while not result.ready():
        assert now() < end
        if not running.alive:  # Celery may end when it can't acknowledge over the lost connection
            running = worker(concurrency=1, config=settings)
    assert result.get() == "a"
    assert len(journal.entries("start")) == 1
