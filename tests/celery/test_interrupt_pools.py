"""A body whose lock was lost is stopped, in every pool, and nothing else is."""

import time

import pytest

from celery_redlock import LockLost, Locks
from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from tests.celery import interrupt_tasks as tasks
from tests.celery.tasks import pid

pytestmark = pytest.mark.config(include=["tests.celery.interrupt_tasks", "tests.celery.tasks"])
RENEWAL = 1.0  # a third of the tasks' ttl
GREEN = ["prefork", "solo", "gevent", "eventlet"]  # where blocking calls are broken, too


def take_away(app, task, *args):
    """Free a running task's lock, as an administrator or a failover would."""
    plan = Locks.for_app(app).plan(task, "celery", None)
    key = plan.keys.names(args, {})[0]
    held = plan.coordinator.inspect(key)
    assert plan.coordinator.release(Grant(key, held.owner, 3.0, now() + 3.0))
    return time.monotonic()


def lost_after(app, journal, task, name):
    """Seconds from the loss of a running task's lock to its failure, as the caller sees it."""
    result = task.delay(name)
    journal.wait_for("start", name=name)
    start = take_away(app, task, name)
    with pytest.raises(LockLost, match="refused"):
        result.get(timeout=20)
    return time.monotonic() - start


@pytest.mark.parametrize("pool", GREEN)
def test_a_body_in_a_blocking_call_is_stopped(app, worker, journal, pool):
    """Within the renewal period and half a second, and the pool goes on working."""
    worker(pool=pool, concurrency=2)
    assert lost_after(app, journal, tasks.sleeps, "a") < RENEWAL + 1.0
    assert pid.delay().get(timeout=10)


@pytest.mark.parametrize("pool", [*GREEN, "threads"])
def test_a_body_that_survives_exceptions_is_stopped(app, worker, journal, pool):
    """``except Exception`` doesn't swallow the interrupt, in no pool."""
    worker(pool=pool, concurrency=2)
    assert lost_after(app, journal, tasks.swallows, "a") < RENEWAL + 1.0
    assert pid.delay().get(timeout=10)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_body_that_swallows_the_interrupt_is_stopped_again(app, worker, journal, pool):
    """At the next renewal, and until it has ended."""
    worker(pool=pool, concurrency=2)
    assert lost_after(app, journal, tasks.swallows_once, "a") < RENEWAL + 2.5
    assert journal.entries("swallowed", name="a")


@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_another_tasks_body_is_left_alone(app, worker, journal, pool):
    """Of two bodies, in one process or two, only the one whose lock was lost is stopped."""
    worker(pool=pool, concurrency=2)
    other = tasks.swallows.delay("other")
    journal.wait_for("start", name="other")
    assert lost_after(app, journal, tasks.cleans_up, "a") < RENEWAL + 1.5
    assert journal.entries("cleaned up", name="a")
    assert not other.ready()


def test_only_the_called_task_is_stopped(app, worker, journal):
    """A body without a lock that calls a locked task gets its loss as an exception."""
    worker(concurrency=1)
    result = tasks.calls.delay("a")
    journal.wait_for("start", name="a")
    take_away(app, tasks.sleeps, "a")
    assert result.get(timeout=10) == "LockLost"
