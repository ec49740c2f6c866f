"""The base class on real prefork workers, over three real lock servers."""

import json
import os
import re
import subprocess
import sys

import pytest
from celery import chain, chord
from celery.exceptions import TimeoutError as NotYet

from celery_redlock import LockLost, LockNotAcquired, Locks
from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from localservers import valkey_cluster
from tests.celery import locked_tasks as tasks
from tests.celery.app import CONFIG
from tests.celery.processes import _ROOT

pytestmark = pytest.mark.config(include=["tests.celery.locked_tasks"])


@pytest.fixture
def running(worker):
    """A prefork worker with two children."""
    return worker(concurrency=2)


def key_of(app, task, *args):
    """The lock's name for a call, and whether somebody holds it."""
    plan = Locks.for_app(app).plan(task, "celery", None)
    return plan.keys.names(args, {})[0]


def held(app, task, *args):
    """Who holds the lock of a call."""
    locks = Locks.for_app(app)
    return locks.coordinator("default", "efficiency").inspect(key_of(app, task, *args))


def test_duplicates_stop(app, running, journal):
    """While one call runs, an equal one is skipped and told who holds the lock."""
    first = tasks.skips.delay("a")
    started = journal.wait_for("start", name="a")[0]
    second = tasks.skips.delay(name="a").get(timeout=10)
    assert second["skipped"] is True
    assert second["key"] == started["key"]
    assert second["holder"]["id"] == first.id
    assert second["holder"]["pid"] == started["pid"]
    assert second["holder"]["task"] == tasks.skips.name
    assert second["holder"]["queue"] == "celery"
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"
    assert len(journal.entries("start")) == 1
    assert "skipped: lock" in running.log


def test_other_arguments_are_another_lock(app, running, journal):
    """Two different calls run at the same time."""
    both = [tasks.skips.delay("a"), tasks.skips.delay("b")]
    journal.wait_for("start", count=2)
    journal.open_gate("a")
    journal.open_gate("b")
    assert [result.get(timeout=10) for result in both] == ["a", "b"]


def test_the_lock_is_gone_when_the_result_is_there(app, running, journal):
    """Whoever has seen the result finds the lock free, also after a failure."""
    for _ in range(3):
        journal.open_gate("a")
        assert tasks.skips.delay("a").get(timeout=10) == "a"
        assert held(app, tasks.skips, "a") is None
    with pytest.raises(ValueError, match="wrong"):
        tasks.fails.delay("wrong").get(timeout=10)
    assert held(app, tasks.fails, "wrong") is None
    assert len(journal.entries("start")) == 3


def test_a_ttl_of_two_seconds_keeps_others_out_for_ten(app, running, journal):
    """A renewed lock outlives its ttl: every call during ten seconds is skipped."""
    first = tasks.short_ttl.delay("a")
    start = journal.wait_for("start", name="a")[0]
    skipped = 0
    while True:
        second = tasks.short_ttl.delay("a")
        try:
            assert second.get(timeout=10)["skipped"] is True
        except NotYet:
            pytest.fail("a second runner got in")
        skipped += 1
        if now() - start["at"] > 10:
            break
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"
    assert skipped > 20
    assert len(journal.entries("start")) == 1


def test_revoke_ends_the_second_run_as_revoked(app, running, journal):
    """A revoked run hangs nobody, and its error names the holder."""
    first = tasks.revokes.delay("a")
    journal.wait_for("start", name="a")
    second = tasks.revokes.delay("a")
    with pytest.raises(LockNotAcquired) as caught:
        second.get(timeout=10)
    assert second.state == "REVOKED"
    assert caught.value.holder["id"] == first.id
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"


def test_raise_fails_the_second_run_with_the_holder(app, running, journal):
    """The error survives the result backend with all it knows."""
    first = tasks.raises.delay("a")
    journal.wait_for("start", name="a")
    second = tasks.raises.delay("a")
    with pytest.raises(LockNotAcquired) as caught:
        second.get(timeout=10)
    assert second.state == "FAILURE"
    assert caught.value.key == key_of(app, tasks.raises, "a")
    assert caught.value.holder["id"] == first.id
    assert 0 < caught.value.retry_after <= 30
    journal.open_gate("a")
    first.get(timeout=10)


