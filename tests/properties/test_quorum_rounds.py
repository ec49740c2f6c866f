"""What holds of every round, whatever is said in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.quorum import Drift, Round, Vote, behind, judge, majority, objection

owners = st.sampled_from(["ann", "bob"])
votes = st.one_of(
    st.builds(Vote, st.just("yes"), st.integers(1, 4)),
    st.builds(lambda who: Vote("no", owner=who), owners),
    st.just(Vote("failed")),
)
sizes = st.sampled_from([1, 3, 5, 7])


@st.composite
def rounds(draw):
    """A round, and what each node will say, in the order in which it is heard."""
    nodes = draw(sizes)
    this = Round(nodes, 0.0, 10.0, Drift(), fenced=draw(st.booleans()))
    order = draw(st.permutations(range(nodes)))
    said = draw(st.lists(votes, min_size=nodes, max_size=nodes))
    return this, list(zip(order, said, strict=True))


def verdicts(this, heard, decide=judge):
    """The verdict after each answer."""
    so_far, target, given_out = {}, 0, []
    for number, vote in heard:
        so_far[number] = vote
        verdict = decide(this, so_far, 0.1, target)
        target = verdict.target
        given_out.append(verdict)
    return given_out


def final_states_last(this, heard, decide=judge):
    """Whether no verdict but "open" is ever taken back."""
    states = [verdict.state for verdict in verdicts(this, heard, decide)]
    decided = [state for state in states if state != "open"]
    return len(set(decided)) <= 1 and states == ["open"] * (len(states) - len(decided)) + decided


@given(rounds())
def test_a_verdict_is_never_taken_back(case):
    """Further votes change neither a victory nor a defeat."""
    this, heard = case
    unfenced = Round(this.nodes, this.started, this.ttl, this.drift)
    assert final_states_last(unfenced, heard)


@given(rounds())
def test_won_takes_a_majority_and_lost_takes_the_lack_of_one(case):
    """After the last vote the verdict is what counting says."""
    this, heard = case
    unfenced = Round(this.nodes, this.started, this.ttl, this.drift)
    yes = sum(vote.says == "yes" for _, vote in heard)
    last = verdicts(unfenced, heard)[-1]
    assert last.state == ("won" if yes >= majority(this.nodes) else "lost")
    if last.state == "won":
        assert last.valid_until == unfenced.valid_until


@given(rounds())
def test_a_token_is_carried_by_a_majority(case):
    """No fenced round is won with a token that fewer than a majority carry."""
    this, heard = case
    fenced = Round(this.nodes, 0.0, 10.0, this.drift, fenced=True)
    so_far, target = {}, 0
    for number, vote in heard:
        so_far[number] = vote
        verdict = judge(fenced, so_far, 0.1, target)
        target = verdict.target
        carrying = [v.token for v in so_far.values() if v.says == "yes"].count(verdict.token)
        if verdict.state == "won":
            assert carrying >= majority(this.nodes)


@given(rounds())
def test_raising_the_laggards_wins_an_open_round(case):
    """Where a target is set, raising the nodes behind it is all that is missing."""
    this, heard = case
    fenced = Round(this.nodes, 0.0, 10.0, this.drift, fenced=True)
    so_far = dict(heard)
    first = [v for v in so_far.values() if v.says == "yes"]
    verdict = judge(fenced, so_far, 0.1)
    if verdict.target:
        for number in behind(so_far, verdict.target):
            so_far[number] = Vote("yes", verdict.target)
        assert judge(fenced, so_far, 0.1, verdict.target).token == max(v.token for v in first)


@given(rounds())
def test_an_objection_is_never_a_guess(case):
    """Certainty takes one owner on a majority; a conflict takes a majority of answers."""
    this, heard = case
    for length in range(1, len(heard) + 1):
        so_far = dict(heard[:length])
        why = objection(this.nodes, so_far, complete=length == len(heard))
        answered = sum(vote.says != "failed" for vote in so_far.values())
        most = max([0, *(sum(v.owner == who for v in so_far.values()) for who in ("ann", "bob"))])
        if why == "held":
            assert most >= majority(this.nodes)
        if why == "split":
            assert answered >= majority(this.nodes) > most
        if why == "unavailable":
            assert answered < majority(this.nodes)
        if length == len(heard):
            assert why != "open"


def test_a_judge_that_counts_wrong_is_noticed():
    """Negative control: half of the nodes are no majority, and a verdict would be taken back."""

    def hasty(this, so_far, now, target):
        yes = sum(vote.says == "yes" for vote in so_far.values())
        no = sum(vote.says == "no" for vote in so_far.values())
        return judge(this, {}, now, target)._replace(state="won" if yes > no else "lost")

    heard = [(0, Vote("yes")), (1, Vote("no", owner="ann")), (2, Vote("no", owner="ann"))]
    assert not final_states_last(Round(3, 0.0, 10.0), heard, hasty)
