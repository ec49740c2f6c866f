"""Real beats over each kind of lock server, one of them killed."""

import pytest

from tests.celery.sent import Sent, longest_gap, twice
from tests.contract.kinds import KINDS, members

SEEN_BY_ALL = [
    kind
    for kind in KINDS
    if kind.name in {"redis", "etcd", "zookeeper", "sqlite", "postgres", "mariadb"}
]


@pytest.fixture
def sent(config):
    """What the beats have sent."""
    reader = Sent(config["broker_url"])
    yield reader
    reader.close()


@pytest.mark.slow
@pytest.mark.config(beat_schedule={"tick": {"task": "tests.tick", "schedule": 1.0}})
@pytest.mark.parametrize("kind", SEEN_BY_ALL, ids=str)
def test_two_beats_and_one_of_them_is_killed(kind, servers, config, tmp_path, beat, sent):
    """Each slot is sent once, before and after the death, whatever grants the claims."""
    made = servers.start(kind.server) if kind.server else None
    ports = [server.port for server in members(made)] if made else []
    urls = kind.urls(ports, tmp_path)
    kind.prepare(urls[0])
    config["redlock_coordinators"] = {"default": urls}
    beats = [beat(app="tests.celery.beat_app") for _ in range(2)]
    seen = len(sent.wait_for("tests.tick", 6))
    beats[0].kill()
    ticks = sent.wait_for("tests.tick", seen + 5)
    assert twice(ticks) == []
    longest_claim = 4.0  # of etcd, whose leases are whole seconds
    assert longest_gap(ticks) < 2.6 + longest_claim
    assert ticks[-1].pid == beats[1].pid
