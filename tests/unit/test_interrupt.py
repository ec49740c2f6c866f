"""Stopping a body in the main thread and in other threads, nested bodies, and the shield."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from celery_redlock import main_thread
from celery_redlock.exceptions import LockLost, LockLostInterrupt
from celery_redlock.interrupt import Interruptible, shielded
from celery_redlock.native import Event, native_thread

LONG = 30.0  # what a body lasts that nobody stops
SOON = 5.0  # what stopping it may take on a busy machine


def interruptible(name="lock", told=None):
    """A body that has not begun."""
    return Interruptible(lambda: LockLost(name, 7, "test"), told)


class Shooter:
    """Fires bodies from another thread, a moment after they have begun."""

    def __init__(self, *bodies, again=False):
        self.begun, self.over = Event(), Event()
        self._bodies, self._again = bodies, again
        self._thread = native_thread(self._shoot, "shooter")

    def _shoot(self):
        self.begun.wait(SOON)
        self.over.wait(0.1)  # lets the body get into its call
        while True:
            for body in self._bodies:
                body.fire()
            if not self._again or self.over.wait(0.1):
                return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.begun.set()
        assert self._thread.join(SOON)


def stop(call, *, again=False):
    """Seconds until a body that makes ``call(end)`` was stopped, as ``run`` says."""
    body = interruptible()
    with Shooter(body, again=again) as shooter:

        def work():
            shooter.begun.set()
            call(time.monotonic() + LONG)

        start = time.monotonic()
        with pytest.raises(LockLost) as lost:
            body.run(work)
    assert lost.value.args == ("lock", 7, "test")
    assert isinstance(lost.value.__cause__, LockLostInterrupt)
    return time.monotonic() - start


def in_thread(function):
    """What ``function()`` returns in a thread of its own."""
    out = []

    def work():
        try:
            out.append((True, function()))
        except BaseException as exc:
            out.append((False, exc))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    good, value = out[0]
    if not good:
        raise value
    return value


def sleeps(end):
    """Block in a sleep."""
    time.sleep(LONG)


def receives(end):
    """Block in a receive."""
    mine, other = socket.socketpair()
    with mine, other:
        mine.settimeout(LONG)
        mine.recv(1)


def waits_for_a_lock(end):
    """Block on a lock."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=LONG)


def waits_for_a_program(end):
    """Block on another process."""
    subprocess.run(["sleep", f"{LONG:g}"], check=False)


def loops(end):
    """Compute, without any call that blocks."""
    while time.monotonic() < end:
        pass


def swallows_exceptions(end):
    """Go on whatever Exception comes."""
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            time.sleep(0.001)


def swallows_everything_for_a_while(end):
    """Go on after the first three interrupts."""
    for _ in range(3):
        with contextlib.suppress(BaseException):
            while time.monotonic() < end:
                time.sleep(0.001)
    while time.monotonic() < end:
        time.sleep(0.001)


@pytest.mark.parametrize(
    "call",
    [
        sleeps,
        receives,
        waits_for_a_lock,
        waits_for_a_program,
        loops,
        swallows_exceptions,
    ],
)
def test_a_body_in_the_main_thread_is_stopped_at_once(call):
    """A signal breaks what the main thread does, blocking calls too."""
    assert stop(call) < SOON


def test_a_regular_expression_is_stopped_by_a_signal_from_outside():
    """A match that keeps the interpreter's lock still looks at signals (no thread here could)."""
    lost = []
    body = interruptible(told=lambda: bool(lost))

    def work():
        lost.append(True)
        re.match(r"(a+)+$", "a" * 40 + "b")

    kill = f"import os, time; time.sleep(0.3); os.kill({os.getpid()}, {main_thread.SIGNAL})"
    with subprocess.Popen([sys.executable, "-c", kill]), pytest.raises(LockLost):
        body.run(work)


@pytest.mark.parametrize("call", [loops, swallows_exceptions])
def test_a_body_in_another_thread_is_stopped_between_its_bytecodes(call):
    """An asynchronous exception stops a body in a thread that has no signals."""
    assert in_thread(lambda: stop(call)) < SOON


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_body_that_swallows_the_interrupt_is_interrupted_again(where):
    """``except BaseException`` in a loop only lasts until the next ``fire``."""

    def look():
        return stop(swallows_everything_for_a_while, again=True)

    assert (look() if where == "main" else in_thread(look)) < SOON


def test_a_blocking_call_in_another_thread_is_stopped_when_it_returns():
    """Documented limit: an asynchronous exception doesn't break a call that blocks."""
    body, freed = interruptible(), Event()
    with Shooter(body) as shooter:

        def work():
            shooter.begun.set()
            freed.wait(1.0)

        start = time.monotonic()
        with pytest.raises(LockLost):
            in_thread(lambda: body.run(work))
    assert time.monotonic() - start > 0.9


