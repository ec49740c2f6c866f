"""Shows what goes on: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from example_project.demo.report import pictures_table
from example_project.demo.tally import Tally


class Screen(Protocol):
    """Where the demo shows itself while it runs.

    Attributes:
        began: wall time in seconds since the epoch from which the shown seconds count.
    """

    began: float

    def note(self, text: str, style: str = "") -> None:
        """Say something that stays readable."""

    def update(self, tally: Tally) -> None:
        """Show the present counts; called many times a second."""

    def close(self) -> None:
        """Take away what only made sense while it ran."""


def screen_for(console: Console) -> Screen:
    """The kind of screen that fits where the output goes."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class _Clocked:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.began, self.start = time.time(), time.monotonic()

    def note(self, text: str, style: str = "") -> None:
        """Print a line with the seconds since the start."""
        stamp = f"{time.monotonic() - self.start:5.1f} s  "
        self.console.print(Text(stamp + text.replace("\n", "\n" + " " * len(stamp)), style=style))


class LiveScreen(_Clocked):
    """A table that changes in place."""

    def __init__(self, console: Console) -> None:
        """Show nothing until the first counts."""
        super().__init__(console)
        self._live: Live | None = None

    def update(self, tally: Tally) -> None:
        """Redraw the table."""
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        seconds = time.monotonic() - self.start
        now = Text(f"{seconds:5.1f} s  {sum_up(tally)}", style="cyan")
        self._live.update(Group(pictures_table(tally), now), refresh=True)

    def close(self) -> None:
        """Remove the table; the report has it again."""
        if self._live is not None:
            self._live.stop()


class PlainScreen(_Clocked):
    """One line a second."""

    def __init__(self, console: Console) -> None:
        """Nothing shown for the first second."""
        super().__init__(console)
        self._next = self.start + 1.0

    def update(self, tally: Tally) -> None:
        """Print the sums, unless that was done less than a second ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1.0
            self.note(sum_up(tally))

    def close(self) -> None:
        """Nothing to take away."""


def sum_up(tally: Tally) -> str:
    """The counts of all pictures in a few words."""
    most = max(row.most_at_once for row in tally.rows.values())
    text = f"asked {tally.asked}, made {tally.made}, skipped {tally.skipped}"
    return f"{text}; the same picture at once: {most}"
