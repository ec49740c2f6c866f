"""Which slots are due, worked out on simulated clocks."""

from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from django_celery_beat.clockedschedule import clocked

from celery_redlock.beat_slots import Due, due_slots, newest_instant, next_instant, until_next

UTC = timezone.utc
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def at(*parts):
    """An instant in UTC."""
    return datetime(*parts, tzinfo=UTC)


@pytest.fixture(scope="module")
def berlin():
    """An application in a place whose clocks change."""
    app = Celery("berlin", set_as_current=False)
    app.conf.timezone = "Europe/Berlin"
    return app


@pytest.mark.parametrize(
    "plan, now, newest",
    [
        ({}, NOON + 59 * SECOND, NOON),
        ({}, NOON, NOON),
        ({"minute": "*/15"}, NOON + timedelta(minutes=44), NOON + timedelta(minutes=30)),
        ({"minute": 0, "hour": 3}, at(2026, 1, 7, 1, 59), at(2026, 1, 6, 2)),
        ({"minute": 0, "hour": 3, "day_of_week": "sun"}, at(2026, 1, 7, 1), at(2026, 1, 4, 2)),
        (
            {"minute": 0, "hour": 0, "day_of_month": 29, "month_of_year": 2},
            NOON,
            at(2024, 2, 28, 23),
        ),
    ],
)
def test_the_newest_instant_of_a_crontab(berlin, plan, now, newest):
    """Whoever asks, and whenever, gets the same newest instant."""
    plan = crontab(app=berlin, **plan)
    for microseconds in (0, 1, 999_999):
        assert newest_instant(plan, now + timedelta(microseconds=microseconds)) == newest


def test_an_instant_that_never_comes(berlin):
    """There is no newest instant of the 31st of February."""
    with pytest.raises(ValueError):
        crontab(app=berlin, day_of_month=31, month_of_year=2)
    moment = clocked(NOON, app=berlin)
    assert newest_instant(moment, NOON - SECOND) is None
    assert newest_instant(moment, NOON + 900 * SECOND) == NOON
    assert next_instant(moment, NOON + SECOND) is None


def test_a_sunset_is_one_slot_for_all(berlin):
    """Beats that look at different instants work out the same sunset, to the second."""
    plan = solar("sunset", 52.5, 13.4, app=berlin)
    seen = {newest_instant(plan, NOON + timedelta(minutes=17 * n)) for n in range(12)}
    assert len(seen) == 1
    assert due_slots(plan, seen.pop() - SECOND / 4, None, NOON).slots == ()


class Beat:
    """A beat that looks at a crontab whenever Celery says that it is due."""

    def __init__(self, plan, began):
        self.plan, self.ran = plan, began

    def look(self, now, sent, lag=timedelta(0)):
        """Look at an instant, by a clock that is behind by ``lag``."""
        self.plan.nowfun = lambda: now - lag
        if self.plan.is_due(self.ran).is_due:
            due = due_slots(self.plan, sent[-1] if sent else None, self.ran + lag, now)
            sent.extend(due.slots)
            self.ran = now - lag


@pytest.mark.parametrize(
    "night, fields, times",
    [
        ((2026, 10, 24, 21), {"hour": 2, "minute": 30}, 1),  # 2:30 comes twice
        ((2026, 3, 28, 21), {"hour": 2, "minute": 30}, 1),  # 2:30 doesn't come
        ((2026, 10, 24, 21), {"minute": 0}, 9),  # 9 hours, one of which counts once
        ((2026, 3, 28, 21), {"minute": 0}, 10),
    ],
)
def test_the_night_when_clocks_change(berlin, night, fields, times):
    """Three beats, one of them made anew every quarter of an hour: each slot is sent once."""
    began = at(*night) + timedelta(minutes=1)
    beats = [Beat(crontab(app=berlin, **{"hour": "*", **fields}), began) for _ in range(3)]
    sent = []
    for minute in range(10 * 60):
        now = began + timedelta(minutes=minute, seconds=1)
        for number, beat in enumerate(beats):
            beat.look(now, sent, lag=timedelta(seconds=3 * number))
        if minute % 15 == 7:
            beats[2] = Beat(beats[2].plan, now)
    assert len(sent) == len(set(sent)) == times
    assert sent == sorted(sent)


def test_the_schedule_alone_sends_twice(berlin):
    """The negative control: without the last slot each of three beats finds the slot due."""
    plan = crontab(app=berlin)
    due = [due_slots(plan, None, NOON - SECOND, NOON).slots for _ in range(3)]
    assert due == [(NOON,)] * 3


def test_an_interval_has_one_grid():
    """Slots lie at whole periods from the last one, whoever asks."""
    plan = schedule(10)
    assert due_slots(plan, None, None, NOON).slots == (NOON,)
    assert due_slots(plan, NOON, None, NOON + 9.9 * SECOND) == Due((), NOON + 10 * SECOND)
    assert due_slots(plan, NOON, None, NOON + 13 * SECOND).slots == (NOON + 10 * SECOND,)
    assert due_slots(plan, NOON, None, NOON + 55 * SECOND, 2).slots == (
        NOON + 40 * SECOND,
        NOON + 50 * SECOND,
    )
    assert until_next(plan, NOON, NOON + 13 * SECOND) == 7 * SECOND
    assert until_next(plan, NOON, NOON + 9.99 * SECOND) == 10.01 * SECOND


def test_a_grid_from_the_future_begins_anew():
    """If the clock that judges was set back, an interval isn't silent until it catches up."""
    due = due_slots(schedule(10), NOON + timedelta(hours=1), None, NOON)
    assert (due.slots, due.restart) == ((NOON,), True)
    assert due_slots(schedule(10), NOON + 9 * SECOND, None, NOON).slots == ()


def test_a_crontab_from_the_future_waits(berlin):
    """Slots of a crontab are never sent again, even if the clock that judges was set back."""
    last = NOON + timedelta(hours=1)
    assert due_slots(crontab(app=berlin), last, None, NOON).slots == ()


def test_a_relative_interval_keeps_to_round_times(berlin):
    """Every hour at the full hour, and every day at midnight, also when the day has 25 hours."""
    hourly = schedule(3600, relative=True, app=berlin)
    assert due_slots(hourly, None, None, NOON + 5 * SECOND).slots == (NOON,)
    assert due_slots(hourly, NOON, None, NOON + 3599 * SECOND).slots == ()
    assert due_slots(hourly, NOON, None, NOON + 3605 * SECOND).slots == (NOON + 3600 * SECOND,)
    daily = schedule(timedelta(days=1), relative=True, app=berlin)
    before, after = at(2026, 10, 24, 22), at(2026, 10, 25, 23)
    assert due_slots(daily, before, None, after).slots == (after,)


def test_missed_slots_are_bounded(berlin):
    """After an outage the newest slots are due, as many as were asked for, the oldest first."""
    plan, now = crontab(app=berlin), NOON + timedelta(minutes=30)
    assert due_slots(plan, NOON, None, now).slots == (now,)
    three = due_slots(plan, NOON, None, now, 3).slots
    assert three == tuple(now - timedelta(minutes=n) for n in (2, 1, 0))
    assert len(due_slots(plan, NOON, None, now, 100).slots) == 30
    assert due_slots(plan, None, now - timedelta(minutes=9), now, 100).slots == (now,)


def test_nothing_older_than_the_beat_without_a_register(berlin):
    """A beat that starts with nothing known sends nothing from before its start."""
    plan = crontab(app=berlin, minute=0)
    assert due_slots(plan, None, NOON + SECOND, NOON + 60 * SECOND).slots == ()
