"""A PostgreSQL server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from localservers.ports import free_port
from localservers.process import Server

__all__ = ["Postgres"]

_FOLDERS = ("/usr/lib/postgresql/*/bin",)
_CURE = "install the Debian package postgresql"
# A start-up message of protocol 3.0 for user and database "postgres".
_HELLO = b"\x00\x03\x00\x00user\x00postgres\x00\x00"


class Postgres(Server):
    """One server with a user and a database ``postgres``, without a password.

    The program refuses to run as root, so there it runs as the user ``postgres``.

    Args:
        durable: False: don't wait for the disk (a crash of the process loses nothing then
            either, one of the machine may).
    """

    def __init__(self, *, durable: bool = True) -> None:
        """Choose the program and the port; nothing is started yet."""
        self.program = self.find("postgres", _CURE, _FOLDERS)
        self.initdb = self.find("initdb", _CURE, _FOLDERS)
        # SIGINT: end now, without waiting for clients to leave.
        super().__init__(name="postgres", user="postgres", stop_signal=signal.SIGINT)
        self.durable = durable
        self.port = free_port()

    @property
    def url(self) -> str:
        """The SQLAlchemy url, for psycopg 3."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        """Make the database files."""
        options = "-U postgres -A trust -N -E UTF8 --no-locale"
        subprocess.run(
            [self.initdb, "-D", str(self.data), *options.split()],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            user=self.user,
            extra_groups=[] if self.user else None,
        )

    def command(self) -> Sequence[str]:
        """The start line."""
        listen = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-k", str(self.data)]
        sync = [] if self.durable else ["-c", "fsync=off"]
        return [self.program, "-D", str(self.data), *listen, *sync]

    def send(self, number: int, *, children: bool = False) -> None:
        """Send it a signal, or to all its processes, each of which leads a group of its own."""
        backends = self._backends() if children and self.alive else []
        super().send(number, children=children)
        for backend in backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(backend, number)

    def _backends(self) -> list[int]:
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # The parent's id is the second word behind the name, which is in parentheses.
                if int(status.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    found.append(int(status.parent.name))
        return found

    def ready(self) -> bool:
        """Whether it lets a user in; while it is starting it answers with an error."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 2.0) as connection,
        ):
            connection.sendall((len(_HELLO) + 4).to_bytes(4, "big") + _HELLO)
            return connection.recv(1) == b"R"
        return False