def test_reschedule_runs_later_with_the_same_id_and_no_retry_spent(app, running, journal):
    """A task without any retries comes back until the lock is free."""
    first = tasks.reschedules.delay("a")
    journal.wait_for("start", name="a")
    second = tasks.reschedules.delay("a")
    running.wait_for_log("rescheduled in")
    journal.open_gate("a", times=2)
    assert [first.get(timeout=10), second.get(timeout=20)] == ["a", "a"]
    starts = journal.entries("start")
    assert [entry["id"] for entry in starts] == [first.id, second.id]
    assert [entry["retries"] for entry in starts] == [0, 0]
    assert journal.most_at_once() == 1


def test_give_up_after_ends_the_waiting(app, running, journal):
    """A rescheduled task that has waited long enough fails and says why."""
    first = tasks.gives_up.delay("a")
    journal.wait_for("start", name="a")
    second = tasks.gives_up.delay("a")
    with pytest.raises(LockNotAcquired):
        second.get(timeout=20)
    assert "gives up after" in running.log
    journal.open_gate("a")
    first.get(timeout=10)


def test_wait_lets_the_second_run_follow_the_first(app, running, journal):
    """A runner that waits in its slot runs as soon as the first has ended."""
    both = [tasks.waits.delay("a"), tasks.waits.delay("a")]
    journal.wait_for("start", name="a")
    journal.open_gate("a", times=2)
    assert [result.get(timeout=20) for result in both] == ["a", "a"]
    assert journal.most_at_once() == 1
    assert len(journal.entries("start")) == 2


def test_a_retry_does_not_meet_its_own_lock(app, running, journal):
    """``self.retry()`` gives the lock back, and the second run gets it again."""
    assert tasks.retries_once.delay("a").get(timeout=20) == "a"
    assert len(journal.entries("start")) == 2


def test_chord_and_chain_go_on_after_a_skipped_member(app, running, journal):
    """Equal members: one runs, the other has a result that says skipped, and nothing hangs."""
    journal.open_gate("a", times=3)
    journal.open_gate("b", times=2)
    results = chord([tasks.skips.s("a"), tasks.skips.s("a"), tasks.skips.s("b")])(
        tasks.collect.s()
    ).get(timeout=20)
    assert len(results) == 3
    assert "b" in results
    assert all(result in ("a", "b") or result["skipped"] for result in results)
    linked = chain(tasks.skips.si("a"), tasks.skips.si("b"))().get(timeout=20)
    assert linked == "b"


@pytest.mark.config(
    redlock_ttl=10,
    redlock_queues={"bill*": {"ttl": 20, "on_conflict": "revoke"}},
    task_routes={tasks.skips.name: {"queue": "billing"}},
)
def test_four_levels_of_options_reach_the_worker(app, worker, journal):
    """Call over task over queue over application, on the way through a real message."""
    worker(queues="celery,billing")
    for gate in "abcd":
        journal.open_gate(gate)
    tasks.waits.delay("a").get(timeout=10)
    tasks.skips.delay("b").get(timeout=10)
    tasks.short_ttl.apply_async(("c",), queue="billing").get(timeout=10)
    tasks.short_ttl.apply_async(("d",), queue="billing", lock={"ttl": 40}).get(timeout=10)
    ttls = {entry["name"]: entry["ttl"] for entry in journal.entries("start")}
    assert ttls == {"a": 10.0, "b": 20.0, "c": 2.0, "d": 40.0}


@pytest.mark.config(redlock_queues={"billing": {"on_conflict": "revoke"}})
def test_a_policy_of_the_queue_is_used(app, worker, journal):
    """The queue's policy holds for a message that came through it."""
    worker(queues="celery,billing", concurrency=2)
    first = tasks.skips.apply_async(("a",), queue="billing")
    journal.wait_for("start", name="a")
    second = tasks.skips.apply_async(("a",), queue="billing")
    with pytest.raises(LockNotAcquired):
        second.get(timeout=10)
    assert second.state == "REVOKED"
    journal.open_gate("a")
    first.get(timeout=10)


