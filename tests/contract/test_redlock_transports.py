"""Ways to a lock server: TLS, unix sockets, sentinels, other versions, and green threads."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import textwrap

import pytest
import redis

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict
from celery_redlock.exceptions import CoordinatorUnavailable
from localservers import (
    Certificates,
    MissingServer,
    Valkey,
    sentinel_cluster,
    valkey_cluster,
)
from tests.contract.redlock_set import ME, RedlockSet, eventually, grant, owner


@pytest.fixture
def opened():
    """Closes what a test has opened over servers."""
    sets = []

    def over(servers, urls=None):
        sets.append(RedlockSet(servers, urls))
        return sets[-1]

    yield over
    for made in sets:
        made.close()


def whole_life(coordinator, key="k"):
    """Everything that can be done with a lock, once."""
    held = grant(coordinator, key)
    assert isinstance(coordinator.acquire(key, owner(), 10.0, ME), Conflict)
    longer = coordinator.extend(held, 20.0)
    assert coordinator.inspect(key).owner == held.owner
    assert coordinator.extend_all([longer], 20.0)[0].owner == held.owner
    assert coordinator.release(longer)
    assert not coordinator.release(longer)
    assert {finding.level for finding in coordinator.check()} <= {"ok", "warning"}


def debian_redis(**options):
    """A server of another make and age (Redis 7.0 on Debian 12), which knows no DELIFEQ."""
    program = shutil.which("redis-server")
    if program is None:
        raise MissingServer("redis-server", "install the Debian package redis-server")
    return Valkey(program=program, **options)


def test_a_server_without_compare_commands(servers, opened):
    """Redis 7.0 has neither DELIFEQ nor SET IFEQ, so scripts do their work."""
    made = opened([servers.start(debian_redis)])
    coordinator = made.coordinator()
    assert coordinator._nodes[0].facts.release is None
    assert not coordinator._nodes[0].facts.extends
    whole_life(coordinator)


def test_servers_of_two_makes_in_one_set(servers, opened):
    """Each is spoken to as it can be, also for fencing tokens."""
    made = opened([*servers.start(valkey_cluster, 2), servers.start(debian_redis)])
    for fenced in (False, True):
        coordinator = made.coordinator(fenced=fenced)
        whole_life(coordinator, f"fenced-{fenced}")
    eventually(lambda: not any(name.endswith(":lock") for name in made.stored()))


def test_a_unix_socket(servers, opened):
    """``unix://`` with a database."""
    server = servers.start(Valkey, unix_socket=True)
    made = opened([server], [server.url.replace("db=0", "db=2")])
    whole_life(made.coordinator())
    assert repr(made.coordinator()) == f"<RedlockCoordinator unix://{server.socket}>"


def test_tls_is_used_and_checked(servers, opened, tmp_path):
    """``rediss://`` works with the right authority, and not with another one."""
    trusted, other = tmp_path / "trusted", tmp_path / "other"
    trusted.mkdir()
    other.mkdir()
    server = servers.start(debian_redis, tls=Certificates.make(trusted))
    made = opened([server])
    whole_life(made.coordinator())
    stranger = Certificates.make(other)
    url = f"{server.url.partition('?')[0]}?ssl_ca_certs={stranger.authority}"
    with pytest.raises(CoordinatorUnavailable, match="(?i)certificate verify failed"):
        made.coordinator([url], warm=False).acquire("k2", owner(), 10.0, ME)


def test_tls_with_many_leases(servers, opened, tmp_path):
    """More bytes than fit into one encrypted record, or into the socket's room, all arrive."""
    made = opened([servers.start(debian_redis, tls=Certificates.make(tmp_path))])
    coordinator = made.coordinator()
    grants = [grant(coordinator, f"k{number}") for number in range(300)]
    assert all(coordinator.extend_all(grants, 20.0))


# Sentinels


def test_a_failover_is_followed(servers, opened):
    """The master is killed: the sentinels name the next one, and it is asked from then on."""
    (master, replica), sentinels = servers.start(sentinel_cluster)
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    url = f"redis+sentinel://{hosts}/{sentinels[0].service}/0"
    made = opened([master, replica], [url])
    coordinator = made.coordinator()
    whole_life(coordinator)
    for sentinel in sentinels:
        eventually(lambda sentinel=sentinel: _knows_everybody(sentinel), timeout=60.0)
    master.crash()

    def granted():
        try:
            return grant(coordinator, owner())
        except CoordinatorUnavailable:
            return None

    # The sentinels' own pace; on a busy machine they may need a second election.
    eventually(granted, timeout=60.0)
    assert made.admin(1).role()[0] == b"master"
    whole_life(coordinator, "after")


