"""With RabbitMQ as the broker: locks don't depend on which broker carries the messages."""

import secrets

import pytest

from tests.celery import tasks


@pytest.fixture
def queue():
    """A queue of this test alone: the broker is shared and not emptied."""
    return f"tests-{secrets.token_hex(4)}"


@pytest.fixture
def config(config, rabbitmq, queue):
    """The usual application, with another broker."""
    return {**config, "broker_url": rabbitmq.url, "task_default_queue": queue}


def test_an_equal_call_is_skipped_while_the_first_runs(app, worker, queue, journal):
    """The second runner finds the lock held and says by whom; the first one ends well."""
    worker(queues=queue)
    first = tasks.locked.delay("a")
    journal.wait_for("start", name="a")
    skipped = tasks.locked.delay("a").get(timeout=10)
    assert skipped["skipped"] is True
    assert skipped["holder"]["id"] == first.id
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"
    assert len(journal.entries("start")) == 1


def test_the_next_call_runs_when_the_first_has_ended(app, worker, queue, journal):
    """A lock that was given back is free for the next message."""
    worker(queues=queue)
    journal.open_gate("a", times=2)
    assert [tasks.locked.delay("a").get(timeout=10) for _ in range(2)] == ["a", "a"]
    assert journal.most_at_once() == 1
