"""Every coordinator that must keep the contract: one line each, with the servers it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from localservers import (
    Cluster,
    Etcd,
    MariaDB,
    Postgres,
    Server,
    Valkey,
    ZooKeeper,
    etcd_cluster,
    valkey_cluster,
    zookeeper_ensemble,
)


@dataclass(frozen=True)
class Kind:
    """One way to get a coordinator.

    Attributes:
        name: for test ids.
        urls: from the servers' ports (and an empty folder) to the coordinator's urls.
        server: makes the servers; None: it needs none.
        fenced: whether it is asked for fencing tokens.
    """

    name: str
    urls: Callable[[Sequence[int], Path], list[str]]
    server: Callable[[], Any] | None = None
    fenced: bool = True

    def __str__(self) -> str:
        return self.name


def _redis(ports: Sequence[int], folder: Path) -> list[str]:
    return [f"redis://127.0.0.1:{port}/0" for port in ports]


def _together(form: str) -> Callable[[Sequence[int], Path], list[str]]:
    """One url that names all servers; ``form`` has ``{}`` where they go."""
    return lambda ports, folder: [form.format(",".join(f"127.0.0.1:{port}" for port in ports))]


KINDS = (
    Kind("memory", lambda ports, folder: ["memory://"]),
    Kind("redis", _redis, Valkey, fenced=False),
    Kind("redlock_3", _redis, partial(valkey_cluster, 3)),
    Kind("redlock_5", _redis, partial(valkey_cluster, 5)),
    Kind("redlock_3_unfenced", _redis, partial(valkey_cluster, 3), fenced=False),
    Kind("etcd", _together("etcd://{}"), Etcd),
    Kind("etcd_3", _together("etcd://{}"), etcd_cluster),
    Kind("zookeeper", _together("zookeeper://{}"), ZooKeeper),
    Kind("zookeeper_3", _together("zookeeper://{}"), zookeeper_ensemble),
    Kind("sqlite", lambda ports, folder: [f"sqlite:///{folder / 'locks.db'}"]),
    Kind("postgres", _together("postgresql+psycopg://postgres@{}/postgres"), Postgres),
    Kind("mariadb", _together("mysql+pymysql://locks@{}/locks?charset=utf8mb4"), MariaDB),
)


def members(made: Any) -> list[Server]:
    """The servers of a server or a cluster."""
    return list(made) if isinstance(made, Cluster) else [made]


def majority_of(made: Any) -> list[Server]:
    """As many servers as it takes to stop the whole."""
    several = members(made)
    return several[: len(several) // 2 + 1]
