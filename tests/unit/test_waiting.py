"""When a waiter asks again, with something that hears for it, and without."""

import time

from celery_redlock import waiting
from celery_redlock.coordinators.base import Conflict
from celery_redlock.waiting import SPLIT_TRIES, Patience

HELD = Conflict("k", None, 30.0)


class Scripted:
    """Something that hears: its answers are written down, and what was asked is kept."""

    def __init__(self, *free, hears=True):
        self.answers = list(free)
        self.hears = hears
        self.waited = []
        self.closed = False

    def free(self, timeout):
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def wait(self, timeout):
        self.waited.append(timeout)
        if not self.hears:
            time.sleep(timeout)
        return self.hears

    def close(self):
        self.closed = True


def test_a_waiter_sleeps_until_the_lock_is_free():
    """It asks the coordinator again only when the listener says that the lock is free."""
    listening = Scripted(False, False, True)
    patience = Patience(20, lambda key: listening)
    assert patience.another_try(HELD)
    assert len(listening.waited) == 2
    assert listening.answers == []


def test_a_lock_freed_before_anybody_listened_is_asked_for_at_once():
    """Between the conflict and the listening the lock may have been given back."""
    listening = Scripted(True)
    assert Patience(20, lambda key: listening).another_try(HELD)
    assert listening.waited == []


def test_the_listener_hears_the_lock_in_the_way():
    """Of several locks it is the one in the way that is listened to."""
    heard = []
    Patience(20, lambda key: heard.append(key) or Scripted(True)).another_try(HELD)
    assert heard == ["k"]


def test_a_waiter_looks_again_when_the_lease_in_the_way_has_ended():
    """A dead holder gives nothing back: the end of its lease is a time to look, too."""
    listening = Scripted(*[False] * 1000, hears=False)
    start = time.monotonic()
    assert Patience(20, lambda key: listening).another_try(Conflict("k", None, 0.1))
    assert time.monotonic() - start < 10
    assert all(timeout <= 0.1 for timeout in listening.waited)


def test_a_listener_that_fails_is_replaced_by_polling():
    """A server that can't be heard any more costs the waiter only its promptness."""
    listening = Scripted(ConnectionResetError("gone"))
    patience = Patience(20, lambda key: listening)
    assert patience.another_try(HELD)
    assert listening.closed
    assert patience.another_try(HELD)


def test_patience_ends():
    """When the time is over there is no other try, and the listener is closed."""
    listening = Scripted(*[False] * 1000, hears=False)
    patience = Patience(0.05, lambda key: listening)
    while patience.another_try(HELD):
        pass
    patience.close()
    assert listening.closed


def test_questions_are_bounded(monkeypatch):
    """However often the lock is given back, a waiter asks a bounded number of times a second."""
    slept = []
    instant = [1000.0]
    monkeypatch.setattr(waiting, "now", lambda: instant[0])

    def sleep(seconds):
        slept.append(seconds)
        instant[0] += seconds

    monkeypatch.setattr(waiting.time, "sleep", sleep)
    patience = Patience(1000, lambda key: Scripted(*[True] * 1000))
    for _ in range(100):
        assert patience.another_try(HELD)
    elapsed = instant[0] - 1000
    assert waiting.ASKS_AT_ONCE + waiting.ASKS_PER_SECOND * elapsed + 1 >= 100
    assert elapsed > 10


def test_polling_is_bounded_too(monkeypatch):
    """Without a listener the pauses grow, so that few questions are asked in a second."""
    instant = [0.0]
    monkeypatch.setattr(waiting, "now", lambda: instant[0])
    monkeypatch.setattr(
        waiting.time, "sleep", lambda seconds: instant.__setitem__(0, instant[0] + seconds)
    )
    patience, asked = Patience(10, None), 0
    while patience.another_try(HELD):
        asked += 1
    assert 30 <= asked <= 120


def test_a_split_vote_is_asked_again_without_patience():
    """Nobody may hold the lock: a bounded number of tries is made even with no time to wait."""
    patience, tries = Patience(0, None), 0
    while patience.another_try(Conflict("k", certain=False)):
        tries += 1
    assert tries == SPLIT_TRIES
