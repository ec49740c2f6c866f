"""Old and new versions side by side, as during a deploy."""

import time

import pytest

from celery_redlock import LockedTask, Locks, install
from tests.celery import locked_tasks, unique_tasks
from tests.celery.app import close_app, make_app
from tests.celery.test_publish_scopes import queue_lock, wait_until_free

pytestmark = pytest.mark.config(include=["tests.celery.unique_tasks", "tests.celery.locked_tasks"])


def run_lock(app, task, *args):
    """Who holds the run lock of a call."""
    locks = Locks.for_app(app)
    key = locks.plan(task, "celery", None).keys.names(args, {})[0]
    return locks.coordinator("default", "efficiency").inspect(key)


@pytest.mark.parametrize(("first", "second"), [(30, 2), (2, 30)])
def test_two_workers_with_different_ttls_on_one_key(app, worker, journal, first, second):
    """Each keeps its own ttl, neither shortens or prolongs the other's, and both exclude."""
    for queue, ttl in (("old", first), ("new", second)):
        worker(concurrency=1, queues=queue, config={"redlock_ttl": ttl})
    one = locked_tasks.skips.apply_async(("a",), queue="old")
    journal.wait_for("start", name="a")
    for _ in range(5):
        skipped = locked_tasks.skips.apply_async(("a",), queue="new").get(timeout=10)
        assert skipped["holder"]["id"] == one.id
        left = run_lock(app, locked_tasks.skips, "a").ttl_left
        assert first / 2 < left <= first
        time.sleep(0.5)  # longer in all than the shorter ttl
    journal.open_gate("a", 2)
    assert one.get(timeout=10) == "a"
    assert locked_tasks.skips.apply_async(("a",), queue="new").get(timeout=10) == "a"


def test_two_producers_with_different_ttls_of_their_queue_locks(app, config):
    """Whoever comes second is folded, and the first one's lock keeps its life."""
    other = make_app({**config, "redlock_queue_ttl": 7200})
    try:
        name = unique_tasks.until_executed.name
        first = app.tasks[name].delay("a")
        deadline = time.monotonic() + 5
        while queue_lock(app, app.tasks[name], "a").ttl_left < 3000:
            assert time.monotonic() < deadline
        assert other.tasks[name].delay("a").id == first.id
        assert 3000 < queue_lock(app, app.tasks[name], "a").ttl_left <= 3600
    finally:
        close_app(other)


def test_a_renamed_task_keeps_its_explicit_key(app, config):
    """A call by the new name is folded into one by the old name that still waits."""
    old, new = (make_app({**config, "include": []}) for _ in range(2))
    try:

        @old.task(
            shared=False,
            base=LockedTask,
            name="shop.old",
            lock_key="r:{day}",
            lock_scope="until_executed",
        )
        def before(day):
            raise AssertionError("only published")

        @new.task(
            shared=False,
            base=LockedTask,
            name="shop.new",
            lock_key="r:{day}",
            lock_scope="until_executed",
        )
        def after(day, dry_run=False):
            raise AssertionError("only published")

        first = before.delay("mon")
        assert after.delay("mon", dry_run=True).id == first.id
        assert before.delay(day="mon").id == first.id
        assert after.delay("tue").duplicate is False
    finally:
        close_app(old)
        close_app(new)


def test_the_default_key_of_another_scheme_is_another_lock(app, monkeypatch):
    """A version that makes names in another way never meets an older one's by accident."""
    task = app.tasks[unique_tasks.until_executed.name]
    first = task.delay("a")
    monkeypatch.setattr("celery_redlock.keys.SCHEME", 2)
    Locks.for_app(app).forget(task.name)
    second = task.delay("a")
    assert second.duplicate is False
    assert second.id != first.id


def test_a_ticket_says_until_when_it_is_held(app, config, worker, journal):
    """The producer's scope counts, whatever the worker's version of the task says by now."""
    producer = make_app({**config, "include": []})
    producer._tasks.clear()
    name = unique_tasks.while_executing.name
    producer.conf.redlock_tasks = {name: {"scope": "until_executed", "key": "d:{name}"}}
    install(producer)
    try:
        first = producer.send_task(name, kwargs={"name": "a"})
        worker()
        journal.wait_for("start")
        assert producer.send_task(name, kwargs={"name": "a"}).id == first.id
        journal.open_gate("a")
        assert first.get(timeout=10) == "a"
        coordinator = Locks.for_app(app).coordinator("default", "efficiency", "queue")
        assert coordinator.inspect("d:a") is None
    finally:
        close_app(producer)


def test_a_message_of_a_version_without_queue_locks(app, worker, journal):
    """It carries no ticket: it runs, and its end frees nobody else's lock."""
    task = app.tasks[unique_tasks.until_executed.name]
    waiting = task.apply_async(("a",), countdown=3600)
    assert queue_lock(app, task, "a") is not None
    journal.open_gate("a")
    worker()
    foreign = task.apply_async(("a",), task_id="no-ticket")
    assert foreign.get(timeout=10) == "a"
    assert queue_lock(app, task, "a").holder.id == waiting.id
    waiting.revoke()
    assert task.delay("a").duplicate is False
    wait_until_free(app, task, "b")
