"""What happens to a lock when its task ends in every way there is: pool by acknowledgement by broker.

One table; it is printed at the end of the run.  A row that a pool has no means for (killing one
child of a thread pool, say) stands there as ``-``, with the reason in ``NOT_THERE``.

Rows whose time is spent with waiting try both acknowledgements side by side.
"""

import contextlib
import os
import signal
import uuid
from datetime import datetime, timedelta, timezone

import psutil
import pytest
from celery import chain, chord, group

from celery_redlock import LockLost, Locks
from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant
from localservers import Proxy, RabbitMQ, Valkey, valkey_cluster
from tests.celery.app import make_app
from tests.celery.journal import Journal
from tests.celery.matrix_tasks import EARLY, LATE, TASKS, TTL, collect
from tests.celery.processes import Worker

SOON = 15.0
SHORT = 2.0  # a ttl that a test can wait for
VISIBILITY = 2  # seconds; the transport takes whole ones


class Scene:
    """A broker with results, three lock servers, a worker of one pool, and a producer."""

    def __init__(self, servers, pool, broker, store, locks, **config):
        self.pool, self.broker, self._servers = pool, broker, servers
        self.config = {
            "broker_url": broker.url
            if isinstance(broker, RabbitMQ)
            else broker.url_as("", None, 0),
            "broker_connection_retry_on_startup": True,
            "broker_transport_options": {},
            "result_backend": store.url_as("", None, 1),
            "tests_journal": store.url_as("", None, 2),
            "include": ["tests.celery.matrix_tasks"],
            "redlock_coordinators": {"default": locks.urls},
            "redlock_node_timeout": 0.3,  # the machine may be busy, and that is not the point here
            "task_default_queue": f"q{uuid.uuid4().hex[:8]}",
            "worker_prefetch_multiplier": 1,
            **config,
        }
        if not isinstance(broker, RabbitMQ):
            self.config["broker_transport_options"] = {
                "visibility_timeout": VISIBILITY,
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            }
        self.app = make_app(self.config)
        self.journal = Journal(self.config["tests_journal"])
        self.worker = self.start_worker()
        self.slots = 1 if pool == "solo" else 2

    def is_rabbitmq(self):
        """Whether the broker delivers again when a connection is lost, not after a while."""
        return isinstance(self.broker, RabbitMQ)

    def start_proxy(self):
        """A proxy to the broker, whose connections can be cut."""
        return self._servers.start(Proxy, self.config["broker_url"])

    def start_worker(self, **config):
        """A worker of this pool that takes from this scene's queue."""
        return self._servers.start(
            Worker,
            {**self.config, **config},
            pool=self.pool,
            concurrency=2,
            queues=self.config["task_default_queue"],
        )

    def sweep(self):
        """Have what was not acknowledged in time delivered again, as other workers would.

        With kombu 5.7 the workers of green pools look only when they start.
        """
        if not self.is_rabbitmq() and self.pool in {"gevent", "eventlet"}:
            with self.app.connection_for_read() as connection:
                connection.channel().qos.restore_visible(interval=1)

    def task(self, what, ack):
        """A task of the matrix, bound to this scene's application."""
        return self.app.tasks[TASKS[what, ack].name]

    def lock(self, key, mode="efficiency", kind="lock"):
        """Who holds a lock."""
        return Locks.for_app(self.app).coordinator("default", mode, kind=kind).inspect(key)

    def key(self, task, name):
        """The name of a call's lock."""
        plan = Locks.for_app(self.app).plan(task, self.config["task_default_queue"], None)
        return plan.keys.names((name,), {})[0]

    def until_free(self, key, within, **where):
        """Wait until a lock is free; the seconds it took."""
        start = now()
        while self.lock(key, **where) is not None:
            assert now() - start < within, f"{key} is still held after {within:g} s"
        return now() - start

    def runs(self, task, name):
        """An equal call gets the lock and runs: the proof that nothing was left behind."""
        self.journal.open_gate(name)
        assert task.delay(name).get(timeout=SOON) == name

    def close(self):
        """Let go of connections; the processes belong to the fixture."""
        self.journal.close()
        Locks.for_app(self.app).close()
        self.app.backend.client.close()
        self.app.close()


# The rows.  Each takes a scene, how the message is acknowledged, and a name of its own.


def success_and_failure(scene, ack, name):
    """When the result is there, the lock is gone."""
    for what in ("work", "fail"):
        task = scene.task(what, ack)
        scene.journal.open_gate(name)
        task.delay(name).get(timeout=SOON, propagate=False)
        assert scene.lock(scene.key(task, name)) is None


