"""What is measured: servers, contenders, faults, and the targets that the ratios are held to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.contenders import TTL
from benchmarks.environments import our_python, python_with
from benchmarks.measure import Contender, Runner, Sample, in_turns, ratio, running
from localservers import Cluster, Valkey, valkey_cluster

OURS, WITH = "celery_redlock", "celery_redlock, with lock()"
FENCED = "celery_redlock, fencing token"
RAW, REDIS_PY = "raw sockets", "redis-py Lock"
COMMANDS = "redis-py SET, EVALSHA"
REDIS_PY_ONE = "redis-py Lock (one node)"
NG, POTTERY = "redlock-ng", "pottery"


@dataclass(frozen=True)
class Target:
    """A bound on how long one contender takes, as a multiple of another.

    Attributes:
        of: the contender that is judged.
        to: what it is compared with.
        most: the largest multiple that is good.
    """

    of: str
    to: str
    most: float


@dataclass
class Result:
    """What a scenario showed.

    Attributes:
        title: what was done, in a few words.
        samples: the times, by contender.
        targets: what they are held to.
    """

    title: str
    samples: dict[str, Sample]
    targets: Sequence[Target] = field(default_factory=list)

    def ratios(self) -> list[tuple[Target, float | None]]:
        """Each target with the measured multiple."""
        return [(t, ratio(self.samples, t.of, t.to)) for t in self.targets]


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: turns of each contender.
        cycles: cycles in each turn.
        faulty: turns of five cycles of each contender while servers are dead or frozen.
    """

    rounds: int
    cycles: int
    faulty: int


Scenario = Callable[[Effort], Iterable[Result]]


def one_node(effort: Effort) -> Iterator[Result]:
    """One server: against redis-py's Lock and the bare commands."""
    targets = [
        Target(OURS, REDIS_PY, 1.0),
        Target(OURS, COMMANDS, 1.2),
        Target(OURS, RAW, 1.2),
    ]
    for durable in (False, True):
        with servers(1, durable=durable) as nodes:
            contenders = [
                _ours(OURS, "ours", nodes.urls),
                _ours(WITH, "ours_with", nodes.urls),
                _ours(REDIS_PY, "redis_py", nodes.urls),
                _ours(COMMANDS, "redis_py_commands", nodes.urls),
                _ours(RAW, "raw", nodes.urls),
            ]
            samples = in_turns(contenders, effort.rounds, effort.cycles)
            yield Result(f"one node, {_kind(durable)}", samples, targets)


def five_nodes(effort: Effort) -> Iterator[Result]:
    """Five servers: against raw sockets, other Redlocks, and redis-py's Lock on one of them."""
    targets = [
        Target(OURS, RAW, 1.3),
        Target(OURS, REDIS_PY_ONE, 1.3),
        Target(OURS, NG, 1 / 2.5),
        Target(OURS, POTTERY, 1 / 8),
    ]
    for durable in (False, True):
        with servers(5, durable=durable) as nodes:
            samples = in_turns(_on_five(nodes), effort.rounds, effort.cycles)
            yield Result(f"five nodes, {_kind(durable)}", samples, targets)


def token(effort: Effort) -> Iterator[Result]:
    """What the fencing token costs; its counters must survive, so the servers are durable."""
    with servers(5, durable=True) as nodes:
        plain = _ours(OURS, "ours", nodes.urls)
        fenced = _ours(FENCED, "ours_fenced", nodes.urls)
        samples = in_turns([plain, fenced], effort.rounds, effort.cycles)
    title = f"five nodes, {_kind(durable=True)}, with and without a fencing token"
    yield Result(title, samples, [Target(FENCED, OURS, 1.15)])


def one_stopped(effort: Effort) -> Iterator[Result]:
    """One of five servers hangs: it keeps its connections and answers nothing (SIGSTOP)."""
    with servers(5, durable=False) as nodes, running(_on_majority(nodes)) as runners:
        nodes[1].pause()
        try:
            samples = _few_rounds(runners, effort.faulty)
        finally:
            nodes[1].resume()
    yield Result("five nodes in memory, one of them hangs (SIGSTOP)", samples)


def two_dead(effort: Effort) -> Iterator[Result]:
    """Two of five servers are killed."""
    with servers(5, durable=False) as nodes:
        handle_errors = [each for each in _on_majority(nodes) if each.label != RAW]
        with running(handle_errors) as runners:
            nodes[1].crash()
            nodes[3].crash()
            samples = _few_rounds(runners, effort.faulty)
    yield Result("five nodes in memory, two of them killed", samples)


def _few_rounds(runners: Sequence[Runner], rounds: int) -> dict[str, Sample]:
    for _ in range(rounds):
        for runner in runners:
            runner.round(5)
    return {runner.label: runner.sample for runner in runners}


def _on_majority(nodes: Cluster[Valkey]) -> list[Contender]:
    return [each for each in _on_five(nodes) if each.label != REDIS_PY_ONE]


def publishing(effort: Effort) -> Iterator[Result]:
    """What a lock costs a producer: one broker, five lock servers."""
    with servers(1, durable=False) as broker, servers(5, durable=False) as nodes:
        urls = [*broker.urls, *nodes.urls]
        contenders = [
            _ours("plain task", "publish", urls),
            _ours("locked task", "publish_locked", urls),
            _ours("locked task with a queue lock", "publish_unique", urls),
            _ours("one acquire on five nodes", "acquire", urls),
        ]
        samples = in_turns(contenders, effort.rounds, effort.cycles)
    yield Result("publishing a task", samples)


def keys(effort: Effort) -> Iterator[Result]:
    """The name of a lock from four arguments, one of them a dict; and from three scalars."""
    contenders = [
        _ours("lock name", "key_making", []),
        _ours("lock name of three scalars", "key_of_scalars", []),
    ]
    samples = in_turns(contenders, effort.rounds, effort.cycles)
    yield Result("making the lock's name from a call's arguments", samples)


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (keys, publishing, one_node, five_nodes, token, one_stopped, two_dead)
}


def _ours(label: str, kind: str, urls: Sequence[str]) -> Contender:
    return Contender(label, kind, urls, our_python())


def _on_five(nodes: Cluster[Valkey]) -> list[Contender]:
    return [
        _ours(OURS, "ours", nodes.urls),
        _ours(WITH, "ours_with", nodes.urls),
        _ours(RAW, "raw", nodes.urls),
        _ours(REDIS_PY_ONE, "redis_py", nodes.urls[:1]),
        Contender(NG, "redlock_ng", nodes.urls, python_with("redlock-ng")),
        Contender(POTTERY, "pottery", nodes.urls, python_with("pottery")),
    ]


def _kind(durable: bool) -> str:  # noqa: FBT001 - one word of a title
    return "appendfsync always" if durable else "in memory"


@contextmanager
def servers(number: int, *, durable: bool) -> Iterator[Cluster[Valkey]]:
    """Running servers that have been up for long enough to vote.

    A server without ``appendfsync always`` may have forgotten a lock when it started, so ours
    lets it rest for the longest ttl first.
    """
    with valkey_cluster(
        number, durable=durable, config={"maxmemory-policy": "noeviction"}
    ) as nodes:
        rest = 2 * TTL + 1
        clients = [node.client() for node in nodes]
        while not durable and min(_uptime(client) for client in clients) <= rest:
            time.sleep(0.1)
        for client in clients:
            client.close()
        yield nodes


def _uptime(client: object) -> float:
    return float(client.info("server")["uptime_in_seconds"])  # type: ignore[attr-defined]
