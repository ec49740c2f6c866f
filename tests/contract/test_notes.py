"""Notes left with a held lock: on every kind of coordinator that can be started here."""

import itertools
import threading

import pytest

from celery_redlock import CoordinatorUnavailable
from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.coordinators.memory import MemoryCoordinator
from celery_redlock.coordinators.notes import KeepsNotes, hand_over, leave_note
from celery_redlock.coordinators.urls import CoordinatorSettings, from_urls
from localservers import valkey_cluster

NEXT = Holder(task="next", id="n")
KINDS = ["memory", "by locks", "one Redis", "Redlock", "SQL"]
_numbers = itertools.count()


class OnlyLocks:
    """A coordinator that keeps no notes itself."""

    def __init__(self, coordinator):
        self._coordinator = coordinator
        for name in ("acquire", "extend", "release", "inspect"):
            setattr(self, name, getattr(coordinator, name))


@pytest.fixture(params=KINDS)
def coordinator(request, tmp_path):
    """One coordinator for queue locks of each kind."""
    settings = CoordinatorSettings(
        prefix=f"notes{next(_numbers)}", kind="queue", max_ttl=7200.0, node_timeout=1.0
    )
    if request.param == "memory":
        yield MemoryCoordinator()
        return
    if request.param == "by locks":
        yield OnlyLocks(MemoryCoordinator())
        return
    if request.param == "SQL":
        pytest.importorskip("sqlalchemy")
        from sqlalchemy import create_engine

        from celery_redlock.coordinators.sql_schema import metadata

        urls = [f"sqlite:///{tmp_path / 'locks.db'}"]
        engine = create_engine(urls[0])
        metadata.create_all(engine)
        engine.dispose()
    elif request.param == "one Redis":
        urls = [request.getfixturevalue("valkey").url]
    else:
        urls = request.getfixturevalue("valkey_5").urls
    made = from_urls(urls, settings)
    yield made
    made.close()


def take(coordinator, owner="one", ttl=60.0):
    """The lock, by an owner."""
    grant = coordinator.acquire("k", owner, ttl, Holder(task="present", id=owner))
    assert isinstance(grant, Grant)
    return grant


def bare(owner):
    """The grant as a message carries it: by its key and its owner alone."""
    return Grant("k", owner, 60.0, now() + 60.0)


def test_which_kinds_do_it_in_one_step(coordinator):
    """Memory and Redis hand a lock and its note over together; the others by their locks."""
    itself = isinstance(coordinator, KeepsNotes)
    assert itself == (type(coordinator).__name__ in {"MemoryCoordinator", "RedlockCoordinator"})


def test_without_a_note_the_lock_is_given_back(coordinator):
    """Nothing is handed over, and the lock is free."""
    take(coordinator)
    assert hand_over(coordinator, bare("one"), "two", 60.0, NEXT) is None
    assert coordinator.inspect("k") is None


def test_the_newest_note_is_handed_over_with_the_lock(coordinator):
    """Whatever order the notes come in, the one with the highest number is read, once."""
    take(coordinator)
    for number in (1, 3, 2):
        assert leave_note(
            coordinator, "k", "one", b"note %d\nand \x00 bytes" % number, number, 60.0
        )
    found = hand_over(coordinator, bare("one"), "two", 60.0, NEXT)
    assert found.note == b"note 3\nand \x00 bytes"
    assert found.grant.owner == "two"
    held = coordinator.inspect("k")
    assert (held.owner, held.holder.id) == ("two", "n")
    assert 0 < held.ttl_left <= 60.0
    assert hand_over(coordinator, bare("two"), "three", 60.0, NEXT) is None
    assert coordinator.inspect("k") is None


def test_a_note_for_a_lock_that_is_not_held_so_is_refused(coordinator):
    """Neither a free lock nor another's takes a note, and none is left behind."""
    assert leave_note(coordinator, "k", "one", b"x", 1, 60.0) is False
    take(coordinator, "two")
    assert leave_note(coordinator, "k", "one", b"x", 1, 60.0) is False
    assert hand_over(coordinator, bare("two"), "three", 60.0, NEXT) is None


