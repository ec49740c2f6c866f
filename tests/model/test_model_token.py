"""The token scheme, searched through: every history of a few attempts, and broken schemes beside it.

The search runs the real :func:`~celery_redlock.quorum.judge`, over servers in plain Python that
are held against the real scripts elsewhere.  Larger searches than these, by hand:
``Rules(after=(None, None, 0))`` is two clients of whom one tries twice, with any early expiry.
"""

from types import SimpleNamespace

import pytest

from celery_redlock.quorum import Verdict, behind, judge
from tests.model import node
from tests.model.search import Rules, Violation, search

ALONE = (None, None)  # two clients with one attempt each
IN_TURN = (None, 0, 1)  # two clients that take turns, three attempts


@pytest.mark.parametrize(
    ("rules", "least"),
    [
        (Rules(after=ALONE, floors=(0, 4)), 4_000),
        (Rules(after=ALONE, repeats=1), 80_000),
        (Rules(after=IN_TURN), 95_000),
        (Rules(after=(None, 0), counters_expire=True), 7_000),
        (Rules(after=(None, 0), floors=(3, 0), repeats=2), 30_000),
    ],
    ids=["floors", "a repeated request", "three in turn", "counters expire", "two repeats"],
)
def test_tokens_are_unique_and_rise_over_grants_that_dont_overlap(rules, least):
    """Whatever is lost, late or repeated, and whenever locks expire, no history breaks it."""
    assert search(rules) > least


@pytest.mark.parametrize("after", [ALONE, IN_TURN, (None, None, 0)])
def test_without_early_expiry_one_attempt_holds_the_lock_at_a_time(after):
    """As long as no lock ends before its owner stops relying on it, there is one holder."""
    assert search(Rules(after=after, floors=(0,) * len(after), early=False)) > 190


# Negative controls: each breaks one thing, and the search must find it.


def naive(this, votes, now, target):
    """The maximum of a majority's counters, without raising the others to it."""
    tokens = [vote.token for vote in votes.values() if vote.says == "yes"]
    if len(tokens) >= 2:
        return Verdict("won", this.valid_until, max(tokens))
    return judge(this, votes, now, target)


def any_one(this, votes, now, target):
    """One server is enough."""
    tokens = [vote.token for vote in votes.values() if vote.says == "yes"]
    return Verdict("won", this.valid_until, max(tokens)) if tokens else Verdict("open")


def impatient(this, votes, now, target):
    """The target is taken as soon as it is chosen, not when a majority carries it."""
    verdict = judge(this, votes, now, target)
    if verdict.target and behind(votes, verdict.target):
        return Verdict("won", this.valid_until, verdict.target)
    return verdict


def blind_lift(state, owner, token):
    """Raises without looking whose lock it is, and lowers too."""
    return state._replace(token=token, counter=token, highest=token), True


def lift_without_counting(state, owner, token):
    """Raises the lock's token but not the server's counters."""
    if state.owner != owner or token < state.token:
        return state, False
    return state._replace(token=token), True


def acquire_by_counter_alone(state, owner, floor):
    """Starts a missing counter at zero, and not at the server's highest token."""
    return node.acquire(state._replace(highest=state.counter), owner, floor)


def server(**broken):
    """The servers' scripts, with some of them broken."""
    scripts = {"acquire": node.acquire, "lift": node.lift, "expire": node.expire}
    return SimpleNamespace(**{**scripts, **broken})


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (Rules(decide=naive), "both have token"),
        (Rules(after=ALONE, few=1, decide=any_one), "both have token"),
        (Rules(decide=impatient), "both have token|no lower one"),
        (Rules(server=server(lift=blind_lift)), "both have token|no lower one"),
        (Rules(server=server(lift=lift_without_counting)), "both have token|no lower one"),
        (
            Rules(
                after=(None, 0),
                counters_expire=True,
                server=server(acquire=acquire_by_counter_alone),
            ),
            "both have token",
        ),
        (Rules(after=(None, 0), forgets=True), "both have token"),
        (Rules(after=ALONE, few=1, decide=any_one, early=False), "hold the lock at once|both have"),
    ],
    ids=[
        "naive maximum",
        "one server is enough",
        "raise not waited for",
        "blind raise",
        "raise not counted",
        "highest not kept",
        "emptied server votes",
        "two holders",
    ],
)
def test_a_broken_scheme_is_caught(rules, what):
    """The search finds a history, and shows its steps."""
    with pytest.raises(Violation, match=what) as raised:
        search(rules)
    _, steps = raised.value.args
    assert sum(step[0] == "starts" for step in steps) >= 2
