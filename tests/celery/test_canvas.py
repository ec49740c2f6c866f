"""Celery's canvas of locked tasks: whatever becomes of a member, it ends, with a defined result."""

import uuid

import pytest
import redis
from celery import chain, chord, group
from celery.exceptions import ChordError
from celery.result import AsyncResult

from celery_redlock import LockNotAcquired, Locks
from tests.celery import canvas_tasks as tasks
from tests.celery.app import make_app
from tests.celery.journal import Journal
from tests.celery.processes import Worker

SOON = 30.0


@pytest.fixture(scope="module")
def config(_valkey, _valkey_3):
    """One application for all of these tests: they use keys of their own."""
    return {
        "broker_url": _valkey.url_as("", None, 4),
        "result_backend": _valkey.url_as("", None, 5),
        "tests_journal": _valkey.url_as("", None, 6),
        "broker_connection_retry_on_startup": True,
        "include": ["tests.celery.canvas_tasks"],
        "redlock_coordinators": {"default": _valkey_3.urls},
        "redlock_prefix": "canvas",
        "redlock_node_timeout": 0.3,
    }


@pytest.fixture(scope="module")
def app(config):
    """The producer's application."""
    app = make_app(config)
    yield app
    Locks.for_app(app).close()
    app.backend.client.close()
    app.close()


@pytest.fixture(scope="module", autouse=True)
def running(config, app):
    """One prefork worker with two children."""
    with Worker(config, concurrency=2) as worker:
        yield worker


@pytest.fixture
def journal(config):
    """What the tasks did."""
    journal = Journal(config["tests_journal"])
    yield journal
    journal.close()


@pytest.fixture
def key():
    """A key of this test alone."""
    return uuid.uuid4().hex


@pytest.fixture
def taken(app, key):
    """A key that somebody else has."""
    coordinator = Locks.for_app(app).coordinator("default", "efficiency")
    grants = []
    for task in (tasks.add, tasks.strict, tasks.modest, tasks.patient):
        plan = Locks.for_app(app).plan(task, "celery", None)
        name = plan.keys.names((key, 1) if task in (tasks.add, tasks.patient) else (key,), {})[0]
        grants.append(coordinator.acquire(name, key, 100.0, Locks.for_app(app).holder()))
    yield key
    for grant in grants:
        coordinator.release(grant)


def is_skipped(result):
    """Whether a result says so."""
    return isinstance(result, dict) and result["skipped"] is True and bool(result["holder"])


def test_a_group_of_equal_members(key, journal):
    """Each has a result: its value, or that it was skipped; never two at once."""
    results = group(tasks.add.s(key, 1) for _ in range(4))().get(timeout=SOON)
    assert len(results) == 4
    assert 1 in results
    assert all(result == 1 or is_skipped(result) for result in results)
    assert journal.most_at_once(name=key) == 1


def test_a_group_of_equal_members_that_wait(key, journal):
    """With ``reschedule`` each of them runs, one after the other."""
    results = group(tasks.patient.s(key, number) for number in range(3))().get(timeout=SOON)
    assert results == [0, 1, 2]
    assert journal.most_at_once(name=key) == 1
    assert len(journal.entries("start", name=key)) == 3


def test_a_chord_of_equal_members(key):
    """Its body gets every member's result."""
    results = chord([tasks.add.s(key, 1) for _ in range(3)])(tasks.collect.s()).get(timeout=SOON)
    assert len(results) == 3
    assert all(result == 1 or is_skipped(result) for result in results)


def test_a_chord_with_skipped_members(taken):
    """A skipped member counts as done."""
    results = chord([tasks.add.s(taken, 1), tasks.add.s("free", 2)])(tasks.collect.s())
    skipped, value = results.get(timeout=SOON)
    assert is_skipped(skipped)
    assert value == 2


@pytest.mark.parametrize("member", [tasks.strict, tasks.fails, tasks.modest])
def test_a_chord_with_a_failed_or_revoked_member(taken, member):
    """Its body fails as with any failed member, and nothing hangs."""
    result = chord([member.s(taken), tasks.add.s("free", 2)])(tasks.collect.s())
    with pytest.raises((ChordError, LockNotAcquired, ValueError)):  # the member's, if it is seen
        result.get(timeout=SOON)
    with pytest.raises(ChordError):
        AsyncResult(result.id, app=member.app).get(timeout=SOON)