def ignore(scene, ack, name):
    """A body that ends with Ignore leaves no lock behind."""
    task = scene.task("ignore", ack)
    task.delay(name)
    scene.journal.wait_for("start", name=name)
    scene.until_free(scene.key(task, name), 2)


def retry(scene, ack, name):
    """self.retry() once: it runs twice and succeeds."""
    assert scene.task("retry_once", ack).delay(name).get(timeout=SOON) == name
    assert len(scene.journal.entries("start", name=name)) == 2


def hard_time_limit(scene, ack, name):
    """The lock is gone within a second of the child's death, and the next call runs."""
    task = scene.task("too_long", ack)
    task.delay(name)
    start = scene.journal.wait_for("start", name=name)[0]
    wait_for_death(start["pid"])
    scene.until_free(start["key"], 1)


def child_killed(scene, ack, name):
    """The lock of a killed child is free at once; a late message runs again, an early one is lost."""
    task = scene.task("work", ack)
    result = task.delay(name)
    start = scene.journal.wait_for("start", name=name)[0]
    held = scene.lock(start["key"])
    os.kill(start["pid"], signal.SIGKILL)
    if ack == LATE:
        second = scene.journal.wait_for("start", name=name, count=2)[1]
        assert second["id"] == start["id"]
        scene.journal.open_gate(name)
        assert result.get(timeout=SOON) == name
    scene.until_free(start["key"], 1 if ack == EARLY else SOON)
    assert held.holder.id == start["id"]


def revoked_and_terminated(scene, ack, name):
    """The lock is held until the child is dead, and free right after."""
    task = scene.task("work", ack)
    result = task.delay(name)
    start = scene.journal.wait_for("start", name=name)[0]
    os.kill(start["pid"], signal.SIGSTOP)  # so that it can't die before we have looked
    result.revoke(terminate=True, signal="SIGKILL" if ack == LATE else "SIGTERM")
    if ack == EARLY:
        assert scene.lock(start["key"]) is not None
        os.kill(start["pid"], signal.SIGCONT)
    wait_for_death(start["pid"])
    scene.until_free(start["key"], 1)


def revoked_before_it_ran(scene, ack, name):
    """A revoked and an expired message free their queue lock; the next call runs."""
    task = scene.task("unique", ack)
    later = datetime.now(timezone.utc) + timedelta(seconds=1)
    revoked = task.apply_async((name,), eta=later)
    revoked.revoke()
    key = scene.key(task, name)
    scene.until_free(key, SOON, kind="queue")
    task.apply_async((name,), countdown=1, expires=0.5)
    scene.until_free(key, SOON, kind="queue")
    scene.runs(task, name)


def renewal_stopped_by_force(scene, ack, name):
    """A outlives its ttl, B runs: B keeps its lock when A ends, and A is stopped."""
    task = scene.task("loses_its_lock", ack)
    first = task.delay(name)
    start = scene.journal.wait_for("start", name=name)[0]
    key = start["key"]
    scene.until_free(key, 2 * TTL)
    coordinator = Locks.for_app(scene.app).coordinator("default", "efficiency")
    grant = coordinator.acquire(key, uuid.uuid4().hex, 30, Locks.for_app(scene.app).holder())
    scene.journal.open_gate(name)
    first.get(timeout=SOON, propagate=False)
    assert scene.lock(key).owner == grant.owner
    coordinator.release(grant)


def lock_taken_away(scene, ack, name):
    """Somebody else has the lock: the body is stopped at the next renewal, and says why."""
    task = scene.task("work", ack)
    first = task.delay(name)
    key = scene.journal.wait_for("start", name=name)[0]["key"]
    locks = Locks.for_app(scene.app)
    coordinator = locks.coordinator("default", "efficiency")
    held = coordinator.inspect(key)
    coordinator.release(Grant(key, held.owner, 30, now() + 30))
    grant = coordinator.acquire(key, uuid.uuid4().hex, 30, locks.holder())
    if scene.pool == "threads":  # nothing can break a blocking call of a thread: it must end
        scene.worker.wait_for_log(f"lock {key!r} was lost")
        scene.journal.open_gate(name)
    with pytest.raises(LockLost) as caught:
        first.get(timeout=SOON)
    assert caught.value.key == key
    assert "refused" in caught.value.reason
    assert scene.journal.entries("end", name=name) == []
    assert scene.lock(key).owner == grant.owner
    coordinator.release(grant)


