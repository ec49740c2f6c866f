"""Real beats, any number of them: every slot is sent once."""

import itertools
import random
import time
from datetime import datetime, timedelta, timezone

import pytest

from localservers import ServerFailed, valkey_cluster
from tests.celery.beat_app import CLOCK, FAILURE
from tests.celery.sent import Sent, longest_gap, twice

STOCK = "celery.beat:PersistentScheduler"
EVERY_SECOND = {"tick": {"task": "tests.tick", "schedule": 1.0}}
ONE_TICK = 2.6  # seconds between two messages where one tick may be late, but none missing


@pytest.fixture
def sent(config):
    """What the beats have sent."""
    reader = Sent(config["broker_url"])
    yield reader
    reader.close()


@pytest.fixture
def start(beat):
    """Starts a beat."""
    return lambda **options: beat(app="tests.celery.beat_app", **options)


@pytest.fixture
def skewed(start, tmp_path):
    """Starts a beat whose clock is wrong by so many seconds; gives it and the clock's file."""

    def skewed(seconds):
        clock = tmp_path / f"clock-{random.getrandbits(32)}"
        clock.write_text(str(seconds))
        return start(environment={CLOCK: str(clock)}), clock

    return skewed


@pytest.mark.slow
@pytest.mark.config(beat_schedule=EVERY_SECOND, tests_crontabs={"minutely": {}})
def test_three_beats_send_each_slot_once(start, sent):
    """Three beats, twenty ticks of one second and a crontab: twenty messages and one a minute."""
    for _ in range(3):
        start()
    ticks = sent.wait_for("tests.tick", 20)
    slots = [datetime.fromisoformat(tick.slot) for tick in ticks]
    assert slots == [slots[0] + timedelta(seconds=number) for number in range(len(slots))]
    assert longest_gap(ticks) < ONE_TICK
    minutes = sent.wait_for("tests.minutely", 1, timeout=62)
    sent.wait_for("tests.tick", len(sent.of("tests.tick")) + 3)
    assert len(sent.of("tests.minutely")) == 1
    assert minutes[0].slot.endswith(":00+00:00")


@pytest.mark.config(beat_schedule=EVERY_SECOND)
def test_stock_beats_send_everything_twice(start, sent):
    """The negative control: two beats with Celery's own scheduler send two messages a second."""
    for _ in range(2):
        start(scheduler=STOCK)
    seen = len(sent.wait_for("tests.tick", 1))
    time.sleep(4)  # nothing less shows what comes in four seconds
    assert len(sent.of("tests.tick")) - seen >= 6


@pytest.mark.slow
@pytest.mark.config(beat_schedule=EVERY_SECOND)
def test_beats_come_and_go(start, sent):
    """Beats are killed and added at random moments: no gap above one tick, nothing twice."""
    rng, alive = random.Random(7), [start() for _ in range(3)]  # noqa: S311
    for _ in range(4):
        sent.wait_for("tests.tick", len(sent.of("tests.tick")) + rng.choice((1, 2)))
        time.sleep(rng.random())  # so that it dies in any phase of the tick
        alive.pop(rng.randrange(3)).kill()
        sent.wait_for("tests.tick", len(sent.of("tests.tick")) + 2)
        alive.append(start())
    ticks = sent.wait_for("tests.tick", 20)
    assert twice(ticks) == []
    assert longest_gap(ticks) < ONE_TICK


@pytest.mark.config(beat_schedule=EVERY_SECOND)
def test_phases_don_t_matter(start, sent):
    """Beats that began at different phases of the interval share one grid, each slot once."""
    for _ in range(3):
        start()
        time.sleep(0.37)
    ticks = sent.wait_for("tests.tick", 10)[2:]
    assert twice(ticks) == []
    slots = [datetime.fromisoformat(tick.slot) for tick in ticks]
    assert {b - a for a, b in itertools.pairwise(slots)} == {timedelta(seconds=1)}


@pytest.mark.slow
@pytest.mark.config(beat_schedule=EVERY_SECOND, tests_crontabs={"minutely": {}})
def test_clocks_that_differ_and_jump(skewed, sent):
    """Clocks three seconds apart that then jump by an hour: no slot twice, none of the future."""
    (_, right), (_, ahead), (_, behind) = skewed(0), skewed(3), skewed(-3)
    ticks = sent.wait_for("tests.tick", 8)
    ahead.write_text("3600")
    behind.write_text("-3600")
    sent.wait_for("tests.tick", len(ticks) + 6)
    ahead.write_text("-3600")
    behind.write_text("3600")
    ticks = sent.wait_for("tests.tick", len(sent.of("tests.tick")) + 6)
    everything = ticks + sent.of("tests.minutely")
    assert twice(ticks) == twice(sent.of("tests.minutely")) == []
    assert longest_gap(ticks) < ONE_TICK
    now = datetime.now(timezone.utc)
    for message in everything:
        assert abs(now - datetime.fromisoformat(message.slot)) < timedelta(minutes=2)
    assert right.read_text() == "0"


