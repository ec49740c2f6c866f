"""Rules 10 to 12 and 14: what a server may be, what it guards by itself, and what people see."""

from __future__ import annotations

import re

import pytest
import redis

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, CoordinatorSettings, Grant, redlock
from celery_redlock.coordinators.redis_commands import ACQUIRE, EXTEND, HEAL, MARK, RAISE, RELEASE
from celery_redlock.coordinators.redlock import RedlockCoordinator, from_urls
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from localservers import Proxy, Valkey, valkey_cluster
from tests.contract.redlock_set import ME, RedlockSet, eventually, grant, owner

SETTINGS = CoordinatorSettings(node_timeout=2.0)


@pytest.fixture
def three(valkey_3):
    """Three servers that the other tests use too."""
    made = RedlockSet(valkey_3)
    yield made
    made.close()


@pytest.fixture
def running(servers):
    """Starts a set of servers for this test alone."""
    sets = []

    def start(make=valkey_cluster, *args, **options):
        started = servers.start(make, *args, **options)
        several = [started] if isinstance(started, Valkey) else list(started)
        sets.append(RedlockSet(several))
        return sets[-1]

    yield start
    for made in sets:
        made.close()


# 10. Guard rails on the server


def test_a_clock_that_stepped_back_makes_no_lock_endless(three):
    """A lock that would last an hour is cut to the longest ttl when the next one asks for it."""
    coordinator = three.coordinator(max_ttl=60.0)
    name = three.names.lock("k")
    three.put([0, 1], "k", "holder", ttl=3600.0)
    three.put([2], "k", "holder", ttl=3600.0)
    three.admin(2).persist(name)

    def cut():
        answer = coordinator.acquire("k", owner(), 10.0, ME)
        assert isinstance(answer, Conflict)
        assert answer.retry_after <= 60.0
        lives = [three.admin(number).pttl(name) for number in range(3)]
        assert sum(0 < life <= 60_000 for life in lives) >= 2
        return all(0 < life <= 60_000 for life in lives)

    eventually(cut)  # each time on a majority; in time on the slowest too


