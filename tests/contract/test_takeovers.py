"""Holders that never release: locks change hands by their ttl alone, and never too early.

etcd ends leases by itself; the others decide in the statement or transaction that takes over,
so that is what contenders press on here.
"""

import itertools
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators import Grant, sql_statements, zookeeper_clock
from celery_redlock.exceptions import CoordinatorUnavailable
from tests.contract.kinds import KINDS
from tests.contract.rules import ME, new_owner

TTL = 0.3
GRANTS = 6
TAKEN_OVER = [
    kind for kind in KINDS if kind.name in {"zookeeper_3", "sqlite", "postgres", "mariadb"}
]


@dataclass
class Reign:
    """One grant: when it was known of, and until when it was trusted at the last."""

    token: int
    began: float
    trusted: float


def reign(coordinator, reigns, *, extend):
    """Ask until there have been enough grants; leave each to its ttl, every other one to two."""
    while len(reigns) < GRANTS:
        with suppress(CoordinatorUnavailable):  # a busy machine: the answer came too late
            got = coordinator.acquire("contested", new_owner(), TTL, ME)
            if isinstance(got, Grant):
                reigns.append(one := Reign(int(got.fencing_token), now(), got.valid_until))
                if extend:
                    time.sleep(TTL / 2)
                    longer = coordinator.extend(got, TTL)
                    one.trusted = longer.valid_until if longer else one.trusted
        time.sleep(0.01)


def overlaps(reigns):
    """The pairs of grants that were trusted at the same time, in the order of their tokens."""
    order = sorted(reigns, key=lambda one: one.token)
    return [(one, two) for one, two in itertools.pairwise(order) if two.began < one.trusted]


@pytest.fixture
def contest(connect, shared_ports):
    """Let four clients of a kind contend; what came of it."""

    def run(kind):
        ports, reigns = shared_ports(kind), []
        threads = [
            threading.Thread(
                target=reign,
                args=(connect(kind, ports), reigns),
                kwargs={"extend": number % 2 == 0},
            )
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return reigns

    return run


@pytest.mark.parametrize("kind", TAKEN_OVER, ids=str)
def test_grants_that_end_by_their_ttl_never_overlap(kind, contest):
    """Each grant begins when nobody trusts the one before any more, and has a higher token."""
    reigns = contest(kind)
    assert len(reigns) >= GRANTS
    assert len({one.token for one in reigns}) == len(reigns)
    assert overlaps(reigns) == []


@pytest.mark.parametrize("kind", [k for k in TAKEN_OVER if k.name == "zookeeper_3"], ids=str)
def test_a_contender_that_is_too_quick_would_be_seen(kind, contest, monkeypatch):
    """Control: judging a quarter of a second early makes grants overlap."""
    monkeypatch.setattr(zookeeper_clock, "PRECISION", -0.25)
    assert overlaps(contest(kind))


@pytest.mark.parametrize("kind", [k for k in TAKEN_OVER if k.name == "sqlite"], ids=str)
def test_a_statement_that_is_too_quick_would_be_seen(kind, contest, monkeypatch):
    """Control: a condition that is true a quarter of a second early makes grants overlap."""
    early = sql_statements._UPSERT.replace("held.expires_at <= ", "held.expires_at - 0.25 <= ")
    monkeypatch.setattr(sql_statements, "_UPSERT", early)
    assert overlaps(contest(kind))
