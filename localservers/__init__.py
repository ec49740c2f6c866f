"""Real servers on free loopback ports, for the tests, the demo and the benchmarks.

Process control and nothing else: no test framework, and no opinion about what the servers are
used for.  Every server lives in a temporary folder of its own, is stopped by its process id,
and dies with the process that started it, however that one ends.
"""

from localservers.cluster import Cluster
from localservers.process import MissingServer, Process, Server, ServerFailed
from localservers.valkey import Sentinel, Valkey, sentinel_cluster, valkey_cluster

__all__ = [
    "Cluster",
    "MissingServer",
    "Process",
    "Sentinel",
    "Server",
    "ServerFailed",
    "Valkey",
    "sentinel_cluster",
    "valkey_cluster",
]
