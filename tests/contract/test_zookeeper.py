"""ZooKeeper: what the contract can't ask of every coordinator.  Real servers, real faults."""

import dataclasses
import json
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo.client import KazooClient

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, CoordinatorSettings, Grant, Holder, from_urls
from celery_redlock.coordinators.zookeeper_clock import FRESH, Seen, Stamp
from celery_redlock.coordinators.zookeeper_nodes import Content, Paths
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from localservers import Certificates, Proxy, ZooKeeper, free_port, zookeeper_ensemble

ROOT = Path(__file__).parents[2]
ME = Holder(task="shop.pay", pid=42)


@pytest.fixture
def chroot():
    """A chroot that this test alone uses; nobody has made it."""
    return f"/tests/{secrets.token_hex(4)}"


@pytest.fixture
def client(chroot):
    """Makes coordinators, and closes them."""
    made = []

    def connect(server, **settings):
        settings = CoordinatorSettings(prefix="shop", **{"node_timeout": 1.0, **settings})
        url = server if isinstance(server, str) else server.url
        made.append(from_urls(url + chroot, settings))
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def locks(client, zookeeper):
    """A coordinator of the shared server."""
    return client(zookeeper)


@pytest.fixture
def admin(zookeeper):
    """Somebody else at the shared server."""
    made = KazooClient(f"127.0.0.1:{zookeeper.port}")
    made.start()
    yield made
    made.stop()
    made.close()


@pytest.fixture
def node(chroot):
    """The path of a lock."""
    return Paths(chroot, "shop", "lock").lock


def take(locks, key="k", ttl=60.0):
    """Take a lock that must be free."""
    got = locks.acquire(key, secrets.token_hex(16), ttl, ME)
    assert isinstance(got, Grant), got
    return got


def patiently(call, seconds=30.0):
    """What the call gives, once somebody can say."""
    deadline = now() + seconds
    while True:
        try:
            return call()
        except CoordinatorUnavailable:
            if now() > deadline:
                raise
            time.sleep(0.02)


# Tokens


def test_the_token_is_the_czxid_and_the_node_is_not_ephemeral(locks, admin, node):
    """The ensemble itself numbers the grants, and keeps them for longer than our session."""
    grant = take(locks)
    stat = admin.exists(node("k"))
    assert grant.fencing_token == stat.czxid
    assert stat.ephemeralOwner == 0
    assert admin.get_children(node("k")) == [grant.owner]


def test_a_raised_floor_lifts_every_later_token(locks, client, zookeeper):
    """Tokens go on above another coordinator's, for every process at once."""
    other = client(zookeeper)
    held = take(locks, "held")
    floor = int(held.fencing_token) + 10**15
    assert locks.raise_floor(floor) == floor
    assert other.raise_floor(5) == floor
    tokens = [int(take(who, key).fencing_token) for who, key in ((other, "a"), (locks, "b"))]
    assert floor < tokens[0] < tokens[1]
    assert locks.extend(held, 60.0).fencing_token == held.fencing_token
    assert locks.raise_floor(floor + 1) == floor + 1


def test_a_token_whose_floor_is_not_known_is_not_told(locks, client, zookeeper):
    """A lock that was taken before the floor was raised can be kept, not asked for again."""
    held = take(locks)
    locks.raise_floor(10**15)
    other = client(zookeeper)
    assert other.inspect("k").fencing_token is None
    with pytest.raises(CoordinatorUnavailable, match="floor"):
        other.acquire("k", held.owner, 60.0, ME)
    assert other.extend(held, 60.0).fencing_token == held.fencing_token


def test_a_floor_that_is_no_number_stops_every_acquire(locks, admin, chroot, node):
    """Better no token than one that may go back; and the lock isn't left behind."""
    take(locks, "first")
    admin.create(f"{chroot}/shop/floor", b"high")
    with pytest.raises(CoordinatorUnavailable, match="floor"):
        locks.acquire("k", "o", 60.0, ME)
    with pytest.raises(CoordinatorUnavailable, match="floor"):
        locks.inspect("first")  # an answer that comes behind the undo
    admin.sync("/")
    assert admin.exists(node("k")) is None


# Sessions