def never_two_at_once(scene, ack, name):
    """Two producers and one by name only: one runs at a time."""
    task = scene.task("work", ack)
    first = task.delay(name)
    scene.journal.wait_for("start", name=name)
    second = task.delay(name)
    by_name = scene.app.send_task(task.name, (name,))
    skipped = second.get(timeout=SOON) if scene.pool != "solo" else None
    scene.journal.open_gate(name, times=3)
    assert first.get(timeout=SOON) == name
    by_name.get(timeout=SOON)
    assert skipped is None or skipped["holder"]["id"] == first.id
    assert scene.journal.most_at_once(name=name) == 1


def canvas(scene, ack, name):
    """Group, chord and chain with equal members end, and every member has a result."""
    work = scene.task("work", ack)
    scene.journal.open_gate(name, times=10)
    together = group(work.s(name), work.s(name))()
    assert len(together.get(timeout=SOON)) == 2
    gathered = chord([work.s(name), work.s(name)])(scene.app.tasks[collect.name].s())
    assert len(gathered.get(timeout=SOON)) == 2
    assert chain(work.si(name), work.si(name))().get(timeout=SOON) is not None
    assert scene.journal.most_at_once(name=name) == 1


def renewed(scene, acks, name):
    """A body of more than two ttls keeps its lock all the time, and is not stopped."""
    for some in at_once(scene, acks):
        results = {}
        for ack in some:
            results[ack] = scene.task("work", ack).apply_async((name,), lock={"ttl": SHORT})
        starts = [start_of(scene, result) for result in results.values()]
        owners = [scene.lock(start["key"]).owner for start in starts]
        end = now() + 2.2 * SHORT
        while now() < end:
            assert [scene.lock(start["key"]).owner for start in starts] == owners
        scene.journal.open_gate(name, times=len(some))
        assert [result.get(timeout=SOON) for result in results.values()] == [name] * len(some)


def worker_killed(scene, acks, name):
    """A late message comes again while its dead attempt's lock lasts: it waits, and takes over.

    An early one is lost with its worker; its lock is gone after its ttl.
    """
    if scene.pool == "solo":  # its early messages are acknowledged when its loop runs again
        acks = (LATE,)
    ttls = {EARLY: SHORT, LATE: 4 * VISIBILITY}
    task = {ack: scene.task("fenced", ack) for ack in acks}
    results = {ack: task[ack].apply_async((name,), lock={"ttl": ttls[ack]}) for ack in acks}
    starts = {ack: start_of(scene, result) for ack, result in results.items()}
    first, scene.worker = scene.worker, scene.start_worker()
    first.kill()
    killed = now()
    if EARLY in acks:
        within = killed + 2 * SHORT - now()
        scene.until_free(starts[EARLY]["key"], within, mode="correctness")
    taken_over(scene, results[LATE], starts[LATE], name)
    if EARLY in acks:
        assert len(scene.journal.entries("start", id=results[EARLY].id)) == 1


def taken_over(scene, result, start, name):
    """A message runs a second time, after it was put off, with a higher token."""
    put_off = f"[{result.id}] rescheduled"
    until(lambda: scene.sweep() or put_off in scene.worker.log, "it was not put off")
    second = scene.journal.wait_for("start", count=2, id=result.id)[1]
    assert second["token"] > start["token"]
    scene.journal.open_gate(name)
    assert result.get(timeout=SOON) == name
    assert "takes over from an earlier delivery" in scene.worker.log
    assert len(scene.journal.entries("start", id=result.id)) == 2


