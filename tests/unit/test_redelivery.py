"""What is known of another delivery of a message: by its header, its lock's holder, its result."""

from types import SimpleNamespace

import pytest

from celery_redlock import redelivery
from celery_redlock.coordinators.base import Conflict, Holder
from celery_redlock.redelivery import is_another_delivery, is_done

MINE, OTHER = Holder(id="mine", host="h"), Holder(id="other", host="h")


class Results:
    """A result backend that a worker can look into."""

    def __init__(self, *states):
        """Say these states, one after the other, and then the last one."""
        self._states = list(states)

    def get_task_meta(self, task_id, cache):
        """The next state."""
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(state, Exception):
            raise state
        return {"status": state}

    _get_task_meta_for = get_task_meta


def attempt(*states, redelivered=False, delivered=True, **header):
    """A run of a task, as far as it is looked at here."""
    request = SimpleNamespace(
        id="mine",
        retries=header.pop("retries", 0),
        ignore_result=False,
        delivery_info={"redelivered": redelivered},
        headers={"redlock": header},
    )
    task = SimpleNamespace(backend=Results(*states))
    return SimpleNamespace(request=request, task=task, delivered=delivered, named="t[mine]")


@pytest.mark.parametrize(
    ("made", "holder", "expected"),
    [
        (attempt(), MINE, True),
        (attempt(), OTHER, False),
        (attempt(), None, False),
        (attempt(), Holder(host="h"), False),  # somebody outside of a task
        (attempt(redelivered=True), OTHER, False),
        (attempt(redelivered=True), None, True),  # nobody can say: rather put off than dropped
        (attempt(redelivered=True), Holder(), True),
        (attempt(met=True), None, True),
        (attempt(delivered=False), MINE, False),  # a call inside of a body
    ],
)
def test_who_is_in_the_way(made, holder, expected):
    """A copy knows its own earlier delivery by the task's id, and never mistakes it for another."""
    assert is_another_delivery(made, Conflict("k", holder)) is expected


@pytest.mark.parametrize(
    ("state", "done"),
    [
        ("SUCCESS", True),
        ("REVOKED", True),
        ("FAILURE", False),
        ("RETRY", False),
        ("PENDING", False),
    ],
)
def test_a_result_tells_whether_the_work_is_done(state, done):
    """A failed or a retried attempt hasn't done it."""
    assert is_done(attempt(state, redelivered=True), met=False) is done


def test_a_first_delivery_asks_nobody():
    """It costs no look at the results."""
    assert not is_done(attempt(AssertionError("asked")), met=False)


def test_a_result_that_is_late_is_waited_for(monkeypatch):
    """The lock is given back before the result is there."""
    monkeypatch.setattr(redelivery, "LOOK_AGAIN", 0.001)
    monkeypatch.setattr(redelivery, "RESULT_IS_LATE", 60.0)
    assert is_done(attempt("STARTED", "STARTED", "SUCCESS"), met=True)


def test_a_dead_attempts_result_is_not_waited_for_long(monkeypatch):
    """Nothing comes, so the copy runs."""
    monkeypatch.setattr(redelivery, "LOOK_AGAIN", 0.001)
    monkeypatch.setattr(redelivery, "RESULT_IS_LATE", 0.01)
    assert not is_done(attempt("STARTED"), met=True)


def test_results_that_cannot_be_read_stop_nobody():
    """The work is done rather twice than never."""
    assert not is_done(attempt(ConnectionError("gone"), redelivered=True), met=False)


def test_a_retry_is_another_run():
    """What its first run has waited for is not counted for it."""
    request = attempt(met=True, waits=7, for_retry=0, retries=1).request
    assert redelivery.waiting_facts(request) == {}
    assert not redelivery.has_met(request)
    assert redelivery.has_met(attempt(met=True, for_retry=1, retries=1).request)
