"""``python -m example_project.demo``: runs the acts, prints what happened, and judges it.

Exit status: 0 all is well, 1 something happened that must not, 2 it could not start,
128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

_NEEDED = "pip install 'celery_redlock[demo]'   (in a checkout: pip install -e '.[demo]')"

try:
    from rich.console import Console

    from example_project.demo import act_ledger, act_reports, act_thumbnails
    from example_project.demo.outcome import Outcome
    from example_project.demo.pictures import NoPictures, Pictures, find, remarks
    from example_project.demo.screen import Screen, screen_for
    from example_project.demo.stage import ROOT, Busy, Stage, stage
    from localservers import MissingServer, ServerFailed
except ModuleNotFoundError as missing:
    sys.exit(f"The demo needs {missing.name}, which is not installed:\n  {_NEEDED}")

ACTS = ("thumbnails", "ledger", "reports")
SLOTS = 4  # pool children of the worker


class Stopped(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number."""
        self.number = number
        super().__init__(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; gives the exit status."""
    options = _options(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    try:
        pictures = find(os.environ.get("PHOTOS"))
        with _stoppable():
            return run(console, pictures, options)
    except Stopped as exc:
        name = signal.Signals(exc.number).name
        console.print(f"\nStopped by {name}: every process has been ended.", style="bold")
        return 128 + exc.number
    except (NoPictures, act_ledger.NoLedger, Busy, ServerFailed) as exc:
        console.print(str(exc), style="bold red", markup=False)
    except MissingServer as exc:
        console.print(f"{exc}\nThe demo's own server comes with:\n  {_NEEDED}", markup=False)
    return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="Locked thumbnails on real servers, two of which are killed in the middle.",
        epilog="PHOTOS=folder takes your own pictures instead of the shipped ones.",
    )
    parser.add_argument(
        "--without-locks",
        action="store_true",
        help="the negative control: plain tasks; shows what goes wrong, and exits with 1",
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="how long the producers ask (default: 10)"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "demo-out", help="where everything goes (demo-out)"
    )
    parser.add_argument(
        "--act", action="append", choices=ACTS, help="play only this act; may be repeated"
    )
    return parser.parse_args(arguments)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into :class:`Stopped`; ignore further ones."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _frame: object) -> None:
        for each in numbers:  # clearing away must not be cut short
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(console: Console, pictures: Pictures, options: argparse.Namespace) -> int:
    """Set the stage, play the acts, and report."""
    start, locked = time.monotonic(), not options.without_locks
    screen = screen_for(console)
    for remark in remarks(pictures):
        screen.note(remark, "yellow")
    with stage(options.out.resolve()) as here:
        ports = ", ".join(str(node.port) for node in here.locks)
        screen.note(f"5 lock servers (ports {ports}) and a broker (port {here.broker.port}) run")
        acts = options.act or ACTS
        if "ledger" in acts:
            act_ledger.check()
        worker = here.worker(SLOTS)
        screen.note(f"a Celery worker runs {SLOTS} processes")
        with closing(screen):
            outcomes = [_play(name, here, screen, pictures.files, options) for name in acts]
            worker.stop()
    for outcome in outcomes:
        _print_outcome(console, outcome)
    console.print(
        f"It took {time.monotonic() - start:.1f} s.  Thumbnails, journal, log: {here.out}"
    )
    return _verdict(console, outcomes, locked=locked)


def _play(
    act: str, here: Stage, screen: Screen, files: Sequence[Path], options: argparse.Namespace
) -> Outcome:
    locked = not options.without_locks
    if act == "thumbnails":
        return act_thumbnails.play(here, screen, files, locked=locked, seconds=options.seconds)
    return {"ledger": act_ledger, "reports": act_reports}[act].play(here, screen, locked=locked)


def _print_outcome(console: Console, outcome: Outcome) -> None:
    console.print()
    console.rule(outcome.title, align="left")
    for part in outcome.body:
        console.print(part, markup=False)


def _verdict(console: Console, outcomes: Sequence[Outcome], *, locked: bool) -> int:
    console.print()
    for outcome in outcomes:
        if not outcome.problems:
            console.print(f"All is well: {outcome.summary}.", style="bold green", markup=False)
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    if not problems:
        return 0
    console.print("Not well:", style="bold red")
    for problem in problems:
        console.print(f"  {problem}", style="red", markup=False)
    if not locked:
        console.print("That is what plain tasks do; run it without --without-locks to compare.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
