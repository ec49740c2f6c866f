"""A message that a Redis broker delivers twice: not run beside itself, not lost, not done twice."""

import os
import signal

import pytest
import redis

from celery_redlock.clock import now
from tests.celery import redelivery_tasks as tasks

VISIBILITY = 2
SOON = 30.0
TRANSPORT = {
    "visibility_timeout": VISIBILITY,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
pytestmark = pytest.mark.config(
    include=["tests.celery.redelivery_tasks"],
    broker_transport_options=TRANSPORT,
    redlock_visibility_heartbeat=False,
    worker_prefetch_multiplier=1,
    redlock_node_timeout=0.3,
)


def until(true, otherwise, within=SOON):
    """Wait until something is true."""
    end = now() + within
    while not true():
        assert now() < end, otherwise


def start_of(journal, result, count=1):
    """What the journal says of a start of a task."""
    return journal.wait_for("start", count=count, id=result.id, timeout=SOON)[count - 1]


def put_off(running, result):
    """Wait until a copy of a message has been put off."""
    running.wait_for_log(f"[{result.id}] rescheduled in")


def test_a_copy_of_a_task_without_results_is_dropped(app, config, worker, journal):
    """The first delivery leaves word that it is done; what was left for that is taken away."""
    running = worker(concurrency=2)
    result = tasks.forgets.delay("a")
    start_of(journal, result)
    put_off(running, result)
    journal.open_gate("a", times=2)
    journal.wait_for("end")
    running.wait_for_log(f"[{result.id}] dropped")
    assert len(journal.entries("start")) == 1
    assert signs(config) == []


def signs(config):
    """What deliveries have left for each other."""
    found = []
    for url in config["redlock_coordinators"]["default"]:
        with redis.Redis.from_url(url) as client:
            found += client.keys("*redelivered:*") + client.keys("*done:*")
    return found


def test_a_copy_that_waits_in_its_slot_is_dropped(app, worker, journal):
    """It gets the lock before the result is published, and looks for it all the same."""
    running = worker(concurrency=2)
    result = tasks.stays.delay("a")
    start_of(journal, result)
    running.wait_for_log(f"[{result.id}] received", count=2)
    journal.open_gate("a", times=2)
    assert result.get(timeout=SOON) == "a"
    running.wait_for_log(f"[{result.id}] dropped")
    assert len(journal.entries("start")) == 1
    assert result.state == "SUCCESS"
    assert journal.entries("taken over") == []


@pytest.mark.parametrize("task", ["limited", "forgets"])
def test_a_copy_takes_over_from_a_dead_delivery(app, config, worker, journal, task):
    """However little patience it has with others, it outwaits its own dead attempt, and runs."""
    running = worker(concurrency=2)
    result = getattr(tasks, task).delay("a")
    first = start_of(journal, result)
    put_off(running, result)
    until(lambda: running.log.count(f"[{result.id}] rescheduled in") > 1, "put off only once")
    os.kill(first["pid"], signal.SIGKILL)
    start_of(journal, result, count=2)
    assert journal.wait_for("taken over")[0]["id"] == result.id
    journal.open_gate("a")
    journal.wait_for("end")
    if task == "limited":
        # Asked anew each time: the dead child's failure may be seen first.
        until(lambda: app.AsyncResult(result.id).state == "SUCCESS", "it didn't succeed")
    assert len(journal.entries("start")) == 2
    assert "gives up" not in running.log
    assert signs(config) == []
