"""One of the processes that ask for pictures: ``python -m example_project.demo.producer``.

Asks for each picture several times in a row, waits for all the answers, and starts anew, until
it is told to stop with SIGTERM.  At least one round is always finished.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery.result import AsyncResult

from example_project import thumbnails
from example_project.journal import Journal
from example_project.settings import out

PATIENCE = 120.0  # seconds that one answer may take before it counts as missing


def main() -> None:
    """Ask until told to stop."""
    parser = argparse.ArgumentParser(description="asks the shop for thumbnails, again and again")
    parser.add_argument("photos", nargs="+", type=Path)
    parser.add_argument("--times", type=int, default=3, help="asks for each picture in a row")
    parser.add_argument("--task", default="make_thumbnail", help="which task of thumbnails.py")
    arguments = parser.parse_args()
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())
    task, journal = getattr(thumbnails, arguments.task), Journal(out() / "journal.jsonl")
    while True:
        one_round(task, journal, arguments.photos, arguments.times)
        if enough.is_set():
            return


def one_round(task: Any, journal: Journal, photos: Sequence[Path], times: int) -> None:
    """Ask for every picture, and note each answer."""
    asked: list[tuple[str, AsyncResult]] = []
    for photo in photos:
        for _ in range(times):
            journal.write("asked", photo.name)
            asked.append((photo.name, task.delay(str(photo))))
    for name, result in asked:
        note(journal, name, result.get(timeout=PATIENCE, propagate=False))
        result.forget()


def note(journal: Journal, name: str, answer: Any) -> None:
    """Write down what became of one ask."""
    if isinstance(answer, BaseException):
        journal.write("failed", name, error=f"{type(answer).__name__}: {answer}")
    elif answer.get("skipped"):
        holder = answer.get("holder") or {}
        known = f"{holder.get('host', '?')}/{holder.get('pid', '?')}"
        journal.write("skipped", name, holder=known)
    else:
        journal.write("made", name)


if __name__ == "__main__":
    main()
