"""Real servers on free loopback ports, for the tests, the demo and the benchmarks.

Process control and nothing else: no test framework, and no opinion about what the servers are
used for.  Every server lives in a temporary folder of its own, is stopped by its process id,
and dies with the process that started it, however that one ends.
"""

from localservers.certificates import Certificates
from localservers.cluster import Cluster
from localservers.etcd import Etcd, EtcdCluster, etcd_cluster
from localservers.mariadb import MariaDB
from localservers.ports import free_port
from localservers.postgres import Postgres
from localservers.process import MissingServer, Process, Server, ServerFailed
from localservers.proxy import Proxy
from localservers.rabbitmq import RabbitMQ
from localservers.valkey import (
    Sentinel,
    Valkey,
    find_debian_redis,
    sentinel_cluster,
    valkey_cluster,
)
from localservers.zookeeper import ZooKeeper, ZooKeeperEnsemble, zookeeper_ensemble

__all__ = [
    "Certificates",
    "Cluster",
    "Etcd",
    "EtcdCluster",
    "MariaDB",
    "MissingServer",
    "Postgres",
    "Process",
    "Proxy",
    "RabbitMQ",
    "Sentinel",
    "Server",
    "ServerFailed",
    "Valkey",
    "ZooKeeper",
    "ZooKeeperEnsemble",
    "etcd_cluster",
    "find_debian_redis",
    "free_port",
    "sentinel_cluster",
    "valkey_cluster",
    "zookeeper_ensemble",
]
