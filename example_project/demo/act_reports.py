"""Act 3: reports.  Two beats run the same schedule, and one of them is killed."""

from __future__ import annotations

import itertools

from rich import box
from rich.table import Table

from example_project.demo.outcome import Outcome
from example_project.demo.screen import Screen
from example_project.demo.stage import Beat, Stage
from example_project.journal import Entry, Reader
from example_project.settings import REPORT_EVERY

BEFORE, AFTER = 5, 4  # reports before and after a beat is killed
LONGEST_GAP = 2.5  # intervals: one tick may be late, none may be missing
LOCKED, STOCK = "celery_redlock.beat:LockedScheduler", "celery.beat:PersistentScheduler"


def play(here: Stage, screen: Screen, *, locked: bool) -> Outcome:
    """Run the act.

    Args:
        here: with servers and a worker running.
        screen: where progress is shown.
        locked: False: Celery's own scheduler, as the negative control.
    """
    scheduler = LOCKED if locked else STOCK
    screen.note(f"act 3: two beats send a report every {REPORT_EVERY:g} s, with {scheduler}")
    beats = [here.beat(scheduler) for _ in range(2)]
    reader = Reader(here.journal.path)
    reader.new()  # what was sent before both were there shows nothing
    reports: list[Entry] = []
    killed_at, problems = 0.0, []
    try:
        reports += _await(reader, screen, BEFORE)
        beats[0].kill()
        screen.note(f"killed beat 1 (SIGKILL, pid {beats[0].pid})", "bold red")
        here.journal.write("killed", "beat 1", pid=beats[0].pid)
        killed_at = reports[-1].at
        reports += _await(reader, screen, AFTER)
    except TimeoutError as exc:
        problems = [f"no report came any more: {exc}"]
    beats[1].kill()
    return Outcome(
        title=f"Act 3: reports from two beats with {scheduler}",
        body=[_table(reports, beats, killed_at)],
        summary=f"{len(reports)} ticks, one report each, and no gap when a beat was killed",
        problems=[*problems, *judge([report.at for report in reports])],
    )


def _await(reader: Reader, screen: Screen, number: int) -> list[Entry]:
    """The next so many reports."""
    found = []
    for _ in range(number):
        found.append(reader.wait_for(lambda entry: entry.what == "report", 10 * REPORT_EVERY))
        screen.note(f"a report ({found[-1].who})")
    return found


def judge(times: list[float]) -> list[str]:
    """What is wrong with reports at these instants, in words."""
    if len(times) < 2:
        return ["there were not even two reports"]
    problems = []
    ticks = (times[-1] - times[0]) / REPORT_EVERY + 1
    if len(times) > ticks + 1.5:
        problems.append(f"{len(times)} reports were made in the time of {ticks:.1f} ticks")
    longest = max(b - a for a, b in itertools.pairwise(times))
    if longest > LONGEST_GAP * REPORT_EVERY:
        problems.append(f"there was a gap of {longest:.1f} s between two reports")
    return problems


def _table(reports: list[Entry], beats: list[Beat], killed_at: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("seconds", justify="right")
    table.add_column("report", justify="right")
    table.add_column("worker process, as host/pid")
    table.add_column("beats")
    pids = [str(beat.pid) for beat in beats]
    for number, report in enumerate(reports, 1):
        alive = pids if report.at <= killed_at or not killed_at else pids[1:]
        table.add_row(
            f"{report.at - reports[0].at:.2f}", str(number), report.who, f"pid {', '.join(alive)}"
        )
    return table
