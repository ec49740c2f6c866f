"""Native threads, locks, conditions and events, also where the standard ones are patched."""

import subprocess
import sys
import time

import pytest

from celery_redlock.native import Condition, Event, Lock, get_ident, native_thread


def test_a_thread_runs_beside_its_starter_and_can_be_waited_for():
    """It has an identity of its own, and is alive until its target has ended."""
    go, seen = Event(), []

    def work():
        go.wait()
        seen.append(get_ident())

    thread = native_thread(work, "worker")
    assert thread.is_alive()
    assert not thread.join(0.01)
    assert "worker" in repr(thread)
    go.set()
    assert thread.join(5)
    assert not thread.is_alive()
    assert seen == [thread.ident]
    assert thread.ident != get_ident()


def test_a_thread_that_fails_has_ended(monkeypatch):
    """Its error is printed by the interpreter; whoever waits for it is let go."""
    failures = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    thread = native_thread(lambda: 1 / 0, "failing")
    assert thread.join(5)
    for _ in range(500):
        if failures:
            break
        Event().wait(0.01)
    assert failures[0].exc_type is ZeroDivisionError


def test_an_event_wakes_all_who_wait_for_it():
    """And stays set until it is taken back."""
    event, woken = Event(), []
    threads = [native_thread(lambda: woken.append(event.wait(5)), "waiter") for _ in range(3)]
    event.set()
    assert all(thread.join(5) for thread in threads)
    assert woken == [True, True, True]
    assert event.is_set()
    event.clear()
    assert not event.wait(0.01)


def test_a_condition_hands_out_one_wake_up_for_each_notify():
    """And no more: the second waiter stays until its time is over."""
    condition, woken = Condition(Lock()), []

    def wait():
        with condition.lock:
            woken.append(condition.wait(0.5))

    threads = [native_thread(wait, "waiter") for _ in range(2)]
    for _ in range(500):
        with condition.lock:
            if len(condition._waiters) == 2:
                condition.notify()
                break
        Event().wait(0.001)
    assert all(thread.join(5) for thread in threads)
    assert sorted(woken) == [False, True]


def test_waiting_for_something_ends_when_it_is_true_or_the_time_is_over():
    """Also when the wake-up came for another reason."""
    condition, items = Condition(), []
    got = []

    def wait():
        with condition.lock:
            got.append(condition.wait_for(lambda: len(items) == 2, 5))

    thread = native_thread(wait, "waiter")
    for item in range(2):
        with condition.lock:
            items.append(item)
            condition.notify_all()
    assert thread.join(5)
    assert got == [True]
    with condition.lock:
        assert not condition.wait_for(lambda: False, 0.01)


@pytest.mark.parametrize("hub", ["none", "gevent", "eventlet"])
def test_a_native_thread_runs_while_a_greenlet_hogs_the_hub(hub):
    """Whether this package was imported before the patching or after it."""
    for when in ("before", "after"):
        command = [sys.executable, "-W", "ignore", "-m", __name__, hub, when]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert int(done.stdout) > 5


def test_a_green_thread_does_not():
    """Negative control: the patched standard thread stands still meanwhile."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, "gevent", "green"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) == 0


def _ticks_while_computing(start, event):
    stop, ticks = event(), []

    def tick():
        while not stop.wait(0.02):
            ticks.append(True)

    start(tick)
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        pass
    seen = len(ticks)
    stop.set()
    return seen


def _patch(hub):
    if hub == "gevent":
        from gevent import monkey

        monkey.patch_all()
    elif hub == "eventlet":
        import eventlet

        eventlet.monkey_patch()


def _program(hub, when):
    _patch(hub)
    if when == "after":  # this module has imported it before: once more
        del sys.modules["celery_redlock.native"]
    from celery_redlock import native

    if when == "green":
        import threading

        return _ticks_while_computing(
            lambda tick: threading.Thread(target=tick).start(), threading.Event
        )
    return _ticks_while_computing(lambda tick: native.native_thread(tick, "t"), native.Event)


if __name__ == "__main__":
    print(_program(*sys.argv[1:]))
