"""Several clients at once, on servers that lose keys, hang and crash: the tokens of all grants."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators import Grant
from celery_redlock.coordinators.redlock import RedlockCoordinator
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import Verdict, judge
from localservers import valkey_cluster
from tests.contract.redlock_set import ME, RedlockSet, owner

CLIENTS = 4
KEY = "contended"
chance = random.Random()  # noqa: S311  # faults need no secrets


@dataclass
class History:
    """What was granted: when it was asked for, when it was told, and with which token."""

    grants: list[tuple[float, float, int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def duplicates(self) -> int:
        """How many grants have a token that another one has too."""
        tokens = [token for _, _, token in self.grants]
        return len(tokens) - len(set(tokens))

    def inversions(self) -> int:
        """How many pairs of grants, one told before the other was asked for, don't rise."""
        return sum(
            told < asked and token >= later
            for _, told, token in self.grants
            for asked, _, later in self.grants
        )


def compete(coordinator: RedlockCoordinator, history: History) -> None:
    """Take the lock and give it back, again and again."""
    while not history.ended.is_set():
        asked = now()
        try:
            answer = coordinator.acquire(KEY, owner(), 20.0, ME)
            if isinstance(answer, Grant):
                history.grants.append((asked, now(), int(answer.fencing_token or 0)))
                history.ended.wait(chance.uniform(0, 0.004))
                coordinator.release(answer)
        except CoordinatorUnavailable:
            pass
        history.ended.wait(chance.uniform(0, 0.004))


def make_trouble(made: RedlockSet, history: History) -> None:
    """End locks early, and stop and kill servers, one trouble at a time."""
    admins = [made.admin(number) for number in range(len(made.servers))]
    while not history.ended.wait(0.01):
        number = chance.randrange(len(made.servers))
        server = made.servers[number]
        trouble = chance.random()
        if trouble < 0.8:
            admins[number].delete(made.names.lock(KEY))
        elif trouble < 0.95:
            os.kill(server.pid, signal.SIGSTOP)
            history.ended.wait(chance.uniform(0.02, 0.15))
            os.kill(server.pid, signal.SIGCONT)
        else:
            server.crash()
            server.start()


def play(made: RedlockSet, enough, longest: float) -> History:
    """Have all of them at it until ``enough(history)``, at most ``longest`` seconds."""
    history = History()
    clients = [made.coordinator(fenced=True, node_timeout=0.25) for _ in range(CLIENTS)]
    work = [threading.Thread(target=compete, args=(client, history)) for client in clients]
    work.append(threading.Thread(target=make_trouble, args=(made, history)))
    for thread in work:
        thread.start()
    end = now() + longest
    while now() < end and not enough(history):
        time.sleep(0.05)
    history.ended.set()
    for thread in work:
        thread.join()
    return history


@pytest.fixture
def made(servers, monkeypatch):
    """Three durable servers, asked without the help that clocks are for agreeing."""
    monkeypatch.setattr("celery_redlock.coordinators.redis_tokens.time.time_ns", lambda: 1000)
    made = RedlockSet(list(servers.start(valkey_cluster, 3)))
    yield made
    made.close()


def test_no_token_twice_and_none_out_of_order(made):
    """Four clients, and a fault every few milliseconds: each grant's token is above all before."""
    history = play(made, lambda history: len(history.grants) >= 250, longest=12.0)
    assert len(history.grants) >= 40
    assert history.duplicates() == 0
    assert history.inversions() == 0


def test_the_naive_maximum_is_caught(made, monkeypatch):
    """Negative control: taking the largest counter without raising the others gives doubles."""

    def naive(this, votes, instant, target):
        verdict = judge(this, votes, instant, target)
        if not verdict.target:
            return verdict
        return Verdict("won", this.valid_until, verdict.target)

    monkeypatch.setattr("celery_redlock.coordinators.redis_ballot.judge", naive)
    wrong = lambda history: history.duplicates() + history.inversions()  # noqa: E731
    assert wrong(play(made, wrong, longest=40.0)) > 0


def test_without_faults_contenders_get_it_one_at_a_time(made):
    """No two leases of the contended lock overlap, by the trust that each was given."""
    history, inside = History(), []
    overlaps = []

    def work(coordinator):
        for _ in range(400):
            if history.ended.is_set():
                return
            answer = coordinator.acquire(KEY, owner(), 20.0, ME)
            if isinstance(answer, Grant):
                inside.append(answer.owner)
                overlaps.append(len(inside))
                history.grants.append((0.0, 0.0, int(answer.fencing_token or 0)))
                inside.remove(answer.owner)
                assert coordinator.release(answer)
            if len(history.grants) >= 100:
                history.ended.set()
            time.sleep(chance.uniform(0, 0.003))

    clients = [made.coordinator(fenced=True) for _ in range(CLIENTS)]
    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history.grants) >= 40
    assert set(overlaps) == {1}
    assert history.duplicates() == 0
