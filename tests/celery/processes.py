"""Real ``celery worker`` and ``celery beat`` processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from localservers import Process
from tests.celery.app import CONFIG

_ROOT = Path(__file__).parents[2]


class CeleryProcess(Process):
    """A ``celery`` command that runs until it is stopped.

    Args:
        arguments: what follows ``celery -A <app>``.
        config: the application's configuration.
        app: where the application is found.
        prompt: what it logs when it is ready.
        environment: variables added to its environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        config: dict[str, Any],
        *,
        app: str,
        prompt: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            [sys.executable, "-m", "celery", "-A", app, *arguments],
            name=arguments[0],
            environment={
                CONFIG: json.dumps(config),
                "PYTHONPATH": os.pathsep.join([str(_ROOT), *_inherited()]),
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            },
        )
        self._prompt = prompt
        self._starts = 0

    def launch(self) -> None:
        """Start it without waiting."""
        self._starts += 1
        super().launch()

    def ready(self) -> bool:
        """Whether it has logged that it is ready, since its last start."""
        return self.log.count(self._prompt) >= self._starts

    def close(self) -> None:
        """Kill it and remove its folder: a test that wants a shutdown asks for one."""
        self.kill()
        super().close()


class Worker(CeleryProcess):
    """A worker.

    Args:
        config: the application's configuration.
        pool: ``"prefork"``, ``"threads"``, ``"gevent"``, ``"eventlet"`` or ``"solo"``.
        concurrency: how many tasks it runs at once.
        app: where the application is found.
        queues: the queues that it reads, separated by commas.
        options: further options of the command line.
        environment: variables added to its environment.
    """

    _number = 0

    def __init__(
        self,
        config: dict[str, Any],
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        app: str = "tests.celery.app",
        queues: str = "celery",
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        Worker._number += 1
        self.node_name = f"w{Worker._number}@localhost"
        self.pool = pool
        size = [f"--concurrency={concurrency}"] if pool != "solo" else []
        # Mingle waits a second for other workers' answers, of which there are none.
        quick = ["--without-mingle", "--without-gossip", "--loglevel=INFO"]
        where = [f"--pool={pool}", f"--hostname={self.node_name}", f"--queues={queues}"]
        arguments = ["worker", *where, *size, *quick, *options]
        super().__init__(arguments, config, app=app, prompt=" ready.", environment=environment)

    @property
    def children(self) -> list[int]:
        """The process ids of the pool's children, the oldest first; prefork only."""
        found = psutil.Process(self.pid).children()
        return [child.pid for child in sorted(found, key=lambda child: child.create_time())]

    def stop(self, timeout: float = 20.0) -> None:
        """Stop it warmly: running tasks may end, up to ``timeout`` seconds."""
        super().stop(timeout)

    def quit(self) -> None:
        """Ask for a cold shutdown (SIGQUIT); wait for it with :meth:`wait`."""
        self.send(signal.SIGQUIT)

    def terminate(self) -> None:
        """Ask for a warm shutdown (SIGTERM); wait for it with :meth:`wait`."""
        self.send(signal.SIGTERM)


class Beat(CeleryProcess):
    """A beat.

    Args:
        config: the application's configuration.
        scheduler: the scheduler class.
        app: where the application is found.
        max_interval: seconds that it sleeps at most between two looks at the schedule.
        options: further options of the command line.
        environment: variables added to its environment.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        scheduler: str = "celery_redlock.beat:LockedScheduler",
        app: str = "tests.celery.app",
        max_interval: float = 0.2,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        config = {"beat_max_loop_interval": max_interval, **config}  # the option takes whole ones
        how = ["--scheduler", scheduler, "--loglevel=INFO"]
        arguments = ["beat", *how, "--schedule=schedule", *options]
        prompt = "beat: Starting..."
        super().__init__(arguments, config, app=app, prompt=prompt, environment=environment)


def _inherited() -> list[str]:
    return [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
