"""Thousands of random trials: an interrupt never comes where its body isn't.

Run as a program (``python -m tests.unit.test_interrupt_trials gevent 2000``) it makes the trials
in a process that is monkey patched, and prints what it counted.
"""

import contextlib
import gc
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from celery_redlock.exceptions import LockLost, LockLostInterrupt
from celery_redlock.interrupt import Interruptible, shielded
from celery_redlock.native import native_thread
from celery_redlock.places import place_here


@pytest.fixture(autouse=True)
def no_foreign_code():
    """Nothing of other libraries runs in between, which an interrupt of a trial could hit."""
    gc.collect()
    gc.disable()
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = callbacks
    gc.enable()


class Leaky(Interruptible):
    """A broken version: for a moment after its end a body can still be interrupted."""

    def run(self, fn, *args, **kwargs):
        """Convert the interrupt around the body only, and stop being a target afterwards."""
        place = self._place = place_here()
        place.enter(self)
        try:
            try:
                result = fn(*args, **kwargs)
            except LockLostInterrupt:
                raise LockLost(f"lock {args[0]}") from None
            for _ in range(2000):
                pass
            return result
        finally:
            place.leave(self)


class Trials:
    """Bodies of every kind, and a thread that fires at those that run or have just ended."""

    def __init__(self, kind=Interruptible, seed=1):
        self.counts = Counter()
        self._kind = kind
        self._targets = {}
        self._ended = []
        self._over = False
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._shooter = native_thread(self._shoot, "shooter")

    def _shoot(self):
        dice = random.Random(2)  # noqa: S311 - no secret
        while not self._over:
            targets = list(self._targets)
            if targets and dice.random() < 0.3:
                dice.choice(targets).fire()
                self.counts["fired"] += 1
            for _ in range(dice.randrange(100)):
                pass

    def make(self, number):
        """Make that many trials in this flow of control."""
        for _ in range(number):
            try:
                self._one(0)
                for _ in range(self._random.randrange(200)):
                    pass  # outside of any body: nothing may come here
            except LockLostInterrupt:
                self.counts["escaped"] += 1

    def _one(self, depth):
        body = self._kind(lambda: LockLost(f"lock {depth}"))
        self._targets[body] = True
        try:
            assert body.run(self._work, depth) == "result"
            self.counts["ended"] += 1
        except LockLost as exc:
            self.counts["lost" if exc.key == f"lock {depth}" else "confused"] += 1
            self.counts["lost without a shot"] += not body.fired
        except ZeroDivisionError:
            self.counts["failed"] += 1
        finally:
            with shielded():
                self._ended.append(body)
                if len(self._ended) > 3:
                    self._targets.pop(self._ended.pop(0), None)

    def _work(self, depth):
        what = self._random.random()
        if what < 0.3:
            time.sleep(0.001 * self._random.random())
        elif what < 0.6:
            for _ in range(self._random.randrange(900)):
                pass
        elif what < 0.7 and depth < 2:
            self._one(depth + 1)
        elif what < 0.8:
            raise ZeroDivisionError
        elif what < 0.9:
            with contextlib.suppress(BaseException):
                for _ in range(300):
                    pass
        return "result"

    def close(self):
        """End the shooter; what was counted."""
        self._over = True
        assert self._shooter.join(10)
        for _ in range(1000):
            pass
        return dict(self.counts)


@pytest.fixture
def _quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


def nothing_went_wrong(counts, trials):
    """Check what :class:`Trials` counted."""
    assert counts.get("escaped", 0) == 0
    assert counts.get("confused", 0) == 0
    assert counts.get("lost without a shot", 0) == 0
    assert counts["lost"] > trials / 100  # else nothing was tried
    assert counts["ended"] > trials / 100


@pytest.mark.usefixtures("_quick_switches")
def test_no_interrupt_escapes_in_the_main_thread():
    """Thousands of bodies, nested and not, fired at random moments before and after their end."""
    trials = Trials()
    trials.make(4000)
    nothing_went_wrong(trials.close(), 4000)


@pytest.mark.usefixtures("_quick_switches")
def test_no_interrupt_escapes_in_other_threads():
    """The same in three threads at once, by asynchronous exceptions."""
    trials = Trials()
    threads = [threading.Thread(target=trials.make, args=(1500,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    nothing_went_wrong(trials.close(), 4500)


@pytest.mark.usefixtures("_quick_switches")
def test_the_trials_catch_an_interrupt_that_escapes():
    """Negative control: a body that stays interruptible after its end is noticed."""
    trials = Trials(Leaky)
    trials.make(2000)
    assert trials.close().get("escaped", 0) > 0


@pytest.mark.parametrize("hub", ["gevent", "eventlet"])
def test_no_interrupt_escapes_among_greenlets(hub):
    """The same in five greenlets at once, in a monkey patched process."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, hub, "800"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    nothing_went_wrong(json.loads(done.stdout), 4000)


def _in_greenlets(hub, number):
    import importlib

    sys.setswitchinterval(2e-5)
    spawn = importlib.import_module(hub).spawn
    trials = Trials()
    greenlets = [spawn(trials.make, number) for _ in range(5)]
    for greenlet in greenlets:
        (greenlet.join if hub == "gevent" else greenlet.wait)()
    print(json.dumps(trials.close()))


if __name__ == "__main__":
    if sys.argv[1] == "gevent":
        from gevent import monkey

        monkey.patch_all()
    else:
        import eventlet

        eventlet.monkey_patch()
    _in_greenlets(sys.argv[1], int(sys.argv[2]))
