"""Until when a call is unique, and every way in which a queued task can end: real workers."""

import contextlib
import os
import signal
import time

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_redlock import Locks
from tests.celery import unique_tasks as tasks

pytestmark = pytest.mark.config(include=["tests.celery.unique_tasks"])


def queue_lock(app, task, *args):
    """Who holds the queue lock of a call; None if nobody does."""
    locks = Locks.for_app(app)
    key = locks.plan(task, "celery", None).keys.names(args, {})[0]
    return locks.coordinator("default", "efficiency", "queue").inspect(key)


def wait_until_free(app, task, *args, timeout=10.0):
    """Wait until nobody holds the queue lock of a call."""
    deadline = time.monotonic() + timeout
    while (held := queue_lock(app, task, *args)) is not None:
        assert time.monotonic() < deadline, f"still held by {held}"
        time.sleep(0.02)


def test_until_executing_is_free_from_the_start_on(app, worker, journal):
    """While it waits, equal calls are folded into it; once it runs, the next is published."""
    first = tasks.until_executing.delay("a")
    folded = tasks.until_executing.delay(name="a", size=1)
    assert (first.duplicate, folded.duplicate) == (False, True)
    assert folded.id == first.id
    worker(concurrency=2)
    journal.wait_for("start")
    second = tasks.until_executing.delay("a")
    assert second.duplicate is False
    assert second.id != first.id
    journal.wait_for("start", count=2)  # at the same time: no run lock
    journal.open_gate("a", 2)
    assert first.get(timeout=10) == folded.get(timeout=10) == second.get(timeout=10) == "a"


def test_until_and_while_executing_lets_one_wait_and_one_run(app, worker, journal):
    """One runs and one waits, and they never run at the same time."""
    worker(concurrency=2)
    first = tasks.until_and_while.delay("a")
    journal.wait_for("start")
    second = tasks.until_and_while.delay("a")
    third = tasks.until_and_while.delay("a")
    assert (second.duplicate, third.duplicate) == (False, True)
    assert second.id == third.id != first.id
    journal.open_gate("a", 2)
    assert third.get(timeout=20) == "a"
    assert journal.most_at_once() == 1
    assert len(journal.entries("start")) == 2


def test_until_executed_is_held_to_the_end(app, worker, journal):
    """Waiting or running: an equal call is folded; after the result the next one runs."""
    first = tasks.until_executed.delay("a")
    assert tasks.until_executed.delay("a").id == first.id
    worker()
    journal.wait_for("start")
    folded = tasks.until_executed.delay("a")
    assert folded.id == first.id
    assert folded.duplicate is True
    journal.open_gate("a")
    assert folded.get(timeout=10) == "a"
    assert queue_lock(app, tasks.until_executed, "a") is None
    again = tasks.until_executed.delay("a")
    assert again.duplicate is False
    journal.open_gate("a")
    assert again.get(timeout=10) == "a"
    assert len(journal.entries("start")) == 2


def test_until_expired_lasts_for_its_ttl_whatever_the_task_does(app, worker, journal):
    """The lock outlives the run, and ends by its ttl alone."""
    worker()
    journal.open_gate("a", 2)
    first = tasks.until_expired.delay("a")
    assert first.get(timeout=10) == "a"
    assert tasks.until_expired.delay("a").duplicate is True
    held = queue_lock(app, tasks.until_expired, "a")
    assert held.holder.id == first.id
    assert 0 < held.ttl_left <= 2
    wait_until_free(app, tasks.until_expired, "a")
    second = tasks.until_expired.delay("a")
    assert second.duplicate is False
    assert second.get(timeout=10) == "a"


def test_while_executing_takes_no_queue_lock(app):
    """Every call is published."""
    assert [tasks.while_executing.delay("a").duplicate for _ in range(3)] == [False] * 3
    assert queue_lock(app, tasks.while_executing, "a") is None


@pytest.mark.parametrize("how", ["success", "failure", "ignore", "reject"])
def test_every_end_of_a_body_frees_the_lock(app, worker, journal, how):
    """However the body ends, the next equal call is published and runs."""
    worker()
    first = tasks.ends.delay(how)
    if how in {"success", "failure"}:
        with contextlib.suppress(ValueError):
            first.get(timeout=10)
    journal.wait_for("start")
    wait_until_free(app, tasks.ends, how)
    second = tasks.ends.delay(how)
    assert second.duplicate is False
    journal.wait_for("start", id=second.id)


def test_retries_keep_the_lock_until_the_last(app, worker, journal):
    """Between two tries an equal call is folded; after the last try the lock is free."""
    worker()
    first = tasks.ends.delay("retry")
    for retries in range(3):
        journal.wait_for("start", retries=retries)
        assert tasks.ends.delay("retry").id == first.id
        held = queue_lock(app, tasks.ends, "retry")
        assert held.holder.id == first.id
        journal.open_gate("retry")
        if retries < 2:
            deadline = time.monotonic() + 5
            while queue_lock(app, tasks.ends, "retry").ttl_left < 60:  # it waits in the queue again
                assert time.monotonic() < deadline
                time.sleep(0.01)
    with pytest.raises(ValueError, match="retry"):
        first.get(timeout=10)
    wait_until_free(app, tasks.ends, "retry")
    assert len(journal.entries("start")) == 3


