"""Every coordinator that must keep the contract: one line each, with the servers it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from celery_redlock.coordinators.sql import create_all
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
        prepare: makes what must be there before the first call, given the first url.
    """

    name: str
    urls: Callable[[Sequence[int], Path], list[str]]
    server: Callable[[], Any] | None = None
    fenced: bool = True
    prepare: Callable[[str], None] = lambda url: None

    def __str__(self) -> str:
        return self.name


def _redis(ports: Sequence[int], folder: Path) -> list[str]:
    return [f"redis://127.0.0.1:{port}/0" for port in ports]


def _together(form: str) -> Callable[[Sequence[int], Path], list[str]]:
    """One url that names all servers; ``form`` has ``{}`` where they go."""
    return lambda ports, folder: [form.format(",".join(f"127.0.0.1:{port}" for port in ports))]


def _table(url: str) -> None:
    """Make the table of the locks, as an operator does once."""
    engine = create_engine(url)
    create_all(engine)
    engine.dispose()


def _sqlite(ports: Sequence[int], folder: Path) -> list[str]:
    return [f"sqlite:///{folder / 'locks.db'}"]


def _alone(form: str) -> Callable[[Sequence[int], Path], list[str]]:
    """One url that names the first server; ``form`` has ``{}`` where it goes."""
    return lambda ports, folder: [form.format(f"127.0.0.1:{ports[0]}")]


_postgres = _alone("postgresql+psycopg://postgres@{}/postgres")
_mariadb = _alone("mysql+pymysql://locks@{}/locks?charset=utf8mb4")


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
    Kind("sqlite", _sqlite, prepare=_table),
    Kind("postgres", _postgres, Postgres, prepare=_table),
    Kind("mariadb", _mariadb, MariaDB, prepare=_table),
)


def members(made: Any) -> list[Server]:
    """The servers of a server or a cluster."""
    return list(made) if isinstance(made, Cluster) else [made]


def majority_of(made: Any) -> list[Server]:
    """As many servers as it takes to stop the whole."""
    several = members(made)
    return several[: len(several) // 2 + 1]
