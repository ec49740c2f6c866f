"""Nodes: urls, what a server tells, who is left out for how long, and what is owed to it."""

import pytest

from celery_redlock.coordinators.redis_ballot import order
from celery_redlock.coordinators.redis_commands import Names, milliseconds
from celery_redlock.coordinators.redis_fitness import Fitness, undurable
from celery_redlock.coordinators.redis_node import Node, learn
from celery_redlock.coordinators.redis_urls import node_from_url
from celery_redlock.coordinators.redis_wire import ErrorReply
from celery_redlock.exceptions import ImproperlyConfigured

UNKNOWN = ErrorReply("ERR unknown command")


def node(name="redis://a:1/0"):
    """A node that nobody connects to."""
    return Node(name, object, {}, 0.05)


def answers(**changed):
    """What a healthy durable server says to the greeting."""
    said = {
        "server": b"redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nrun_id:abc\r\n"
        b"uptime_in_seconds:100\r\n",
        "replication": b"# Replication\r\nrole:master\r\n",
        "appendonly": [b"appendonly", b"yes"],
        "appendfsync": [b"appendfsync", b"always"],
        "policy": [b"maxmemory-policy", b"noeviction"],
        "epoch": None,
        "delifeq": 0,
        "delex": UNKNOWN,
        "ifeq": None,
        "take": None,
        "scripts": b"sha",
    }
    return list({**said, **changed}.values())


def test_what_a_server_tells():
    """Every fact is found, and one second less of its uptime is believed."""
    facts = learn(answers(), now=1000.0)
    assert facts.run_id == "abc"
    assert facts.role == "master"
    assert facts.version == "valkey 9.1.2"
    assert facts.up_since == 901.0
    assert facts.durable
    assert (facts.release, facts.extends, facts.marker, facts.refused) == (
        "DELIFEQ",
        True,
        None,
        "",
    )


@pytest.mark.parametrize(
    ("changed", "attribute", "value"),
    [
        ({"delifeq": UNKNOWN}, "release", None),
        ({"delifeq": UNKNOWN, "delex": 0}, "release", "DELEX"),
        ({"ifeq": ErrorReply("ERR syntax error")}, "extends", False),
        ({"take": ErrorReply("ERR syntax error")}, "takes", False),
        ({"appendfsync": [b"appendfsync", b"everysec"]}, "durable", False),
        ({"appendonly": ErrorReply("NOPERM")}, "durable", False),
        ({"scripts": ErrorReply("NOPERM script")}, "refused", "NOPERM script"),
        ({"epoch": ErrorReply("NOAUTH")}, "refused", "NOAUTH"),
        ({"epoch": b"1:a:3:0"}, "marker", "1:a:3:0"),
        ({"server": ErrorReply("NOPERM info")}, "run_id", None),
    ],
)
def test_what_a_server_doesnt_tell_or_know(changed, attribute, value):
    """A refusal is a fact like any other."""
    assert getattr(learn(answers(**changed), 0.0), attribute) == value


def judged(*, fenced=False, nodes=3, rest=60.0, **changed):
    """What keeps a server that answers like this from being asked."""
    several = [node(f"redis://{n}:1/0") for n in range(nodes)]
    return Fitness(several, fenced=fenced, rest=rest).judge(several[0], answers(**changed))


NOT_DURABLE = {"appendfsync": [b"appendfsync", b"everysec"]}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (judged(), ""),
        (judged(fenced=True), ""),
        (judged(rest=101.0, **NOT_DURABLE), "may have forgotten locks"),
        (judged(rest=98.0, **NOT_DURABLE), ""),
        (judged(rest=101.0, nodes=1, **NOT_DURABLE), ""),
        (judged(replication=b"role:slave\r\n"), "it is a slave, not a master"),
        (judged(server=UNKNOWN), "let this user run INFO"),
        (judged(server=UNKNOWN, replication=UNKNOWN, nodes=1), ""),
        (judged(scripts=ErrorReply("NOPERM evalsha")), "NOPERM evalsha"),
        (judged(fenced=True, **NOT_DURABLE), "appendfsync is everysec, not always"),
        (judged(fenced=True, policy=UNKNOWN), "maxmemory-policy is not to be seen"),
    ],
)
def test_who_may_be_asked(said, reason):
    """Each rule has its words; a server that keeps them all has none."""
    assert said.startswith(reason) if not reason else reason in said
    assert bool(said) == bool(reason)


def test_every_missing_durability_is_named_at_once():
    """People mend all three settings in one go."""
    facts = learn(answers(appendonly=[b"a", b"no"], policy=[b"p", b"allkeys-lru"]), 0.0)
    assert undurable(facts).count(";") == 1


