"""What becomes of a second call: on both brokers, with real workers, threads and processes."""

import json
import logging
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from celery import chain, chord, group

from celery_redlock import DuplicateTask, Locks, signals
from tests.celery import unique_tasks as tasks
from tests.celery.publisher import publish
from tests.celery.test_publish_scopes import queue_lock, wait_until_free

pytestmark = pytest.mark.config(include=["tests.celery.unique_tasks"])


@pytest.fixture(params=["redis", "rabbitmq"])
def config(request, config):
    """The application over one broker or the other, with a queue of this test's own."""
    if request.param == "rabbitmq":
        config["broker_url"] = request.getfixturevalue("rabbitmq").url
    config["task_default_queue"] = f"q-{uuid4()}"
    return config


@pytest.fixture
def running(worker, config):
    """Starts a worker that reads this test's queue."""
    return lambda **options: worker(queues=config["task_default_queue"], **options)


@pytest.fixture
def events(app):
    """The duplicates that this process has met."""
    seen = []

    def note(sender, event, **_):
        if sender is app:
            seen.append(event)

    signals.duplicate.connect(note)
    yield seen
    signals.duplicate.disconnect(note)


def holder_id(app, task, *args):
    """The id of the task that has the queue lock of a call; None if nobody has it."""
    held = queue_lock(app, task, *args)
    return held.holder.id if held else None


def test_a_burst_from_five_threads_runs_once(app, running, journal, events):
    """Fifty calls of a slow task: one run, and each caller knows into what it was folded."""
    running()
    task = app.tasks[tasks.until_executed.name]  # in a new thread no application is current
    with ThreadPoolExecutor(5) as pool:
        results = list(pool.map(lambda _: task.delay("a"), range(50)))
    published = [result for result in results if not result.duplicate]
    assert len(published) == 1
    assert {result.id for result in results} == {published[0].id}
    assert len(events) == 49
    assert {(event.task_id, event.policy) for event in events} == {
        (published[0].id, "return_existing")
    }
    journal.wait_for("start")
    journal.open_gate("a")
    assert {result.get(timeout=10) for result in results} == {"a"}
    assert len(journal.entries("start")) == 1


def test_a_burst_from_two_processes_runs_once(app, config, running, journal):
    """Twice 25 calls from five threads each, in two processes: one run."""
    running()
    calls = [[tasks.until_executed.name, ["a"], {}]] * 25
    processes = [publish(calls, 5, config, subprocess.Popen) for _ in range(2)]
    answers = [
        one for process in processes for one in json.loads(process.communicate(timeout=60)[0])
    ]
    assert all(process.returncode == 0 for process in processes)
    assert len(answers) == 50
    assert len({task_id for task_id, _ in answers}) == 1
    assert [duplicate for _, duplicate in answers].count(False) == 1
    journal.wait_for("start")
    journal.open_gate("a")
    wait_until_free(app, tasks.until_executed, "a")
    assert len(journal.entries("start")) == 1


def test_a_caller_is_told_by_a_log_line(app, caplog):
    """The log says what was folded, and into which task."""
    caplog.set_level(logging.INFO)
    first = tasks.until_executed.delay("a")
    tasks.until_executed.delay("a")
    (record,) = [one for one in caplog.records if "was not published" in one.message]
    assert record.levelno == logging.INFO
    assert first.id in record.message
    assert tasks.until_executed.name in record.message


def test_a_backlog_is_one_message(app, running, journal):
    """Ten ticks while no worker is up: one run when there is one again."""
    results = [tasks.until_executed.delay("a") for _ in range(10)]
    assert len({result.id for result in results}) == 1
    journal.open_gate("a", 10)
    running()
    assert results[-1].get(timeout=10) == "a"
    assert len(journal.entries("start")) == 1


def test_the_last_change_is_not_lost(app, running, journal, events):
    """Calls while it runs: exactly one more run, with the newest arguments, after this one."""
    running()
    first = tasks.keeps_latest.delay("a", value=0)
    journal.wait_for("start", value=0)
    later = [tasks.keeps_latest.delay("a", value=value) for value in (1, 2, 3)]
    assert [result.duplicate for result in later] == [True] * 3
    assert len({result.id for result in later}) == 1
    assert later[0].id != first.id
    assert {event.task_id for event in events} == {later[0].id}
    journal.open_gate("a", 2)
    assert first.get(timeout=10) == "a"
    assert later[0].get(timeout=10) == "a"
    starts = journal.entries("start")
    assert [entry["value"] for entry in starts] == [0, 3]
    assert starts[1]["id"] == later[0].id
    assert journal.most_at_once() == 1
    wait_until_free(app, tasks.keeps_latest, "a")
    assert tasks.keeps_latest.delay("a").duplicate is False


