"""etcd: what the contract can't ask of every coordinator.  Real servers, real faults."""

import base64
import http.server
import json
import secrets
import ssl
import threading
import time
import urllib.request

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators import (
    Conflict,
    CoordinatorSettings,
    Grant,
    Holder,
    from_urls,
    without_password,
)
from celery_redlock.coordinators.etcd_gateway import Budget
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from localservers import Certificates, Etcd, Proxy, etcd_cluster

ME = Holder(task="shop.pay", pid=42)


def encoded(text):
    """A text as the gateway wants it."""
    return base64.b64encode(text.encode()).decode()


class Admin:
    """Somebody else with the right to change everything."""

    def __init__(self, server):
        self.base, self.headers = f"http://127.0.0.1:{server.port}/v3/", {}

    def __call__(self, path, **body):
        asked = urllib.request.Request(  # noqa: S310
            self.base + path, json.dumps(body).encode(), self.headers
        )
        with urllib.request.urlopen(asked, timeout=5.0) as answer:  # noqa: S310
            return json.loads(answer.read())

    def log_in(self, name, password):
        """Be this user from now on."""
        self.headers = {
            "Authorization": self("auth/authenticate", name=name, password=password)["token"]
        }

    def under(self, prefix):
        """Every key that begins with the prefix, and what stands there."""
        found = self("kv/range", key=encoded(prefix), range_end=encoded(prefix + "~"))
        return {base64.b64decode(kv["key"]).decode(): kv for kv in found.get("kvs", [])}

    def leases(self):
        """The numbers of all leases."""
        return {lease["ID"] for lease in self("lease/leases").get("leases", [])}


@pytest.fixture
def settings():
    """Settings with a prefix that this test alone uses."""
    return CoordinatorSettings(prefix=f"t{secrets.token_hex(4)}", node_timeout=0.5)


@pytest.fixture
def client(settings):
    """Makes coordinators, and closes them."""
    made = []

    def connect(url, settings=settings):
        made.append(from_urls(url, settings))
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def locks(client, etcd):
    """A coordinator of the shared server."""
    return client(etcd.url)


@pytest.fixture
def admin(etcd):
    """Somebody else at the shared server."""
    return Admin(etcd)


def take(locks, key="k", ttl=60.0):
    """Take a lock that must be free."""
    got = locks.acquire(key, secrets.token_hex(16), ttl, ME)
    assert isinstance(got, Grant), got
    return got


def patiently(call, seconds=10.0):
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


def test_the_token_is_the_revision_that_created_the_key(locks, admin, settings):
    """The cluster itself numbers the grants."""
    grant = take(locks)
    stored = admin.under(settings.prefix)[f"{settings.prefix}/lock/k"]
    assert grant.fencing_token == int(stored["create_revision"])


def test_a_raised_floor_lifts_every_later_token(locks, client, etcd):
    """Tokens go on above another coordinator's, also for processes that knew the old floor."""
    other = client(etcd.url)
    before, other_before = take(locks, "a"), take(other, "b")
    assert before.fencing_token < other_before.fencing_token < 10**15
    assert locks.raise_floor(10**15) == 10**15
    tokens = [int(take(who, key).fencing_token) for who, key in ((other, "c"), (locks, "d"))]
    assert 10**15 < tokens[0] < tokens[1] < 10**15 + 10**9


def test_a_floor_is_never_lowered(locks):
    """A lower floor is answered with the one that is in force."""
    locks.raise_floor(1000)
    assert locks.raise_floor(5) == 1000


def test_a_lock_that_is_held_keeps_its_token_when_the_floor_is_raised(locks, client, etcd):
    """Whoever looks at it, extends it or asks for it again sees the token of the grant."""
    grant = take(locks)
    locks.raise_floor(10**15)
    other = client(etcd.url)
    assert other.inspect("k").fencing_token == grant.fencing_token
    assert locks.extend(grant, 60.0).fencing_token == grant.fencing_token
    again = other.acquire("k", grant.owner, 60.0, ME)
    assert again.fencing_token == grant.fencing_token


