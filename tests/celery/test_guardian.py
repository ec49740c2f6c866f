"""A guardian and children that are really forked, killed, stopped and kept busy."""

import faulthandler
import os
import re
import select
import signal
import time
from dataclasses import replace

import pytest

from celery_redlock import clock, pool_child
from celery_redlock.children import Guardian
from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.coordinators.urls import CoordinatorSettings, from_urls
from celery_redlock.exceptions import CoordinatorUnavailable, LockLost
from celery_redlock.guarding import Todo, what_to_do
from celery_redlock.interrupt import Interruptible
from celery_redlock.lease import Lease
from celery_redlock.native import Event
from celery_redlock.notices import SLOTS, Board, Notice, NoticeOptions
from celery_redlock.testing import FakeClock
from celery_redlock.watchdog import Hold, renew_due

TTL = 1.0
OPTIONS = NoticeOptions("the only one", TTL, TTL / 3)

# What goes wrong when a process with threads forks is what the guardian's fork hook is for.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def coordinator(request, valkey_3):
    """A majority of three servers that grants at once, or the one that a test asks for."""
    urls = valkey_3.urls[: getattr(request, "param", 3)]
    made = from_urls(urls, CoordinatorSettings(prefix="guardian", max_ttl=2.0))
    deadline = time.monotonic() + 10
    while any(finding.level != "ok" for finding in made.check()):
        assert time.monotonic() < deadline, made.check()
        Event().wait(0.05)
    yield made
    made.close()


@pytest.fixture
def guardian(coordinator):
    """A guardian in this process, which stands for a worker's main process."""
    one = Guardian(lambda named: {"the only one": coordinator}[named])
    one.start()
    before, parent, child = one.before_fork, one.after_fork, one.abandon
    _hooks[:] = [(before, parent, child)]
    yield one
    _hooks.clear()
    one.stop()
    assert one._children == {}


_hooks: list = []


class Child:
    """A forked process that runs ``body(say)``; what it says is read line by line."""

    def __init__(self, body):
        self._read, write = os.pipe()
        for before, _, _ in _hooks:
            assert before()
        self.pid = os.fork()
        if not self.pid:
            self._in_child(body, write)
        for _, after, _ in _hooks:
            after()
        os.close(write)
        self._dead = False

    @staticmethod
    def _in_child(body, write):
        code = 1
        faulthandler.disable()  # its end is intended
        try:
            for _, _, abandon in _hooks:
                abandon()
            body(lambda text: os.write(write, f"{text}\n".encode()))
            code = 0
        finally:
            os._exit(code)

    def hear(self, timeout=10.0):
        """The next line that it says; "" once it is dead."""
        assert select.select([self._read], [], [], timeout)[0], "the child says nothing"
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(self._read, 1)
            if not piece:
                break
            line += piece
        return line.decode().strip()

    def send(self, number):
        os.kill(self.pid, number)

    def reap(self):
        """Wait for its end, as the pool does; how it ended."""
        self._dead = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self):
        if not self._dead:
            self.send(signal.SIGKILL)
            self.reap()
        os.close(self._read)


@pytest.fixture
def fork():
    """Forks children, which are gone when the test ends."""
    born = []

    def make(body):
        born.append(Child(body))
        return born[-1]

    yield make
    for child in born:
        child.close()


def holding(coordinator, key, then, options=OPTIONS):
    """The body of a child that takes a lock, as a task does, and then does something."""

    def body(say):
        owner = f"owner-{os.getpid()}"
        assert pool_child.announce(key, owner, options)
        grant = coordinator.acquire(key, owner, options.ttl, Holder(pid=os.getpid()))
        assert isinstance(grant, Grant), grant
        pool_child.note(grant)
        say(owner)
        then(say, grant)

    return body


def sleep(say, grant):
    """Do nothing for long."""
    time.sleep(60)


def seconds_until_free(coordinator, key, timeout=10.0):
    """How long it takes until nobody holds the lock."""
    start = time.monotonic()
    while coordinator.inspect(key) is not None:
        assert time.monotonic() < start + timeout, "the lock stays"
        Event().wait(0.001)
    return time.monotonic() - start


