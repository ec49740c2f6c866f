"""Runs contenders in turns, and sums up what they took."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environments import HERE

SCRIPT = HERE / "contenders.py"


@dataclass(frozen=True)
class Contender:
    """What is measured, and where.

    Attributes:
        label: what people call it.
        kind: a name in ``contenders.KINDS``.
        urls: the servers that it gets.
        python: the Python that it runs in.
    """

    label: str
    kind: str
    urls: Sequence[str]
    python: Path


@dataclass
class Sample:
    """The times of one contender in one scenario.

    Attributes:
        rounds: for each round, the microseconds of each cycle.
        failures: what went wrong, and how often.
        stuck: whether it was given up because it didn't answer in time.
        versions: of the libraries that it used.
    """

    rounds: list[list[float]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    stuck: bool = False
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def times(self) -> list[float]:
        """The microseconds of all cycles."""
        return [time for each in self.rounds for time in each]

    def quantile(self, part: float) -> float:
        """Microseconds that ``part`` of the cycles did not exceed."""
        times = sorted(self.times)
        return times[min(len(times) - 1, int(part * len(times)))]

    def summary(self) -> dict[str, Any]:
        """What is kept in the results."""
        if not self.rounds:
            return {"stuck": self.stuck, "failures": self.failures, "versions": self.versions}
        return {
            "cycles": len(self.times),
            "median_us": round(statistics.median(self.times), 1),
            "p95_us": round(self.quantile(0.95), 1),
            "p99_us": round(self.quantile(0.99), 1),
            "first_us": round(self.rounds[0][0], 1),
            "longest_us": round(max(self.times), 1),
            "failures": self.failures,
            "stuck": self.stuck,
            "versions": self.versions,
        }


class Runner:
    """A contender's process.

    Args:
        contender: what it measures.
    """

    def __init__(self, contender: Contender) -> None:
        """Start it; it says its versions when it is connected."""
        command = [str(contender.python), str(SCRIPT), contender.kind, *contender.urls]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        self.label = contender.label
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.sample = Sample()
        said = self._answer(30.0)
        if said is not None:
            self.sample.versions = said

    def round(self, cycles: int, timeout: float = 30.0, *, keep: bool = True) -> None:
        """Have it do so many cycles; a process that doesn't answer in time is ended.

        Args:
            cycles: how many.
            timeout: seconds.
            keep: False: it only warms up.
        """
        if self.process.poll() is not None or self.process.stdin is None:
            self.sample.stuck = True
            return
        self.process.stdin.write(f"{cycles}\n")
        self.process.stdin.flush()
        said = self._answer(timeout)
        if said is not None and keep:
            if said["ns"]:
                self.sample.rounds.append([ns / 1000 for ns in said["ns"]])
            for failure, times in said["failures"].items():
                self.sample.failures[failure] = self.sample.failures.get(failure, 0) + times

    def _answer(self, timeout: float) -> Any:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.sample.stuck = True
        self.process.kill()
        return None

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def running(contenders: Sequence[Contender]) -> Iterator[list[Runner]]:
    """Their processes, each of them warmed up."""
    with ExitStack() as after:
        runners = []
        for contender in contenders:
            runner = Runner(contender)
            after.callback(runner.close)
            runner.round(50, keep=False)
            runners.append(runner)
        yield runners


def in_turns(contenders: Sequence[Contender], rounds: int, cycles: int) -> dict[str, Sample]:
    """Measure all of them, one round each in turns, so that what disturbs disturbs all alike."""
    with running(contenders) as runners:
        for number in range(rounds):
            for runner in runners if number % 2 else reversed(runners):
                runner.round(cycles)
        return {runner.label: runner.sample for runner in runners}


def ratio(samples: Mapping[str, Sample], of: str, to: str) -> float | None:
    """How many times longer one takes than another: the median over the rounds' ratios."""
    pairs = zip(samples[of].rounds, samples[to].rounds, strict=False)
    ratios = [statistics.median(a) / statistics.median(b) for a, b in pairs]
    return statistics.median(ratios) if ratios else None
