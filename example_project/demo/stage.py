"""What the demo starts and always clears away: the folder, the servers, workers, producers.

Everything lies in one folder, and each process is ended by its id, whatever happens: also when
this process is killed, since the servers' undertaker outlives it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from example_project.journal import Journal
from localservers import Cluster, Process, Valkey, valkey_cluster

OURS = ("journal.jsonl", "worker.log", "beat.log", "ledger.sqlite3")
ROOT = Path(__file__).resolve().parents[2]


class Busy(Exception):
    """Another demo is using the folder."""


class Worker(Process):
    """A Celery worker of the shop.

    Args:
        concurrency: how many pool children it has.
    """

    def __init__(self, concurrency: int) -> None:
        """Choose the command; nothing is started yet."""
        worker = ["-A", "example_project.shop", "worker", "--pool", "prefork", "--loglevel", "INFO"]
        slots = ["--concurrency", str(concurrency), "--without-gossip", "--without-mingle"]
        command = [sys.executable, "-m", "celery", *worker, *slots]
        super().__init__(command, name="worker")

    def ready(self) -> bool:
        """Whether it has said so in its log."""
        return " ready." in self.log


class Beat(Process):
    """A Celery beat of the shop, with a schedule file of its own.

    Args:
        scheduler: the scheduler class.
    """

    def __init__(self, scheduler: str) -> None:
        """Choose the command; nothing is started yet."""
        beat = ["-A", "example_project.shop", "beat", "--scheduler", scheduler]
        super().__init__([sys.executable, "-m", "celery", *beat, "--loglevel", "INFO"], name="beat")

    def ready(self) -> bool:
        """Whether it has said so in its log."""
        return "beat: Starting" in self.log


class Stage:
    """Servers that run, and the means to start workers and producers on them.

    Args:
        out: the folder for everything.
        locks: the lock servers.
        broker: broker and result backend.
        after: what is done at the end, the last first.
    """

    def __init__(self, out: Path, locks: Cluster[Valkey], broker: Valkey, after: ExitStack) -> None:
        """Keep what runs already."""
        self.out = out
        self.locks = locks
        self.broker = broker
        self.journal = Journal(out / "journal.jsonl")
        self._after = after

    def use_settings(self) -> None:
        """Give this process, and all that it starts, the shop's settings."""
        before = dict(os.environ)
        self._after.callback(os.environ.update, before)
        self._after.callback(os.environ.clear)
        os.environ.update(self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The shop's settings."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {
            "PYTHONPATH": path,
            "SHOP_BROKER": self.broker.url_as("", None, 0),
            "SHOP_BACKEND": self.broker.url_as("", None, 1),
            "SHOP_LOCKS": ",".join(self.locks.urls),
            "SHOP_OUT": str(self.out),
            "LEDGER_URL": os.environ.get("LEDGER_URL", ""),
            "TMPDIR": tempfile.gettempdir(),
        }

    def worker(self, concurrency: int = 4) -> Worker:
        """Start a worker and wait until it is ready."""
        worker = Worker(concurrency)
        self._after.callback(self._keep_log, worker)
        worker.start(timeout=60)
        return worker

    def beat(self, scheduler: str) -> Beat:
        """Start a beat and wait until it is ready."""
        beat = Beat(scheduler)
        self._after.callback(self._keep_log, beat)
        beat.start(timeout=60)
        return beat

    def producer(self, *arguments: str) -> Process:
        """Start a process that asks for pictures."""
        command = [sys.executable, "-m", "example_project.demo.producer", *arguments]
        producer = Process(command, name="producer")
        self._after.callback(producer.close)
        self._after.callback(producer.kill)
        producer.launch()
        return producer

    def _keep_log(self, process: Process) -> None:
        process.kill()
        if process.log_file.exists():
            with (self.out / f"{process.name}.log").open("ab") as kept:
                kept.write(process.log_file.read_bytes())
        process.close()

    def revive_lock_servers(self) -> list[int]:
        """Start the killed lock servers again, with what they had on disk; gives their numbers."""
        dead = [number for number, node in enumerate(self.locks, 1) if not node.alive]
        for number in dead:
            self.locks[number - 1].start()
        return dead

    def kill_lock_server(self, index: int) -> Valkey:
        """End one lock server at once (SIGKILL), and note it in the journal."""
        node = self.locks[index]
        node.crash()
        self.journal.write("killed", f"lock server {index + 1}", url=node.url, pid=node.pid)
        return node


@contextmanager
def stage(out: Path, nodes: int = 5) -> Iterator[Stage]:
    """Start the servers, and clear everything away at the end, whatever happened.

    Args:
        out: the folder for everything; what an earlier demo left there is removed.
        nodes: how many lock servers.

    Raises:
        Busy: another demo is using the folder.
    """
    with ExitStack() as after:
        _claim(out, after)
        locks, broker = valkey_cluster(nodes), Valkey()
        after.callback(locks.close)
        after.callback(broker.close)
        after.callback(broker.kill)
        locks.start()
        broker.start()
        here = Stage(out, locks, broker, after)
        here.use_settings()
        yield here


def _claim(out: Path, after: ExitStack) -> None:
    """Make the folder ours, and empty but for what isn't the demo's."""
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    after.callback(os.close, folder)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise Busy(f"another demo is running in {out}; wait for its end") from exc
    for leftover in ("thumbnails", ".running"):
        shutil.rmtree(out / leftover, ignore_errors=True)
    for file in out.iterdir():
        if file.name.startswith(OURS):
            file.unlink()
    scratch = out / ".running"
    scratch.mkdir()
    after.callback(shutil.rmtree, scratch, ignore_errors=True)
    after.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
    tempfile.tempdir = str(scratch)  # the servers' folders and port claims go there too
