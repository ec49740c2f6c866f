"""The benchmarks' table, file and picture."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from benchmarks.scenarios import OURS, Result
from localservers.valkey import find_valkey


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    server = subprocess.run(
        [find_valkey(), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "server": server.stdout.partition(" sha=")[0].strip(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def table(result: Result) -> Table:
    """One scenario: microseconds for each contender, and multiples of ours."""
    shown = Table(title=result.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    shown.add_column("acquire + release")
    for heading in ("median", "p95", "p99", "first", "longest", "cycles"):
        shown.add_column(heading, justify="right")
    shown.add_column("remarks")
    for label, sample in result.samples.items():
        facts = sample.summary()
        keys = ("median_us", "p95_us", "p99_us", "first_us", "longest_us")
        numbers = [f"{facts[key]:,.0f}" if key in facts else "-" for key in keys]
        style = "bold" if label.startswith(OURS) else ""
        cycles = str(facts.get("cycles", 0))
        shown.add_row(label, *numbers, cycles, Text(_remarks(facts), style="yellow"), style=style)
    return shown


def _remarks(facts: dict[str, Any]) -> str:
    said = ["gave no answer in time"] if facts["stuck"] else []
    kinds = Counter[str]()
    for what, times in facts["failures"].items():
        kinds[what.partition(":")[0]] += times
    said += [f"{times} failed: {kind}" for kind, times in kinds.items()]
    return "; ".join(said)


def verdicts(results: Sequence[Result]) -> Table:
    """Each target beside what was measured."""
    shown = Table(title="targets", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("scenario", "compared"):
        shown.add_column(heading)
    for heading in ("measured", "target", ""):
        shown.add_column(heading, justify="right")
    for result in results:
        for target, measured in result.ratios():
            compared = f"{target.of} / {target.to}"
            if measured is None:
                shown.add_row(result.title, compared, "-", _multiple(target.most), "not measured")
                continue
            met = measured <= target.most
            mark = Text("met", style="green") if met else Text("missed", style="bold red")
            numbers = _multiple(measured), f"at most {_multiple(target.most)}"
            shown.add_row(result.title, compared, *numbers, mark)
    return shown


def _multiple(value: float) -> str:
    return f"{value:.2f}" if value >= 0.5 else f"1/{1 / value:.1f}"


def as_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    """Everything worth keeping; times in microseconds."""
    return {
        "machine": about,
        "scenarios": {
            result.title: {
                "contenders": {name: s.summary() for name, s in result.samples.items()},
                "ratios": [
                    {
                        "of": target.of,
                        "to": target.to,
                        "measured": None if measured is None else round(measured, 3),
                        "target_at_most": round(target.most, 3),
                        "met": None if measured is None else measured <= target.most,
                    }
                    for target, measured in result.ratios()
                ],
            }
            for result in results
        },
    }


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw the medians of every scenario that compares contenders, as an SVG.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "benchmarks", "font.size": 9})
    from matplotlib import pyplot as plt

    shown = [result for result in results if len(result.samples) > 1]
    heights = [len(result.samples) for result in shown]
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(8, 0.9 * len(shown) + 0.28 * sum(heights)), squeeze=False,
        gridspec_kw={"height_ratios": [height + 1 for height in heights]},
    )  # fmt: skip
    for axis, result in zip(axes[:, 0], shown, strict=True):
        _bars(axis, result)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _bars(axis: Any, result: Result) -> None:
    medians = {
        label: sample.summary()["median_us"]
        for label, sample in reversed(result.samples.items())
        if sample.rounds
    }
    colours = ["#2a6f97" if label.startswith(OURS) else "#b8c4cc" for label in medians]
    bars = axis.barh(list(medians), list(medians.values()), color=colours)
    axis.bar_label(bars, labels=[f"{value:,.0f}" for value in medians.values()], padding=3)
    axis.set_title(f"{result.title}: median of acquire + release, µs", loc="left", fontsize=9)
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)