# A child dies.


def test_what_a_dead_child_held_is_free_within_100_milliseconds(guardian, coordinator, fork):
    """Also while nobody has waited for the child yet, as the pool does only every few seconds."""
    took = []
    for number in range(10):
        child = fork(holding(coordinator, f"k{number}", sleep, replace(OPTIONS, ttl=2.0)))
        child.hear()
        assert coordinator.inspect(f"k{number}") is not None
        child.send(signal.SIGKILL)
        took.append(seconds_until_free(coordinator, f"k{number}"))
        child.reap()
    assert sorted(took)[-2] < 0.1, took  # the machine may be busy once


def test_without_pidfds_it_is_free_soon_after(guardian, coordinator, fork, monkeypatch):
    """On systems without them, deaths are noticed by looking."""
    monkeypatch.delattr(os, "pidfd_open")
    child = fork(holding(coordinator, "k", sleep, replace(OPTIONS, ttl=2.0)))
    child.hear()
    child.send(signal.SIGKILL)
    assert seconds_until_free(coordinator, "k") < 0.5
    assert child.reap() == -signal.SIGKILL  # looking took nothing away from who waits


def test_every_way_of_dying_counts(guardian, coordinator, fork):
    """A child that leaves by os._exit or by an unhandled signal has freed nothing itself."""
    leave = fork(holding(coordinator, "left", lambda *_: os._exit(3), replace(OPTIONS, ttl=2.0)))
    assert leave.hear()
    assert leave.reap() == 3
    abort = fork(holding(coordinator, "aborted", lambda *_: os.abort(), replace(OPTIONS, ttl=2.0)))
    assert abort.hear()
    assert abort.reap() == -signal.SIGABRT
    assert seconds_until_free(coordinator, "left") < 0.5
    assert seconds_until_free(coordinator, "aborted") < 0.5


def test_all_locks_of_a_child_are_freed_and_nobody_elses(guardian, coordinator, fork):
    """Each child has a board of its own."""

    def more(say, grant):
        body = holding(coordinator, "second", sleep, replace(OPTIONS, ttl=2.0))
        body(lambda text: say(f"second {text}"))

    other = fork(holding(coordinator, "other", sleep, replace(OPTIONS, ttl=2.0)))
    child = fork(holding(coordinator, "first", more, replace(OPTIONS, ttl=2.0)))
    other.hear()
    child.hear()
    assert child.hear().startswith("second")
    child.send(signal.SIGKILL)
    assert seconds_until_free(coordinator, "first") < 0.5
    assert seconds_until_free(coordinator, "second") < 0.5
    assert coordinator.inspect("other") is not None


@pytest.mark.parametrize("coordinator", [1], indirect=True)  # where graves are looked at
def test_an_acquire_that_was_under_way_at_the_death_comes_too_late(guardian, coordinator, fork):
    """A child that dies between its announcement and the grant leaves an owner that is dead."""

    def body(say):
        pool_child.announce("k", "dead-owner", replace(OPTIONS, ttl=2.0))
        say("announced")
        time.sleep(60)

    child = fork(body)
    child.hear()
    child.send(signal.SIGKILL)
    child.reap()
    deadline = time.monotonic() + 5
    while child.pid in guardian._children:
        assert time.monotonic() < deadline
        Event().wait(0.005)
    with pytest.raises(CoordinatorUnavailable, match="given up"):
        coordinator.acquire("k", "dead-owner", 2.0, Holder())
    assert isinstance(coordinator.acquire("k", "another", 2.0, Holder()), Grant)


def test_a_lock_that_was_given_back_is_left_alone(guardian, coordinator, fork):
    """After a retract the death of the child is nobody's business."""

    def give_back(say, grant):
        pool_child.finish(grant.owner)
        coordinator.release(grant)
        pool_child.retract(grant.owner)
        say("given back")
        time.sleep(60)

    child = fork(holding(coordinator, "k", give_back))
    child.hear()
    assert child.hear() == "given back"
    again = coordinator.acquire("k", "next", TTL, Holder())
    child.send(signal.SIGKILL)
    child.reap()
    Event().wait(0.2)
    assert coordinator.release(again)


