"""Real beats, any number of them: every slot is sent once."""

import random
import time

import pytest

from tests.celery.sent import Sent, longest_gap, twice

STOCK = "celery.beat:PersistentScheduler"
EVERY_SECOND = {"tick": {"task": "tests.tick", "schedule": 1.0}}


@pytest.fixture
def sent(config):
    """What the beats have sent."""
    reader = Sent(config["broker_url"])
    yield reader
    reader.close()


@pytest.fixture
def beats(beat):
    """Starts several beats at once."""

    def start(count, **options):
        return [beat(app="tests.celery.beat_app", **options) for _ in range(count)]

    return start


@pytest.mark.slow
@pytest.mark.config(beat_schedule=EVERY_SECOND, tests_crontabs={"minutely": {}})
def test_three_beats_send_each_slot_once(beats, sent):
    """Three beats, twenty ticks of one second and a crontab: twenty messages and one a minute."""
    beats(3)
    first = sent.wait_for("tests.tick", 1)[0]
    ticks = sent.wait_for("tests.tick", 20)
    assert ticks[19].at - first.at == pytest.approx(19, abs=0.7)
    assert twice(ticks) == []
    assert longest_gap(ticks) < 1.7
    minutes = sent.wait_for("tests.minutely", 1, timeout=62)
    assert len(minutes) == 1
    assert minutes[0].slot.endswith(":00+00:00")
