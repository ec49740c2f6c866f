"""The processes that the other tests of this folder rest on."""

import os
import select
import signal

import pytest

from tests.celery import tasks
from tests.celery.journal import record


def test_every_pool_runs_tasks(app, worker, pool):
    """A worker of each pool is ready when the fixture says so, and answers."""
    running = worker(pool=pool)
    ran_in = tasks.pid.delay().get(timeout=10)
    assert ran_in in (running.children if pool == "prefork" else [running.pid])


def test_setup_of_pytest_celery_survives_a_kill_and_a_restart(celery_setup):
    """The plugin's own setup works on local processes, and its worker can be killed."""
    assert celery_setup.ready(control=True)
    first = celery_setup.worker.container.process.pid
    celery_setup.worker.kill()
    assert celery_setup.worker.container.status == "exited"
    celery_setup.worker.restart()
    celery_setup.worker.assert_log_exists("ready.")
    assert tasks.pid.delay().get(timeout=10) != first
    assert len(celery_setup) == 3


def test_gates_hold_a_task_until_they_are_opened(app, worker, journal):
    """A test sees that a task has started, and says when it may end."""
    worker()
    result = tasks.wait_at_gate.delay("g")
    journal.wait_for("start", name="g")
    assert journal.entries("end") == []
    journal.open_gate("g")
    assert result.get(timeout=10) == "g"


def test_a_killed_child_is_replaced(app, worker, journal):
    """The pool's children are known by their ids and can be killed one by one."""
    running = worker(concurrency=1)
    tasks.wait_at_gate.delay("never opened")
    victim = journal.wait_for("start")[0]["pid"]
    assert running.children == [victim]
    os.kill(victim, signal.SIGKILL)
    assert tasks.pid.delay().get(timeout=15) != victim


def test_nothing_is_left_of_a_killed_worker(app, worker):
    """A kill takes the whole process group."""
    running = worker()
    watched = [os.pidfd_open(pid) for pid in running.children]
    running.kill()
    for pidfd in watched:
        assert _ended(pidfd)
        os.close(pidfd)


@pytest.mark.config(task_default_queue="other")
def test_a_mark_changes_the_configuration(app, worker):
    """Producer and worker both see what the mark says."""
    worker(queues="other")
    assert tasks.pid.delay().get(timeout=10)


def test_the_journal_notices_an_overlap(app, journal):
    """Two that are inside at the same time are counted as two."""
    for event, run in (("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")):
        record(event, run=run)
    assert journal.most_at_once() == 1
    record("start", run="c")
    record("start", run="d")
    assert journal.most_at_once() == 2


def _ended(pidfd):
    return bool(select.select([pidfd], [], [], 5)[0])
