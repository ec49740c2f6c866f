"""Stopping greenlets of gevent and eventlet, each in a monkey patched process of its own.

The process runs this module as a program and prints how each body ended, and after how long.
"""

import json
import subprocess
import sys
import time

import pytest

from celery_redlock.interrupt import shielded
from celery_redlock.native import Event, native_thread
from tests.unit.test_interrupt import (
    SOON,
    interruptible,
    loops,
    receives,
    sleeps,
    stop,
    swallows_everything_for_a_while,
    swallows_exceptions,
    waits_for_a_lock,
    waits_for_a_program,
)

BODIES = [sleeps, receives, waits_for_a_lock, waits_for_a_program, loops, swallows_exceptions]
TICKS = 200


@pytest.fixture(scope="module", params=["gevent", "eventlet"])
def seen(request):
    """What the program saw under one of the hubs."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, request.param]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("body", [body.__name__ for body in BODIES])
def test_a_greenlet_is_stopped_at_once_waiting_or_computing(seen, body):
    """The hub throws into a greenlet that waits; a signal stops the one that computes."""
    assert seen[body] < SOON


def test_the_main_greenlet_is_stopped_too(seen):
    """A script under monkey patching runs its bodies in no greenlet of its own."""
    assert seen["main greenlet"] < SOON


def test_a_greenlet_that_swallows_the_interrupt_is_interrupted_again(seen):
    """``except BaseException`` in a loop only lasts until the next ``fire``."""
    assert seen["swallows_everything_for_a_while"] < SOON


def test_the_other_greenlets_go_on(seen):
    """A greenlet with a body that is not fired ends its work, whoever else is stopped."""
    assert seen["bystander"] == TICKS


def test_a_greenlet_that_computes_is_stopped_and_not_the_one_that_waits(seen):
    """Two bodies at once: the signal hits the one that was fired, not the one that is current."""
    assert seen["two bodies"] == ["waiting: stopped", "computing: ended"]


def test_a_shield_puts_the_interrupt_of_a_greenlet_off(seen):
    """A release that switches to the hub under the shield is done to its end."""
    assert seen["shield"] == ["released", "stopped"]


# The program.


def _outcome(body, call):
    from celery_redlock.exceptions import LockLost

    try:
        body.run(call)
    except LockLost:
        return "stopped"
    return "ended"


def _bystander(seen):
    def tick():
        for _ in range(TICKS):
            time.sleep(0.005)
        return TICKS

    seen["bystander"] = interruptible().run(tick)


def _two_bodies(seen, spawn, join):
    waiting, log = interruptible(), []
    begun = Event()
    native_thread(lambda: begun.wait(SOON) and waiting.fire(), "shooter")

    def compute():
        begun.set()
        loops(time.monotonic() + 0.3)

    first = spawn(lambda: log.append(f"waiting: {_outcome(waiting, lambda: time.sleep(10))}"))
    time.sleep(0.01)
    second = spawn(lambda: log.append(f"computing: {_outcome(interruptible(), compute)}"))
    join(first)
    join(second)
    seen["two bodies"] = sorted(log, reverse=True)


def _shield(seen, spawn, join):
    body, log = interruptible(), []

    def work():
        with shielded():
            body.fire()
            time.sleep(0.1)
            log.append("released")
        log.append("never")

    join(spawn(lambda: log.append(_outcome(body, work))))
    seen["shield"] = log


def _all(spawn, join):
    seen = {}
    bystander = spawn(lambda: _bystander(seen))

    def each():
        for body in BODIES:
            seen[body.__name__] = stop(body)
        swallowing = swallows_everything_for_a_while
        seen[swallowing.__name__] = stop(swallowing, again=True)

    join(spawn(each))
    join(bystander)
    seen["main greenlet"] = stop(sleeps)
    _two_bodies(seen, spawn, join)
    _shield(seen, spawn, join)
    assert interruptible().run(lambda: "fine") == "fine"
    return seen


def _program(hub):
    if hub == "gevent":
        from gevent import monkey, spawn

        monkey.patch_all()
        return _all(spawn, lambda greenlet: greenlet.get())
    import eventlet

    eventlet.monkey_patch()
    return _all(eventlet.spawn, lambda greenlet: greenlet.wait())


if __name__ == "__main__":
    print(json.dumps(_program(sys.argv[1])))