# Leases


def test_a_revoked_lease_is_a_lost_lock(locks, admin, settings):
    """Extend says that it is gone, release too, and neither writes anything."""
    grant = take(locks)
    admin("lease/revoke", ID=grant.record.lease)
    before = int(admin("kv/range", key=encoded("-"))["header"]["revision"])
    assert locks.extend(grant, 60.0) is None
    assert locks.release(grant) is False
    assert admin.under(settings.prefix) == {}
    assert int(admin("kv/range", key=encoded("-"))["header"]["revision"]) == before


def test_a_deleted_key_is_a_lost_lock_though_its_lease_lives(locks, admin, settings):
    """Renewing the lease doesn't bring back the key that somebody deleted."""
    grant = take(locks)
    admin("kv/deleterange", key=encoded(f"{settings.prefix}/lock/k"))
    assert grant.record.lease in admin.leases()
    assert locks.extend(grant, 60.0) is None
    assert admin.under(settings.prefix) == {}


def test_a_released_lock_leaves_its_lease_to_the_next(locks, admin):
    """Ten locks one after the other need one lease."""
    before = admin.leases()
    used = []
    for number in range(10):
        grant = take(locks, f"k{number}")
        used.append(grant.record.lease)
        assert locks.release(grant)
    assert len(set(used)) == 1
    assert admin.leases() - before == set(used)


def test_locks_that_are_held_together_have_leases_of_their_own(locks):
    """Renewing one doesn't keep the other: it ends with its own ttl."""
    kept, left = take(locks, "kept", 2.0), take(locks, "left", 2.0)
    assert kept.record.lease != left.record.lease
    deadline = now() + 8.0
    while locks.inspect("left") is not None:
        kept = locks.extend(kept, 2.0)
        assert kept is not None
        assert now() < deadline, "renewing one lock prolongs the other"
        time.sleep(0.05)
    assert locks.inspect("kept") is not None


def test_a_lease_that_two_locks_shared_would_keep_both(locks, monkeypatch):
    """Control: this is what the test before would see if leases were shared."""
    shared = locks._leases.take(2, Budget.of(1.0))
    monkeypatch.setattr(locks._leases, "take", lambda ttl, budget: shared)
    kept, left = take(locks, "kept", 2.0), take(locks, "left", 2.0)
    end = left.valid_until + 1.5
    while now() < end:
        assert locks.extend(kept, 2.0) is not None
        time.sleep(0.05)
    assert locks.inspect("left") is not None


def test_an_unused_lease_that_has_ended_is_not_used(locks, admin):
    """A lease that was kept for the next lock and revoked meanwhile is replaced."""
    first = take(locks)
    locks.release(first)
    admin("lease/revoke", ID=first.record.lease)
    second = take(locks)
    assert second.record.lease != first.record.lease
    assert locks.extend(second, 60.0) is not None


def test_another_ttl_binds_the_lock_to_another_lease(locks, client, etcd):
    """The new ttl is what counts, the token stays, and old grants of the lock still name it."""
    grant = take(locks, ttl=60.0)
    shorter = locks.extend(grant, 5.0)
    assert shorter.fencing_token == grant.fencing_token
    assert locks.inspect("k").ttl_left <= 5.0
    longer = locks.extend(shorter, 300.0)
    assert 290.0 < locks.inspect("k").ttl_left <= 300.0
    # Somebody who knows the first grant only.
    assert client(etcd.url).extend(grant, 60.0).fencing_token == grant.fencing_token
    assert locks.release(longer) is True
    assert locks.inspect("k") is None