def test_the_last_change_of_a_waiting_call_is_not_lost(app, running, journal):
    """Calls while it waits in the queue are one more run, after it."""
    first = tasks.keeps_latest_of_queue.delay("a", value=0)
    later = [tasks.keeps_latest_of_queue.delay("a", value=value) for value in (1, 2)]
    assert later[0].id == later[1].id != first.id
    running(concurrency=2)
    journal.wait_for("start", value=0)
    journal.open_gate("a", 2)
    assert later[0].get(timeout=20) == "a"
    assert [entry["value"] for entry in journal.entries("start")] == [0, 2]
    assert journal.most_at_once() == 1


def test_many_changes_end_with_the_newest(app, running, journal):
    """A stream of calls while short runs come and go: the last one's arguments are run last."""
    running(concurrency=2)
    journal.open_gate("a", 1000)
    last = None
    for value in range(60):
        last = tasks.keeps_latest.delay("a", value=value)
        time.sleep(0.01)
    assert last.get(timeout=20) == "a"
    wait_until_free(app, tasks.keeps_latest, "a")
    assert journal.entries("start")[-1]["value"] == 59
    assert journal.most_at_once() == 1
    assert len(journal.entries("start")) < 60


def test_a_revoked_call_still_lets_the_newest_run(app, running, journal):
    """What was left with a queued call is run even if that one is revoked."""
    first = tasks.keeps_latest.delay("a", value=0)
    later = tasks.keeps_latest.delay("a", value=1)
    journal.open_gate("a", 2)
    busy = running()
    first.revoke()
    del busy
    assert later.get(timeout=20) == "a"
    assert journal.entries("start")[-1]["value"] == 1


def test_raise_names_the_living_task(app):
    """The error knows the task's id, the lock and its holder."""
    first = tasks.raises.delay("a")
    with pytest.raises(DuplicateTask) as caught:
        tasks.raises.delay("a")
    assert caught.value.task_id == first.id
    assert caught.value.holder["id"] == first.id
    assert (
        caught.value.key
        == Locks.for_app(app).plan(tasks.raises, None, None).keys.names(("a",), {})[0]
    )


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
def test_a_task_that_has_ended_answers_for_nobody(app, state):
    """Its lock was left behind: it is taken from it, and the call is published."""
    app.backend.store_result("ended", ValueError("x") if state != "SUCCESS" else "x", state)
    locks, task = Locks.for_app(app), app.tasks[tasks.until_executed.name]
    key = locks.plan(task, None, None).keys.names(("a",), {})[0]
    coordinator = locks.coordinator("default", "efficiency", "queue")
    coordinator.acquire(key, "its-owner", 600.0, locks.holder(task=task.name, id="ended"))
    result = task.delay("a")
    assert result.duplicate is False
    assert result.id != "ended"
    assert coordinator.inspect(key).holder.id == result.id
    assert task.delay("a").id == result.id


def test_a_lock_that_belongs_to_no_task_is_nobodys_answer(app, caplog):
    """Nobody could wait for its result, so the call is published, loudly."""
    locks, task = Locks.for_app(app), app.tasks[tasks.until_executed.name]
    key = locks.plan(task, None, None).keys.names(("a",), {})[0]
    coordinator = locks.coordinator("default", "efficiency", "queue")
    coordinator.acquire(key, "its-owner", 600.0, locks.holder())
    assert task.delay("a").duplicate is False
    assert "held by no task" in caplog.text


def test_replace_takes_the_place_of_the_one_that_waits(app, running, journal):
    """The queued one ends as REVOKED, the newest one runs, also if nobody heard the revoke."""
    results = [tasks.replaces.delay("a", value=value) for value in range(3)]
    assert [result.duplicate for result in results] == [False] * 3
    journal.open_gate("a", 3)
    running()
    assert results[2].get(timeout=10) == "a"
    for result in results[:2]:
        deadline = time.monotonic() + 10
        while result.state != "REVOKED":
            assert time.monotonic() < deadline, result.state
            time.sleep(0.02)
    assert [entry["value"] for entry in journal.entries("start")] == [2]
    wait_until_free(app, tasks.replaces, "a")


