"""Slots are claimed over every coordinator, with real servers."""

import secrets
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import schedule

from celery_redlock.beat_claims import Claim, Register
from celery_redlock.beat_clock import CoordinatorClock
from celery_redlock.beat_marks import RING, _mark
from celery_redlock.beat_slots import due_slots
from celery_redlock.coordinators import CoordinatorSettings, from_urls
from celery_redlock.coordinators.base import Holder
from celery_redlock.locks import LONGEST_QUEUE_TTL

BEAT = Holder(task="reports.daily", host="beats", pid=1)
UTC = timezone.utc
HOUR = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def coordinator(kind, shared_ports, tmp_path):
    """A coordinator as beats use it."""
    urls = kind.urls(shared_ports(kind), tmp_path)
    kind.prepare(urls[0])
    prefix = f"beats-{secrets.token_hex(4)}"
    made = from_urls(
        urls, CoordinatorSettings(prefix, 0.5, kind="queue", max_ttl=LONGEST_QUEUE_TTL)
    )
    yield made
    made.close()


def claim(coordinator, entry, plan, most=1):
    """A beat's claim for an entry with this schedule."""

    def decide(last, now):
        return due_slots(plan, last, None, now, most)

    return Claim(
        coordinator,
        CoordinatorClock(coordinator),
        entry,
        BEAT,
        decide,
        lambda due: timedelta(hours=1),
    )


def a_name():
    """An entry that no other test has, with what a name may hold."""
    return f"every {{day}} ü {secrets.token_hex(4)}"


def test_the_servers_tell_the_time(coordinator):
    """The coordinator's clock is this machine's here, and is known to a fraction of a second."""
    clock = CoordinatorClock(coordinator)
    offs = []
    for _ in range(12):
        clock._learn()
        offs.append((clock.now() - datetime.now(UTC)).total_seconds())
        time.sleep(0.12)  # the readings of a clock of whole seconds must differ
    assert offs[-1] == pytest.approx(0, abs=0.15)


def test_the_register_keeps_the_newer_slot(coordinator):
    """Each slot that is written replaces the older of two, so that one is always known."""
    entry = a_name()
    assert Register.read(coordinator, entry).last is None
    for minute in range(4):
        slot = HOUR + timedelta(minutes=minute)
        assert Register.read(coordinator, entry).write(slot, BEAT, 600.0)
        read = Register.read(coordinator, entry)
        assert read.last == slot
    assert {held.holder.attempt for held in read.held} == {
        (HOUR + timedelta(minutes=minute)).isoformat() for minute in (2, 3)
    }


def test_a_restart_forgets_what_lies_in_the_future(coordinator):
    """A grid that begins anew is not held up by slots of a clock that was wrong."""
    entry = a_name()
    for days in (100, 101):
        Register.read(coordinator, entry).write(HOUR + timedelta(days=days), BEAT, 600.0)
    Register.read(coordinator, entry).write(HOUR, BEAT, 600.0, restart=True)
    assert Register.read(coordinator, entry).last == HOUR


def test_one_of_many_beats_sends_a_slot(coordinator):
    """Eight beats want the same slot at the same instant, and one of them sends it."""
    entry, sent, plan = a_name(), [], schedule(3600)
    start = threading.Barrier(8)

    def beat():
        mine = claim(coordinator, entry, plan)
        start.wait()
        settled = mine.settle(sent.append)
        while settled.busy:
            time.sleep(0.02)
            settled = mine.settle(sent.append)

    threads = [threading.Thread(target=beat) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(sent) == 1


def test_a_failed_publish_leaves_the_slot_due(coordinator):
    """Nothing is written down for a publish that raised, and the next beat sends the slot."""
    entry, plan = a_name(), schedule(3600)

    def fail(slot):
        raise OSError("no broker")

    with pytest.raises(OSError, match="no broker"):
        claim(coordinator, entry, plan).settle(fail)
    assert Register.read(coordinator, entry).last is None
    assert len(claim(coordinator, entry, plan).settle(lambda slot: slot).results) == 1
    assert claim(coordinator, entry, plan).settle(lambda slot: slot).results == ()


def test_a_dead_beat_holds_nobody_up(coordinator):
    """The claim of a beat that died before it published runs out, and another sends the slot."""
    entry, plan = a_name(), schedule(3600)
    dead = claim(coordinator, entry, plan)
    claimant = dead._claimant()
    coordinator.acquire(claimant.keys[0], "dead", claimant.options.ttl, BEAT)
    mine, began = claim(coordinator, entry, plan), time.monotonic()
    assert mine.settle(lambda slot: slot).busy
    while mine.settle(lambda slot: slot).busy:
        time.sleep(0.1)
    assert Register.read(coordinator, entry).last is not None
    assert time.monotonic() - began < claimant.options.ttl + 3.0


def test_only_the_newest_missed_slots_are_sent(coordinator):
    """After an outage as many slots are sent as were asked for, the oldest of them first."""
    entry, plan = a_name(), schedule(60)
    now = CoordinatorClock(coordinator).now()
    Register.read(coordinator, entry).write(now - timedelta(seconds=630), BEAT, 600.0)
    slots = claim(coordinator, entry, plan, most=3).settle(lambda slot: slot).results
    assert [round((slot - now).total_seconds()) for slot in slots] == [-150, -90, -30]
    assert claim(coordinator, entry, plan, most=3).settle(lambda slot: slot).results == ()


def test_the_worker_finds_a_second_message_out(coordinator):
    """The first message of a slot runs, again at each delivery; another one of it does not."""
    entry, at = a_name(), HOUR.isoformat()
    first, second = (Holder(task="t", id=name, attempt=at) for name in ("first", "second"))
    assert _mark(coordinator, entry, first) is None
    assert _mark(coordinator, entry, first) is None
    assert _mark(coordinator, entry, second).holder.id == "first"
    for minute in range(1, 4 * RING):
        other = (HOUR + timedelta(minutes=minute)).isoformat()
        assert _mark(coordinator, entry, Holder(id=f"m{minute}", attempt=other)) is None