def test_a_task_that_fails_before_its_body_frees_the_lock(app, worker):
    """An error in ``before_start`` never reaches the body, and the lock is free all the same."""
    worker()
    first = tasks.broken.delay("a")
    with pytest.raises(ValueError, match="before"):
        first.get(timeout=10)
    wait_until_free(app, tasks.broken, "a")


def test_revoked_before_it_ran(app, worker, journal):
    """A revoked task's lock is free at once for publishers, and its message frees it as well."""
    running = worker(concurrency=1)
    tasks.until_executed.delay("blocker")
    journal.wait_for("start")
    first = tasks.until_executed.delay("a")
    first.revoke()
    second = tasks.until_executed.delay("a")
    assert second.duplicate is False
    assert second.id != first.id
    second.revoke()
    journal.open_gate("blocker")
    wait_until_free(app, tasks.until_executed, "a")
    assert first.state == second.state == "REVOKED"
    assert running.log.count("Discarding revoked task") == 2
    assert len(journal.entries("start")) == 1


def test_expired_before_it_ran(app, worker):
    """An expired message frees its lock; and where the broker drops it, its ttl does."""
    first = tasks.until_executed.apply_async(("a",), expires=0.2)
    held = queue_lock(app, tasks.until_executed, "a")
    assert held.ttl_left < 3
    time.sleep(0.3)
    worker()
    with pytest.raises(TaskRevokedError, match="expired"):
        first.get(timeout=10)
    wait_until_free(app, tasks.until_executed, "a")


@pytest.mark.config(task_acks_late=False)
def test_terminated_while_it_ran(app, worker, journal):
    """A task that is revoked with ``terminate`` frees both of its locks."""
    worker(concurrency=1)
    first = tasks.until_executed.delay("a")
    journal.wait_for("start")
    first.revoke(terminate=True)
    wait_until_free(app, tasks.until_executed, "a")
    second = tasks.until_executed.delay("a")
    assert second.duplicate is False
    journal.wait_for("start", id=second.id)
    journal.open_gate("a")
    assert second.get(timeout=10) == "a"


def test_a_child_that_is_killed(app, worker, journal):
    """A task whose process died has failed, and its lock is free."""
    running = worker(concurrency=1)
    first = tasks.until_executed.delay("a")
    pid = journal.wait_for("start")[0]["pid"]
    assert pid in running.children
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match="SIGKILL"):
        first.get(timeout=15)
    wait_until_free(app, tasks.until_executed, "a")


def test_a_task_that_the_worker_does_not_know(app, worker):
    """A message of an unknown task is thrown away, and frees its lock."""
    first = tasks.until_executed.delay("a")
    worker(config={"include": ["tests.celery.tasks"]})
    wait_until_free(app, tasks.until_executed, "a")
    assert first.state == "FAILURE"


def test_content_that_the_worker_does_not_accept(app, worker):
    """A message whose content is not allowed is rejected, and frees its lock."""
    app.conf.accept_content = ["json", "pickle"]
    tasks.until_executed.apply_async(("a",), serializer="pickle")
    assert queue_lock(app, tasks.until_executed, "a") is not None
    running = worker()
    wait_until_free(app, tasks.until_executed, "a")
    assert "Received invalid task message" in running.log


def test_a_body_that_cannot_be_decoded(app, worker):
    """A message whose body is garbage is thrown away, and frees its lock."""
    with app.producer_pool.acquire(block=True) as producer:
        publish = producer.publish

        def garbled(body, **options):
            body_of = {"content_type": "application/json", "content_encoding": "utf-8"}
            return publish("{this is no json", serializer=None, **{**options, **body_of})

        producer.publish = lambda body, serializer=None, **options: garbled(body, **options)
        try:
            tasks.until_executed.apply_async(("a",), producer=producer)
        finally:
            producer.publish = publish
    assert queue_lock(app, tasks.until_executed, "a") is not None
    running = worker()
    wait_until_free(app, tasks.until_executed, "a")
    assert "decode" in running.log.lower()


def test_a_missing_queue_lock_is_no_reason_not_to_run(app, worker, journal):
    """A message of another producer carries none, and runs."""
    worker()
    journal.open_gate("a")
    name = tasks.until_executed.name
    task_id = "made-elsewhere"
    with app.producer_pool.acquire(block=True) as producer:
        producer.publish(
            (["a"], {}, {}),
            routing_key="celery",
            serializer="json",
            headers={"task": name, "id": task_id, "lang": "py"},
            correlation_id=task_id,
        )
    assert AsyncResult(task_id, app=app).get(timeout=10) == "a"