def test_replace_lets_a_running_one_end(app, running, journal):
    """A running task can't be replaced: the newer one waits until it has ended."""
    running(concurrency=2)
    first = tasks.replaces.delay("a", value=0)
    journal.wait_for("start", value=0)
    second = tasks.replaces.delay("a", value=1)
    journal.open_gate("a", 2)
    assert first.get(timeout=10) == "a"
    assert second.get(timeout=20) == "a"
    assert journal.most_at_once() == 1


@pytest.mark.parametrize("make", [group, lambda members: chord(members, tasks.gather.s())])
def test_equal_members_of_a_group_all_run(app, running, journal, make):
    """Nobody waits for ever for a member that was folded away."""
    running(concurrency=2)
    journal.open_gate("a", 3)
    # One after the other, so that the run lock skips none of them.
    members = [tasks.until_executing.s("a") for _ in range(3)]
    result = make(members).apply_async()
    assert result.get(timeout=20) == ["a"] * 3
    assert len(journal.entries("start")) == 3


def test_a_chain_whose_first_link_is_a_duplicate_goes_on(app, running, journal):
    """Both links run, though an equal call is queued already."""
    blocker = tasks.until_executed.delay("a")
    result = chain(tasks.until_executing.si("a"), tasks.until_executing.si("b")).apply_async()
    journal.open_gate("a", 2)
    journal.open_gate("b")
    running(concurrency=2)
    assert result.get(timeout=20) == "b"
    assert blocker.get(timeout=20) == "a"


def test_a_link_is_called(app, running, journal):
    """A call with a callback isn't folded, since nobody else would make that call."""
    first = tasks.until_executing.delay("a")
    second = tasks.until_executing.apply_async(("a",), link=tasks.until_executing.si("b"))
    assert second.duplicate is False
    assert second.id != first.id
    journal.open_gate("a", 2)
    journal.open_gate("b")
    running(concurrency=2)
    journal.wait_for("end", name="b")


def test_an_id_of_the_callers_own_is_kept(app):
    """Whoever names an id gets that id."""
    tasks.until_executed.delay("a")
    mine = tasks.until_executed.apply_async(("a",), task_id="mine")
    assert (mine.id, mine.duplicate) == ("mine", False)


def test_a_task_that_sends_itself_again_queues_behind_itself(app, running, journal):
    """It is neither folded into the running one nor run beside it, and it never hangs."""
    running(concurrency=2)
    tasks.schedules_itself.delay("a", left=2)
    journal.wait_for("end", count=3, timeout=30)
    assert [entry["left"] for entry in journal.entries("start")] == [2, 1, 0]
    assert [entry["duplicate"] for entry in journal.entries("sent")] == [False, False]
    assert len({entry["id"] for entry in journal.entries("start")}) == 3
    assert journal.most_at_once() == 1
    wait_until_free(app, tasks.schedules_itself, "a")


def test_a_successor_with_the_same_key_queues_behind(app, running, journal):
    """Another task with the same key, sent from inside, runs after the one that sent it."""
    running(concurrency=2)
    tasks.first_in_line.delay("a")
    journal.wait_for("end", task="second", timeout=20)
    assert journal.most_at_once() == 1
    wait_until_free(app, tasks.first_in_line, "a")


def test_while_a_successor_waits_others_are_folded_into_it(app, running, journal):
    """The successor has inherited the queue lock."""
    running(concurrency=1)
    tasks.schedules_itself.delay("a", left=1)
    sent = journal.wait_for("sent")[0]
    deadline = time.monotonic() + 10
    while holder_id(app, tasks.schedules_itself, "a") != sent["id"]:
        assert time.monotonic() < deadline
    assert tasks.schedules_itself.delay("a").id == sent["id"]
    journal.wait_for("start", left=0)


def test_a_task_that_replaces_itself(app, running, journal):
    """``replace()`` keeps the id, runs, and the lock is free afterwards."""
    running(concurrency=2)
    assert tasks.replaced.delay("a").get(timeout=20) == "a"
    assert len(journal.entries("start")) == 2
    wait_until_free(app, tasks.replaced, "a")