@pytest.mark.slow
def test_a_clock_that_is_wrong_is_told_loudly(skewed, sent, config):
    """A beat whose clock is an hour ahead says so, and doesn't lose the slots of the hour."""
    config["beat_schedule"] = EVERY_SECOND
    beat, _ = skewed(3600)
    ticks = sent.wait_for("tests.tick", 4)
    assert "CLOCK IS WRONG: it is +3600.0 s off" in beat.log
    off = datetime.now(timezone.utc) - datetime.fromisoformat(ticks[-1].slot)
    assert abs(off) < timedelta(seconds=5)


@pytest.fixture
def locks(servers, config):
    """Lock servers that a test may break."""
    cluster = servers.start(valkey_cluster, 3)
    config["redlock_coordinators"] = {"default": cluster.urls}
    return cluster


@pytest.mark.slow
@pytest.mark.config(
    beat_schedule={
        "tick": {"task": "tests.tick", "schedule": 1.0},
        "careful": {"task": "tests.careful", "schedule": 1.0},
    },
    redlock_tasks={"tests.careful": {"on_unavailable": "reschedule"}},
)
def test_lock_servers_are_down_for_ten_seconds(locks, start, sent):
    """No beat ends; meanwhile each entry is sent, or not, as its ``on_unavailable`` says."""
    both = [start(), start()]
    sent.wait_for("tests.tick", 3)
    sent.wait_for("tests.careful", 3)
    for server in locks[:2]:
        server.crash()
    time.sleep(1)  # what was claimed before is on its way
    ticks, careful = (len(sent.of(f"tests.{name}")) for name in ("tick", "careful"))
    time.sleep(9)  # the outage
    ticks, held_back = len(sent.of("tests.tick")) - ticks, len(sent.of("tests.careful")) - careful
    for server in locks[:2]:
        server.start()
    assert ticks >= 15  # two beats, neither of which can see the other
    assert held_back == 0
    after = sent.wait_for("tests.careful", len(sent.of("tests.careful")) + 5)
    assert twice(after) == []
    assert longest_gap(after[-5:]) < ONE_TICK
    assert all(beat.alive for beat in both)
    assert "WITHOUT A CLAIM" in both[0].log


@pytest.mark.slow
@pytest.mark.config(beat_schedule={"tick": {"task": "tests.tick", "schedule": 2.0}})
@pytest.mark.parametrize("others", [0, 1])
def test_a_publish_fails_once(start, sent, others):
    """The slot is sent by another beat or at the next try: none is missing, none sent twice."""
    failing = start(environment={FAILURE: "raise"})
    for _ in range(others):
        start()
    while "no broker, this once" not in failing.log:
        ticks = sent.wait_for("tests.tick", len(sent.of("tests.tick")) + 1)
    ticks = sent.wait_for("tests.tick", len(ticks) + 3)
    slots = [datetime.fromisoformat(tick.slot) for tick in ticks]
    assert {b - a for a, b in itertools.pairwise(slots)} == {timedelta(seconds=2)}
    assert longest_gap(ticks) < 3.6


@pytest.mark.slow
@pytest.mark.config(beat_schedule={"tick": {"task": "tests.tick", "schedule": 6.0}})
@pytest.mark.parametrize("how, times", [("stop", 1), ("die", 2)])
def test_a_beat_that_is_stopped_says_what_it_has_sent(start, sent, how, times):
    """SIGTERM just after a publish waits until that is noted; the control is a death there."""
    start(environment={FAILURE: how}).wait(30)
    slot = sent.wait_for("tests.tick", 2)[1].slot
    start()
    sent.wait_for("tests.tick", 2 + times)
    assert sum(message.slot == slot for message in sent.of("tests.tick")) == times


def test_without_lock_servers_no_beat_starts(start, config):
    """The end of the log says what is missing."""
    del config["redlock_coordinators"]
    with pytest.raises(ServerFailed, match="redlock_coordinators is missing: name the lock"):
        start()
