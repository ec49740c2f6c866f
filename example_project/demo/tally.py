"""Counts what the journal says about each picture, and judges it.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from example_project.journal import Entry


@dataclass
class Row:
    """What happened to one picture.

    Attributes:
        asked: how often it was asked for.
        answered: answers that the askers got: ``made``, ``skipped`` or ``failed``.
        begun: bodies that began, by host/pid.
        ended: how many bodies ended.
        held_by: skipped asks, by the host/pid that held the lock.
        most_at_once: the largest number of bodies that ran at one instant.
        errors: what failed asks said.
    """

    asked: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    begun: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    held_by: Counter[str] = field(default_factory=Counter)
    most_at_once: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def made(self) -> int:
        """How many bodies ran to their end."""
        return self.ended

    @property
    def running(self) -> int:
        """How many bodies have begun and not ended."""
        return self.begun.total() - self.ended


class Tally:
    """Everything that was counted.

    Args:
        subjects: the names of the pictures.
    """

    def __init__(self, subjects: Sequence[str]) -> None:
        """Start at zero."""
        self.rows = {name: Row() for name in subjects}
        self.killed: list[Entry] = []
        self.begun_since_kill = 0
        self.worked = 0.0
        self._began: dict[tuple[str, str], float] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Count further lines of the journal."""
        for entry in entries:
            if entry.what == "killed":
                self.killed.append(entry)
                self.begun_since_kill = 0
            elif entry.subject in self.rows:
                self._count(self.rows[entry.subject], entry)

    def _count(self, row: Row, entry: Entry) -> None:
        body = (entry.subject, entry.who)
        if entry.what == "asked":
            row.asked += 1
        elif entry.what == "begin":
            row.begun[entry.who] += 1
            row.most_at_once = max(row.most_at_once, row.running)
            self.begun_since_kill += 1
            self._began[body] = entry.at
        elif entry.what == "end":
            row.ended += 1
            self.worked += entry.at - self._began.pop(body, entry.at)
        else:
            row.answered[entry.what] += 1
            if entry.what == "skipped":
                row.held_by[entry.facts["holder"]] += 1
            elif entry.what == "failed":
                row.errors.append(entry.facts["error"])

    @property
    def asked(self) -> int:
        """How often any picture was asked for."""
        return sum(row.asked for row in self.rows.values())

    @property
    def made(self) -> int:
        """How many bodies ran to their end."""
        return sum(row.made for row in self.rows.values())

    @property
    def skipped(self) -> int:
        """How many asks ended without a body."""
        return sum(row.answered["skipped"] for row in self.rows.values())

    @property
    def doubled(self) -> list[str]:
        """The pictures that were made twice or more at once."""
        return [name for name, row in self.rows.items() if row.most_at_once > 1]

    def workers(self) -> list[str]:
        """Every host/pid that made or held something, sorted."""
        seen: set[str] = set()
        for row in self.rows.values():
            seen |= {*row.begun, *row.held_by}
        return sorted(seen)

    def problems(self) -> list[str]:
        """What must not have happened, in words; empty if all is well."""
        found = [text for name, row in self.rows.items() for text in _problems(name, row)]
        if self.killed and not self.begun_since_kill:
            found.append("nothing was made any more after the lock servers were killed")
        if not self.skipped and not self.doubled:
            found.append("no picture was ever asked for while it was being made: nothing was shown")
        return found


def _problems(name: str, row: Row) -> Iterable[str]:
    if row.most_at_once > 1:
        yield f"{name} was made {row.most_at_once} times at once"
    if not row.made:
        yield f"{name} was never made"
    if row.running:
        yield f"{name}: {row.running} of its bodies began and never ended"
    if row.errors:
        yield f"{name}: {len(row.errors)} asks failed, the first with {row.errors[0]}"
    if row.asked != row.answered.total():
        yield f"{name}: {row.asked - row.answered.total()} of {row.asked} asks got no answer"
    if row.answered["made"] + row.answered["failed"] < row.made:
        yield f"{name}: {row.made} bodies ran, but only {row.answered['made']} asks know of one"