@pytest.mark.parametrize(
    ("script", "keys", "good", "bad"),
    [
        (ACQUIRE, 2, ["me", "100", "200", "{}"], {0: "", 1: "0", 2: "x"}),
        (ACQUIRE, 6, ["me", "100", "200", "{}", "e", "1", "9"], {1: "201", 5: "x", 6: "0"}),
        (RAISE, 4, ["me", "5", "e", "100"], {0: "", 1: "0", 3: "x"}),
        (RELEASE, 2, ["me", "100"], {0: "", 1: "-1"}),
        (EXTEND, 1, ["me", "100", "200"], {0: "", 1: "201", 2: ""}),
        (HEAL, 2, ["me", "100", "200", "me 0 {}"], {0: "", 1: "0"}),
        (HEAL, 5, ["me", "100", "200", "me 5 {}", "e", "5", "9"], {5: str(2**53), 6: "0"}),
        (MARK, 3, ["1:a:3:0", "", "0", "0"], {0: "", 2: "-1", 3: "x"}),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else None,
)
def test_a_script_checks_its_arguments_before_it_writes(three, script, keys, good, bad):
    """A script doesn't roll back, so a bad argument must be found before the first write."""
    admin = three.admin(0)
    names = [f"{three.names.prefix}:{number}" for number in range(keys)]
    for place, value in bad.items():
        words = [*good[:place], value, *good[place + 1 :]]
        with pytest.raises(redis.ResponseError, match="celery_redlock: bad arguments"):
            admin.eval(script.text, keys, *names, *words)
        with pytest.raises(redis.ResponseError, match="celery_redlock: bad arguments"):
            admin.eval(script.text, keys, *names, *good[:place])
    assert three.stored() == {}


@pytest.mark.parametrize(
    ("ttl", "why"),
    [(0.0, "more than 4"), (4.0, "more than 4"), (300.1, "at most redlock_max_ttl = 300 s")],
)
def test_a_ttl_that_servers_can_eat_or_that_is_too_long_is_refused(three, ttl, why):
    """Two answers of two seconds each must fit into a ttl, and no ttl is above the longest."""
    coordinator = three.coordinator()
    with pytest.raises(ImproperlyConfigured, match=why):
        coordinator.acquire("k", owner(), ttl, ME)


# 11. The set of servers


@pytest.mark.parametrize("count", [2, 4, 6])
def test_an_even_number_of_servers_is_refused(count):
    """The message has the number, what is allowed, and the urls without their passwords."""
    urls = [f"redis://user:secret@lock{number}:6379/0" for number in range(count)]
    with pytest.raises(ImproperlyConfigured) as raised:
        from_urls(urls, SETTINGS)
    message = str(raised.value)
    assert message.startswith(f"{count} lock servers can't make a quorum")
    assert "one server, or an odd number of at least 3" in message
    assert "redis://lock0:6379/0, redis://lock1:6379/0" in message
    assert "secret" not in message
    assert "user" not in message


def test_no_server_at_all_is_refused():
    """A missing url is an error, never localhost."""
    with pytest.raises(ImproperlyConfigured, match="at least one lock server"):
        RedlockCoordinator([], SETTINGS)


def test_the_same_url_twice_is_refused_at_once():
    """Two majorities of such a set need not have a server in common."""
    urls = ["redis://:pw1@a:1/0", "redis://b:1/0", "redis://:pw2@a:1/0"]
    with pytest.raises(ImproperlyConfigured, match="redis://a:1/0 is listed twice") as raised:
        from_urls(urls, SETTINGS)
    assert "pw" not in str(raised.value)


def test_the_same_server_by_another_name_is_refused_at_first_use(three):
    """127.0.0.1 and localhost are one server: its run id tells, and nothing stays behind."""
    port = three.servers[0].port
    urls = [*three.urls[:2], f"redis://localhost:{port}/1"]
    coordinator = three.coordinator(urls, warm=False)
    with pytest.raises(ImproperlyConfigured, match="are the same server"):
        for _ in range(20):  # until all three have told who they are
            grant(coordinator, owner())
    assert "error" in {finding.level for finding in coordinator.check()}


def test_servers_that_change_places_are_no_twins(running):
    """A name that leads to another server after a restart is not taken for a double."""
    made = running(valkey_cluster, 3, durable=True)
    coordinator = made.coordinator()
    grant(coordinator, "k")
    first, second = coordinator._nodes[0], coordinator._nodes[1]
    first.options["port"], second.options["port"] = second.options["port"], first.options["port"]
    for number in (0, 1):
        made.admin(number).client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: _granted(coordinator, ttl=10.0))
    for node in (first, second):
        node.recover()
    coordinator.inspect("k")
    assert [node.identity for node in (first, second)] == [
        made.admin(number).info("server")["run_id"] for number in (1, 0)
    ]


def test_a_replica_takes_no_part(running, valkey):
    """A server that follows another one would forget what it granted."""
    made = running(Valkey, config={"replicaof": f"127.0.0.1 {valkey.port}"})
    with pytest.raises(CoordinatorUnavailable, match="it is a slave, not a master"):
        made.coordinator(warm=False).acquire("k", owner(), 10.0, ME)


def test_a_master_that_becomes_a_replica_is_noticed(running, valkey):
    """The server refuses the write, and is left out from then on."""
    made = running(Valkey)
    coordinator = made.coordinator()
    grant(coordinator, "k")
    made.admin(0).replicaof("127.0.0.1", valkey.port)
    with pytest.raises(CoordinatorUnavailable):
        coordinator.acquire("k2", owner(), 10.0, ME)
    with pytest.raises(CoordinatorUnavailable, match="it is a slave, not a master"):
        coordinator.acquire("k2", owner(), 10.0, ME)
    made.admin(0).replicaof("NO", "ONE")
    grant(coordinator, "k3")


# 12. A restart without memory


def test_a_server_that_may_have_forgotten_rests_before_it_votes(running):
    """Young servers that aren't durable grant nothing until the longest ttl has passed."""
    made = running(valkey_cluster, 3, durable=False)
    coordinator = made.coordinator(max_ttl=3.0, node_timeout=0.5, warm=False)
    with pytest.raises(CoordinatorUnavailable, match=r"may have forgotten locks.*takes part in"):
        coordinator.acquire("k", owner(), 2.9, ME)
    assert made.stored() == {}
    eventually(lambda: _granted(coordinator), timeout=30.0)
    uptime = made.admin(0).info("server")["uptime_in_seconds"]
    assert uptime >= 3


