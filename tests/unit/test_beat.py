"""The scheduler on simulated clocks, in one process, over locks in memory."""

import secrets
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.beat import Scheduler, SchedulingError
from celery.schedules import crontab

from celery_redlock import beat as beat_module
from celery_redlock.beat import LockedScheduler, SlotClaims, locked
from celery_redlock.beat_clock import CoordinatorClock
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured

NOON = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


class World:
    """Clocks, lock servers and a broker, all of them simulated.

    Attributes:
        now: the lock servers' clock.
        sent: the slots of the messages, in order.
        broken: what publishing raises; None if it works.
        down: whether the lock servers are.
    """

    def __init__(self):
        self.now, self.sent, self.headers, self.broken, self.down = NOON, [], [], None, False
        self._prefix = secrets.token_hex(4)

    def instant(self):
        """The present instant as a monotonic clock gives it."""
        return self.now.timestamp()

    def beat(self, schedule, wrong_by=timedelta(0), **settings):
        """A beat with a new schedule file, whose clock is wrong by so much."""
        app = Celery("beats", set_as_current=False)
        app.conf.update(
            redlock_coordinators={"default": f"memory://{self._prefix}"},
            beat_schedule={"entry": {"task": "task", "schedule": schedule}},
            redlock_beat_scheduler="celery.beat:Scheduler",
            **settings,
        )
        app.now = lambda: self.now + wrong_by
        app.send_task = self._send
        beat = LockedScheduler(app)
        beat.__dict__["producer"] = None  # no connection is asked for
        return beat

    def _send(self, name, args=None, kwargs=None, headers=None, **options):
        if self.broken is not None:
            raise self.broken
        self.headers.append(headers)
        self.sent.append(datetime.fromisoformat(headers["redlock"]["slot"]["at"]))

    def pass_by(self, duration, *beats, step=timedelta(seconds=1)):
        """Let time go by, with looks of all beats at each step."""
        until = self.now + duration
        while self.now < until:
            self.now += step
            for beat in beats:
                while beat.tick() == 0:
                    pass


@pytest.fixture
def world(monkeypatch):
    """A world whose clocks all follow its own."""
    world = World()

    def now(self):
        if world.down:
            raise CoordinatorUnavailable("the world is down")
        return world.now

    monkeypatch.setattr(CoordinatorClock, "now", now)
    # Of the scheduler alone: leases are judged by the real one.
    monkeypatch.setattr(beat_module, "clock", SimpleNamespace(now=world.instant))
    return world


def minutes(*numbers):
    """These minutes of the hour."""
    return [NOON + number * MINUTE for number in numbers]


def test_several_beats_send_each_minute_once(world):
    """Three beats with clocks of their own, and a crontab of every minute."""
    beats = [world.beat(crontab(), timedelta(seconds=wrong)) for wrong in (0, 3, -3)]
    world.pass_by(5 * MINUTE + timedelta(seconds=10), *beats)
    assert world.sent == minutes(1, 2, 3, 4, 5)


def test_a_beat_that_is_ahead_waits(world):
    """A beat alone whose clock is an hour ahead sends each slot when it is due."""
    beat = world.beat(crontab(minute="*/2"), timedelta(hours=1))
    world.pass_by(timedelta(seconds=119), beat)
    assert world.sent == []
    world.pass_by(4 * MINUTE, beat)
    assert world.sent == minutes(2, 4)


def test_clocks_that_jump(world):
    """A clock that jumps ahead and back sends nothing twice, and another beat goes on."""
    wrong = {"by": timedelta(0)}
    good, jumpy = world.beat(crontab()), world.beat(crontab())
    jumpy.app.now = lambda: world.now + wrong["by"]
    for hours in (0, 1, -1, 1, 0):
        wrong["by"] = timedelta(hours=hours)
        world.pass_by(2 * MINUTE, jumpy, good)
    assert world.sent == minutes(*range(1, 11))


def test_a_new_beat_sends_what_was_missed_once(world):
    """After a while without any beat the newest slot is sent by one of two new ones."""
    world.pass_by(2 * MINUTE, world.beat(crontab()))
    world.now += 10 * MINUTE + timedelta(seconds=20)
    new = [world.beat(crontab()) for _ in range(2)]
    world.pass_by(timedelta(seconds=10), *new)
    assert world.sent == minutes(1, 2, 12)


def test_more_of_what_was_missed(world):
    """The setting says how many missed slots are sent."""
    world.pass_by(2 * MINUTE, world.beat(crontab()))
    world.now += 10 * MINUTE
    world.pass_by(timedelta(seconds=5), world.beat(crontab(), redlock_beat_catch_up=3))
    assert world.sent == minutes(1, 2, 10, 11, 12)


def test_the_first_beat_ever_replays_nothing(world):
    """With nothing known a beat sends the slots after its start only."""
    world.pass_by(timedelta(seconds=50), world.beat(crontab()))
    assert world.sent == []