def test_an_expired_session_costs_nothing(locks, zookeeper):
    """The lock is kept, extended and released by the next session, and nobody else got in."""
    grant = take(locks)
    session = locks._sessions.get()
    before = session.client.client_id
    lost = threading.Event()
    session.client.add_listener(lambda state: lost.set() if state == "LOST" else None)
    double = KazooClient(f"127.0.0.1:{zookeeper.port}", client_id=before)
    double.start()
    double.stop()  # which ends the session for both
    double.close()
    assert lost.wait(10.0)
    assert isinstance(patiently(lambda: locks.acquire("k", "other", 60.0, ME)), Conflict)
    assert session.client.client_id != before
    kept = locks.extend(grant, 60.0)
    assert kept.fencing_token == grant.fencing_token
    assert locks.release(kept) is True


def test_a_removed_node_is_a_lost_lock(locks, admin, node):
    """Extend says that it is gone, release too, and neither writes anything."""
    grant = take(locks)
    admin.delete(node("k"), recursive=True)
    before = admin.exists("/").pzxid, len(admin.get_children(node("k").rpartition("/")[0]))
    assert locks.extend(grant, 60.0) is None
    assert locks.release(grant) is False
    after = admin.exists("/").pzxid, len(admin.get_children(node("k").rpartition("/")[0]))
    assert after == before


def test_a_successor_of_the_same_version_is_not_mistaken_for_us(locks, admin, node):
    """Node versions start anew with every grant, so only the owner's child tells them apart."""
    old = take(locks)
    locks.release(old)
    new = take(locks)
    version = admin.exists(node("k")).version
    assert locks.extend(old, 600.0) is None
    assert locks.release(old) is False
    assert admin.exists(node("k")).version == version
    assert locks.release(new) is True


# The end of a ttl


def seen(*, ttl=10.0, time=1000.0, epoch=7, at=50.0):
    """A node that was stamped at ``time`` of the leader's clock, and read at ``at`` of ours."""
    stat = SimpleNamespace(version=1, czxid=epoch << 32, mzxid=(epoch << 32) + 5, mtime=time * 1000)
    data = Content("owner", ME, ttl).to_bytes()
    return Seen.of((data, stat), at)


def test_what_is_left_is_counted_by_the_leaders_clock():
    """Stamped at 1000 with a ttl of 10, and it is 1004 there: 6 s are left."""
    stamp = Stamp(epoch=7, time=1004.0, before=59.9, after=60.0)
    assert seen().left(stamp, 60.0) == pytest.approx(6.0, abs=0.01)
    assert seen().left(stamp, 62.0) == pytest.approx(4.0, abs=0.01)


@pytest.mark.parametrize(
    "stamp, instant",
    [
        (None, 60.0),
        (Stamp(epoch=8, time=1020.0, before=59.9, after=60.0), 60.0),
        (Stamp(epoch=7, time=990.0, before=59.9, after=60.0), 60.0),
        (Stamp(epoch=7, time=1020.0, before=49.9, after=50.0), 60.0),
        (Stamp(epoch=7, time=1001.0, before=59.9, after=60.0), 60.0 + FRESH + 1),
    ],
    ids=["no stamp", "another leader", "stepped back", "from before the look", "too old"],
)
def test_a_stamp_that_cannot_tell_says_nothing(stamp, instant):
    """Only a stamp of the same leader, made after the look, ends a lock."""
    assert seen().left(stamp, instant) is None


def test_a_lock_is_over_only_behind_its_ttl():
    """A thousandth of a second of doubt, as stamps are cut to milliseconds, is the holder's."""
    for age, over in ((9.9, False), (10.0, False), (10.001, False), (10.003, True)):
        stamp = Stamp(epoch=7, time=1000.0 + age, before=59.9, after=60.0)
        assert (seen().left(stamp, 60.0) <= 0) is over


def test_what_is_known_of_the_leaders_clock_is_bounded_by_the_request():
    """It shows at the least what it showed when the answer came, at the most when it was asked."""
    stamp = Stamp(epoch=7, time=1000.0, before=50.0, after=51.0)
    assert (stamp.least(61.0), stamp.most(61.0)) == (1010.0, 1011.0)