def test_a_release_that_cannot_be_said_is_said_later(guardian, coordinator, fork, valkey_3):
    """The servers stand still at the death; the lock is free before its ttl is over."""
    child = fork(holding(coordinator, "k", sleep, replace(OPTIONS, ttl=2.0)))
    child.hear()
    for server in valkey_3:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        child.send(signal.SIGKILL)
        child.reap()
        Event().wait(0.3)
        assert guardian._owed
    finally:
        for server in valkey_3:
            os.kill(server.pid, signal.SIGCONT)
    assert seconds_until_free(coordinator, "k") < 1.5


# A child lives.


def test_nothing_is_freed_while_the_child_lives(guardian, coordinator, fork):
    """A child that is stopped may go on writing: its lock is left to the ttl."""
    child = fork(holding(coordinator, "k", sleep))
    child.hear()
    child.send(signal.SIGSTOP)
    Event().wait(TTL * 0.5)
    assert coordinator.inspect("k") is not None
    assert seconds_until_free(coordinator, "k") < TTL  # by its ttl, and not renewed


def compute(say, grant):
    """Keep the interpreter's lock for about two seconds, and say who holds the lock then."""
    start = time.monotonic()
    length = 20
    while time.monotonic() < start + 3.5 * TTL:
        re.match(r"(a+)+$", "a" * length + "b")
        length = min(length + 1, 24)
    say(f"{pool_child.renewed_until(grant.owner) > clock.now()} {pool_child.is_lost(grant.owner)}")


def test_a_child_that_is_busy_keeps_its_lock(guardian, coordinator, fork):
    """Three times the ttl without a watchdog of its own, and the lock is never free."""
    child = fork(holding(coordinator, "k", compute))
    owner = child.hear()
    end = time.monotonic() + 3 * TTL
    while time.monotonic() < end:
        held = coordinator.inspect("k")
        assert held is not None
        assert held.owner == owner
        Event().wait(0.01)
    assert child.hear() == "True False"


def test_without_a_guardian_the_busy_child_loses_it(coordinator, fork):
    """Negative control: nobody renews, so the lock runs out during the computation."""

    def body(say):
        assert coordinator.acquire("k", "o", TTL, Holder())
        say("held")
        compute(lambda text: None, Grant("k", "o", TTL, 0.0))

    child = fork(body)
    child.hear()
    assert seconds_until_free(coordinator, "k") < 2 * TTL


def test_nobody_renews_beyond_the_longest_hold(guardian, coordinator, fork):
    """``max_hold`` ends renewing, whoever does it."""
    child = fork(holding(coordinator, "k", compute, replace(OPTIONS, max_hold=TTL / 2)))
    child.hear()
    assert seconds_until_free(coordinator, "k") < 1.5 * TTL


def match(say, grant):
    """Match for very long, as a body that can be interrupted."""
    body = Interruptible(lambda: LockLost(grant.key), lambda: pool_child.is_lost(grant.owner))
    try:
        body.run(re.match, r"(a+)+$", "a" * 60 + "b")
    except LockLost:
        say("interrupted")


def test_a_body_whose_lock_was_lost_is_interrupted_from_outside(guardian, coordinator, fork):
    """Even inside a regular expression, which no thread of the child could interrupt."""
    child = fork(holding(coordinator, "k", match))
    grant = Grant("k", child.hear(), TTL, clock.now() + TTL)
    assert coordinator.release(grant)  # as an administrator would
    assert child.hear(5.0) == "interrupted"


def test_a_body_that_only_wants_a_flag_is_not_interrupted(guardian, coordinator, fork):
    """With ``on_lost="flag"`` the guardian says so and does nothing else."""

    def look(say, grant):
        end = time.monotonic() + 10
        while not pool_child.is_lost(grant.owner) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)
        say("not interrupted")

    child = fork(holding(coordinator, "k", look, replace(OPTIONS, abort=False)))
    assert coordinator.release(Grant("k", child.hear(), TTL, clock.now() + TTL))
    assert child.hear() == "not interrupted"


