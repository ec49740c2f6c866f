"""What beats send twice because one of them died at the wrong moment runs once all the same."""

import pytest

from tests.celery.beat_app import FAILURE
from tests.celery.beat_tasks import report

ENTRY = {"report": {"task": "tests.celery.beat_tasks.report", "schedule": 8.0}}
WITH_TASK = pytest.mark.config(
    beat_schedule=ENTRY, include=["tests.celery.beat_tasks"], worker_prefetch_multiplier=1
)


@pytest.mark.slow
@WITH_TASK
def test_a_beat_dies_between_publish_and_note(beat, worker, journal):
    """The next beat can't know that the slot was sent, sends it again, and it runs once."""
    dying = beat(app="tests.celery.beat_app", environment={FAILURE: "die"})
    dying.wait(30)
    beat(app="tests.celery.beat_app")
    running = worker(pool="solo")
    runs = journal.wait_for("report", 3, timeout=30)
    slots = [run["slot"]["at"] for run in runs]
    assert sorted(set(slots)) == slots
    assert running.log.count(" received") == len(runs) + 1
    assert "skipped: lock 'beat:report" in running.log


@WITH_TASK
def test_a_second_message_of_a_slot_is_skipped(app, worker, journal):
    """Two messages of one slot: one runs, the other's result names it; other slots run."""
    worker(pool="solo")

    def send(slot):
        header = {"redlock": {"slot": {"entry": "report", "at": slot}}}
        return app.send_task(report.name, headers=header)

    results = [send(slot).get(timeout=20) for slot in ("a", "a", "b")]
    assert [run["slot"]["at"] for run in journal.entries("report")] == ["a", "b"]
    assert results[1]["skipped"] is True
    assert results[1]["holder"]["id"] == journal.entries("report")[0]["run"]


@WITH_TASK
def test_a_malformed_slot_keeps_nothing_from_running(app, worker, journal):
    """Headers from outside may hold anything; the message runs."""
    worker(pool="solo")
    slots = ["x", {"entry": 3, "at": None}, {"at": "a"}, {"entry": "report"}, None]
    for slot in slots:
        app.send_task(report.name, headers={"redlock": {"slot": slot}})
    runs = journal.wait_for("report", len(slots))
    assert [run["slot"] for run in runs] == slots
