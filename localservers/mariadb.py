"""A MariaDB server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Sequence

from localservers.ports import free_port
from localservers.process import Server

__all__ = ["MariaDB"]

_CURE = "install the Debian package mariadb-server"
_FIRST_STATEMENTS = """\
CREATE DATABASE IF NOT EXISTS locks CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'locks'@'%';
GRANT ALL ON locks.* TO 'locks'@'%';
"""


class MariaDB(Server):
    """One server with a user and a database ``locks``, without a password.

    As root it runs as the user ``mysql``.
    """

    def __init__(self) -> None:
        """Choose the program and the port; nothing is started yet."""
        self.program = self.find("mariadbd", _CURE)
        self.install = self.find("mariadb-install-db", _CURE)
        super().__init__(name="mariadb", user="mysql")
        self.port = free_port()
        self.first = self.folder / "first.sql"
        self.first.write_text(_FIRST_STATEMENTS)
        self.first.chmod(0o644)

    @property
    def url(self) -> str:
        """The SQLAlchemy url, for PyMySQL."""
        return f"mysql+pymysql://locks@127.0.0.1:{self.port}/locks?charset=utf8mb4"

    def prepare(self) -> None:
        """Make the database files."""
        options = "--skip-test-db --auth-root-authentication-method=normal"
        subprocess.run(
            [self.install, "--no-defaults", f"--datadir={self.data}", *options.split()],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            user=self.user,
            extra_groups=[] if self.user else None,
        )

    def command(self) -> Sequence[str]:
        """The start line."""
        return [
            self.program,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder / 's.sock'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.first}",
            "--skip-name-resolve",
            # Looking whether it is ready counts as an error; too many would lock us out.
            "--max-connect-errors=1000000",
        ]

    def ready(self) -> bool:
        """Whether it greets: a protocol 10 handshake, and no error."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 2.0) as connection,
        ):
            return connection.recv(5)[4:] == b"\x0a"
        return False
