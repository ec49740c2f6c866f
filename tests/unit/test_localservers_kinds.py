"""Every kind of server starts, survives a crash on the same url, and is gone after its close."""

import os
import select

import pytest
import redis

from localservers import (
    Certificates,
    Cluster,
    Etcd,
    MariaDB,
    Postgres,
    RabbitMQ,
    Valkey,
    ZooKeeper,
    etcd_cluster,
    sentinel_cluster,
    valkey_cluster,
    zookeeper_ensemble,
)

ALONE = (Valkey, Etcd, ZooKeeper, Postgres, MariaDB, RabbitMQ)
TOGETHER = (valkey_cluster, etcd_cluster, zookeeper_ensemble)


@pytest.mark.parametrize("make", ALONE, ids=lambda make: make.__name__)
def test_a_server_comes_back_after_a_crash_and_leaves_nothing_behind(servers, make):
    """It is ready when its start returns, again after a SIGKILL, and gone after its close."""
    server = servers.start(make)
    url = server.url
    server.crash()
    assert not server.ready()
    server.restart()
    assert server.alive
    assert server.url == url
    pidfd = os.pidfd_open(server.pid)
    server.close()
    assert select.select([pidfd], [], [], 5)[0]
    os.close(pidfd)
    assert not server.folder.exists()


@pytest.mark.parametrize("make", TOGETHER, ids=lambda make: make.__name__)
def test_a_cluster_starts_and_can_lose_a_member(servers, make):
    """Three members are ready together; two are when one is killed, and three again."""
    cluster = servers.start(make, 3)
    assert isinstance(cluster, Cluster)
    assert len(set(cluster.urls)) == 3
    cluster[0].crash()
    assert [server.alive for server in cluster] == [False, True, True]
    cluster[0].restart()
    assert all(server.alive for server in cluster)


def test_tls_is_spoken_and_the_authority_is_checked(servers, tmp_path):
    """A client that trusts the authority gets in; one that trusts others doesn't."""
    server = servers.start(Valkey, tls=Certificates.make(tmp_path))
    assert server.client().ping()
    with (
        redis.Redis(host="localhost", port=server.port, ssl=True) as stranger,
        pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        stranger.ping()


def test_a_password_is_asked_for(servers):
    """Without its password a client is let in and may do nothing."""
    server = servers.start(Valkey, password="toy")
    assert server.client().ping()
    with (
        redis.Redis(port=server.port, protocol=2) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.get("key")


def test_a_socket_file_takes_the_place_of_a_port(servers):
    """A server can listen on a file only."""
    server = servers.start(Valkey, unix_socket=True)
    assert server.url.startswith("unix://")
    assert server.client().ping()


def test_sentinels_watch_a_master_and_its_replica(servers):
    """The sentinels know who the master is, and that it has a replica."""
    watched, sentinels = servers.start(sentinel_cluster)
    assert len(watched) == 2
    assert all(sentinel.ready() for sentinel in sentinels)
    assert watched[1].client().info("replication")["role"] == "slave"
