"""Calls by name from processes that don't import the task, and tasks without the base class."""

import json
import logging
import subprocess

import pytest
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

from celery_redlock import Locks, install
from tests.celery import unique_tasks as tasks
from tests.celery.app import close_app, make_app
from tests.celery.publisher import publish
from tests.celery.test_publish_scopes import wait_until_free

PATTERNS = {
    "tests.celery.unique_tasks.plain": {"scope": "until_executed", "key": "plain:{name}"},
    "elsewhere.*": {"scope": "until_executed"},
    "named.*": {"scope": "until_executed", "args": ["day"]},
}

pytestmark = pytest.mark.config(include=["tests.celery.unique_tasks"], redlock_tasks=PATTERNS)


@pytest.fixture
def stranger(config):
    """An application that has none of the tasks."""
    app = make_app({**config, "include": []})
    app._tasks.clear()
    install(app)
    yield app
    close_app(app)


def test_by_class_by_signature_and_by_name_are_one_call(app):
    """However the same call is written, it is one."""
    name = tasks.until_executed.name
    first = app.tasks[name].delay("a")
    others = [
        app.tasks[name].delay(name="a"),
        app.tasks[name].delay("a", 1),
        app.tasks[name].delay("a", size=1),
        app.tasks[name].s("a").delay(),
        app.tasks[name].s(name="a").apply_async(),
        app.signature(name, args=("a",)).apply_async(),
        app.send_task(name, ("a",)),
        app.send_task(name, ["a", 1]),
        app.send_task(name, None, {"size": 1, "name": "a"}),
        app.send_task(name, kwargs={"name": "a"}, retries=0),
        app.send_task(name, ("a",), {}, 5.0),
    ]
    assert {result.id for result in others} == {first.id}
    assert all(result.duplicate for result in others)


def test_from_beat_it_is_the_same_call(app):
    """An entry of the schedule is folded into what waits already."""
    name = tasks.until_executed.name
    first = app.tasks[name].delay("a")
    scheduler = Scheduler(app, lazy=True)
    entry = ScheduleEntry("e", name, schedule=schedule(1.0), args=("a",), app=app)
    assert scheduler.apply_async(entry, advance=False).id == first.id


def test_from_a_beat_that_does_not_import_the_task(stranger):
    """There the entry goes out by name, under the options of the configuration."""
    scheduler = Scheduler(stranger, lazy=True)
    entry = ScheduleEntry("e", "elsewhere.tick", schedule=schedule(1.0), args=(), app=stranger)
    results = [scheduler.apply_async(entry, advance=False) for _ in range(3)]
    assert [result.duplicate for result in results] == [False, True, True]


def test_from_another_process_that_does_not_import_the_task(app, config):
    """With an explicit key, calls by class and by name from anywhere are one call."""
    task = app.tasks[tasks.plain.name]
    first = task.delay("a")
    assert first.duplicate is False
    config = {**config, "include": []}
    calls = [[task.name, [], {"name": "a"}], [task.name, [], {"name": "b"}]]
    done = publish(calls, 1, config, subprocess.run)
    (folded, other) = json.loads(done.stdout)
    assert folded == [first.id, True]
    assert other[1] is False
    assert task.delay("b").id == other[0]


def test_a_key_over_named_arguments_is_the_same_with_and_without_the_task(app, stranger):
    """``args`` names what makes the key: that needs no signature, if it is passed by name."""

    @app.task(shared=False, name="named.report")
    def report(day, dry_run=False):
        raise AssertionError("only published")

    install(app)
    first = report.delay("mon", dry_run=True)
    assert stranger.send_task("named.report", kwargs={"day": "mon"}).id == first.id
    assert stranger.send_task("named.report", kwargs={"day": "tue"}).duplicate is False


def test_a_key_that_cannot_be_made_means_no_queue_lock(stranger, caplog):
    """A positional argument has no name there: both go out, and a warning says why, once."""
    caplog.set_level(logging.WARNING)
    results = [stranger.send_task("named.other", ("mon",)) for _ in range(2)]
    assert [result.duplicate for result in results] == [False, False]
    warnings = [record for record in caplog.records if "named.other" in record.message]
    assert len(warnings) == 1
    assert "by their names" in warnings[0].message