def test_a_child_is_killed_before_it_can_outlive_its_lock(guardian, coordinator, fork):
    """``on_lost="kill"``, for a child that is stopped and would go on later."""
    child = fork(holding(coordinator, "k", sleep, replace(OPTIONS, kill=True)))
    child.hear()
    end = clock.now() + TTL
    child.send(signal.SIGSTOP)
    assert child.reap() == -signal.SIGKILL
    assert clock.now() < end


def test_a_child_that_cannot_be_renewed_for_is_interrupted_at_the_deadline(
    guardian, coordinator, fork, valkey_3
):
    """Nobody can say, until the trust is over: then the body is stopped."""
    child = fork(holding(coordinator, "k", match))
    child.hear()
    start = clock.now()
    for server in valkey_3:
        os.kill(server.pid, signal.SIGSTOP)
    try:
        assert child.hear(5.0) == "interrupted"
    finally:
        for server in valkey_3:
            os.kill(server.pid, signal.SIGCONT)
    assert clock.now() - start > 0.5 * TTL


class Starved:
    """A coordinator whose first answer comes when the old deadline has passed."""

    def __init__(self, clock, guardian_renews):
        self.clock = clock
        self.renewed = 0.0  # until when the guardian has
        self._guardian_renews = guardian_renews
        self._asked = 0

    def extend(self, grant, ttl):
        """Take two seconds, as in a process that is kept from reading the answer."""
        start, self._asked = self.clock(), self._asked + 1
        if self._asked == 1:
            self.clock.advance(2.0)
            self.renewed = self.clock() + ttl if self._guardian_renews else 0.0
        late = self.clock() >= grant.valid_until
        return None if late else replace(grant, valid_until=start + ttl)


@pytest.mark.parametrize("guardian_renews", [True, False])
def test_an_answer_that_is_read_too_late_is_a_loss_only_without_a_guardian(guardian_renews):
    """The watchdog asks again at once, if the guardian has renewed the lock meanwhile."""
    clock, told = FakeClock(), []
    starved = Starved(clock, guardian_renews)
    grant = Grant("k", "o", 1.0, clock() + 1.0)
    lease = Lease([grant], "efficiency", Holder(), clock, lambda owner: starved.renewed)
    hold = Hold(lease, starved, 1.0, 0.3, None, told.append)
    clock.advance(0.5)
    again = renew_due([hold], clock)
    assert hold.lost is not guardian_renews
    if guardian_renews:
        assert again <= clock()
        assert lease.grants[0].valid_until == starved.renewed
        renew_due([hold], clock)
    assert [type(event).__name__ for event in told] == ["Renewed" if guardian_renews else "Lost"]


# Boards, and decisions.


def test_a_full_board_is_said(guardian, fork):
    """More locks than there is room for are not looked after, and the child knows."""

    def body(say):
        said = [pool_child.announce(f"k{n}", f"o{n}", OPTIONS) for n in range(SLOTS + 1)]
        pool_child.retract("o0")
        said.append(pool_child.announce("again", "again", OPTIONS))
        said.append(pool_child.announce("k" * 5000, "long", OPTIONS))
        say(
            said.count(True),
        )
        time.sleep(60)

    child = fork(body)
    assert child.hear() == str(SLOTS + 1)


def test_elsewhere_nothing_is_told():
    """A process that is no pool child has no guardian, and pays nothing."""
    assert not pool_child.announce("k", "o", OPTIONS)
    pool_child.note(Grant("k", "o", TTL, 5.0))
    pool_child.finish("o")
    pool_child.retract("o")
    assert pool_child.renewed_until("o") == 0.0
    assert not pool_child.is_lost("o")


