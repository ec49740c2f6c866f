"""ZooKeeper servers, one or several that form an ensemble."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from localservers.cluster import Cluster
from localservers.ports import free_port
from localservers.process import MissingServer, Server

__all__ = ["ZooKeeper", "ZooKeeperEnsemble", "zookeeper_ensemble"]

_JARS = Path("/usr/share/java")
_SETTINGS = "/etc/zookeeper/conf"
_CURE = "install the Debian package zookeeper"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeper(Server):
    """One server; alone unless :func:`zookeeper_ensemble` makes it a member.

    Args:
        number: the member's number in its ensemble, 1 or more.
        tick: milliseconds; a session lives at least two ticks and at most twenty.
    """

    def __init__(self, number: int = 1, *, tick: int = 100) -> None:
        """Choose the ports; nothing is started yet."""
        self.java = self.find("java", _CURE)
        if not (_JARS / "zookeeper.jar").exists():
            raise MissingServer("zookeeper", _CURE)
        super().__init__(name="zookeeper")
        self.number = number
        self.tick = tick
        self.port = free_port()
        self.peer_ports = free_port(), free_port()
        self.members: Sequence[ZooKeeper] = [self]

    @property
    def url(self) -> str:
        """How clients reach this server."""
        return f"zookeeper://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Write the member's number and its configuration."""
        (self.data / "myid").write_text(f"{self.number}\n")
        lines = [
            f"tickTime={self.tick}",
            "initLimit=100",
            "syncLimit=50",
            f"dataDir={self.data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",
        ]
        if len(self.members) > 1:
            for member in self.members:
                follow, elect = member.peer_ports
                lines.append(f"server.{member.number}=127.0.0.1:{follow}:{elect}")
        (self.folder / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        """The start line."""
        quick = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        quiet = ["-Dzookeeper.jmx.log4j.disable=true"]
        jars = ["-cp", f"{_JARS}/*:{_SETTINGS}"]
        return [self.java, *quick, *quiet, *jars, _MAIN, str(self.folder / "zoo.cfg")]

    def ready(self) -> bool:
        """Whether it serves; ``ruok`` is answered before that, ``srvr`` names a mode only then."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 2.0) as connection,
        ):
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return b"Mode:" in answer
        return False


class ZooKeeperEnsemble(Cluster[ZooKeeper]):
    """Members of one ensemble."""

    @property
    def url(self) -> str:
        """One url that names every member."""
        return "zookeeper://" + ",".join(f"127.0.0.1:{member.port}" for member in self.servers)


def zookeeper_ensemble(members: int = 3, **options: int) -> ZooKeeperEnsemble:
    """``members`` servers that form an ensemble; see :class:`ZooKeeper`.  Not started yet."""
    servers = [ZooKeeper(number, **options) for number in range(1, members + 1)]
    for server in servers:
        server.members = servers
    return ZooKeeperEnsemble(servers)
