"""The formula of Redlock: validity, majorities, verdicts, and what an objection is worth."""

import math

import pytest

from celery_redlock.quorum import (
    Drift,
    Round,
    Vote,
    behind,
    judge,
    majority,
    objection,
    validity,
    wait_for_majority,
)

NO_DRIFT = Drift(0.0, 0.0)


def yes(*tokens):
    """Votes of the first nodes, with these tokens."""
    return {node: Vote("yes", token) for node, token in enumerate(tokens)}


def no(owner="b", left=1.0):
    """The vote of a node on which somebody else holds the lock."""
    return Vote("no", owner=owner, left=left)


FAILED = Vote("failed")


@pytest.mark.parametrize(("nodes", "need"), [(1, 1), (3, 2), (5, 3), (7, 4), (9, 5)])
def test_two_majorities_have_a_node_in_common(nodes, need):
    """The smallest majority is just above half, so two of them overlap."""
    assert majority(nodes) == need
    assert 2 * need > nodes >= 2 * (need - 1)


def test_the_published_worked_example():
    """With a ttl of 10,000 ms, three of five say yes, 120 ms have passed: 9,778 ms are left."""
    this = Round(nodes=5, started=1000.0, ttl=10.0)
    verdict = judge(this, yes(0, 0, 0), now=1000.120)
    assert verdict.state == "won"
    assert round((verdict.valid_until - 1000.120) * 1000) == 9778
    assert round(validity(10.0, 0.120, Drift()) * 1000) == 9778


def test_trust_is_counted_from_before_the_request():
    """However late the votes come, the trusted end stays where the request put it."""
    this = Round(nodes=3, started=50.0, ttl=10.0)
    ends = {round(judge(this, yes(0, 0), now).valid_until, 6) for now in (50.0, 53.0, 59.0)}
    assert ends == {59.898}


@pytest.mark.parametrize("late", [9.898, 9.9, 12.0])
def test_a_majority_after_the_trusted_end_wins_nothing(late):
    """Three yeses of five are no lock once its validity has run out."""
    this = Round(nodes=5, started=0.0, ttl=10.0)
    assert judge(this, yes(0, 0, 0), now=late).state == "lost"
    assert judge(this, yes(0, 0, 0), now=9.89).state == "won"


def test_an_extend_must_win_before_the_old_deadline():
    """The majority of an extend is worthless after the instant up to which the lock was held."""
    this = Round(nodes=3, started=0.0, ttl=10.0, until=2.0)
    assert judge(this, yes(0, 0), now=1.99).state == "won"
    assert judge(this, yes(0, 0), now=2.0).state == "lost"


@pytest.mark.parametrize(
    ("votes", "state"),
    [
        ({}, "open"),
        (yes(0, 0), "open"),
        (yes(0, 0, 0), "won"),
        ({0: FAILED, 1: no()}, "open"),
        ({0: FAILED, 1: no(), 2: FAILED}, "lost"),
        ({**yes(0, 0), 2: no(), 3: no()}, "open"),
        ({**yes(0, 0), 2: no(), 3: no(), 4: FAILED}, "lost"),
        ({**yes(0, 0, 0), 3: no(), 4: no()}, "won"),
    ],
)
def test_won_as_soon_as_a_majority_says_yes_and_lost_as_soon_as_none_can(votes, state):
    """No vote is waited for that can't change the verdict any more."""
    assert judge(Round(5, 0.0, 10.0), votes, now=0.01).state == state


def fenced(nodes=3):
    """A round that needs a token."""
    return Round(nodes, 0.0, 10.0, NO_DRIFT, fenced=True)


def test_a_majority_that_agrees_on_a_token_wins_at_once():
    """One round trip is enough if a majority answers the same number."""
    assert judge(fenced(), yes(7, 7), 0.1)[:4] == ("won", 10.0, 7, 0)
    assert judge(fenced(5), yes(7, 9, 7, 7), 0.1).token == 7


def test_a_majority_that_disagrees_is_raised_to_its_largest_token():
    """The nodes behind are named, and the round is won when a majority carries the target."""
    votes = yes(5, 9)
    verdict = judge(fenced(), votes, 0.1)
    assert (verdict.state, verdict.target) == ("open", 9)
    assert behind(votes, 9) == [0]
    votes[0] = Vote("yes", 9)
    assert judge(fenced(), votes, 0.2, target=9) == ("won", 10.0, 9, 9)


def test_the_target_stays_though_a_late_node_is_past_it():
    """A larger late answer neither moves the target nor counts for it."""
    votes = yes(5, 9, 12)
    assert judge(fenced(), votes, 0.1, target=9)[:4] == ("open", 0.0, 0, 9)
    votes[0] = Vote("yes", 9)
    assert judge(fenced(), votes, 0.1, target=9).token == 9
    assert behind(yes(5, 9, 12), 9) == [0]


def test_an_agreement_below_the_target_is_not_taken():
    """Nodes that are being raised may not win the round with the number they had before."""
    assert judge(fenced(5), yes(5, 9, 5, 5), 0.1, target=9).state == "open"


def test_a_node_that_cant_be_raised_can_lose_the_round():
    """Two nodes are past the target and one has failed, so no majority can carry it."""
    votes = {0: FAILED, 1: Vote("yes", 9), 2: Vote("yes", 12)}
    assert judge(fenced(), votes, 0.1, target=9).state == "lost"


def test_without_fencing_tokens_dont_matter():
    """A round that wants no token is won by any majority."""
    assert judge(Round(3, 0.0, 10.0, NO_DRIFT), yes(5, 9), 0.1) == ("won", 10.0, 0, 0)


@pytest.mark.parametrize(
    ("votes", "complete", "why"),
    [
        ({0: no("b"), 1: no("b"), 2: no("b")}, False, "held"),
        ({0: no("b"), 1: no("b"), 2: no("c")}, False, "open"),
        ({0: no("b"), 1: no("b"), 2: no("c")}, True, "split"),
        ({**yes(0), 1: no("b"), 2: no("b"), 3: no("c"), 4: no("c")}, True, "split"),
        ({0: FAILED, 1: FAILED, 2: FAILED}, False, "unavailable"),
        ({0: FAILED, 1: FAILED, 2: no("b")}, True, "unavailable"),
        ({0: FAILED, 1: FAILED, 2: no("b")}, False, "open"),
        ({0: FAILED, 1: FAILED, 2: no("b"), 3: no("b"), 4: no("b")}, False, "held"),
        ({**yes(0, 0), 2: FAILED}, True, "unavailable"),
        ({**yes(0, 0), 2: FAILED, 3: FAILED, 4: no("b")}, True, "split"),
    ],
)
def test_unknown_is_never_held(votes, complete, why):
    """A conflict needs a majority of answers, and one owner on a majority to be certain."""
    assert objection(5, votes, complete=complete) == why


def test_the_wait_is_until_a_majority_is_free():
    """Of five nodes with 1, 2, 3, 4, 5 s to go a majority is free after 3 s."""
    votes = {node: no("b", left=float(node + 1)) for node in range(5)}
    assert wait_for_majority(5, votes) == 3.0
    assert wait_for_majority(5, {**votes, 0: FAILED, 1: FAILED}) == 5.0
    assert wait_for_majority(5, {0: FAILED, 1: FAILED, 2: FAILED, 3: no()}) is None


def test_without_a_deadline_an_acquire_is_bounded_by_its_ttl_alone():
    """The default of ``until`` never ends a round early."""
    assert Round(3, 0.0, 10.0).until == math.inf