def delivered_twice(scene, ack, name):
    """A copy comes while the first attempt runs: it neither runs nor is dropped until that has ended.

    It is dropped if the first attempt has succeeded, and runs if that died.
    """
    scene.worker.kill()
    config = {"redlock_visibility_heartbeat": False}
    if scene.is_rabbitmq():
        proxy = scene.start_proxy()
        config["broker_url"] = proxy.url
    workers = [scene.start_worker(**config) for _ in range(2)]
    task, dying = scene.task("work", ack), f"{name} dies"
    result = task.delay(name)
    start = start_of(scene, result)
    doomed = task.delay(dying) if scene.pool == "prefork" else None
    doomed_start = start_of(scene, doomed) if doomed else None
    if scene.is_rabbitmq():
        proxy.cut()
    waits = f"[{result.id}] rescheduled"
    until(lambda: scene.sweep() or any(waits in one.log for one in workers), "no copy came")
    if doomed:
        waits_too = f"[{doomed.id}] rescheduled"
        until(lambda: any(waits_too in worker.log for worker in workers), "no copy")
        os.kill(doomed_start["pid"], signal.SIGKILL)
        scene.journal.wait_for("start", count=2, id=doomed.id)
        scene.journal.open_gate(dying)
    while now() < start["at"] + 3 * VISIBILITY:
        assert len(scene.journal.entries("start", id=result.id)) == 1
    assert result.state == "PENDING"  # the copy has left the state alone
    scene.journal.open_gate(name)
    assert result.get(timeout=SOON) == name
    dropped = f"[{result.id}] dropped"
    until(lambda: any(dropped in worker.log for worker in workers), "the copy wasn't dropped")
    assert result.get(timeout=SOON) == name
    assert len(scene.journal.entries("start", id=result.id)) == 1
    if doomed:
        # Asked anew each time: the dead child's failure may be seen first.
        again = scene.app.AsyncResult
        until(lambda: again(doomed.id).state == "SUCCESS", "the second attempt didn't succeed")
    for worker in workers:
        worker.kill()
    scene.worker = scene.start_worker()


def at_once(scene, acks):
    """Both ways of acknowledgement together where there is a slot for each, else in turn."""
    return [acks] if scene.slots > 1 else [(ack,) for ack in acks]


def start_of(scene, result):
    """What the journal says of the first start of a task."""
    return scene.journal.wait_for("start", id=result.id)[0]


def until(true, otherwise):
    """Wait until something is true."""
    end = now() + 2 * SOON
    while not true():
        assert now() < end, otherwise


def wait_for_death(pid):
    """Wait until a process has ended, whether or not its parent has noticed."""
    start = now()
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert now() - start < SOON, f"process {pid} lives on"


ROWS = [
    success_and_failure,
    ignore,
    retry,
    never_two_at_once,
    canvas,
    revoked_before_it_ran,
    renewed,
    renewal_stopped_by_force,
    lock_taken_away,
    hard_time_limit,
    child_killed,
    revoked_and_terminated,
    worker_killed,
    delivered_twice,
]
SIDE_BY_SIDE = {renewed, worker_killed}
# An early message was acknowledged before its body began, so it is never delivered twice.
NOT_EARLY = {delivered_twice}
# These pools have no children: no hard time limit, no termination, nobody who could die alone.
CHILDREN = {hard_time_limit, child_killed, revoked_and_terminated}
NOT_THERE = dict.fromkeys(("threads", "gevent", "eventlet", "solo"), CHILDREN)
COLUMNS = [
    ("prefork", "redis"),
    ("prefork", "rabbitmq"),
    ("threads", "redis"),
    ("gevent", "redis"),
    ("eventlet", "redis"),
    ("solo", "redis"),
]


@pytest.fixture(scope="module")
def stage(request, shared_servers):
    """Scenes by pool and broker, made at first use."""
    store = shared_servers.start(Valkey)
    locks = shared_servers.start(valkey_cluster, 3)
    scenes = {}

    def scene(kind):
        if kind not in scenes:
            for old in scenes.values():
                old.worker.kill()  # one worker at a time: this machine is small
            pool, broker = kind.split("/")
            where = request.getfixturevalue("rabbitmq") if broker == "rabbitmq" else store
            scenes[kind] = Scene(shared_servers, pool, where, store, locks)
        return scenes[kind]

    yield scene
    for one in scenes.values():
        one.close()


def ways(row):
    """How the messages of a row are acknowledged, of one run after the other."""
    if row in SIDE_BY_SIDE:
        return [(EARLY, LATE)]
    return [LATE] if row in NOT_EARLY else [EARLY, LATE]


def name_of(ack):
    """One word for one way or both."""
    return ack if isinstance(ack, str) else "both"


# "kind" tells the runner that columns share nothing, so that they may run in several processes.
CELLS = [
    pytest.param(row, f"{pool}/{broker}", ack, id=f"{row.__name__}-{pool}-{broker}-{name_of(ack)}")
    for pool, broker in COLUMNS
    for row in ROWS
    if row not in NOT_THERE.get(pool, ())
    for ack in ways(row)
]


@pytest.mark.parametrize(("row", "kind", "ack"), CELLS)
def test_matrix(stage, record_property, row, kind, ack):
    """One cell of the table."""
    record_property("matrix", [row.__name__, kind])
    row(stage(kind), ack, uuid.uuid4().hex)
