"""An append-only file of what happened, one JSON object a line, written by many processes.

A line is written with one ``write`` to a file opened for appending, so lines never mix and
their order in the file is the order in which they were written.  Overlaps are judged by that
order, not by clocks.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WHO = socket.gethostname()


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        what: such as ``"begin"`` and ``"end"`` (of a body), ``"asked"``, ``"skipped"``.
        subject: what it is about, such as a picture's name.
        who: host/pid of the process that wrote the line.
        at: wall time in seconds since the epoch; for people.
        facts: whatever else was said.
    """

    what: str
    subject: str
    who: str
    at: float
    facts: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The file, for writing; safe to use from many processes at once.

    Args:
        path: the file; made when it is missing.
    """

    def __init__(self, path: Path) -> None:
        """Keep the path; each line opens the file, so a fork shares nothing."""
        self.path = path

    def write(self, what: str, subject: str, **facts: Any) -> None:
        """Append one line."""
        line = {"what": what, "subject": subject, "who": f"{WHO}/{os.getpid()}", "at": time.time()}
        if facts:
            line["facts"] = facts
        data = json.dumps(line).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    @contextmanager
    def body(self, subject: str, **facts: Any) -> Iterator[None]:
        """Frame a body with ``begin`` and ``end``; a body that fails has ended too."""
        self.write("begin", subject, **facts)
        try:
            yield
        finally:
            self.write("end", subject, **facts)


class Reader:
    """Follows the file.

    Args:
        path: the file; may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        """Start at the file's beginning."""
        self.path = path
        self._offset = 0
        self._ahead: list[Entry] = []

    def new(self) -> list[Entry]:
        """The lines that were added since the last call; half a line waits for its rest."""
        ahead, self._ahead = self._ahead, []
        return ahead + self._read()

    def _read(self) -> list[Entry]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            lines, _, _ = file.read().rpartition(b"\n")
        if not lines:
            return []
        self._offset += len(lines) + 1
        return [Entry(**json.loads(line)) for line in lines.split(b"\n")]

    def wait_for(self, wanted: Callable[[Entry], bool], timeout: float) -> Entry:
        """The first new line that is wanted; it and the lines before it count as read.

        Args:
            wanted: tells whether this is the line.
            timeout: seconds until it is given up.

        Raises:
            TimeoutError: there was no such line in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            entries = self.new()
            for number, entry in enumerate(entries, 1):
                if wanted(entry):
                    self._ahead = entries[number:]
                    return entry
            time.sleep(0.01)  # a plain file has no event to wait on that works everywhere
        raise TimeoutError(f"nothing of the kind was written to {self.path} in {timeout:g} s")
