"""Calls that may hang: waited for only so long, undone when they come too late."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from celery_redlock.in_time import Helpers, OutOfTime


@pytest.fixture
def gate():
    """Holds calls until it is set; set at the end in any case."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_an_answer_in_time_is_given():
    """What the call returns or raises comes out as it is."""
    helpers = Helpers()
    assert helpers.within(5, lambda: 3) == 3
    with pytest.raises(KeyError, match="mine"):
        helpers.within(5, lambda: {}["mine"])


def test_a_hanging_call_costs_the_budget_and_is_undone_later(gate):
    """The waiter goes on in time; the late answer is handed to who undoes it."""
    helpers, undone = Helpers(), threading.Event()
    start = time.monotonic()
    with pytest.raises(OutOfTime):
        helpers.within(0.1, gate.wait, too_late=lambda answer: undone.set())
    assert time.monotonic() - start < 0.25
    assert not undone.is_set()
    gate.set()
    assert undone.wait(5)


def test_an_answer_in_time_is_not_undone():
    """The undo belongs to answers that nobody got."""
    undone = []
    assert Helpers().within(5, lambda: 3, too_late=undone.append) == 3
    assert undone == []


def test_when_all_threads_hang_a_call_still_costs_only_the_budget(gate):
    """A call that no thread has taken up is never made once its waiter has gone."""
    helpers, made = Helpers(most=2), []
    for _ in range(2):
        helpers.later(gate.wait)
    start = time.monotonic()
    with pytest.raises(OutOfTime):
        helpers.within(0.1, lambda: made.append("made"), too_late=lambda _: made.append("undone"))
    assert time.monotonic() - start < 0.25
    gate.set()
    assert helpers.drain(5)
    assert made == []


def test_a_signal_ends_the_wait_and_the_answer_is_undone(gate):
    """An exception that a signal raises comes out; what the call did is undone."""
    helpers, undone = Helpers(), threading.Event()

    def raise_it(*_):
        raise ZeroDivisionError

    before = signal.signal(signal.SIGUSR2, raise_it)
    try:
        me = threading.main_thread().ident
        threading.Timer(0.05, lambda: signal.pthread_kill(me, signal.SIGUSR2)).start()
        with pytest.raises(ZeroDivisionError):
            helpers.within(5, gate.wait, too_late=lambda _: undone.set())
    finally:
        signal.signal(signal.SIGUSR2, before)
    gate.set()
    assert undone.wait(5)


def test_work_in_the_background_is_done_in_order_and_its_errors_are_logged(caplog):
    """An error in one piece of work doesn't keep the others from being done."""
    helpers, done = Helpers(most=1), []
    helpers.later(lambda: done.append(1))
    helpers.later(lambda: {}["nothing"])
    helpers.later(lambda: done.append(2))
    assert helpers.drain(5)
    assert done == [1, 2]
    assert "work in the background failed" in caplog.text


def test_the_end_of_the_process_waits_for_the_last_words():
    """A script that ends at once still says what it has handed to the background."""
    script = (
        "import time; from celery_redlock.in_time import helpers;"
        "helpers().later(lambda: (time.sleep(0.1), print('said', flush=True)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"said\n"


def test_a_forked_child_has_helpers_of_its_own():
    """No thread survives a fork, so the child starts its own."""
    script = (
        "import os; from celery_redlock.in_time import helpers;"
        "helpers().within(5, lambda: 1)\n"
        "if os.fork() == 0: os._exit(helpers().within(5, lambda: 7))\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"7\n"
