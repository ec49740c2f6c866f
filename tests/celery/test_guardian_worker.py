"""The guardian of a real prefork worker: its children die, hang and are busy."""

import os
import signal
import time

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from celery_redlock import LockLost, Locks
from celery_redlock.clock import now
from celery_redlock.native import Event
from tests.celery import guardian_tasks as tasks

pytestmark = pytest.mark.config(include=["tests.celery.guardian_tasks"], redlock_max_ttl=20)


def lock_of(app, task, *args):
    """The coordinator and the name of a call's lock."""
    plan = Locks.for_app(app).plan(task, "celery", None)
    return plan.coordinator, plan.keys.names(args, {})[0]


def seconds_until_free(app, task, *args, timeout=10.0):
    """How long it takes until nobody holds the lock of a call."""
    coordinator, key = lock_of(app, task, *args)
    start = time.monotonic()
    while coordinator.inspect(key) is not None:
        assert time.monotonic() < start + timeout, "the lock stays"
        Event().wait(0.002)
    return time.monotonic() - start


def test_a_killed_child_frees_its_lock_at_once(app, worker, journal):
    """Within 100 ms of the death, where the pool itself takes up to five seconds to notice."""
    worker(concurrency=1)
    result = tasks.sleeps.delay("a")
    pid = journal.wait_for("start")[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert seconds_until_free(app, tasks.sleeps, "a") < 0.1
    with pytest.raises(WorkerLostError):
        result.get(timeout=15)


def test_a_child_that_leaves_without_a_word_frees_its_lock(app, worker, journal):
    """``os._exit`` runs no clean-up."""
    worker(concurrency=1)
    tasks.leaves.delay("a")
    journal.wait_for("start")
    assert seconds_until_free(app, tasks.leaves, "a") < 0.5


def test_a_hard_time_limit_frees_the_lock_when_the_child_is_dead(app, worker, journal):
    """Also where the child had to be killed because it blocks the first signal."""
    worker(concurrency=1)
    result = tasks.blocks_the_signal.delay("a")
    journal.wait_for("start")
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=15)
    assert seconds_until_free(app, tasks.blocks_the_signal, "a") < 1.0


def test_a_terminated_task_frees_its_lock(app, worker, journal):
    """``revoke(terminate=True, signal="SIGKILL")``."""
    worker(concurrency=1)
    result = tasks.sleeps.delay("a")
    journal.wait_for("start")
    result.revoke(terminate=True, signal="SIGKILL")
    assert seconds_until_free(app, tasks.sleeps, "a") < 5.0


def test_a_cold_shutdown_frees_the_locks(app, worker, journal):
    """SIGQUIT to the worker ends its children: the locks don't wait for their ttl."""
    running = worker(concurrency=1)
    tasks.sleeps.delay("a")
    journal.wait_for("start")
    running.quit()
    assert seconds_until_free(app, tasks.sleeps, "a") < 5.0


def test_a_lock_that_is_kept_outlives_its_child(app, worker, journal):
    """``min_hold``: a death after the body doesn't free it earlier."""
    running = worker(concurrency=1)
    tasks.kept.delay("a").get(timeout=10)
    os.kill(running.children[0], signal.SIGKILL)
    assert seconds_until_free(app, tasks.kept, "a") > 1.5


@pytest.mark.parametrize("limit", [0, 1])
def test_a_busy_child_keeps_its_lock_three_times_the_ttl(app, worker, journal, limit):
    """Renewed by the main process; the child knows it, and its lease is not lost."""
    worker(concurrency=1, options=[f"--max-tasks-per-child={limit}"] if limit else [])
    result = tasks.computes.delay("a", 3.5)
    journal.wait_for("start")
    coordinator, key = lock_of(app, tasks.computes, "a", 3.5)
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        assert coordinator.inspect(key) is not None
        Event().wait(0.02)
    assert result.get(timeout=15) == "held"
    assert coordinator.inspect(key) is None


def test_a_lost_lock_ends_a_body_that_no_thread_could_interrupt(app, worker, journal):
    """The main process is refused a renewal and signals its child, in a regular expression."""
    worker(concurrency=1)
    result = tasks.matches.delay("a")
    journal.wait_for("start")
    coordinator, key = lock_of(app, tasks.matches, "a")
    from celery_redlock.coordinators.base import Grant

    held = coordinator.inspect(key)
    assert coordinator.release(Grant(key, held.owner, 1.0, now() + 1.0))
    with pytest.raises(LockLost, match="guardian"):
        result.get(timeout=10)


def test_a_stopped_child_is_killed_before_its_lock_is_over(app, worker, journal):
    """``on_lost="kill"``: nobody can get the lock while the first process may go on."""
    worker(concurrency=1)
    tasks.must_not_outlive.delay("a")
    pid = journal.wait_for("start")[0]["pid"]
    pidfd = os.pidfd_open(pid)
    coordinator, key = lock_of(app, tasks.must_not_outlive, "a")
    os.kill(pid, signal.SIGSTOP)
    while not _dead(pidfd):
        assert coordinator.inspect(key) is not None
    os.close(pidfd)
    assert seconds_until_free(app, tasks.must_not_outlive, "a") < 0.5


def _dead(pidfd):
    import select

    return bool(select.select([pidfd], [], [], 0.01)[0])


def test_other_pools_have_no_guardian_and_work(app, worker, journal):
    """Threads have no children that could die alone."""
    worker(pool="threads", concurrency=1)
    assert tasks.computes.delay("a", 0.1).get(timeout=10) == "held"