def test_without_names_equal_texts_are_equal_calls(stranger):
    """The key is made of the arguments as they are written."""
    first = stranger.send_task("elsewhere.report", ("a",), {"n": 1})
    assert stranger.send_task("elsewhere.report", ["a"], {"n": 1}).id == first.id
    assert stranger.send_task("elsewhere.report", ("b",), {"n": 1}).duplicate is False


@pytest.mark.config(redlock_queues={"reports": {"scope": "until_executed"}})
def test_the_queue_alone_can_say_it(stranger):
    """Options of the queue hold for tasks that nobody here knows."""
    first = stranger.send_task("unknown.task", (1,), queue="reports")
    assert stranger.send_task("unknown.task", (1,), queue="reports").id == first.id
    plain = stranger.send_task("unknown.task", (1,), queue="other")
    assert getattr(plain, "duplicate", False) is False


@pytest.mark.config(redlock_scope="until_executed", redlock_tasks={})
def test_the_application_alone_does_not_lock_what_nobody_knows(stranger):
    """Unknown tasks may be plain ones, which would never give their lock back."""
    results = [stranger.send_task("unknown.task", (1,)) for _ in range(2)]
    assert results[0].id != results[1].id


def test_the_calls_own_options_by_name(app, stranger):
    """``send_task(..., lock={...})`` works with and without the task."""
    install(app)  # nobody has touched a task of this application yet
    name = tasks.while_executing.name
    first = app.send_task(name, ("a",), lock={"scope": "until_executed"})
    assert app.send_task(name, ("a",), lock={"scope": "until_executed"}).id == first.id
    call = {"scope": "until_executed", "key": "mine"}
    first = stranger.send_task("elsewhere.x", (1,), lock=call)
    assert stranger.send_task("elsewhere.y", (2,), lock=call).id == first.id
    assert stranger.send_task("nobody.knows", (3,), lock=call).id == first.id


def test_a_task_without_the_base_class_on_a_real_worker(app, worker, journal):
    """Named in the configuration, it is folded while it waits and runs, and its lock is freed."""
    task = app.tasks[tasks.plain.name]
    first = task.delay("a")
    worker(concurrency=2)
    journal.wait_for("start")
    assert task.delay("a").id == first.id
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"
    wait_until_free(app, task, "a")
    assert task.delay("a").duplicate is False


def test_a_worker_that_locks_nothing_still_frees_what_a_producer_took(app, worker, journal):
    """Its task has no lock there, and yet the message's queue lock ends with it."""
    task = app.tasks[tasks.plain.name]
    first = task.delay("a")
    journal.open_gate("a", 2)
    worker(config={"redlock_tasks": {}})
    assert first.get(timeout=10) == "a"
    wait_until_free(app, task, "a")


def test_two_workers_run_an_installed_task_one_after_the_other(app, worker, journal):
    """The run lock holds across processes, for messages without a queue lock too."""
    task = app.tasks[tasks.plain.name]
    for _ in range(2):
        worker(concurrency=1)
    for number in range(2):
        task.apply_async(("a",), task_id=f"t{number}")
    journal.wait_for("start")
    journal.open_gate("a", 2)
    wait_until_free(app, task, "a")
    results = [app.AsyncResult(f"t{number}").get(timeout=10) for number in range(2)]
    assert results.count("a") >= 1
    assert journal.most_at_once() == 1


def test_the_locks_of_an_application_watch_its_publishes(config):
    """Asking for the locks of an application is enough to have its calls by name looked at."""
    app = make_app({**config, "include": []})
    app._tasks.clear()
    try:
        Locks.for_app(app)
        first = app.send_task("elsewhere.z", (1,))
        assert app.send_task("elsewhere.z", (1,)).id == first.id
    finally:
        close_app(app)
