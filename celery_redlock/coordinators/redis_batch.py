"""Prolonging many grants at once: one write to each server, however many there are.

What a process with thousands of leases renews by; the rules are those of a single extend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from celery_redlock.coordinators.redis_ballot import Outcome, order
from celery_redlock.coordinators.redis_channel import Channel, Silence
from celery_redlock.coordinators.redis_commands import Names
from celery_redlock.coordinators.redis_keep import (
    Keeping,
    prolonging,
    read_extend,
    refused,
    renewed,
    unavailable,
)
from celery_redlock.exceptions import CoordinatorUnavailable
from celery_redlock.quorum import Round, Verdict, Vote, judge, majority

__all__ = ["CHUNK", "Renewal", "extend_many"]

CHUNK = 500
"""Grants that are asked for at once: few enough for a slow server to answer in time."""

Answer = Grant | CoordinatorUnavailable | None


class Renewal:
    """One grant of a batch, and what the servers said about it.

    Args:
        grant: what is to be prolonged.
        this: what is fixed in its round.
    """

    def __init__(self, grant: Grant, this: Round) -> None:
        """Nobody has been asked yet."""
        self.grant = grant
        self.round = this
        self.votes: dict[int, Vote] = {}
        self.said: dict[int, Any] = {}
        self.verdict = Verdict("open")
        self.decided = False

    def count(self, number: int, answer: Any) -> bool:
        """Take one answer in; whether the round is decided by it."""
        self.said[number] = answer
        silent = isinstance(answer, str)
        self.votes[number] = Vote("failed") if silent else read_extend(answer)
        if self.decided or len(self.votes) < majority(self.round.nodes):
            return False
        self.verdict = judge(self.round, self.votes, now())
        self.decided = self.verdict.state == "won" or refused(self.round.nodes, self.votes)
        return self.decided

    def answer(self, channel: Channel, names: Names, keeping: Keeping) -> Answer:
        """What the extend of this grant has come to."""
        if self.verdict.state == "won":
            until = self.verdict.valid_until
            outcome = Outcome(self.round.ttl, until, self.votes, self.said)
            return renewed(channel, names, self.grant, outcome, keeping)
        if refused(self.round.nodes, self.votes) or now() >= self.round.until:
            return None
        return unavailable(channel, self.grant, self.said)


def extend_many(
    channel: Channel, names: Names, renewals: Sequence[Renewal], keeping: Keeping
) -> list[Answer]:
    """Prolong a chunk of grants; for each, in order, what a single extend would have given.

    Args:
        channel: over the servers.
        names: what the keys are called.
        renewals: at most :data:`CHUNK` of them; their rounds started just now.
        keeping: what an extend needs of the coordinator.
    """
    channel.begin()
    first, spare = order(channel, now())
    _ask(channel, names, renewals, first, keeping)
    _hear(channel, renewals)
    undecided = [renewal for renewal in renewals if not renewal.decided]
    if spare and undecided:
        _ask(channel, names, undecided, spare, keeping)
        _hear(channel, undecided)
    return [renewal.answer(channel, names, keeping) for renewal in renewals]


def _ask(
    channel: Channel,
    names: Names,
    renewals: Sequence[Renewal],
    numbers: Sequence[int],
    keeping: Keeping,
) -> None:
    commands: dict[int, list[bytes]] = {number: [] for number in numbers}
    for renewal in renewals:
        ask = prolonging(channel, names, renewal.grant, renewal.round.ttl, keeping.longest)
        for command, group, _ in ask(numbers):
            for number in group:
                commands[number].append(command)
    for number in numbers:
        channel.send_many(number, commands[number])


def _hear(channel: Channel, renewals: Sequence[Renewal]) -> None:
    open_rounds = len(renewals)
    for reply in channel.replies():
        open_rounds -= renewals[reply.tag].count(reply.node, reply.value)
        if not isinstance(reply.value, Silence):
            channel.nodes[reply.node].recover()
        if not open_rounds:
            break
