"""Act 1: thumbnails.  Three producers ask, four worker processes make, two lock servers die."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from example_project.demo.screen import Screen
from example_project.demo.stage import Stage
from example_project.demo.tally import Tally
from example_project.journal import Reader
from localservers import Process

PRODUCERS, SLOTS = 3, 4
VICTIMS = ((1, 0.40), (3, 0.55))  # which lock servers are killed, and at which part of the time
TICK = 0.1  # seconds between two looks at the journal
LONGEST = 240.0  # seconds until producers that don't end count as stuck

Step = tuple[float, Callable[[], None]]


def play(
    stage: Stage, screen: Screen, pictures: Sequence[Path], *, locked: bool, seconds: float
) -> tuple[Tally, list[str]]:
    """Run the act.

    Args:
        stage: with servers running.
        screen: where progress is shown.
        pictures: the files to make thumbnails of.
        locked: False: the plain task, as the negative control.
        seconds: how long the producers go on; they finish the round that they are in.

    Returns:
        the counts, and what went wrong in words (empty if all is well).
    """
    tally, reader = Tally([path.name for path in pictures]), Reader(stage.journal.path)
    worker = stage.worker(SLOTS)
    kind = "locked" if locked else "plain, unlocked"
    screen.note(
        f"a worker with {SLOTS} processes is ready; {PRODUCERS} producers ask ({kind} task)"
    )
    task = "make_thumbnail" if locked else "make_thumbnail_without_lock"
    arguments = ["--task", task, *map(str, pictures)]
    producers = [stage.producer(*arguments) for _ in range(PRODUCERS)]

    def show() -> None:
        tally.add(reader.new())
        screen.update(tally)

    problems = _follow(_script(stage, screen, producers, seconds), producers, show)
    worker.stop()
    show()
    missing = _unreadable(stage.out / "thumbnails", pictures)
    return tally, [*problems, *tally.problems(), *missing]


def _script(
    stage: Stage, screen: Screen, producers: Sequence[Process], seconds: float
) -> list[Step]:
    """What is done at which second."""

    def kill(index: int) -> None:
        node = stage.kill_lock_server(index)
        screen.note(f"killed lock server {index + 1} (SIGKILL, {node.url})", "bold red")

    def enough() -> None:
        screen.note("the producers finish their round")
        for producer in producers:
            producer.send(producer.stop_signal)

    steps: list[Step] = [(part * seconds, lambda i=i: kill(i)) for i, part in VICTIMS]  # type: ignore[misc]
    return [*steps, (seconds, enough)]


def _follow(
    script: list[Step], producers: Sequence[Process], show: Callable[[], None]
) -> list[str]:
    """Do each step at its time, until the producers have ended; says which of them failed."""
    start = time.monotonic()
    while any(producer.alive for producer in producers):
        passed = time.monotonic() - start
        while script and script[0][0] <= passed:
            script.pop(0)[1]()
        if passed > LONGEST:
            return [f"the producers have not ended after {LONGEST:.0f} s"]
        show()
        time.sleep(TICK)
    if script:
        last_words = "\n".join(producer.log_tail(5) for producer in producers)
        return [f"the producers ended too early:\n{last_words}"]
    failed = [producer for producer in producers if producer.returncode]
    return [f"a producer failed:\n{producer.log_tail(5)}" for producer in failed]


def _unreadable(folder: Path, pictures: Sequence[Path]) -> list[str]:
    """Which pictures have no thumbnail that can be opened."""
    problems = []
    for picture in pictures:
        made = sorted(folder.glob(f"{picture.name}.*.webp"))
        try:
            for path in made:
                with Image.open(path) as img:
                    img.load()
        except OSError as exc:
            problems.append(f"{picture.name}: a thumbnail is broken: {exc}")
        if not made:
            problems.append(f"{picture.name} has no thumbnail")
    return problems
