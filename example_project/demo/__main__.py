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
from contextlib import contextmanager

_NEEDED = "pip install 'celery_redlock[demo]'   (in a checkout: pip install -e '.[demo]')"

try:
    from rich.console import Console

    from example_project.demo import act_thumbnails, report
    from example_project.demo.pictures import NoPictures, Pictures, find, remarks
    from example_project.demo.screen import screen_for
    from example_project.demo.stage import ROOT, Busy, stage
    from example_project.demo.tally import Tally
    from localservers import MissingServer, ServerFailed
except ModuleNotFoundError as missing:
    sys.exit(f"The demo needs {missing.name}, which is not installed:\n  {_NEEDED}")


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
            return run(console, pictures, locked=not options.without_locks, seconds=options.seconds)
    except Stopped as exc:
        name = signal.Signals(exc.number).name
        console.print(f"\nStopped by {name}: every process has been ended.", style="bold")
        return 128 + exc.number
    except (NoPictures, Busy, ServerFailed) as exc:
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
        help="the negative control: a plain task; shows the doubled work and exits with 1",
    )
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="how long the producers ask (default: 12)"
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


def run(console: Console, pictures: Pictures, *, locked: bool, seconds: float) -> int:
    """Set the stage, play, and report."""
    start, began = time.monotonic(), time.time()
    screen = screen_for(console)
    for remark in remarks(pictures):
        screen.note(remark, "yellow")
    with stage(ROOT / "demo-out") as here:
        ports = ", ".join(str(node.port) for node in here.locks)
        screen.note(f"five lock servers (ports {ports}) and a broker (port {here.broker.port}) run")
        try:
            tally, problems = act_thumbnails.play(
                here, screen, pictures.files, locked=locked, seconds=seconds
            )
        finally:
            screen.close()
        console.print()
        console.print(report.pictures_table(tally))
        console.print(report.legend(tally), markup=False)
        console.print()
        console.print(report.servers_table(list(here.locks), tally, began))
    console.print(report.savings(tally))
    console.print(f"It took {time.monotonic() - start:.1f} s; thumbnails and logs: {here.out}")
    return _verdict(console, tally, problems, locked=locked)


def _verdict(console: Console, tally: Tally, problems: Sequence[str], *, locked: bool) -> int:
    console.print()
    if not problems:
        console.print(
            f"All is well: each of {len(tally.rows)} pictures was made, and none twice at once, "
            f"with {len(tally.killed)} of 5 lock servers dead.",
            style="bold green",
        )
        return 0
    console.print("Not well:", style="bold red")
    for problem in problems:
        console.print(f"  {problem}", style="red", markup=False)
    if not locked and tally.doubled:
        console.print("That is what a plain task does: work that is under way is done again.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