def test_a_chord_with_members_that_wait(app, key):
    """A member that was put off still counts, once."""
    results = chord([tasks.patient.s(key, number) for number in range(3)])(tasks.collect.s())
    assert sorted(results.get(timeout=SOON)) == [0, 1, 2]


def test_a_chain_over_a_skipped_link(taken):
    """The next link runs, and gets what the skipped one has as its result."""
    assert chain(tasks.add.si(taken, 1), tasks.add.si("free", 2))().get(timeout=SOON) == 2
    handed = chain(tasks.add.si(taken, 1), tasks.collect.s())().get(timeout=SOON)
    assert is_skipped(handed)


def test_a_chain_over_equal_links(key, journal):
    """Each link runs: the one before it has given the lock back."""
    assert (
        chain(tasks.add.si(key, 1), tasks.add.si(key, 2), tasks.add.si(key, 3))().get(timeout=SOON)
        == 3
    )
    assert len(journal.entries("start", name=key)) == 3


@pytest.mark.parametrize(("first", "state"), [(tasks.strict, "FAILURE"), (tasks.modest, "REVOKED")])
def test_a_chain_over_a_link_that_did_not_run(taken, first, state):
    """Neither link runs; both say so, so that nobody waits for ever."""
    last = chain(first.si(taken), tasks.add.si("free", 2))()
    with pytest.raises(LockNotAcquired):  # asked for alone, it is not answered by its parent's end
        AsyncResult(last.id, app=first.app).get(timeout=SOON)
    assert (last.parent.state, last.state) == (state, state)


def test_callbacks_after_a_skip(taken, journal, key):
    """``link`` is called with the result that says skipped; ``link_error`` isn't."""
    before = len(journal.entries("told"))
    tasks.add.apply_async((taken, 1), link=tasks.told.s(key), link_error=tasks.told.s("error"))
    told = journal.wait_for("told", count=before + 1)[-1]["args"]
    assert "'skipped': True" in told[0]
    assert told[1] == key


def test_callbacks_after_a_failure(taken, journal):
    """``link_error`` is called when the lock was the reason, too; ``link`` isn't."""
    before = len(journal.entries("told"))
    result = tasks.strict.apply_async(
        (taken,), link=tasks.told.s("success"), link_error=tasks.told.si("error")
    )
    with pytest.raises(LockNotAcquired):
        result.get(timeout=SOON)
    assert journal.wait_for("told", count=before + 1)[-1]["args"] == ["error"]


def test_a_callback_with_the_same_lock(key, journal):
    """A linked call of the same task runs after it, not beside it and not instead of it."""
    tasks.add.apply_async((key, 1), link=tasks.add.si(key, 2)).get(timeout=SOON)
    journal.wait_for("end", count=2, name=key)
    assert journal.most_at_once(name=key) == 1


def test_replace(key, journal):
    """A task that ends as another call of the same key has that call's result."""
    assert tasks.replaces_itself.delay(key, 1).get(timeout=SOON) == 2
    assert chain(tasks.replaces_itself.si(key, 1), tasks.add.s(5))().get(timeout=SOON) == 5


def test_map_starmap_and_chunks(app, taken):
    """Each call in them takes its lock; one whose lock is taken has a result that says skipped."""
    sums = tasks.add.starmap([("x", 1), ("y", 2), (taken, 3)]).delay().get(timeout=SOON)
    assert sums[:2] == [1, 2]
    assert is_skipped(sums[2])
    assert tasks.modest.map(["x", "y"]).delay().get(timeout=SOON) == ["x", "y"]
    chunks = tasks.add.chunks([("x", 1), ("y", 2), ("z", 3)], 2)().get(timeout=SOON)
    assert chunks == [[1, 2], [3]]


def test_map_over_a_lock_that_is_taken_and_must_not_be_skipped(taken):
    """A call inside of ``map`` has no message of its own: it fails, and the map with it."""
    with pytest.raises(LockNotAcquired):
        tasks.modest.map(["x", taken]).delay().get(timeout=SOON)


def test_nothing_is_left(config):
    """When all of these have ended there is no lock."""
    for url in config["redlock_coordinators"]["default"]:
        with redis.Redis.from_url(url) as client:
            assert client.keys("canvas:*:lock") == []
