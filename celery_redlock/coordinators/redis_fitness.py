"""Whether a server may take part, from what it told at the start of a connection.  No socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_node import Facts, Node, learn
from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["Fitness", "undurable"]


class Fitness:
    """The rules that a server must meet to be asked.

    Args:
        nodes: the whole set.
        fenced: whether it must keep what it has promised through a crash.
        rest: seconds that a server which may have forgotten its locks must have been up.
    """

    def __init__(self, nodes: Sequence[Node], *, fenced: bool, rest: float) -> None:
        """Nothing has been seen yet."""
        self._nodes = nodes
        self._fenced = fenced
        self._rest = rest

    def judge(self, node: Node, answers: Sequence[Any]) -> str:
        """Keep what a server told, and say why it may not be asked, or ``""``.

        Raises:
            ImproperlyConfigured: it is a server of the set that goes by another address too.
        """
        instant = now()
        facts = learn(answers, instant)
        node.identity = None
        reason = self._unfit(facts, instant)
        if not reason:
            self._refuse_twin(node, facts)
            node.facts, node.identity = facts, facts.run_id
        return reason

    def _unfit(self, facts: Facts, instant: float) -> str:
        if facts.refused:
            return f"it refuses what can't be done without: {facts.refused}"
        if facts.role not in {"master", None}:
            return f"it is a {facts.role}, not a master"
        if len(self._nodes) > 1 and facts.run_id is None:
            return "it doesn't let this user run INFO, so nobody knows which server it is: grant it"
        if self._fenced:
            return undurable(facts)
        return self._resting(facts, instant)

    def _resting(self, facts: Facts, instant: float) -> str:
        if len(self._nodes) == 1 or facts.durable:
            return ""
        up = 0.0 if facts.up_since is None else instant - facts.up_since
        if up >= self._rest:
            return ""
        return (
            f"it has been up for {up:.0f} s, and may have forgotten locks, since it isn't "
            f"durable (appendfsync always): it takes part in {self._rest - up:.0f} s"
        )

    def _refuse_twin(self, node: Node, facts: Facts) -> None:
        for other in self._nodes:
            if other is not node and facts.run_id and other.identity == facts.run_id:
                raise ImproperlyConfigured(
                    f"{node.shown} and {other.shown} are the same server; two majorities could "
                    "then hold one lock: list each server once"
                )


def undurable(facts: Facts) -> str:
    """What a server lacks to keep fencing tokens through a crash; ``""`` if nothing."""
    wanted = {
        "appendonly": (facts.appendonly, "yes"),
        "appendfsync": (facts.appendfsync, "always"),
        "maxmemory-policy": (facts.eviction, "noeviction"),
    }
    wrong = [
        f"{name} is {'not to be seen (grant config|get)' if value is None else value}, not {right}"
        for name, (value, right) in wanted.items()
        if value != right
    ]
    return f"fencing tokens need a durable server: {'; '.join(wrong)}" if wrong else ""
