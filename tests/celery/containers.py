"""Local processes in the shape of pytest-celery's containers, so that its setup needs no Docker."""

from __future__ import annotations

import signal as signals
from typing import Any

from pytest_celery import CeleryTestWorker

from localservers import Process


class ProcessContainer:
    """What pytest-celery's nodes ask of a container, answered by a process.

    Args:
        process: runs already.
        url: how clients reach it, for a broker or a backend.
    """

    def __init__(self, process: Process, url: str = "") -> None:
        self.process = process
        self._url = url

    @property
    def name(self) -> str:
        """The process's name."""
        return self.process.name

    @property
    def id(self) -> str:
        """Its process id, in the length of a container's."""
        return f"{self.process.pid:012d}"

    @property
    def status(self) -> str:
        """``"running"`` or ``"exited"``."""
        return "running" if self.process.alive else "exited"

    @property
    def celeryconfig(self) -> dict[str, str]:
        """How clients reach it, from anywhere on this machine."""
        return {"url": self._url, "host_url": self._url}

    def ready(self) -> bool:
        """Whether it can be used."""
        return self.process.ready()

    def logs(self) -> str:
        """Everything it has written."""
        return self.process.log

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """Send it a signal, and wait for its end."""
        number = signals.Signals[signal] if isinstance(signal, str) else signals.Signals(signal)
        if number == signals.SIGKILL:
            self.process.kill()
        else:
            self.process.send(number)
            self.process.wait()

    def reload(self) -> None:
        """Nothing is remembered that could be old."""

    def restart(self, timeout: float = 30.0) -> None:
        """Stop it, unless it has ended, and start it again."""
        self.process.stop()
        self.process.start(timeout)

    def teardown(self) -> None:
        """Whoever started the process stops it."""


class LocalWorker(CeleryTestWorker):
    """pytest-celery's worker node on a local process."""

    def __init__(self, worker: Any, app: Any) -> None:
        super().__init__(ProcessContainer(worker), app)
        self._worker = worker

    @property
    def worker_name(self) -> str:
        """The node's name in front of the ``@``."""
        return self._worker.node_name.partition("@")[0]

    @property
    def worker_queue(self) -> str:
        """The queue that it reads."""
        return "celery"

    def hostname(self) -> str:
        """The node's whole name."""
        return self._worker.node_name