def test_what_the_guardian_says_is_for_one_notice_only():
    """A word that comes late is not taken for one about the next lock in the same place."""
    board = Board(Board.new_file())
    slot = board.put_up("first", "o1", OPTIONS, 100.0)
    (first,) = board.notices()
    board.take_down(slot)
    assert list(board.notices()) == []
    slot = board.put_up("second", "o2", OPTIONS, 100.0)
    assert slot == first.slot
    board.renew(first, 99.0)
    board.lose(first)
    assert board.renewed_until(slot) == 0.0
    assert not board.is_lost(slot)
    assert not board.is_up(first)
    (second,) = board.notices()
    assert (second.key, second.owner, second.coordinator) == ("second", "o2", "the only one")
    board.renew(second, 99.0)
    board.note(slot, 50.0)
    (second,) = board.notices()
    assert (second.trusted_until, board.renewed_until(slot)) == (99.0, 99.0)
    board.close()


NOTICE = Notice(
    slot=0,
    number=1,
    ending=False,
    key="k",
    owner="o",
    coordinator="c",
    ttl=30.0,
    renew_interval=10.0,
    kill=False,
    abort=True,
    stop_at=float("inf"),
    valid_until=130.0,
    renewed_until=0.0,
    lost=False,
)


@pytest.mark.parametrize(
    "instant, facts, expected",
    [
        (100.0, {}, Todo.NOTHING),  # just renewed by the child
        (116.0, {}, Todo.NOTHING),  # a little late
        (117.0, {}, Todo.RENEW),  # a third of the rest has passed
        (117.0, {"renewed_until": 140.0}, Todo.NOTHING),
        (117.0, {"ending": True}, Todo.NOTHING),
        (117.0, {"valid_until": 0.0}, Todo.NOTHING),  # asked for, not granted
        (117.0, {"lost": True}, Todo.NOTHING),
        (117.0, {"stop_at": 116.0}, Todo.LOSE),
        (130.0, {}, Todo.LOSE),
        (127.5, {"kill": True}, Todo.LOSE),  # time to unwind
        (127.5, {"kill": True, "lost": True}, Todo.NOTHING),
        (129.95, {"kill": True, "lost": True}, Todo.KILL),
        (129.95, {"kill": True, "ending": True}, Todo.NOTHING),
    ],
)
def test_what_there_is_to_do_depends_on_the_instant(instant, facts, expected):
    """One pure decision for each lock and instant."""
    assert what_to_do(replace(NOTICE, **facts), instant)[0] is expected


@pytest.mark.parametrize("kill", [False, True])
def test_the_next_look_comes_before_anything_is_due(kill):
    """Whoever sleeps until then is never late."""
    notice, instant, seen = replace(NOTICE, kill=kill), 100.0, []
    lost_at = 127.0 if kill else 130.0
    while len(seen) < 3 and instant < 200.0:
        todo, again = what_to_do(notice, instant)
        if todo is not Todo.NOTHING:
            seen.append((todo, round(instant, 3)))
            notice = replace(notice, lost=todo is Todo.LOSE)
            again = max(again, lost_at if todo is Todo.RENEW else instant)  # in vain
        instant = again
    renew = (Todo.RENEW, round(130 - 20 * 2 / 3, 3))
    lose, last = (Todo.LOSE, lost_at), (Todo.KILL, 129.9)
    assert seen == ([renew, lose, last] if kill else [renew, lose])


def test_only_prefork_workers_have_a_guardian():
    """The other pools have no children that could die alone."""
    from celery.concurrency import prefork, solo

    from celery_redlock.guardian import _is_prefork

    assert _is_prefork("prefork")
    assert _is_prefork(prefork.TaskPool)
    assert not _is_prefork("gevent")
    assert not _is_prefork(solo.TaskPool)


def test_a_fork_waits_for_what_is_under_way(guardian, coordinator, fork, monkeypatch):
    """A child must not inherit a connection's lock in the hands of the guardian's thread."""
    child = fork(holding(coordinator, "k", sleep, replace(OPTIONS, ttl=2.0)))
    child.hear()
    under_way, release = Event(), coordinator.release

    def slow_release(grant):
        under_way.set()
        Event().wait(0.3)
        return release(grant)

    monkeypatch.setattr(coordinator, "release", slow_release)
    child.send(signal.SIGKILL)
    assert under_way.wait(5)
    start = time.monotonic()
    assert guardian.before_fork()
    guardian.after_fork()
    assert time.monotonic() - start > 0.1