def test_a_ttl_is_rounded_up_to_whole_seconds_and_trusted_as_asked(locks):
    """A lock of 2.3 s is trusted for 2.3 s, and lives for 3 s."""
    before = now()
    grant = take(locks, ttl=2.3)
    assert grant.valid_until <= before + 2.3 + (now() - before)
    assert grant.record.ttl == 3


@pytest.mark.parametrize("ttl", [0.5, 0.99])
def test_a_ttl_under_a_second_is_refused(locks, ttl):
    """The message names the ttl."""
    with pytest.raises(ImproperlyConfigured, match=f"ttl={ttl:g}"):
        locks.acquire("k", "o", ttl, ME)


class SlowElection(Etcd):
    """A server whose leases live three seconds at the least."""

    def command(self):
        """The start line, with a long election timeout."""
        line = [word for word in super().command() if not word.startswith("--election-timeout")]
        return [*line, "--election-timeout=1400"]


def test_a_ttl_that_the_cluster_would_stretch_is_refused(servers, client):
    """The message says what is possible, no lease stays, and the check warns."""
    server = servers.start(SlowElection)
    locks = client(server.url)
    with pytest.raises(ImproperlyConfigured, match="3 s or more"):
        locks.acquire("k", "o", 2.0, ME)
    assert Admin(server).leases() == set()
    assert any("3 s or more" in finding.message for finding in locks.check())
    assert isinstance(locks.acquire("k", "o", 3.0, ME), Grant)


# Lost answers, lost servers


def test_an_answer_lost_with_its_connection_is_asked_for_again(servers, etcd, client, admin):
    """The transaction is sent twice, and finds itself."""
    proxy = servers.start(Proxy, etcd.url)
    locks = client(proxy.url)
    take(locks, "warm up")
    proxy.drop_reply(2)  # the first is that to the new lease
    grant = take(locks)
    held = client(etcd.url).inspect("k")
    assert (held.owner, held.fencing_token) == (grant.owner, grant.fencing_token)
    proxy.drop_reply(1)
    assert locks.release(grant) is True


def test_an_acquire_without_an_answer_revokes_its_lease(servers, etcd, client):
    """The lock that was granted unseen is free at once, although its ttl is a minute."""
    proxy = servers.start(Proxy, etcd.url)
    locks, watcher = client(proxy.url), client(etcd.url)
    take(locks, "warm up")
    proxy.drop_reply(2, then_close=False)  # the first is that to the new lease
    with pytest.raises(CoordinatorUnavailable, match="timed out"):
        locks.acquire("k", "o", 60.0, ME)
    assert watcher.inspect("k") is None


def test_a_server_that_hangs_is_passed_over_in_the_same_call(servers, client):
    """Two endpoints of one cluster, one of them silent: every call is answered in time."""
    cluster = servers.start(etcd_cluster)
    proxy = servers.start(Proxy, port=cluster[0].port)
    locks = client(f"etcd://127.0.0.1:{proxy.port},127.0.0.1:{cluster[1].port}")
    grant = take(locks)
    proxy.hold()
    start = now()
    for _ in range(4):
        assert (grant := locks.extend(grant, 60.0)) is not None
    assert now() - start < 2.5  # one second for the first, if it was the preferred one


def test_with_the_leader_gone_the_lock_stays_and_tokens_rise(servers, client):
    """Three nodes, the leader killed: the grant is kept, extended, and followed by a higher."""
    cluster = servers.start(etcd_cluster)
    locks = client(cluster.url)
    grant = take(locks)
    status = {member: Admin(member)("maintenance/status") for member in cluster}
    leader = next(m for m, s in status.items() if s["leader"] == s["header"]["member_id"])
    leader.crash()
    assert isinstance(patiently(lambda: locks.acquire("k", "other", 60.0, ME)), Conflict)
    kept = patiently(lambda: locks.extend(grant, 60.0))
    assert kept.fencing_token == grant.fencing_token
    assert patiently(lambda: locks.release(kept)) is True
    assert patiently(lambda: take(locks)).fencing_token > grant.fencing_token
    found = locks.check()
    assert {f.level for f in found if f.subject == f"127.0.0.1:{leader.port}"} == {"warning"}
    assert "error" not in {finding.level for finding in found}