@pytest.mark.parametrize("where", ["main", "thread"])
def test_what_nobody_fires_ends_as_if_it_were_called(where):
    """Results, arguments and errors pass through untouched."""

    def look():
        assert interruptible().run(divmod, 7, 2) == (3, 1)
        assert interruptible().run(int, "11", base=2) == 3
        with pytest.raises(ZeroDivisionError):
            interruptible().run(divmod, 7, 0)

    look() if where == "main" else in_thread(look)


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_body_that_has_ended_keeps_its_result(where):
    """Firing after the end, or swallowed before it, changes nothing and hits nobody."""

    def look():
        body = interruptible()

        def swallow():
            try:
                body.fire()
                loops(time.monotonic() + SOON)
            except LockLostInterrupt:
                return "kept"

        assert body.run(swallow) == "kept"
        for _ in range(100):
            body.fire()
        assert interruptible().run(lambda: "next") == "next"

    look() if where == "main" else in_thread(look)


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_body_whose_lock_was_lost_before_it_began_is_not_begun(where):
    """Between the grant and the body a lock can be lost, too."""
    body, begun = interruptible(), []
    body.fire()

    def look():
        with pytest.raises(LockLost):
            body.run(begun.append, True)

    look() if where == "main" else in_thread(look)
    assert begun == []


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize(
    "fired, expected",
    [
        ("inner", ["inner lost", "outer goes on"]),
        ("outer", ["outer lost"]),
        ("inner outer", ["outer lost"]),
        ("outer inner", ["outer lost"]),
    ],
)
def test_the_loss_of_one_of_two_locks_ends_its_own_body_only(where, fired, expected):
    """The inner loss ends the inner body; the outer one ends both, whatever the order."""
    log = []
    bodies = {"outer": interruptible("outer"), "inner": interruptible("inner")}

    def look():
        with Shooter(*[bodies[name] for name in fired.split()]) as shooter:

            def inner():
                shooter.begun.set()
                loops(time.monotonic() + LONG)

            def outer():
                try:
                    bodies["inner"].run(inner)
                except LockLost as exc:
                    log.append(f"{exc.key} lost")
                loops(time.monotonic() + 0.2)
                log.append("outer goes on")

            try:
                bodies["outer"].run(outer)
            except LockLost as exc:
                log.append(f"{exc.key} lost")

    look() if where == "main" else in_thread(look)
    assert log == expected


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_shield_puts_the_loss_of_an_outer_lock_off(where):
    """An inner release under the shield is done to its end; then the outer body is stopped."""
    log = []

    def look():
        body = interruptible()
        with Shooter(body) as shooter:

            def work():
                with shielded():
                    shooter.begun.set()
                    loops(time.monotonic() + 0.4)
                    log.append("released")
                log.append("never")

            with pytest.raises(LockLost):
                body.run(work)

    look() if where == "main" else in_thread(look)
    assert log == ["released"]


class SoftLimit(Exception):
    """What Celery's handler raises."""


@pytest.fixture
def soft_limit():
    """A handler like Celery's, for the time of a test."""

    def handler(number, frame):
        raise SoftLimit

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_shield_puts_a_soft_time_limit_off(soft_limit):
    """The limit comes when the release is done, also if another thread took the signal."""
    log, over = [], threading.Event()
    unblocked = threading.Thread(target=over.wait)  # the kernel may hand it the signal
    unblocked.start()
    with pytest.raises(SoftLimit), shielded():
        with shielded():
            os.kill(os.getpid(), signal.SIGUSR1)
            loops(time.monotonic() + 0.1)
        log.append("released")
    over.set()
    unblocked.join()
    assert log == ["released"]


def test_a_soft_time_limit_outside_a_shield_comes_at_once(soft_limit):
    """The wrapped handler does what the handler did."""
    with shielded():
        pass
    with pytest.raises(SoftLimit):
        os.kill(os.getpid(), signal.SIGUSR1)
        loops(time.monotonic() + SOON)


def test_blocking_the_signal_alone_does_not_put_it_off(soft_limit):
    """Negative control: why the shield wraps the handler instead of blocking the signal."""
    over = threading.Event()
    unblocked = threading.Thread(target=over.wait)
    unblocked.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with pytest.raises(SoftLimit):
            os.kill(os.getpid(), signal.SIGUSR1)
            loops(time.monotonic() + SOON)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        over.set()
        unblocked.join()


def test_a_foreign_signal_still_reaches_the_handler_that_was_there(monkeypatch):
    """Whoever used SIGUSR2 before keeps being told; our own late signals don't reach it."""
    calls = []
    ours = signal.signal(signal.SIGUSR2, lambda *_: calls.append("theirs"))
    body = interruptible()
    assert body.run(lambda: "installs ours") == "installs ours"
    assert signal.getsignal(signal.SIGUSR2) is ours or ours in (signal.SIG_DFL, None)
    main_thread.send_signal()
    assert calls == []
    monkeypatch.setattr(main_thread, "LATE", 0.0)
    os.kill(os.getpid(), signal.SIGUSR2)
    loops(time.monotonic() + 0.05)
    assert calls == ["theirs"]


def test_a_late_signal_is_harmless():
    """The handler stays when the body has ended: the default action would end the process."""
    body = interruptible()
    body.run(lambda: None)
    os.kill(os.getpid(), signal.SIGUSR2)
    loops(time.monotonic() + 0.05)


def test_after_a_fork_the_child_is_stopped_and_the_parent_is_not():
    """Threads and handlers are the process's own; run apart, since a fork copies a lot."""
    script = """
import os, sys, time
from tests.unit.test_interrupt import stop, loops, interruptible
assert stop(loops) < 20
pid = os.fork()
if pid == 0:
    os._exit(0 if stop(loops) < 20 else 1)
assert interruptible().run(lambda: os.waitpid(pid, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
