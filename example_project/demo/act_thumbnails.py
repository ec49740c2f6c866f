"""Act 1: thumbnails.  Three producers ask, worker processes make, two lock servers are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from example_project.demo.outcome import Outcome
from example_project.demo.report import legend, pictures_table, savings, servers_table
from example_project.demo.screen import Screen
from example_project.demo.stage import Stage
from example_project.demo.tally import Tally
from example_project.journal import Reader
from localservers import Process

PRODUCERS = 3
VICTIMS = ((1, 0.40), (3, 0.55))  # which lock servers are killed, and at which part of the time
TICK = 0.1  # seconds between two looks at the journal
LONGEST = 240.0  # seconds until producers that don't end count as stuck

Step = tuple[float, Callable[[], None]]


def play(
    here: Stage, screen: Screen, pictures: Sequence[Path], *, locked: bool, seconds: float
) -> Outcome:
    """Run the act.

    Args:
        here: with servers and a worker running.
        screen: where progress is shown.
        pictures: the files to make thumbnails of.
        locked: False: the plain task, as the negative control.
        seconds: how long the producers go on; they finish the round that they are in.
    """
    tally, reader = Tally([path.name for path in pictures]), Reader(here.journal.path)
    task = "make_thumbnail" if locked else "make_thumbnail_without_lock"
    screen.note(f"act 1: {PRODUCERS} producers ask for {len(pictures)} pictures with {task}()")
    producers = [here.producer("--task", task, *map(str, pictures)) for _ in range(PRODUCERS)]

    def show() -> None:
        tally.add(reader.new())
        screen.update(tally)

    problems = _follow(_script(here, screen, producers, seconds), producers, show)
    show()
    problems += [*tally.problems(), *_unreadable(here.out / "thumbnails", pictures)]
    return Outcome(
        title=f"Act 1: thumbnails, asked for with {task}()",
        body=[
            pictures_table(tally),
            legend(tally),
            servers_table(list(here.locks), tally, screen.began),
            savings(tally),
        ],
        summary=(
            f"each of {len(tally.rows)} pictures was made, and none twice at once, "
            f"with {len(tally.killed)} of {len(here.locks)} lock servers killed"
        ),
        problems=problems,
    )


def _script(
    here: Stage, screen: Screen, producers: Sequence[Process], seconds: float
) -> list[Step]:
    """What is done at which second."""

    def kill(index: int) -> None:
        node = here.kill_lock_server(index)
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
    all_files = sorted(folder.iterdir()) if folder.is_dir() else []
    for picture in pictures:
        made = [path for path in all_files if path.name.startswith(f"{picture.name}.")]
        try:
            for path in made:
                with Image.open(path) as img:
                    img.load()
        except OSError as exc:
            problems.append(f"{picture.name}: a thumbnail is broken: {exc}")
        if not made:
            problems.append(f"{picture.name} has no thumbnail")
    return problems
