"""Queue locks under every pool, and when workers die."""

import contextlib
import os
import signal
import time

import pytest

from tests.celery import unique_tasks as tasks
from tests.celery.test_publish_scopes import queue_lock, wait_until_free

pytestmark = pytest.mark.config(include=["tests.celery.unique_tasks"])


def test_every_pool_frees_and_hands_over(app, worker, journal, pool):
    """Folded while it waits and runs, one more run with the newest arguments, free at the end."""
    first = tasks.keeps_latest.delay("a", value=0)
    folded = tasks.keeps_latest.delay("a", value=1)
    worker(pool=pool, concurrency=2)
    journal.wait_for("start", value=0)
    if pool not in {"gevent", "eventlet"}:  # there the body blocks the hub at its gate
        assert tasks.keeps_latest.delay("a", value=2).id == folded.id
    journal.open_gate("a", 2)
    assert first.get(timeout=20) == folded.get(timeout=20) == "a"
    assert [entry["value"] for entry in journal.entries("start")] in ([0, 1], [0, 2])
    assert journal.most_at_once() == 1
    wait_until_free(app, tasks.keeps_latest, "a")
    with pytest.raises(ValueError, match="failure"):
        tasks.ends.delay("failure").get(timeout=20)
    wait_until_free(app, tasks.ends, "failure")


def test_a_worker_that_is_killed_leaves_its_lock_for_seconds_only(app, worker, journal):
    """While a task runs, its queue lock is renewed by its worker, and dies with it."""
    running = worker(concurrency=1)
    first = tasks.until_executed.delay("a")
    journal.wait_for("start")
    deadline = time.monotonic() + 5
    while queue_lock(app, tasks.until_executed, "a").ttl_left > 60:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = running.children
    running.kill()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 35
    while (again := tasks.until_executed.delay("a")).duplicate:
        assert again.id == first.id
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert again.id != first.id


def test_a_long_run_keeps_its_queue_lock(app, worker, journal):
    """It outlives both the ttl of a renewal and the queue's own ttl."""
    worker(concurrency=1)
    task = app.tasks[tasks.until_executed.name]
    call = {"ttl": 1.0, "queue_ttl": 2.0}
    first = task.apply_async(("a",), lock=call)
    journal.wait_for("start")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert task.apply_async(("a",), lock=call).id == first.id
        time.sleep(0.2)
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"


@pytest.mark.config(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)
def test_a_message_that_comes_again_still_frees_its_lock(app, worker, journal):
    """Its child was killed, the second attempt runs, and at its end the lock is free."""
    worker(concurrency=1)
    first = tasks.until_executed.delay("a")
    pid = journal.wait_for("start")[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    journal.wait_for("start", count=2, timeout=40)
    assert tasks.until_executed.delay("a").id == first.id
    journal.open_gate("a", 2)
    assert first.get(timeout=20) == "a"
    wait_until_free(app, tasks.until_executed, "a")


def test_one_transaction_of_a_burst_in_threads_of_a_worker(app, worker, journal):
    """A worker's own tasks publish, too: each finds the others' calls."""
    worker(pool="threads", concurrency=4)
    results = [tasks.schedules_itself.delay("a", left=1) for _ in range(4)]
    assert len({result.id for result in results}) == 1
    journal.wait_for("end", count=2, timeout=20)
    wait_until_free(app, tasks.schedules_itself, "a")
    assert journal.most_at_once() == 1


def test_every_pool_can_publish(app, worker, journal, pool):
    """A task in a worker takes queue locks for what it sends, and finds duplicates."""
    worker(pool=pool, concurrency=2, queues="senders")
    tasks.sends.apply_async(("a", 3), queue="senders").get(timeout=20)
    sent = journal.entries("sent")
    assert [entry["duplicate"] for entry in sent] == [False, True, True]
    assert len({entry["id"] for entry in sent}) == 1
    deadline = time.monotonic() + 5
    while queue_lock(app, tasks.until_executed, "a").ttl_left < 3000:  # kept, in the background
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_task_with_two_keys_is_unique_in_both(app, worker, journal):
    """A call that shares one of them is folded, and the end of the run frees both."""
    worker(concurrency=1)
    first = tasks.has_two_keys.delay("a", "b")
    assert tasks.has_two_keys.delay("b", "c").id == first.id
    assert tasks.has_two_keys.delay("x", "a").id == first.id
    other = tasks.has_two_keys.delay("c", "d")
    assert other.duplicate is False
    journal.open_gate("ab")
    assert first.get(timeout=10) == "ab"
    assert tasks.has_two_keys.delay("a", "b").duplicate is False