def test_a_lock_of_another_leader_is_stamped_anew_and_then_ends(servers, client):
    """Leader killed: a dead holder's lock goes on for one ttl at the most, then it is taken."""
    ensemble = servers.start(zookeeper_ensemble)
    locks = client(ensemble)
    grant = take(locks, ttl=1.0)
    kept = take(locks, "kept", ttl=60.0)
    crash_leader(ensemble)
    first = patiently(lambda: locks.acquire("k", "other", 60.0, ME))
    assert isinstance(first, Conflict)  # over by the clock of before, which nobody asks
    start = now()
    while not isinstance(got := locks.acquire("k", "other", 60.0, ME), Grant):
        assert now() - start < 10.0
        time.sleep(0.02)
    assert now() - start > 0.5
    assert got.fencing_token > grant.fencing_token
    assert locks.extend(grant, 60.0) is None
    assert locks.extend(kept, 60.0).fencing_token == kept.fencing_token
    assert "error" not in {finding.level for finding in locks.check()}


def crash_leader(ensemble):
    """Kill the server that leads."""
    for server in ensemble:
        asked = KazooClient(f"127.0.0.1:{server.port}")
        asked.start()
        leads = b"leader" in asked.command(b"srvr").encode()
        asked.stop()
        asked.close()
        if leads:
            server.crash()
            return
    pytest.fail("nobody leads")


def test_a_stamp_in_the_future_is_made_anew(locks, admin, node, monkeypatch):
    """After a step back of the leader's clock a lock doesn't last longer than its ttl."""
    take(locks, ttl=0.5)
    stat = admin.exists(node("k"))
    real = Seen.of

    def ahead(found, instant):
        """The node as it was read, stamped an hour ahead until somebody else writes it."""
        one = real(found, instant)
        if one is not None and one.version == stat.version:
            return dataclasses.replace(one, time=one.time + 3600)
        return one

    monkeypatch.setattr(Seen, "of", ahead)
    first = locks.acquire("k", "other", 60.0, ME)
    assert isinstance(first, Conflict)
    assert first.retry_after <= 0.5
    start = now()
    while not isinstance(locks.acquire("k", "other", 60.0, ME), Grant):
        assert now() - start < 5.0
        time.sleep(0.02)


def test_contenders_that_find_a_lock_held_write_little(locks, admin, chroot):
    """The leader's clock is asked for once, not at every conflict."""
    grant = take(locks, ttl=60.0)
    for _ in range(5):
        locks.acquire("k", "other", 60.0, ME)
    clock = admin.exists(f"{chroot}/shop/clock")
    assert clock is None or clock.version <= 1
    assert locks.extend(grant, 60.0) is not None


def test_a_prune_removes_what_died_and_nothing_else(locks, admin, node):
    """Nodes of dead holders go once they have been over for long enough."""
    dead, alive = take(locks, "dead", ttl=0.1), take(locks, "alive", ttl=60.0)
    time.sleep(max(0.0, dead.valid_until + 0.1 - now()))
    assert locks.prune(60.0) == 0
    assert locks.prune(0.0) == 1
    assert admin.exists(node("dead")) is None
    assert locks.extend(alive, 60.0) is not None
    assert locks.extend(dead, 60.0) is None


def test_a_lock_that_is_over_and_that_nobody_took_is_still_ours(locks):
    """Nobody was let in meanwhile, so the grant is as good as before."""
    grant = take(locks, ttl=0.2)
    time.sleep(max(0.0, grant.valid_until + 0.1 - now()))
    assert locks.inspect("k") is None
    assert locks.extend(grant, 60.0).fencing_token == grant.fencing_token
    assert isinstance(locks.acquire("k", "other", 60.0, ME), Conflict)


def test_an_extend_between_the_look_and_the_takeover_wins(locks, client, zookeeper, monkeypatch):
    """Who was judged to be over and comes back in time isn't overtaken."""
    grant = take(locks, ttl=0.2)
    time.sleep(max(0.0, grant.valid_until + 0.1 - now()))
    other = client(zookeeper)
    judge, judged = other._left, []

    def slow(*args):
        judged.append(judge(*args))
        assert locks.extend(grant, 60.0) is not None
        return judged[0]

    monkeypatch.setattr(other, "_left", slow)
    assert other.acquire("k", "other", 60.0, ME) == Conflict("k", certain=False)
    assert judged[0] <= 0
    assert locks.extend(grant, 60.0).fencing_token == grant.fencing_token


