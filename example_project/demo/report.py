"""The tables that a person reads.  Makes them and prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from example_project.demo.tally import Row, Tally
from localservers import Valkey

Heading = tuple[str, Literal["left", "right"]]
FEW = 6  # as many workers get a column each; more of them only their sum


def pictures_table(tally: Tally) -> Table:
    """One row for each picture: asked, made, skipped, and by whom it was made and held."""
    workers = tally.workers()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=len(tally.rows) > 1)
    total = _cells("all", _sum(tally.rows.values()), workers)
    columns = zip(_headings(workers), total, strict=True)
    for (heading, justify), footer in columns:
        table.add_column(
            heading, footer, justify=justify, no_wrap=True, max_width=40, overflow="ellipsis"
        )
    table.columns[0].max_width = 24
    for name, row in tally.rows.items():
        table.add_row(*_cells(name, row, workers))
    return table


def _headings(workers: Sequence[str]) -> list[Heading]:
    names = "".join(f"{'w' + str(i):>4}" for i in range(1, len(workers) + 1))
    if not 0 < len(workers) <= FEW:
        names = "any"
    return [
        ("\npicture", "left"),
        ("\nasked", "right"),
        ("\nmade", "right"),
        ("\nskipped", "right"),
        ("most at\nonce", "right"),
        (f"made by\n{names}", "left"),
        (f"skipped, held by\n{names}", "left"),
    ]


def _cells(name: str, row: Row, workers: Sequence[str]) -> list[Text | str]:
    most = Text(str(row.most_at_once), style="bold red" if row.most_at_once > 1 else "green")
    made = Text(str(row.made), style="" if row.made else "red")
    skipped = str(row.answered["skipped"])
    by = [_by(row.begun, workers), _by(row.held_by, workers)]
    return [Text(name), str(row.asked), made, skipped, most, *by]


def _by(counts: Counter[str], workers: Sequence[str]) -> str:
    if not 0 < len(workers) <= FEW:
        return str(counts.total())
    return "".join(f"{counts[worker] or '-':>4}" for worker in workers)


def _sum(rows: Iterable[Row]) -> Row:
    total = Row()
    for row in rows:
        total.asked += row.asked
        total.answered += row.answered
        total.begun += row.begun
        total.ended += row.ended
        total.held_by += row.held_by
        total.most_at_once = max(total.most_at_once, row.most_at_once)
    return total


def legend(tally: Tally) -> str:
    """Which worker process each short name stands for."""
    names = ", ".join(f"w{i} = {who}" for i, who in enumerate(tally.workers(), 1))
    return f"The worker processes, as host/pid: {names}"


def servers_table(nodes: Sequence[Valkey], tally: Tally, began: float) -> Table:
    """One row for each lock server: where it is, and at which second it was killed."""
    killed = {entry.facts["url"]: entry for entry in tally.killed}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("lock server", "address", "pid", "state"):
        table.add_column(heading)
    for number, node in enumerate(nodes, 1):
        entry = killed.get(node.url)
        state = Text("alive to the end", style="green")
        if entry is not None:
            state = Text(f"killed (SIGKILL) at {entry.at - began:.1f} s", style="red")
        elif not node.alive:
            state = Text("ended by itself", style="bold red")
        table.add_row(str(number), f"127.0.0.1:{node.port}", str(node.pid), state)
    return table


def savings(tally: Tally) -> str:
    """What the locks saved, from the mean length of the bodies that ran."""
    if not tally.made:
        return ""
    mean = tally.worked / tally.made
    bodies = f"{tally.made} bodies took {tally.worked:.1f} s, {mean * 1000:.0f} ms each"
    if not tally.skipped:
        return f"{bodies}."
    return f"{bodies}; the {tally.skipped} skipped would have taken {mean * tally.skipped:.1f} s."