def test_no_server_at_all_is_an_error_that_names_each(client):
    """The error and the check say what each endpoint did."""
    locks = client("etcd://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(CoordinatorUnavailable) as caught:
        locks.inspect("k")
    assert caught.value.nodes == {
        "127.0.0.1:1": "Connection refused",
        "127.0.0.1:2": "Connection refused",
    }
    assert [finding.level for finding in locks.check()] == ["error", "error"]


def test_what_is_no_etcd_is_named(servers, client, web_server):
    """A server of another kind is told from one that is down."""
    locks = client(f"etcd://127.0.0.1:{web_server}")
    with pytest.raises(CoordinatorUnavailable, match="doesn't speak etcd's JSON gateway"):
        locks.inspect("k")


@pytest.fixture
def web_server():
    """The port of an HTTP server that is no etcd."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(404)
            self.send_header("Content-Length", "9")
            self.end_headers()
            self.wfile.write(b"not found")

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


# Users, certificates, urls


@pytest.fixture
def guarded(servers):
    """A server with users: ``root``, and ``shop`` for the keys under ``shop/``."""
    server = servers.start(Etcd)
    admin = Admin(server)
    for name, password in (("root", "r"), ("shop", "hunter2")):
        admin("auth/user/add", name=name, password=password)
        admin("auth/role/add", name=name)
        admin("auth/user/grant", user=name, role=name)
    permission = {"permType": "READWRITE", "key": encoded("shop/"), "range_end": encoded("shop0")}
    admin("auth/role/grant", name="shop", perm=permission)
    admin("auth/enable")
    return server


def test_a_user_logs_in_and_again_when_the_login_was_forgotten(guarded, client):
    """A login that the server doesn't know any more is renewed within the call."""
    locks = client(
        f"etcd://shop:hunter2@127.0.0.1:{guarded.port}", CoordinatorSettings(prefix="shop")
    )
    grant = take(locks)
    admin = Admin(guarded)
    admin.log_in("root", "r")
    admin("auth/user/delete", name="shop")  # which ends its logins
    admin("auth/user/add", name="shop", password="hunter2")
    admin("auth/user/grant", user="shop", role="shop")
    assert locks.extend(grant, 60.0) is not None
    assert locks.release(grant) is True
    assert "error" not in {finding.level for finding in locks.check()}


@pytest.mark.parametrize(
    "login, prefix, said",
    [
        ("shop:wrong@", "shop", "authentication failed"),
        ("", "shop", "user name is empty"),
        ("shop:hunter2@", "elsewhere", "permission denied"),
    ],
)
def test_a_refusal_is_passed_on_in_words(guarded, client, login, prefix, said):
    """The error and the check say what the server said, and never the password."""
    url = f"etcd://{login}127.0.0.1:{guarded.port}"
    locks = client(url, CoordinatorSettings(prefix=prefix))
    with pytest.raises(CoordinatorUnavailable, match=said) as caught:
        locks.acquire("k", "o", 60.0, ME)
    found = locks.check()
    assert any(finding.level == "error" and said in finding.message for finding in found)
    assert "hunter2" not in f"{caught.value!r} {found} {locks!r} {without_password(url)}"


class EncryptedEtcd(Etcd):
    """A server that speaks TLS only, and asks clients for a certificate."""

    def prepare(self):
        """Make the certificates."""
        super().prepare()
        self.certificates = Certificates.make(self.folder)

    def command(self):
        """The start line, with TLS for clients."""
        line = [
            word.replace(f"http://127.0.0.1:{self.port}", f"https://127.0.0.1:{self.port}")
            for word in super().command()
        ]
        files = self.certificates
        return [
            *line,
            f"--cert-file={files.certificate}",
            f"--key-file={files.key}",
            f"--trusted-ca-file={files.authority}",
            "--client-cert-auth",
        ]

    def ready(self):
        """Whether it is healthy."""
        files = self.certificates
        context = ssl.create_default_context(cafile=files.authority)
        context.load_cert_chain(files.certificate, files.key)
        url = f"https://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=2.0, context=context) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


def test_certificates_are_used_and_checked(servers, client):
    """With the right files it works; without the authority or the own certificate it says why."""
    server = servers.start(EncryptedEtcd)
    files = server.certificates
    address = f"etcds://127.0.0.1:{server.port}"
    own = f"cert={files.certificate}&key={files.key}"
    locks = client(f"{address}?ca={files.authority}&{own}")
    assert locks.release(take(locks)) is True
    with pytest.raises(CoordinatorUnavailable, match="not trusted"):
        take(client(f"{address}?{own}"))
    with pytest.raises(CoordinatorUnavailable):
        take(client(f"{address}?ca={files.authority}"))
    with pytest.raises(CoordinatorUnavailable):
        take(client(f"etcd://127.0.0.1:{server.port}"))


@pytest.mark.parametrize(
    "urls, said",
    [
        (["etcd://h:2379/folder"], "have no path"),
        (["etcd://h1:2379", "etcd://me@h2:2379"], "differ only in their hosts"),
        (["etcd://h:2379,h:2379"], "names a server twice"),
        (["etcd://h:99999"], "ports from 1 to 65535"),
        (["etcd://h:2379,"], "malformed"),
        (["etcd://h:2379?cacert=x"], "unknown option 'cacert'"),
        (["etcds://h:2379?ca=/no/such/file"], "ca=/no/such/file"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(urls, said):
    """The message says what is wrong with it."""
    with pytest.raises(ImproperlyConfigured, match=said):
        from_urls(urls, CoordinatorSettings())


def test_several_urls_are_the_members_of_one_cluster():
    """A list of urls and one url with a list of hosts mean the same."""
    one = from_urls("etcd://a:1,b,[::1]:3", CoordinatorSettings())
    several = from_urls(["etcd://a:1", "etcd://b:2379", "etcd://[::1]:3"], CoordinatorSettings())
    assert repr(one) == repr(several) == "<EtcdCoordinator a:1,b:2379,[::1]:3>"


def test_two_clusters_under_one_name_are_an_error(servers, etcd, client):
    """Endpoints of different clusters would grant one lock twice."""
    other = servers.start(Etcd)
    found = client(f"{etcd.url},127.0.0.1:{other.port}").check()
    assert any(f.level == "error" and "different clusters" in f.message for f in found)


# What others write


def test_a_strangers_key_is_a_lock_that_nobody_may_take(locks, admin, settings):
    """What isn't ours is left alone."""
    name = encoded(f"{settings.prefix}/lock/k")
    admin("kv/put", key=name, value=encoded("not ours"))
    conflict = locks.acquire("k", "o", 60.0, ME)
    assert isinstance(conflict, Conflict)
    assert conflict.holder is None
    assert base64.b64decode(admin("kv/range", key=name)["kvs"][0]["value"]) == b"not ours"


def test_a_floor_that_is_no_number_stops_every_acquire(locks, admin, settings):
    """Better no token than one that may go back."""
    admin("kv/put", key=encoded(f"{settings.prefix}/floor"), value=encoded("high"))
    with pytest.raises(CoordinatorUnavailable, match="floor"):
        locks.acquire("k", "o", 60.0, ME)


def test_retry_after_says_when_the_lease_has_surely_ended(locks):
    """Whole seconds of the cluster, rounded so that asking then is not in vain."""
    take(locks, ttl=20.0)
    conflict = locks.acquire("k", "other", 20.0, ME)
    assert 19.0 <= conflict.retry_after <= 21.0