@pytest.fixture
def breakable(servers):
    """Three lock servers that a test may break."""
    return servers.start(valkey_cluster, 3)


def test_dead_lock_servers_never_lose_a_task(app, worker, journal, breakable, config):
    """With no lock server at all one task runs loudly without its lock, another comes back."""
    running = worker(config={"redlock_coordinators": {"default": breakable.urls}})
    for server in breakable:
        server.kill()
    journal.open_gate("a")
    journal.open_gate("b")
    assert tasks.skips.delay("a").get(timeout=10) == "a"
    assert "RUNS WITHOUT ITS LOCK" in running.log
    assert journal.entries("start")[0]["key"] is None
    later = tasks.comes_back.delay("b")
    running.wait_for_log("rescheduled in")
    assert journal.entries("start", name="b") == []
    for server in breakable:
        server.start()
    assert later.get(timeout=30) == "b"
    assert journal.entries("start", name="b")[0]["key"] is not None


def test_a_minority_of_dead_lock_servers_is_not_noticed(app, worker, journal, breakable):
    """With one of three servers dead the lock still excludes."""
    worker(config={"redlock_coordinators": {"default": breakable.urls}})
    breakable[0].kill()
    first = tasks.skips.delay("a")
    journal.wait_for("start", name="a")
    assert tasks.skips.delay("a").get(timeout=10)["skipped"] is True
    journal.open_gate("a")
    assert first.get(timeout=10) == "a"


BROKEN = [
    ({"redlock_coordinators": None}, "redlock_coordinators is missing"),
    ({"redlock_coordinators": {"default": ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]}}, "odd"),
    ({"redlock_tll": 3}, "unknown setting redlock_tll; did you mean redlock_ttl"),
    ({"redlock_ttl": 0.1}, "too short"),
    ({"redlock_mode": "correctness"}, "no parameter named fencing_token"),
]


@pytest.mark.parametrize(("settings", "message"), BROKEN)
def test_a_worker_refuses_to_start_with_what_cannot_work(config, settings, message):
    """The worker ends with exit code 1 and one clear message, before it takes any task."""
    command = [sys.executable, "-m", "celery", "-A", "tests.celery.app", "worker", "-P", "solo"]
    ended = subprocess.run(
        command,
        env={**os.environ, CONFIG: json.dumps({**config, **settings}), "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert re.search(f"refuses to start: .*{message}", said), said
    assert "Traceback" not in said


def take_away(app, key):
    """Give a held lock to somebody else; what undoes that."""
    locks = Locks.for_app(app)
    coordinator = locks.coordinator("default", "efficiency")
    held = coordinator.inspect(key)
    coordinator.release(Grant(key, held.owner, 30, now() + 30))
    grant = coordinator.acquire(key, "somebody-else", 30, locks.holder())
    return lambda: coordinator.release(grant)


def test_a_lost_lock_is_retried_if_the_task_says_so(app, running, journal):
    """``autoretry_for=(LockLost,)`` runs a stopped body again, with the lock."""
    result = tasks.tries_again.delay("a")
    give_back = take_away(app, journal.wait_for("start", name="a")[0]["key"])
    running.wait_for_log("was stopped: lock")
    give_back()
    second = journal.wait_for("start", count=2, name="a")[1]
    assert second["retries"] == 1
    journal.open_gate("a")
    assert result.get(timeout=20) == "a"


def test_the_task_is_told_that_it_was_stopped(app, running, journal):
    """``on_lock_lost`` gets the error and the call, and the result says LockLost."""
    result = tasks.told.delay("a")
    start = journal.wait_for("start", name="a")[0]
    take_away(app, start["key"])
    with pytest.raises(LockLost) as caught:
        result.get(timeout=20)
    assert caught.value.key == start["key"]
    assert journal.wait_for("told")[0]["args"] == ["a"]
    assert journal.entries("told")[0]["id"] == result.id
