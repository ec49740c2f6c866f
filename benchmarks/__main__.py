"""``python -m benchmarks``: measures, prints a table, keeps results.json and a plot."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

_NEEDED = "pip install 'celery_redlock[demo]' matplotlib"

try:
    from rich.console import Console

    from benchmarks import report
    from benchmarks.environments import HERE, NoEnvironment
    from benchmarks.scenarios import SCENARIOS, Effort, Result
    from localservers import MissingServer
except ModuleNotFoundError as missing:
    sys.exit(f"The benchmarks need {missing.name}, which is not installed:\n  {_NEEDED}")

PLOT = HERE.parent / "docs" / "_static" / "benchmarks.svg"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; gives the exit status (it is not the targets' judge)."""
    options = _options(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    effort = Effort(rounds=6, cycles=50, faulty=4) if options.quick else Effort(30, 100, 20)
    about = report.machine()
    console.print(", ".join(f"{name}: {value}" for name, value in about.items()))
    results: list[Result] = []
    try:
        for name in options.only or SCENARIOS:
            for result in SCENARIOS[name](effort):
                results.append(result)
                console.print(report.table(result))
    except (MissingServer, NoEnvironment) as exc:
        console.print(str(exc), style="bold red", markup=False)
        return 2
    console.print(report.verdicts(results))
    if options.keep:
        _keep(console, results, about)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Locks side by side on real local servers."
    )
    parser.add_argument("--quick", action="store_true", help="few cycles: for a first look")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="may be repeated")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results.json and the plot"
    )
    return parser.parse_args(arguments)


def _keep(console: Console, results: Sequence[Result], about: dict[str, object]) -> None:
    path: Path = HERE / "results.json"
    path.write_text(json.dumps(report.as_json(results, about), indent=2) + "\n")
    console.print(f"kept: {path.relative_to(HERE.parent)}")
    try:
        report.plot(results, PLOT)
        console.print(f"drawn: {PLOT.relative_to(HERE.parent)}")
    except ModuleNotFoundError as exc:
        console.print(f"no plot: {exc.name} is not installed ({_NEEDED})", style="yellow")


if __name__ == "__main__":
    sys.exit(main())