def test_a_strangers_node_is_a_lock_that_nobody_may_take(locks, admin, node):
    """What isn't ours is left alone."""
    admin.create(node("k"), b"not ours", makepath=True)
    conflict = locks.acquire("k", "o", 60.0, ME)
    assert isinstance(conflict, Conflict)
    assert conflict.holder in {None, Holder()}
    assert locks.prune(0.0) == 0
    assert admin.get(node("k"))[0] == b"not ours"


# Lost answers, lost servers


def test_an_acquire_without_an_answer_is_undone_behind_it(servers, zookeeper, client):
    """The lock that was granted unseen is free at once, although its ttl is a minute."""
    proxy = servers.start(Proxy, zookeeper.url)
    locks, watcher = client(proxy.url, node_timeout=0.3), client(zookeeper)
    locks.release(take(locks))  # the nodes above it are there
    watcher.inspect("k")
    proxy.hold(requests=False)
    with pytest.raises(CoordinatorUnavailable, match="timed out|connection broke"):
        locks.acquire("k", "o", 60.0, ME)
    proxy.heal()
    deadline = now() + 15.0
    while not isinstance(watcher.acquire("k", "p", 60.0, ME), Grant):
        assert now() < deadline
        time.sleep(0.02)
    assert watcher.inspect("k").owner == "p"


def test_a_request_is_not_kept_for_later(servers, zookeeper, client):
    """Without a connection nothing is queued that could be carried out an hour later."""
    proxy = servers.start(Proxy, zookeeper.url)
    locks, watcher = client(proxy.url), client(zookeeper)
    take(locks, "warm up")
    proxy.refuse()
    lost = locks._sessions.get().client
    deadline = now() + 10.0
    while lost.connected:
        assert now() < deadline
        time.sleep(0.01)
    with pytest.raises(CoordinatorUnavailable, match="not connected"):
        locks.acquire("k", "o", 60.0, ME)
    proxy.heal()
    assert patiently(lambda: locks.inspect("warm up")) is not None
    assert watcher.inspect("k") is None


def test_a_server_that_hangs_is_left_for_another(servers, client):
    """Three nodes, the one that we talk to paused: another goes on after a few seconds."""
    ensemble = servers.start(zookeeper_ensemble)
    locks = client(ensemble)
    grant = take(locks)
    port = locks._sessions.get().client._connection._socket.getpeername()[1]
    silent = next(server for server in ensemble if server.port == port)
    silent.pause()
    try:
        kept = patiently(lambda: locks.extend(grant, 60.0))
        assert kept.fencing_token == grant.fencing_token
        assert take(locks, "new").fencing_token > grant.fencing_token
    finally:
        silent.resume()


# Users, urls


def test_a_users_locks_are_closed_to_others(locks, client, zookeeper, chroot):
    """With a user in the url the nodes are that user's; a stranger is told so, without secrets."""
    url = f"zookeeper://shop:hunter2@127.0.0.1:{zookeeper.port}"
    ours = client(url)
    grant = take(ours)
    with pytest.raises(CoordinatorUnavailable, match="permission denied") as caught:
        locks.acquire("k", "o", 60.0, ME)
    found = locks.check()
    assert any(f.level == "error" and "permission denied" in f.message for f in found)
    assert ours.release(grant) is True
    assert "error" not in {finding.level for finding in ours.check()}
    assert "hunter2" not in f"{ours!r} {ours.check()} {caught.value!r} {found}"


class EncryptedZooKeeper(ZooKeeper):
    """A server that speaks TLS on its port, asks clients for a certificate, and has a plain port."""

    def prepare(self):
        """Make the certificates, and ask for them."""
        super().prepare()
        self.plain = free_port()
        self.certificates = made = Certificates.make(self.folder)
        both = self.folder / "both.pem"
        both.write_text(made.key.read_text() + made.certificate.read_text())
        settings = self.folder / "zoo.cfg"
        lines = settings.read_text().replace(
            f"clientPort={self.port}\nclientPortAddress",
            f"secureClientPort={self.port}\nsecureClientPortAddress=127.0.0.1\n"
            f"clientPort={self.plain}\nclientPortAddress",
        )
        lines += "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        lines += f"ssl.keyStore.location={both}\nssl.keyStore.type=PEM\nssl.clientAuth=need\n"
        lines += f"ssl.trustStore.location={made.authority}\nssl.trustStore.type=PEM\n"
        settings.write_text(lines)

    def ready(self):
        """Whether it serves, asked at its plain port."""
        encrypted, self.port = self.port, self.plain
        try:
            return super().ready()
        finally:
            self.port = encrypted


