"""``Locks.lock`` stops its block if asked, and is looked after in a pool child; cancelled calls."""

import contextlib
import os
import signal
import threading
import time

import pytest

from celery_redlock import LockLost, Locks
from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.native import Event
from tests.celery import block_tasks as tasks

SOON = 20.0
LONG = 60.0
pytestmark = pytest.mark.config(include=["tests.celery.block_tasks"], redlock_node_timeout=0.3)


def coordinator_of(app):
    """Who grants the locks."""
    return Locks.for_app(app).coordinator("default", "efficiency")


def take_away(app, key):
    """Free a held lock, as an administrator would."""
    coordinator = coordinator_of(app)
    held = coordinator.inspect(key)
    assert coordinator.release(Grant(key, held.owner, 30.0, now() + 30.0))


def in_a_thread(work):
    """Run ``work`` in another thread; what it has raised."""
    raised = []

    def run():
        try:
            work()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LONG)
    return raised


@contextlib.contextmanager
def taken_away_soon(app, key, delay=0.3):
    """Another thread frees the lock in a moment."""
    timer = threading.Timer(delay, take_away, [app, key])
    timer.start()
    yield
    timer.join()
    Locks.for_app(app).close()


def test_a_block_is_stopped_in_a_blocking_call(app):
    """In the main thread the call is broken, the block ends with LockLost, and once only."""
    locks, start = Locks.for_app(app), now()
    with taken_away_soon(app, "k"):
        with (
            pytest.raises(LockLost) as caught,
            locks.lock("k", ttl=2, on_lost="abort") as lease,
        ):
            time.sleep(LONG)
        assert now() - start < LONG / 2
    assert caught.value.key == "k"
    assert lease.lost
    Event().wait(1.0)  # nothing comes after the block


def test_a_block_is_stopped_in_a_thread(app):
    """At the next bytecode, through whatever catches exceptions."""
    locks, left = Locks.for_app(app), []

    def work():
        with locks.lock("k", ttl=2, on_lost="abort"):
            end = now() + LONG
            while now() < end:
                with contextlib.suppress(Exception):
                    sum(range(100))
        left.append("ended by itself")

    with taken_away_soon(app, "k"):
        (raised,) = in_a_thread(work)
    assert isinstance(raised, LockLost)
    assert left == []


def test_a_block_that_has_ended_is_left_alone(app):
    """Many short blocks whose lock is taken away as they end: each gives its lock back or is lost."""
    locks, coordinator = Locks.for_app(app), coordinator_of(app)
    for number in range(30):
        with (
            contextlib.suppress(LockLost),
            locks.lock(f"k{number}", ttl=2, on_lost="abort") as lease,
        ):
            coordinator.release(lease.grants[0])
        assert lease.ended
    Event().wait(1.0)


def test_a_block_is_not_stopped_unless_asked(app):
    """By default only the lease says so, and leaving the block raises nothing."""
    with Locks.for_app(app).lock("k", ttl=2) as lease:
        take_away(app, "k")
        end = now() + SOON
        while not lease.lost:
            assert now() < end
    assert lease.lost_because


def test_kill_is_refused_where_nobody_kills(app):
    """The message says who could, and what to use instead."""
    with (
        pytest.raises(ImproperlyConfigured, match="prefork worker.*'abort' or 'flag'"),
        Locks.for_app(app).lock("k", on_lost="kill"),
    ):
        pass


def test_a_killed_childs_block_is_freed_at_once(app, worker, journal):
    """The guardian gives back what a block held, long before its ttl."""
    worker(concurrency=1)
    tasks.holds_a_block.delay("k", ttl=LONG)
    start = journal.wait_for("start")[0]
    os.kill(start["pid"], signal.SIGKILL)
    end = now() + 5
    while coordinator_of(app).inspect(start["key"]) is not None:
        assert now() < end


def test_kill_works_for_a_block_in_a_child(app, worker, journal):
    """A child that is stopped in its block is killed before its lock is over."""
    running = worker(concurrency=1)
    tasks.holds_a_block.delay("k", ttl=2, on_lost="kill")
    start = journal.wait_for("start")[0]
    os.kill(start["pid"], signal.SIGSTOP)
    running.wait_for_log("killing child")
    end = now() + SOON
    while coordinator_of(app).inspect(start["key"]) is not None:
        assert now() < end


def test_a_block_in_a_child_is_stopped(app, worker, journal):
    """``on_lost="abort"`` in the middle of a body without a lock of its own."""
    worker(concurrency=1)
    result = tasks.holds_a_block.delay("k", ttl=2, on_lost="abort")
    take_away(app, journal.wait_for("start")[0]["key"])
    with pytest.raises(LockLost):
        result.get(timeout=SOON)


@pytest.mark.parametrize("cancels", [True, False], ids=["with a callback", "without"])
def test_a_callback_cancels_a_blocking_call_of_a_thread(app, worker, journal, cancels):
    """No exception reaches a thread that receives: a callback that shuts its socket does."""
    worker(pool="threads", concurrency=1)
    result = tasks.receives.delay("a", cancels)
    lost = now()
    take_away(app, journal.wait_for("start")[0]["key"])
    with pytest.raises(LockLost):
        result.get(timeout=SOON)
    assert (now() - lost < tasks.RECEIVES_FOR - 1) is cancels
