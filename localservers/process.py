"""One local process: started, waited for, paused, killed, restarted, cleaned up after."""

from __future__ import annotations

import abc
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localservers import undertaker

if TYPE_CHECKING:  # in the standard library from Python 3.11 on
    from typing_extensions import Self

__all__ = ["MissingServer", "Process", "Server", "ServerFailed"]

# The shell tells the undertaker its process group before it becomes the program, so there is
# no moment at which the program runs and nobody would end it.  Standard output goes to the log.
_ANNOUNCE = 'echo "group $$"; exec "$@" >&2'


class MissingServer(Exception):
    """A server's program is not on this machine; the message says what brings it."""

    def __init__(self, program: str, cure: str) -> None:
        """Keep the program's name and how to get it."""
        self.program = program
        self.cure = cure
        super().__init__(f"{program} is not installed; {cure}")


class ServerFailed(Exception):
    """A process ended or stayed silent while it should have become ready."""


class _Undertaker:
    """The end of the pipe that the undertaker of this process reads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._client = 0
        self._pipe = -1

    def pipe(self) -> int:
        with self._mutex:
            if self._client != os.getpid():  # first use, or a fork: it has its own to be ended
                self._client = os.getpid()
                read, self._pipe = os.pipe()
                subprocess.Popen(
                    [sys.executable, "-I", "-S", undertaker.__file__, str(self._client)],
                    stdin=read,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                ).returncode = 0  # it outlives us on purpose: nobody waits for it
                os.close(read)
            return self._pipe

    def tell(self, kind: bytes, value: object) -> None:
        line = kind + b" " + str(value).encode() + b"\n"
        try:
            os.write(self.pipe(), line)
        except BrokenPipeError:  # somebody has ended it: the next one takes over from here
            with self._mutex:
                self._client = 0
            os.write(self.pipe(), line)


_undertaker = _Undertaker()


class Process:
    """A program in a process group and a temporary folder of its own.

    Args:
        command: the program and its arguments.
        name: what messages call it.
        environment: variables added to this process's own.
        user: run as this user of the system, where we are root; the folder is given to it.
        stop_signal: what asks it to end in good order.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]] = (),
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        stop_signal: int = signal.SIGTERM,
    ) -> None:
        """Make the folder; nothing is started yet."""
        self._command = list(command)
        self.name = name or (Path(command[0]).name if command else type(self).__name__.lower())
        self.environment = dict(environment or {})
        self.user = user if user and os.geteuid() == 0 else None
        self.stop_signal = stop_signal
        self.folder = Path(tempfile.mkdtemp(prefix=f"ls-{self.name[:10]}-"))
        _undertaker.tell(undertaker.FOLDER, self.folder)
        self.give(self.folder)
        self.log_file = self.folder / "log"
        self._popen: subprocess.Popen[bytes] | None = None

    def give(self, path: Path) -> None:
        """Hand a file or folder over to the user that the program runs as."""
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def command(self) -> Sequence[str | os.PathLike[str]]:
        """The program and its arguments."""
        return self._command

    def ready(self) -> bool:
        """Whether it can be used now; asked often, so it must be quick."""
        return self.alive

    def start(self, timeout: float = 30.0) -> Self:
        """Start it and wait until it is ready.

        Args:
            timeout: seconds until it is given up.

        Returns:
            itself.

        Raises:
            ServerFailed: it ended, or isn't ready in time; its last words are in the message.
        """
        self.launch()
        return self.wait_until_ready(timeout)

    def launch(self) -> None:
        """Start it without waiting."""
        if self.alive:
            raise RuntimeError(f"{self.name} runs already (pid {self.pid})")
        if self._popen is not None:
            self._popen.wait()  # it has ended, perhaps by itself; its children may live on
        with self.log_file.open("ab") as log:
            self._popen = subprocess.Popen(
                ["/bin/sh", "-c", _ANNOUNCE, "sh", *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=_undertaker.pipe(),
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                start_new_session=True,
                user=self.user,
                group=pwd.getpwnam(self.user).pw_gid if self.user else None,
                extra_groups=[] if self.user else None,
            )

    def wait_until_ready(self, timeout: float = 30.0) -> Self:
        """Wait for what was launched; see :meth:`start`."""
        deadline = time.monotonic() + timeout
        while not self.ready():
            ended = not self.alive
            if ended or time.monotonic() > deadline:
                what = (
                    f"ended with {self.returncode}"
                    if ended
                    else f"is not ready after {timeout:g} s"
                )
                self.kill()
                raise ServerFailed(f"{self.name} {what}:\n{self.log_tail()}")
            time.sleep(0.004)
        return self

    @property
    def pid(self) -> int:
        """The process id, which is the id of its process group too."""
        if self._popen is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether the program has been started and hasn't ended."""
        return self._popen is not None and self.returncode is None

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._popen is None else _status(self._popen)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for its end and give the exit status.

        Raises:
            TimeoutError: it still runs after ``timeout`` seconds.
        """
        if self._popen is None:
            raise RuntimeError(f"{self.name} was not started")
        deadline = time.monotonic() + timeout
        while (status := _status(self._popen)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} still runs after {timeout:g} s")
            time.sleep(0.004)
        return status

    def send(self, number: int, *, children: bool = False) -> None:
        """Send it a signal, or to its whole process group; nothing happens if it has ended."""
        if self._popen is None or self._popen.returncode is not None:
            return  # it has been collected, so its id may be another's by now
        with contextlib.suppress(ProcessLookupError):
            if children:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def stop(self, timeout: float = 10.0) -> None:
        """Ask it to end, wait, and kill what is left of its process group."""
        if self._popen is None:
            return
        if self.alive:
            self.resume()
            self.send(self.stop_signal)
            with contextlib.suppress(TimeoutError):
                self.wait(timeout)
        self.kill()

    def kill(self, *, children: bool = True) -> None:
        """End it at once (SIGKILL) and wait until it is gone."""
        if self._popen is None:
            return
        self.send(signal.SIGKILL, children=children)
        if children:
            # Only now is it collected: until then no stranger can get its id, nor its group's.
            self._popen.wait()
            _undertaker.tell(b"-" + undertaker.GROUP, self.pid)
        else:
            self.wait()

    def pause(self, *, children: bool = True) -> None:
        """Freeze it (SIGSTOP); it keeps its connections and answers nothing."""
        self.send(signal.SIGSTOP, children=children)

    def resume(self, *, children: bool = True) -> None:
        """Let a paused one go on (SIGCONT)."""
        self.send(signal.SIGCONT, children=children)

    def restart(self, timeout: float = 30.0) -> None:
        """Stop it, unless it has ended, and start it again."""
        self.stop()
        self.start(timeout)

    @property
    def log(self) -> str:
        """Everything it has written so far, of all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def log_tail(self, lines: int = 30) -> str:
        """Its last words."""
        return "\n".join(self.log.splitlines()[-lines:]) or "(it wrote nothing)"

    def wait_for_log(self, text: str, timeout: float = 30.0, *, count: int = 1) -> None:
        """Wait until its log holds ``text`` at least ``count`` times.

        Raises:
            ServerFailed: it ended before that, or ``timeout`` seconds have passed.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.alive
            if self.log.count(text) >= count:
                return
            if ended or time.monotonic() > deadline:
                what = "ended" if ended else f"was silent for {timeout:g} s"
                raise ServerFailed(f"{self.name} {what}, without {text!r}:\n{self.log_tail()}")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop it and remove its folder; it can't be used again."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        _undertaker.tell(b"-" + undertaker.FOLDER, self.folder)

    def __enter__(self) -> Self:
        return self if self.alive else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.alive else "not running"
        return f"<{type(self).__name__} {self.name}: {state}>"


def _status(popen: subprocess.Popen[bytes]) -> int | None:
    """How it ended, without collecting it; None while it runs."""
    if popen.returncode is not None or not hasattr(os, "waitid"):
        return popen.poll()
    try:
        ended = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # asked in a fork, whose child it isn't, or collected by others
        return popen.poll()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class Server(Process, abc.ABC):
    """A process with a url and a memory: what it must not lose lies in :attr:`data`."""

    def __init__(self, **options: Any) -> None:
        """Make the folder; nothing is started yet."""
        super().__init__(**options)
        self.data = self.folder / "data"

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """How clients reach it."""

    @abc.abstractmethod
    def command(self) -> Sequence[str | os.PathLike[str]]:
        """The program and its arguments."""

    def prepare(self) -> None:
        """Fill an empty :attr:`data` before the first start."""

    def launch(self) -> None:
        """Start it without waiting, with an empty memory if it has none yet."""
        if not self.data.exists():
            self.data.mkdir()
            self.give(self.data)
            self.prepare()
        super().launch()

    def crash(self) -> None:
        """What a power cut does to the process: SIGKILL."""
        self.kill()

    def forget(self) -> None:
        """Remove what a stopped server has stored."""
        if self.alive:
            raise RuntimeError(f"{self.name} must be stopped before its memory is removed")
        shutil.rmtree(self.data, ignore_errors=True)

    def restart(self, timeout: float = 30.0, *, memory: bool = True) -> None:
        """Stop it, unless it has ended, and start it again on the same port.

        Args:
            timeout: seconds for it to become ready.
            memory: False: it comes back empty, as from a lost disk.
        """
        self.stop()
        if not memory:
            self.forget()
        self.start(timeout)

    @staticmethod
    def find(program: str, cure: str, folders: Iterable[str] = ()) -> str:
        """The path of a program on PATH or in one of the folders (patterns allowed).

        Raises:
            MissingServer: it is nowhere.
        """
        places = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
        for pattern in folders:
            where = Path(pattern)
            places += sorted(
                map(str, Path(where.anchor).glob(str(where.relative_to(where.anchor))))
            )
        found = shutil.which(program, path=os.pathsep.join(places))
        if found is None:
            raise MissingServer(program, cure)
        return found