def test_a_node_that_fails_again_and_again_is_left_out_for_longer():
    """From a second to ten, spread over the upper half, and forgotten at its first answer."""
    one, pauses = node(), []
    for _ in range(8):
        one.trip("refused", now=100.0)
        pauses.append(one.cooling_until - 100.0)
    for pause, longest in zip(pauses, [1, 2, 4, 8, 10, 10, 10, 10], strict=True):
        assert longest / 2 <= pause <= longest
    one.recover()
    assert (one.cooling_until, one.trouble) == (0.0, "")
    one.trip("refused", now=100.0)
    assert one.cooling_until <= 101.0


class Five:
    """A channel of five nodes, as far as the order of asking needs one."""

    def __init__(self, *cooling):
        self.nodes = [node() for _ in range(5)]
        for number in cooling:
            self.nodes[number].cooling_until = 50.0


@pytest.mark.parametrize(
    ("cooling", "first", "spare"),
    [
        ((), [0, 1, 2, 3, 4], []),
        ((1, 3), [0, 2, 4], [1, 3]),
        ((0, 1, 3), [2, 4, 0, 1, 3], []),
        ((0, 1, 2, 3, 4), [0, 1, 2, 3, 4], []),
    ],
)
def test_who_is_left_out_is_asked_where_a_majority_needs_it(cooling, first, spare):
    """Nodes that failed are spared as long as the others are a majority."""
    assert order(Five(*cooling), 10.0) == (first, spare)
    assert order(Five(*cooling), 60.0) == ([0, 1, 2, 3, 4], [])


def test_what_is_owed_is_sent_once_and_in_time_only():
    """A release that is out of date needs no sending any more."""
    one = node()
    one.owe(10.0, b"old")
    one.owe(30.0, b"new")
    assert one.take_owed(20.0) == [b"new"]
    assert one.take_owed(20.0) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:1/2?x=1", "redis://h:1/2"),
        ("rediss://u:p@h:1/0?ssl_ca_certs=/ca.pem", "rediss://h:1/0"),
        ("unix://u:p@/run/s.sock?db=1", "unix:///run/s.sock"),
        ("redis+sentinel://u:p@a:1,b/locks/2?sentinel_password=s", "redis+sentinel://a:1,b/locks"),
    ],
)
def test_a_node_is_shown_without_its_login(url, shown):
    """No user, no password, no query."""
    made = node_from_url(url, 0.05)
    assert made.shown == shown
    assert "p@" not in repr(made)


def test_a_url_can_bring_back_no_retry_and_no_timeout():
    """What a url asks for that would cost seconds is overruled."""
    url = "redis://h:1/0?retry_on_timeout=yes&socket_timeout=30&health_check_interval=5&protocol=3"
    options = node_from_url(url, 0.05).options
    assert options["socket_timeout"] == options["socket_connect_timeout"] == 0.05
    assert options["retry"] is None
    assert options["retry_on_error"] == []
    assert not options["retry_on_timeout"]
    assert options["health_check_interval"] == 0
    assert options["protocol"] == 2


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:26379",
        "redis+sentinel:///locks/0",
        "redis+sentinel://a:26379/locks/x",
        "redis+sentinel://u:p@a:port/locks/0",
        "redis://u:p@h:1/0?max_connections=x",
    ],
)
def test_a_malformed_url_is_told_without_its_login(url):
    """The message has the form that is wanted, and no password."""
    with pytest.raises(ImproperlyConfigured, match="malformed") as raised:
        node_from_url(url, 0.05)
    assert "p@" not in str(raised.value)


def test_the_names_of_a_lock_share_a_hash_tag():
    """All but the server's own keys carry the lock's name in braces."""
    names, queue = Names("app"), Names("app", "queue")
    assert names.lock("k") == "app:{k}:lock"
    assert queue.lock("k") == "app:{k}:queue"
    assert names.counter("k") == "app:{k}:token"
    assert names.grave("k", "me") == "app:{k}:dead:me"
    assert {names.epoch, names.highest, names.resting, names.probe} == {
        f"app:node:{name}" for name in ("epoch", "highest", "resting", "probe")
    }


@pytest.mark.parametrize(("seconds", "ms"), [(0.0, 1), (0.0001, 1), (0.3, 300), (1.0001, 1001)])
def test_a_server_never_keeps_a_lock_for_less_than_was_asked(seconds, ms):
    """Parts of a millisecond are rounded up."""
    assert milliseconds(seconds) == ms