def test_an_owner_that_has_lost_the_lock_still_reads_its_note(coordinator):
    """A note is not lost with the lock; the new holder keeps the lock, and doesn't read it."""
    grant = take(coordinator)
    assert leave_note(coordinator, "k", "one", b"x", 1, 60.0)
    assert coordinator.release(grant)
    take(coordinator, "two")
    found = hand_over(coordinator, bare("one"), "three", 60.0, NEXT)
    assert found.note == b"x"
    assert found.grant is None
    assert coordinator.inspect("k").owner == "two"
    assert hand_over(coordinator, bare("two"), "three", 60.0, NEXT) is None


def test_another_ones_hand_over_changes_nothing(coordinator):
    """Only the owner can hand a lock over."""
    take(coordinator)
    assert leave_note(coordinator, "k", "one", b"x", 1, 60.0)
    assert hand_over(coordinator, bare("somebody"), "three", 60.0, NEXT) is None
    assert coordinator.inspect("k").owner == "one"
    assert hand_over(coordinator, bare("one"), "two", 60.0, NEXT).note == b"x"


class Writer(threading.Thread):
    """Leaves notes with whoever is the present owner, until it is told to stop."""

    numbers = itertools.count(1)

    def __init__(self, coordinator, present):
        super().__init__()
        self.coordinator, self.present = coordinator, present
        self.left, self.failure, self.stopped = [0], None, False
        self.start()

    def run(self):
        try:
            while not self.stopped:
                number = next(self.numbers)
                note = b"%d" % number
                if leave_note(self.coordinator, "k", self.present[0], note, number, 60.0):
                    self.left.append(number)
        except Exception as exc:
            self.failure = exc


def hand_on(coordinator, present, turn):
    """Let the present owner hand the lock to the next one; the note's number, or 0."""
    heir = f"owner-{turn}"
    found = hand_over(coordinator, bare(present[0]), heir, 600.0, NEXT)
    if found is None or found.grant is None:
        take(coordinator, heir, 600.0)
    present[0] = heir
    return int(found.note) if found is not None else 0


# SQLite, whose writers lock each other out, has the same code as "by locks".
@pytest.mark.parametrize("coordinator", [kind for kind in KINDS if kind != "SQL"], indirect=True)
def test_no_note_is_lost_or_read_twice(coordinator):
    """Two writers and one reader at the same time: what was left is read once, or a newer one."""
    present, read = ["owner-0"], []
    take(coordinator, present[0], 600.0)
    writers = [Writer(coordinator, present) for _ in range(2)]
    for turn in itertools.count(1):
        read.append(hand_on(coordinator, present, turn))
        if sum(map(bool, read)) == 30 or any(writer.failure for writer in writers):
            break
    for writer in writers:
        writer.stopped = True
        writer.join()
        assert writer.failure is None
    read.append(hand_on(coordinator, present, 0))
    numbers = [number for number in read if number]
    assert len(numbers) == len(set(numbers))
    assert max(numbers) >= max(writer.left[-1] for writer in writers)


def test_a_minority_of_servers_may_be_dead(servers):
    """Notes are left and read by a majority; without one nobody can say."""
    nodes = servers.start(valkey_cluster, 3)
    coordinator = from_urls(nodes.urls, CoordinatorSettings(prefix="dead", kind="queue"))
    take(coordinator)
    nodes[0].crash()
    assert leave_note(coordinator, "k", "one", b"x", 1, 60.0)
    found = hand_over(coordinator, bare("one"), "two", 60.0, NEXT)
    assert (found.note, found.grant.owner) == (b"x", "two")
    nodes[1].crash()
    with pytest.raises(CoordinatorUnavailable):
        leave_note(coordinator, "k", "two", b"x", 1, 60.0)
    with pytest.raises(CoordinatorUnavailable):
        hand_over(coordinator, bare("two"), "three", 60.0, NEXT)
    coordinator.close()


def test_a_note_that_only_some_servers_have_is_read(valkey_5):
    """Its writer didn't reach a majority; whoever hands the lock over reads it all the same."""
    coordinator = from_urls(valkey_5.urls, CoordinatorSettings(prefix="some", kind="queue"))
    take(coordinator)
    for server in valkey_5[1:]:
        with server.client() as client:
            client.set("some:{k}:note", "somebody 1 eA==")
    with valkey_5[0].client() as client:
        client.set("some:{k}:note", "one 7 eA==", px=60000)
    found = hand_over(coordinator, bare("one"), "two", 60.0, NEXT)
    assert found.note == b"x"
    assert coordinator.inspect("k").owner == "two"
    coordinator.close()