def test_an_interval_keeps_its_grid(world):
    """Beats that begin at any phase send one message a period, at equal distances."""
    first = world.beat(10.0)
    world.pass_by(timedelta(seconds=23), first)
    second = world.beat(10.0)
    world.pass_by(timedelta(seconds=33), first, second)
    world.pass_by(timedelta(seconds=33), second)
    distances = {b - a for a, b in pairwise(world.sent)}
    assert distances == {timedelta(seconds=10)}
    assert len(world.sent) == 8


def test_a_publish_that_fails_is_tried_again(world):
    """The slot stays due for the same beat, and for others."""
    beat = world.beat(crontab())
    world.broken = OSError("no broker")
    world.pass_by(MINUTE, beat)
    assert world.sent == []
    world.broken = None
    world.pass_by(timedelta(seconds=3), beat)
    assert world.sent == minutes(1)


def test_a_failure_is_told_to_the_scheduler(world):
    """What publishing raises reaches Celery, which logs it."""
    beat = world.beat(10.0)
    world.broken = OSError("no broker")
    with pytest.raises(SchedulingError, match="no broker"):
        beat.apply_async(beat.schedule["entry"], advance=False)


@pytest.mark.parametrize("policy, times", [("run", 2), ("reschedule", 0), ("raise", 0)])
def test_lock_servers_that_are_down(world, policy, times):
    """Each beat sends, or waits, as the policy says; what was held back is sent once later."""
    beats = [world.beat(crontab(), redlock_on_unavailable=policy) for _ in range(2)]
    world.pass_by(timedelta(seconds=30), *beats)
    world.down = True
    world.pass_by(timedelta(seconds=40), *beats)
    assert world.sent == minutes(1) * times
    world.down = False
    world.pass_by(timedelta(seconds=30), *beats)
    assert world.sent == minutes(*([1] * (times or 1)))


def test_an_entry_that_is_removed_before_it_is_due(world):
    """A beat that waits for a slot of the future forgets it together with its entry."""
    beat = world.beat(crontab(minute="*/2"), timedelta(minutes=1))
    world.pass_by(timedelta(seconds=90), beat)
    assert [owed.future for owed in beat._owed.values()] == [True]
    del beat.schedule["entry"]
    world.pass_by(2 * MINUTE, beat)
    assert world.sent == []


def test_an_entry_that_is_removed_after_it_was_due(world):
    """A slot that was due while its entry was there isn't lost."""
    beat = world.beat(crontab())
    world.broken = OSError("no broker")
    world.pass_by(MINUTE, beat)
    del beat.schedule["entry"]
    world.broken = None
    world.pass_by(timedelta(seconds=3), beat)
    assert world.sent == minutes(1)


def test_the_stored_entry_stays_as_it_is(world):
    """Neither the slot nor Celery's own header leaks into the schedule."""
    beat = world.beat(10.0)
    beat.schedule["entry"].options = {"headers": {"mine": 1}, "queue": "q"}
    world.pass_by(timedelta(seconds=25), beat)
    assert beat.schedule["entry"].options == {"headers": {"mine": 1}, "queue": "q"}
    assert world.headers[0]["mine"] == 1
    assert world.headers[0]["celery_beat_task"] is True
    assert world.headers[0]["redlock"]["slot"]["entry"] == "entry"
    assert len({headers["redlock"]["slot"]["at"] for headers in world.headers}) == 2


def test_a_lazy_scheduler_asks_nobody():
    """What Celery makes for its banner only connects to nothing."""
    app = Celery("beats", set_as_current=False)
    app.conf.redlock_coordinators = {"default": "redis://127.0.0.1:1/0"}
    shown = LockedScheduler(app, lazy=True, schedule_filename="nowhere/at/all", max_interval=3)
    assert (shown.max_interval, shown.info) == (3, "    . db -> nowhere/at/all")


def test_without_lock_servers():
    """There is no beat without lock servers, not even a lazy one."""
    app = Celery("beats", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="redlock_coordinators is missing"):
        LockedScheduler(app, lazy=True)


@pytest.mark.parametrize(
    "value",
    ["nowhere.at:All", "celery.beat:Nothing", "celery.beat:ScheduleEntry", dict, LockedScheduler],
)
def test_what_can_t_be_wrapped(value):
    """Anything but a scheduler class is refused, and the setting named."""
    with pytest.raises(ImproperlyConfigured, match="redlock_beat_scheduler="):
        locked(value)


def test_nothing_is_wrapped_twice():
    """A class that claims its slots already is taken as it is."""
    once = locked(Scheduler)
    assert issubclass(once, SlotClaims)
    assert locked(once) is once


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5])
def test_how_many_missed_slots_can_be_asked_for(value):
    """A whole number of one or more."""
    app = Celery("beats", set_as_current=False)
    app.conf.update(redlock_coordinators={"default": "memory://"}, redlock_beat_catch_up=value)
    with pytest.raises(ImproperlyConfigured, match="redlock_beat_catch_up="):
        LockedScheduler(app, lazy=True)
