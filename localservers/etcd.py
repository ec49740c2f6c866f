"""etcd servers, one or several that form a cluster."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Sequence

from localservers.cluster import Cluster
from localservers.ports import free_port
from localservers.process import Server

__all__ = ["Etcd", "EtcdCluster", "etcd_cluster"]

_CURE = "install the Debian package etcd-server"


class Etcd(Server):
    """One server; alone unless :func:`etcd_cluster` makes it a member."""

    def __init__(self, name: str = "etcd") -> None:
        """Choose the program and the ports; nothing is started yet."""
        self.program = self.find("etcd", _CURE)
        super().__init__(name=name)
        self.port = free_port()
        self.peer_port = free_port()
        self.members: Sequence[Etcd] = [self]

    @property
    def url(self) -> str:
        """How clients reach this server."""
        return f"etcd://127.0.0.1:{self.port}"

    @property
    def peer(self) -> str:
        """How the other members reach it."""
        return f"http://127.0.0.1:{self.peer_port}"

    def command(self) -> Sequence[str]:
        """The start line."""
        client = f"http://127.0.0.1:{self.port}"
        options = {
            "name": self.name,
            "data-dir": str(self.data),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": ",".join(f"{m.name}={m.peer}" for m in self.members),
            "heartbeat-interval": "50",  # ms; everything is on one machine
            "election-timeout": "500",
            "logger": "zap",
        }
        return [self.program, *(f"--{name}={value}" for name, value in options.items())]

    def ready(self) -> bool:
        """Whether it has a leader and can write."""
        with contextlib.suppress(OSError):
            health = f"http://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(health, timeout=2.0) as answer:
                return b'"true"' in answer.read()
        return False


class EtcdCluster(Cluster[Etcd]):
    """Members of one etcd cluster."""

    @property
    def url(self) -> str:
        """One url that names every member."""
        return "etcd://" + ",".join(f"127.0.0.1:{member.port}" for member in self.servers)


def etcd_cluster(members: int = 3) -> EtcdCluster:
    """``members`` servers that form a cluster.  Not started yet."""
    servers = [Etcd(f"etcd{number}") for number in range(members)]
    for server in servers:
        server.members = servers
    return EtcdCluster(servers)
