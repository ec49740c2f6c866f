"""The schedulers that can be wrapped: django-celery-beat's, RedBeat's; and the name ``redlock``."""

import configparser
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.celery.sent import Sent, longest_gap, twice

ROOT = Path(__file__).parents[2]
DATABASE_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
REDBEAT = "redbeat.RedBeatScheduler"
EVERY_SECOND = {"tick": {"task": "tests.tick", "schedule": 1.0}}


class Project:
    """A Django project."""

    def __init__(self, environment):
        self.environment = environment

    def edit(self, *words):
        """Change the schedule, as an administrator does."""
        command = [sys.executable, "-m", "tests.celery.django_beat_schedule", *map(str, words)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **self.environment}, check=True)


@pytest.fixture
def sent(config):
    """What the beats have sent."""
    reader = Sent(config["broker_url"])
    yield reader
    reader.close()


@pytest.fixture
def django(tmp_path):
    """A Django project whose schedule is in a database."""
    environment = {
        "BEAT_TESTS_DATABASE": str(tmp_path / "schedule.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "tests.celery.django_beat_settings",
    }
    project = Project(environment)
    project.edit("make")
    return project


@pytest.mark.slow
@pytest.mark.config(redlock_beat_scheduler=DATABASE_SCHEDULER)
def test_a_schedule_in_a_database(beat, django, sent):
    """Entries are added, changed and removed while two beats run: no slot twice, none lost."""
    django.edit("every", "tick", 1)
    django.edit("once", "single", 8)
    beats = [beat(app="tests.celery.beat_app", environment=django.environment) for _ in range(2)]
    sent.wait_for("tests.tick", 5)
    django.edit("every", "added", 1)
    added = sent.wait_for("tests.added", 4)
    single = sent.wait_for("tests.single", 1)
    django.edit("every", "tick", 2)
    sent.wait_for("tests.added", len(added) + 5)
    beats.pop().kill()
    before = len(sent.of("tests.tick"))
    ticks = sent.wait_for("tests.tick", before + 3)
    django.edit("remove", "added")
    ticks = sent.wait_for("tests.tick", len(ticks) + 3)
    gone = len(sent.of("tests.added"))
    ticks = sent.wait_for("tests.tick", len(ticks) + 2)
    assert len(sent.of("tests.added")) == gone
    assert twice(ticks) == twice(sent.of("tests.added")) == []
    assert longest_gap(ticks[-4:]) < 3.6
    assert len(sent.of("tests.single")) == len(single) == 1
    assert ticks[0].headers["periodic_task_name"] == "tick"


@pytest.mark.slow
@pytest.mark.config(redlock_beat_scheduler=REDBEAT, beat_schedule=EVERY_SECOND)
def test_redbeat_without_its_own_lock(beat, sent, config):
    """Two beats over one schedule in Redis work at the same time, and one may be killed."""
    config["redbeat_redis_url"] = config["broker_url"]
    beats = [beat(app="tests.celery.beat_app") for _ in range(2)]
    ticks = sent.wait_for("tests.tick", 8)
    assert {tick.pid for tick in ticks} == {beat.pid for beat in beats}
    beats[0].kill()
    ticks = sent.wait_for("tests.tick", len(ticks) + 5)
    assert twice(ticks) == []
    assert longest_gap(ticks) < 2.6
    assert "Acquiring lock" not in beats[1].log


@pytest.mark.slow
@pytest.mark.config(redbeat_lock_key=None, beat_schedule=EVERY_SECOND)
def test_redbeat_alone_sends_twice(beat, sent, config):
    """The negative control: the same two beats without claims send some slots twice."""
    config["redbeat_redis_url"] = config["broker_url"]
    for _ in range(2):
        beat(app="tests.celery.beat_app", scheduler=REDBEAT)
    seen = len(sent.wait_for("tests.tick", 1))
    time.sleep(8)  # nothing less shows what comes in eight seconds
    assert len(sent.of("tests.tick")) - seen > 9


@pytest.mark.config(beat_schedule=EVERY_SECOND)
def test_the_short_name(beat, sent, tmp_path):
    """``-S redlock`` is found by the entry point that the package declares."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    group = "celery.beat_schedulers"
    points = declared["options.entry_points"][group]
    info = tmp_path / "celery_redlock-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: celery_redlock\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{points.strip()}\n")
    where = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    started = beat(app="tests.celery.beat_app", scheduler="redlock", environment=where)
    assert sent.wait_for("tests.tick", 2)[0].slot
    assert "LockedPersistentScheduler" in started.log


@pytest.mark.config(redlock_beat_scheduler="celery.beat:ScheduleEntry")
def test_no_scheduler_class(beat):
    """What is no scheduler class is refused, and the message names the setting."""
    with pytest.raises(Exception, match="redlock_beat_scheduler='celery.beat:ScheduleEntry' must"):
        beat(app="tests.celery.beat_app")
