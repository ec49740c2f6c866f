"""Every coordinator keeps the contract, against real servers."""

import time

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, CoordinatorSettings, Grant, from_urls
from celery_redlock.exceptions import CoordinatorUnavailable
from localservers import Proxy, free_port
from tests.contract.kinds import KINDS, majority_of, members
from tests.contract.rules import LATE, ME, RULES, Subject, new_owner

SERVED = [kind for kind in KINDS if kind.server is not None]
SEVERAL = [kind for kind in SERVED if kind.name.split("_")[1:]]


@pytest.fixture
def subject(kind, shared_ports, connect):
    """Two clients of one coordinator whose servers are shared with the other tests."""
    ports = shared_ports(kind)
    return Subject(connect(kind, ports), connect(kind, ports))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_contract(rule, subject):
    """The coordinator keeps the rule."""
    rule(subject)


@pytest.fixture
def broken(connect, servers):
    """Starts a kind's own servers, and gives a client of them."""

    def start(kind, **settings):
        made = servers.start(kind.server)
        return made, connect(kind, [server.port for server in members(made)], **settings)

    return start


@pytest.mark.parametrize("kind", SERVED, ids=str)
def test_without_servers_nobody_can_say(kind, broken):
    """Servers that are gone make every call CoordinatorUnavailable, never a conflict."""
    made, client = broken(kind, node_timeout=0.5)
    grant = Subject(client, client).grant()
    for server in majority_of(made):
        server.crash()
    for call in (
        lambda: client.acquire(grant.key, new_owner(), 30.0, ME),
        lambda: client.acquire("never asked before", new_owner(), 30.0, ME),
        lambda: client.extend(grant, 30.0),
        lambda: client.inspect(grant.key),
        lambda: client.release(grant),
    ):
        with pytest.raises(CoordinatorUnavailable):
            call()
    assert "error" in {finding.level for finding in client.check()}


@pytest.mark.parametrize("kind", SERVED, ids=str)
def test_hung_servers_are_given_up_in_time(kind, broken):
    """Servers that accept and never answer cost a bounded time, and nobody can say."""
    made, client = broken(kind, node_timeout=0.5)
    Subject(client, client).grant()
    for server in majority_of(made):
        server.pause()
    start = now()
    try:
        with pytest.raises(CoordinatorUnavailable):
            client.acquire("another", new_owner(), 30.0, ME)
        assert now() - start < 5.0
    finally:
        for server in majority_of(made):
            server.resume()


@pytest.mark.parametrize("kind", SERVED, ids=str)
def test_after_a_restart_locks_and_tokens_are_as_promised(kind, broken):
    """A crash and restart of all servers keeps what the capabilities promise."""
    made, client = broken(kind)
    subject = Subject(client, client)
    before = subject.grant()
    for server in members(made):
        server.crash()
    for server in members(made):
        server.launch()
    for server in members(made):
        server.wait_until_ready()
    if client.capabilities.survives_restart:
        assert isinstance(_patiently(subject.refused), Conflict)
        assert _patiently(lambda: client.release(before)) is True
    if client.capabilities.fencing:
        after = _patiently(subject.grant_when_free)
        assert after.fencing_token > before.fencing_token


@pytest.mark.parametrize("kind", SEVERAL, ids=str)
def test_one_server_less_changes_nothing(kind, broken):
    """With one of several servers gone, a granted lock is kept, and new ones are granted."""
    made, client = broken(kind)
    subject = Subject(client, client)
    grant = subject.grant()
    made[0].crash()
    assert client.capabilities.survives_failover
    assert isinstance(_patiently(subject.refused), Conflict)
    assert _patiently(lambda: client.extend(grant, 60.0)) is not None
    after = _patiently(lambda: subject.grant(key=f"{subject.prefix}:new"))
    if client.capabilities.fencing:
        assert after.fencing_token is not None
    assert client.release(grant) is True


@pytest.fixture
def through_proxies(shared_ports, servers, connect):
    """A client whose connections go through proxies, and the proxies."""

    def start(kind, **settings):
        proxies = [servers.start(Proxy, port=port) for port in shared_ports(kind)]
        return proxies, connect(kind, [proxy.port for proxy in proxies], **settings)

    return start


@pytest.mark.parametrize("kind", SERVED, ids=str)
def test_trust_counts_from_before_the_request(kind, through_proxies):
    """A slow answer takes its delay off the trust, for an acquire and for an extend."""
    proxies, client = through_proxies(kind)
    subject = Subject(client, client)
    subject.grant(key=f"{subject.prefix}:warm up")
    for proxy in proxies:
        proxy.delay(0.3)
    grant = subject.grant(ttl=30.0)
    assert grant.valid_until <= now() + 30.0 - 0.3
    longer = client.extend(grant, 30.0)
    assert longer is not None
    assert longer.valid_until <= now() + 30.0 - 0.3


@pytest.mark.parametrize("kind", SERVED, ids=str)
def test_a_lost_answer_is_no_conflict_and_leaves_nothing(kind, through_proxies):
    """An acquire whose answers are lost is nobody's: it raises, and blocks for one ttl at most."""
    proxies, client = through_proxies(kind, node_timeout=0.5)
    subject = Subject(client, client)
    subject.grant(key=f"{subject.prefix}:warm up")
    for proxy in proxies:
        proxy.hold(requests=False)
    with pytest.raises(CoordinatorUnavailable):
        client.acquire(subject.key, new_owner(), subject.short, ME)
    for proxy in proxies:
        proxy.refuse()
    for proxy in proxies:
        proxy.heal()
    assert isinstance(_patiently(subject.grant_when_free), Grant)


@pytest.mark.parametrize("kind", SERVED, ids=str)
def test_a_coordinator_never_shows_a_password(kind, tmp_path):
    """Neither an error nor a finding nor a repr shows the password of a url."""
    client = from_urls(
        [_with_password(url) for url in kind.urls([free_port() for _ in range(3)], tmp_path)],
        CoordinatorSettings(fenced=kind.fenced, node_timeout=0.5),
    )
    try:
        with pytest.raises(CoordinatorUnavailable) as caught:
            client.acquire("key", new_owner(), 30.0, ME)
        shown = f"{client!r} {client.check()} {caught.value} {caught.value!r}"
    finally:
        client.close()
    assert "hunter2" not in shown


def _with_password(url):
    return url.replace("@", ":hunter2@") if "@" in url else url.replace("//", "//me:hunter2@")


def _patiently(call):
    """What the call gives once its servers have found each other again."""
    deadline = now() + 2 * LATE
    while True:
        try:
            return call()
        except CoordinatorUnavailable:
            if now() > deadline:
                raise
            time.sleep(0.05)
