"""A worker ends in every way there is: no lock stays for longer than its ttl, no message is lost.

A message that was acknowledged before its body ends with its worker, as always with Celery; one
with ``acks_late`` runs again, with a higher fencing token.
"""

import secrets
import signal

import psutil
import pytest

from celery_redlock import Locks
from celery_redlock.clock import now
from celery_redlock.native import Event
from tests.celery import shutdown_tasks as tasks

SOON = 20.0
TRANSPORT = {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
pytestmark = pytest.mark.config(include=["tests.celery.shutdown_tasks"], redlock_node_timeout=0.3)


@pytest.fixture(params=["redis", "rabbitmq"])
def config(request, config):
    """The usual application, with each broker."""
    queue = f"tests-{secrets.token_hex(4)}"
    if request.param == "rabbitmq":
        broker = {"broker_url": request.getfixturevalue("rabbitmq").url}
    else:
        broker = {"broker_transport_options": TRANSPORT}
    return {**config, **broker, "task_default_queue": queue}


@pytest.fixture
def prefork(worker, config):
    """Starts prefork workers on the queue of this test."""
    return lambda **options: worker(queues=config["task_default_queue"], concurrency=2, **options)


def start_of(journal, result, count=1):
    """What the journal says of a start of a task, by default of the first one."""
    return journal.wait_for("start", count=count, id=result.id)[count - 1]


def held(app, key):
    """Who holds a lock."""
    return Locks.for_app(app).coordinator("default", "correctness").inspect(key)


def until_free(app, key, within):
    """Wait until a lock is free."""
    end = now() + within
    while held(app, key) is not None:
        assert now() < end, f"{key} is held for longer than {within:g} s"
        Event().wait(0.01)


def test_a_warm_shutdown_lets_bodies_end(app, prefork, journal):
    """SIGTERM: while the worker drains, locks are renewed past their ttl, and then given back."""
    running = prefork()
    results = [tasks.early.delay("a"), tasks.late.delay("b")]
    keys = [start_of(journal, result)["key"] for result in results]
    owners = [held(app, key).owner for key in keys]
    running.terminate()
    end = now() + 1.5 * tasks.TTL
    while now() < end:
        assert [held(app, key).owner for key in keys] == owners
    assert running.alive
    for name in ("a", "b"):
        journal.open_gate(name)
    assert [result.get(timeout=SOON) for result in results] == ["a", "b"]
    assert [held(app, key) for key in keys] == [None, None]
    assert running.wait(SOON) == 0


SOFT = {"worker_soft_shutdown_timeout": 1}
HARD_ENDS = {
    "cold": ([signal.SIGQUIT], {}),
    "soft": ([signal.SIGQUIT], SOFT),
    "term then kill": ([signal.SIGTERM, signal.SIGKILL], {}),
    "kill the main process": ([signal.SIGKILL], {}),
}


@pytest.mark.parametrize("how", HARD_ENDS)
def test_a_hard_end(app, prefork, journal, how):
    """Locks are gone after one ttl at most, no child lives on, and the late message runs again."""
    signals, config = HARD_ENDS[how]
    running = prefork(config=config)
    results = {task: task.delay(task.name) for task in (tasks.early, tasks.late)}
    starts = {task: start_of(journal, result) for task, result in results.items()}
    children = [psutil.Process(pid) for pid in running.children]
    tell(running, signals)
    running.wait(SOON)
    psutil.wait_procs(children, timeout=SOON)
    assert not any(child.is_running() for child in children)
    until_free(app, starts[tasks.early]["key"], tasks.TTL + 1)
    prefork()
    second = start_of(journal, results[tasks.late], count=2)
    assert second["token"] > starts[tasks.late]["token"]
    journal.open_gate(tasks.late.name)
    assert results[tasks.late].get(timeout=SOON) == tasks.late.name
    assert held(app, second["key"]) is None
    assert len(journal.entries("start", id=results[tasks.early].id)) == 1
    assert journal.most_at_once(name=tasks.late.name) <= 2  # the dead attempt never said its end


def tell(worker, signals):
    """Send the main process signals, two seconds apart as a supervisor does."""
    worker.send(signals[0])
    for number in signals[1:]:
        Event().wait(2.0)
        worker.send(number)


def test_a_soft_shutdown_lets_a_short_body_end(app, prefork, journal):
    """What ends within ``worker_soft_shutdown_timeout`` keeps its result."""
    running = prefork(config={"worker_soft_shutdown_timeout": 15})
    result = tasks.late.delay("a")
    key = start_of(journal, result)["key"]
    running.quit()
    running.wait_for_log("Initiating Soft Shutdown")
    journal.open_gate("a")
    assert result.get(timeout=SOON) == "a"
    assert held(app, key) is None
    assert len(journal.entries("start")) == 1