BLIND = """
import sys
from celery_redlock.coordinators import CoordinatorSettings, Holder, from_urls
from_urls(sys.argv[1], CoordinatorSettings()).acquire("k", "o", 60.0, Holder())
"""


def test_certificates_are_used_and_checked(servers):
    """With the right files it works; without the authority nobody gets in."""
    server = servers.start(EncryptedZooKeeper)
    files = server.certificates
    address = f"zookeeper://127.0.0.1:{server.port}"
    own = f"cert={files.certificate}&key={files.key}"
    locks = from_urls(f"{address}?ca={files.authority}&{own}", CoordinatorSettings())
    try:
        assert locks.release(patiently(lambda: take(locks))) is True
        assert "error" not in {finding.level for finding in locks.check()}
    finally:
        locks.close()
    # In a process of its own: kazoo leaves the socket of a failed handshake to the collector.
    blind = subprocess.run(
        [sys.executable, "-c", BLIND, f"{address}?{own}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "CERTIFICATE_VERIFY_FAILED" in blind.stderr
    assert "CoordinatorUnavailable" in blind.stderr


def test_servers_of_two_ensembles_are_an_error(servers, zookeeper, client):
    """Two servers that each stand alone would grant one lock twice."""
    other = servers.start(ZooKeeper)
    found = client(f"{zookeeper.url},127.0.0.1:{other.port}").check()
    assert any(f.level == "error" and "stand alone" in f.message for f in found)


def test_no_server_at_all_is_an_error(client):
    """The error names the ensemble, the check each server."""
    locks = client("zookeeper://127.0.0.1:1,127.0.0.1:2", node_timeout=0.1)
    with pytest.raises(CoordinatorUnavailable, match="not connected") as caught:
        locks.acquire("k", "o", 0.4, ME)
    assert list(caught.value.nodes) == ["127.0.0.1:1,127.0.0.1:2"]
    found = locks.check()
    assert [finding.level for finding in found] == ["warning", "warning", "error"]


@pytest.mark.parametrize(
    "urls, said",
    [
        (["zookeeper://a:1", "zookeeper://b:1"], "one ensemble"),
        (["zookeeper://a:0"], "ports from 1 to 65535"),
        (["zookeeper://a:1,a:1"], "names a server twice"),
        (["zookeeper://a?timeout=3"], "unknown option 'timeout'"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(urls, said):
    """The message says what is wrong with it."""
    with pytest.raises(ImproperlyConfigured, match=said):
        from_urls(urls, CoordinatorSettings())


def test_without_kazoo_the_error_says_what_to_install(monkeypatch):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(ImproperlyConfigured, match=r"celery_redlock\[zookeeper\]"):
        from_urls("zookeeper://a", CoordinatorSettings())


def test_any_key_is_a_path_of_its_own():
    """Slashes, dots, control characters and any length come to different, legal paths."""
    keys = ["a", "A", "a/b", "a%2Fb", ".", "..", "...", "a.b", "\0", "\n", "é", "x" * 300]
    keys += ["x" * 301, "zookeeper", "", " "]
    paths = [Paths("/c", "p/q", "lock").lock(key) for key in keys if key]
    assert len(set(paths)) == len(paths)
    for path in paths:
        parts = path.split("/")
        assert len(parts) == 6
        assert not {".", "..", ""} & set(parts[1:])
        assert path.isprintable()
        assert len(path) < 320


def test_content_that_is_not_ours_is_read_as_a_strangers():
    """Nothing that somebody else stored can break us or look expired."""
    for data in (b"", b"{}", b"[]", b"null", b"\xff", json.dumps({"owner": "x"}).encode()):
        assert Content.of(data) == Content("", None, float("inf"))