def _knows_everybody(sentinel):
    """Whether a sentinel has met the replica and the other sentinels, without which it is idle."""
    with redis.Redis(port=sentinel.port) as client:
        seen = client.info("sentinel")["master0"]
    return (int(seen["slaves"]), int(seen["sentinels"])) == (1, 3)


def test_sentinels_that_are_gone_are_told():
    """Nobody can say where the master is."""
    made = RedlockSet([], ["redis+sentinel://127.0.0.1:1,127.0.0.1:2/locks/0"])
    with pytest.raises(CoordinatorUnavailable, match="No master found for 'locks'"):
        made.coordinator(warm=False).acquire("k", owner(), 10.0, ME)
    made.close()


# Green threads


GREEN = """
    import sys

    kind, urls, hung = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    if kind == "gevent":
        from gevent import monkey
        monkey.patch_all()
    else:
        import eventlet
        eventlet.monkey_patch()

    import threading, time
    from celery_redlock.coordinators import CoordinatorSettings, Grant, Holder
    from celery_redlock.coordinators.redlock import from_urls
    from celery_redlock.exceptions import CoordinatorUnavailable
    from celery_redlock.native import native_thread

    coordinator = from_urls(urls, CoordinatorSettings(node_timeout=2.0))
    turns, done, ended = [0], [], []

    def turn():
        while not ended:
            turns[0] += 1
            time.sleep(0.001)

    def work(name):
        for number in range(10):
            key = f"{name}-{number}"
            grant = coordinator.acquire(key, key, 20.0, Holder())
            assert isinstance(grant, Grant) and coordinator.extend(grant, 20.0)
            assert coordinator.release(grant)
        done.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
    threads.append(threading.Thread(target=turn))
    for thread in threads:
        thread.start()
    for thread in threads[:5]:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3, 4], done

    native = []
    started = native_thread(lambda: native.append(work("native")), "native")
    while not native and started.is_alive():
        time.sleep(0.001)
    assert done[-1] == "native", done

    one = from_urls([f"redis://127.0.0.1:{hung}/0"], CoordinatorSettings(node_timeout=0.3))
    before = turns[0]
    try:
        one.acquire("k", "k", 20.0, Holder())
    except CoordinatorUnavailable as exc:
        assert "no answer within 0.3 s" in str(exc), exc
    else:
        raise AssertionError("a hung server has answered")
    assert turns[0] - before > 20, turns[0] - before
    ended.append(True)
    print("well")
"""


@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
def test_green_threads_go_on_while_a_server_is_waited_for(kind, valkey_5, servers):
    """Patched by gevent or eventlet, nothing blocks the hub; native threads mix in nothing."""
    pytest.importorskip(kind)
    hung = servers.start(Valkey)
    hung.pause()
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(GREEN)]
    arguments = [kind, ",".join(valkey_5.urls), str(hung.port)]
    start = now()
    run = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    hung.resume()
    assert run.stdout.strip() == "well", run.stderr[-2000:]
    assert now() - start < 30


# Addresses


def test_a_names_second_address_is_tried(valkey, opened, monkeypatch):
    """``localhost`` may mean ::1 first, where nobody listens."""
    made = opened([valkey], [f"redis://localhost:{valkey.port}/0"])
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", valkey.port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    coordinator = made.coordinator(warm=False)
    whole_life(coordinator)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found[:1])
    for nobody in (found[:1], []):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, nobody=nobody: nobody)
        with pytest.raises(CoordinatorUnavailable, match="Connection refused|no address"):
            made.coordinator(warm=False).acquire("k2", owner(), 10.0, ME)


def test_a_name_that_means_nothing_is_told(opened):
    """Nobody can say where it is."""
    made = opened([], ["redis://no-such-host.invalid:6379/0"])
    with pytest.raises(CoordinatorUnavailable, match=r"no-such-host\.invalid"):
        made.coordinator(warm=False).acquire("k", owner(), 10.0, ME)
    assert {finding.level for finding in made.coordinator(warm=False).check()} == {
        "warning",
        "error",
    }


def test_a_hung_server_is_told_by_the_check(servers, opened):
    """A second is enough for a slow server, and not for one that hangs."""
    server = servers.start(Valkey)
    made = opened([server])
    server.pause()
    findings = made.coordinator(warm=False).check()
    server.resume()
    assert "no answer within 1 s" in " ".join(finding.message for finding in findings)