def _granted(coordinator, ttl=2.9):
    try:
        return isinstance(coordinator.acquire(owner(), owner(), ttl, ME), Grant)
    except CoordinatorUnavailable:
        return False


@pytest.mark.parametrize("kind", ["lock", "queue"])
def test_a_majority_that_restarted_empty_grants_no_held_lock(running, kind):
    """Run locks are safe; queue locks, which skip the rest, show what would happen without it."""
    made = running(valkey_cluster, 3, durable=False)
    holder = made.coordinator(max_ttl=5.0, node_timeout=0.5, kind="queue")
    grant(holder, "k", ttl=4.9)
    for number in (0, 1):
        made.servers[number].crash()
        made.servers[number].start()
    other = made.coordinator(max_ttl=5.0, node_timeout=0.5, kind=kind, warm=False)
    if kind == "queue":
        assert isinstance(other.acquire("k", owner(), 4.9, ME), Grant)
    else:
        with pytest.raises(CoordinatorUnavailable, match="may have forgotten"):
            other.acquire("k", owner(), 4.9, ME)


def test_a_durable_server_votes_at_once_and_remembers(running):
    """Killed and restarted, servers with appendfsync always still hold the lock."""
    made = running(valkey_cluster, 3, durable=True)
    held = grant(made.coordinator(), "k")
    for server in made.servers:
        server.crash()
    for server in made.servers:
        server.start()
    answer = made.coordinator(warm=False).acquire("k", owner(), 10.0, ME)
    assert isinstance(answer, Conflict)
    assert answer.holder == ME
    assert made.coordinator().release(held)


def test_one_server_alone_never_rests(running):
    """With one server its memory is all there is, so nothing is gained by waiting."""
    made = running(Valkey, durable=False)
    grant(made.coordinator(warm=False), "k")


# 14. No key without an expiry


def test_no_key_lives_for_ever(three):
    """Locks, graves and counters expire; only two keys of the node itself don't."""
    coordinator = three.coordinator(fenced=True)
    plain = three.coordinator()
    for number in range(10):
        held = grant(coordinator, f"fenced-{number}")
        coordinator.release(coordinator.extend(held, 20.0))
        bare = held.__class__(held.key, held.owner, held.ttl, held.valid_until)
        coordinator.release(bare)  # buries
        grant(plain, f"plain-{number}")
    coordinator.check()
    kept = {name for name, lives in three.stored().items() if -1 in lives}
    assert kept == {three.names.epoch, three.names.highest}


# What people see


def test_a_sound_set_is_described_and_found_without_fault(three):
    """One line for each server, with its version, its role and its round trip."""
    for fenced in (False, True):
        findings = three.coordinator(fenced=fenced).check()
        assert [finding.subject for finding in findings] == three.urls
        assert all(re.match(r"\w+ \d+\.\d+\S*, master, ", one.message) for one in findings)
        assert {finding.level for finding in findings} == {"ok"}


@pytest.mark.parametrize("fenced", [False, True])
def test_servers_that_forget_and_evict_are_found(running, fenced):
    """The setting is named, as an error where fencing tokens need it."""
    made = running(valkey_cluster, 3, durable=False, config={"maxmemory-policy": "allkeys-lru"})
    findings = made.coordinator(fenced=fenced, warm=False).check()
    bad = [finding for finding in findings if finding.level != "ok"]
    assert {finding.level for finding in bad} == {"error" if fenced else "warning"}
    text = " ".join(f"{finding.message} {finding.cure}" for finding in bad)
    assert "maxmemory-policy" in text
    assert "appendfsync always" in text


def test_a_slow_server_is_told_from_a_dead_one(three, servers):
    """A server that takes longer than it is given is found slow, a closed port unreachable."""
    proxy = servers.start(Proxy, three.urls[0])
    proxy.delay(0.05)
    urls = [proxy.url, three.urls[1], "redis://127.0.0.1:1/0"]
    findings = three.coordinator(urls, node_timeout=0.02, warm=False).check()
    by_subject = {finding.subject: finding for finding in findings if finding.level != "ok"}
    assert "is given 20 ms (redlock_node_timeout)" in by_subject[proxy.url].message
    assert "Connection refused" in by_subject["redis://127.0.0.1:1/0"].message


def test_missing_rights_are_found_by_trying(running):
    """A user that may acquire but never release is found, with the command named."""
    acl = ["user default on nopass ~* &* +@all", "user poor on >pw ~* &* +@all -del -pexpire"]
    made = running(Valkey, acl=acl)
    url = made.servers[0].url_as("poor", "pw")
    findings = made.coordinator([url], warm=False).check()
    text = " ".join(finding.message for finding in findings if finding.level == "warning")
    assert "'del'" in text
    assert "'pexpire'" in text


def test_the_documented_rights_are_enough(running):
    """An ACL user with exactly the rights of the module's docstring can do everything."""
    documented = re.search(r"user locks on .*?\+delex", redlock.__doc__, re.DOTALL)
    line = " ".join(documented[0].split()).replace(" +delex", "")
    made = running(valkey_cluster, 3, acl=["user default on nopass ~* &* +@all", line])
    urls = [server.url_as("locks", "secret") for server in made.servers]
    for fenced in (False, True):
        coordinator = made.coordinator(urls, prefix="app", fenced=fenced)
        assert [one.level for one in coordinator.check()] == ["ok"] * 3
        held = grant(coordinator, "k")
        assert isinstance(coordinator.acquire("k", owner(), 10.0, ME), Conflict)
        assert coordinator.inspect("k").owner == held.owner
        assert coordinator.release(coordinator.extend(held, 20.0))


@pytest.mark.parametrize(
    ("user", "password", "said"),
    [("", "", "NOAUTH"), ("", "wrong", "WRONGPASS"), ("nobody", "wrong", "WRONGPASS")],
)
def test_a_wrong_login_is_told_without_the_password(running, user, password, said):
    """What the server says about the login is passed on; the password is not."""
    made = running(Valkey, password="right")
    coordinator = made.coordinator([made.servers[0].url_as(user, password)], warm=False)
    with pytest.raises(CoordinatorUnavailable, match=said) as raised:
        coordinator.acquire("k", owner(), 10.0, ME)
    assert "right" not in str(raised.value)
    assert "wrong" not in str(raised.value)
    grant(made.coordinator([made.servers[0].url], warm=False), "k")


def test_a_login_a_name_and_a_database_of_a_client_are_used(running):
    """A client's user, client name and database go with it."""
    acl = ["user default off", "user admin on >x ~* &* +@all"]
    made = running(Valkey, acl=acl)
    port = made.servers[0].port
    client = redis.Redis(port=port, db=3, username="admin", password="x", client_name="lock-keeper")
    settings = CoordinatorSettings(prefix="mine", node_timeout=2.0)
    coordinator = RedlockCoordinator.from_clients([client], settings)
    grant(coordinator, "k")
    assert client.keys() == [b"mine:{k}:lock"]
    assert "lock-keeper" in {one["name"] for one in client.client_list() if one["db"] == "3"}
    assert repr(coordinator) == f"<RedlockCoordinator redis://localhost:{port}/3>"
    coordinator.close()
    client.close()


@pytest.mark.parametrize(
    "thing", ["redis://a", object(), redis.RedisCluster], ids=["text", "object", "cluster class"]
)
def test_what_is_no_client_is_refused(thing):
    """Only ``redis.Redis`` objects have a connection class and options to take over."""
    with pytest.raises(ImproperlyConfigured, match=r"url or a redis\.Redis object"):
        RedlockCoordinator.from_clients([thing], SETTINGS)


def test_a_server_that_forgot_the_scripts_gets_them_again(three):
    """After SCRIPT FLUSH the next call loads them, and nobody notices."""
    coordinator = three.coordinator()
    held = grant(coordinator, "k")
    for number in range(3):
        three.admin(number).script_flush()
    start = now()
    assert coordinator.extend(held.__class__(held.key, held.owner, 5.0, held.valid_until), 20.0)
    for number in range(3):
        three.admin(number).script_flush()
    grant(coordinator, "k2")
    assert now() - start < 2.0


def test_a_restart_while_idle_costs_no_answer(running):
    """Connections that were closed meanwhile are made again, and no server is blamed."""
    made = running(Valkey)
    coordinator = made.coordinator()
    grant(coordinator, "k")
    made.servers[0].crash()
    made.servers[0].start()
    grant(coordinator, "k2")
