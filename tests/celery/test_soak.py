"""Many tasks over few keys, while children and whole workers are killed at random.

``SOAK_TASKS`` and ``SOAK_SEED`` choose how many and which; the defaults suit every run of the tests.
"""

import contextlib
import os
import random
import secrets
import signal
from dataclasses import dataclass

import pytest
import redis

from celery_redlock.clock import now
from celery_redlock.native import Event
from tests.celery import soak_tasks as tasks

TASKS = int(os.environ.get("SOAK_TASKS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or secrets.randbits(32)
KEYS = 12
LONGEST = 0.3  # seconds of a body
KILL_EVERY = (0.3, 1.5)
PATIENCE = 60.0  # seconds without any progress
TRANSPORT = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # A worker that is killed while it looks for old messages keeps others from looking for so long.
    "unacked_mutex_expire": 2,
}


@pytest.fixture(params=["redis", "rabbitmq"])
def config(request, config, tmp_path):
    """The usual application, with each broker."""
    if request.param == "rabbitmq":
        broker = {"broker_url": request.getfixturevalue("rabbitmq").url}
    else:
        broker = {"broker_transport_options": TRANSPORT}
    return {
        **config,
        **broker,
        "include": ["tests.celery.soak_tasks"],
        "task_default_queue": f"soak-{secrets.token_hex(4)}",
        "worker_prefetch_multiplier": 1,
        "tests_log": str(tmp_path / "log"),
        "redlock_prefix": "soak",
        "redlock_node_timeout": 0.3,
    }


class Fleet:
    """Workers of which one is hit now and then, and replaced if it is dead.

    Who is about to be killed is written into the log of the bodies.
    """

    def __init__(self, start, chance, log):
        """Start two of them."""
        self._start, self._chance, self._log = start, chance, log
        self.workers = [start(), start()]
        self.children_killed = self.workers_killed = 0

    def hit(self):
        """Kill a child, or with a smaller chance a whole worker, or only its main process."""
        place = self._chance.randrange(len(self.workers))
        worker = self.workers[place]
        blow = self._chance.random()
        children = worker.children
        if blow < 0.75 and children:
            self._kill_child(self._chance.choice(children))
            return
        self.workers_killed += 1
        for pid in children:
            self._doom(pid)
        worker.kill(children=blow < 0.9)
        self.workers[place] = self._start()

    def _kill_child(self, pid):
        self._doom(pid)
        with contextlib.suppress(ProcessLookupError):  # it has just gone by itself
            os.kill(pid, signal.SIGKILL)
            self.children_killed += 1

    def _doom(self, pid):
        with self._log.open("a") as log:
            log.write(f"doomed - - {pid} 0 -\n")


@dataclass
class Line:
    """One line of the log."""

    event: str
    key: str
    id: str
    pid: int
    token: int


def lines_of(path):
    """The log of the bodies, in the order in which it was written."""
    for line in path.read_text().splitlines():
        event, key, task_id, pid, token, _ = line.split(" ")
        yield Line(event, key, task_id, int(pid), int(token))


def overlaps(lines):
    """Where a body began while another one of its key was between its begin and its end.

    A body that was killed ends where its process was doomed.  One that never ended although
    nobody is known to have killed it isn't looked at: its process was too young to be known.
    """
    inside, found = {}, []
    ended = {(line.id, line.pid, line.token) for line in lines if line.event == "end"}
    doomed = {line.pid for line in lines if line.event == "doomed"}
    for line in lines:
        if line.event == "end":
            inside.pop((line.key, line.token), None)
        elif line.event == "doomed":
            inside = {at: one for at, one in inside.items() if one.pid != line.pid}
        else:
            found += [(one, line) for (key, _), one in inside.items() if key == line.key]
            if line.pid in doomed or (line.id, line.pid, line.token) in ended:
                inside[line.key, line.token] = line
    return found


def test_the_check_catches_an_overlap():
    """The control: two bodies of one key at once are found, one after the other are not."""
    first, second = Line("begin", "k", "a", 1, 1), Line("begin", "k", "b", 2, 2)
    ends = [Line("end", "k", "a", 1, 1), Line("end", "k", "b", 2, 2)]
    killed = Line("doomed", "-", "-", 1, 0)
    assert overlaps([first, second, *ends])
    assert overlaps([first, second, killed, ends[1]])
    assert not overlaps([first, ends[0], second, ends[1]])
    assert not overlaps([first, killed, second, ends[1]])


@pytest.mark.timeout(1800)
def test_soak(config, app, worker, tmp_path, capsys):
    """Every task succeeds, never two bodies of one key at once, tokens rise, no key is left."""
    chance = random.Random(SEED)  # noqa: S311 - it only has to be repeatable
    queue = config["task_default_queue"]
    fleet = Fleet(lambda: worker(concurrency=3, queues=queue), chance, tmp_path / "log")
    begin = now()
    results = [
        tasks.exclusive.delay(chance.randrange(KEYS), number, chance.uniform(0, LONGEST))
        for number in range(TASKS)
    ]
    await_all(app, results, fleet, chance)
    lines = list(lines_of(tmp_path / "log"))
    with capsys.disabled():
        print(
            f"\nsoak over {config['broker_url'].partition(':')[0]}, seed {SEED}: {TASKS} tasks in "
            f"{now() - begin:.0f} s, {fleet.children_killed} children and "
            f"{fleet.workers_killed} workers killed, {len(lines)} lines"
        )
    assert fleet.children_killed + fleet.workers_killed > 0
    assert [result.get(timeout=5) for result in results] == list(range(TASKS))
    assert {line.id for line in lines if line.event == "end"} == {one.id for one in results}
    assert overlaps(lines) == []
    for key in {line.key for line in lines if line.event == "end"}:
        tokens = [line.token for line in lines if line.key == key and line.event == "begin"]
        assert tokens == sorted(set(tokens))
    none_left(config)


def await_all(app, results, fleet, chance):
    """Wait until every task has succeeded, and hit the fleet meanwhile."""
    left, progress = {result.id for result in results}, now()
    hit_at = now()
    while left:
        done = succeeded(app, left)
        if done:
            left, progress = left - done, now()
        assert now() - progress < PATIENCE, f"{len(left)} tasks never ended: {where(app, left)}"
        if now() > hit_at and len(left) > KEYS:
            fleet.hit()
            hit_at = now() + chance.uniform(*KILL_EVERY)
        Event().wait(0.1)


def where(app, ids):
    """Where the messages of tasks are, as far as a Redis broker shows it."""
    if not app.conf.broker_url.startswith("redis"):
        return sorted(ids)
    with redis.Redis.from_url(app.conf.broker_url) as client:
        waiting = b" ".join(client.lrange(app.conf.task_default_queue, 0, -1))
        unacked = b" ".join(client.hvals("unacked"))
        mutex = client.ttl("unacked_mutex")
    places = {"waiting": waiting, "unacked": unacked}
    found = {
        one: [name for name, text in places.items() if one.encode() in text] for one in sorted(ids)
    }
    return f"{found}, nobody else looks for {mutex} s"


def succeeded(app, ids):
    """Which of these tasks have a result."""
    ids = sorted(ids)
    found = app.backend.client.mget([app.backend.get_key_for_task(one) for one in ids])
    states = {
        one: app.backend.decode(meta)["status"]
        for one, meta in zip(ids, found, strict=True)
        if meta
    }
    failed = {one for one, state in states.items() if state in {"FAILURE", "REVOKED"}}
    assert not failed - survivors(app, failed), f"tasks failed: {failed}"
    return {one for one, state in states.items() if state == "SUCCESS"}


def survivors(app, failed):
    """Those of them that only count as failed because their child was lost; they come again."""
    return {
        one
        for one in failed
        if "WorkerLostError" in str(app.backend.get_task_meta(one, cache=False).get("result"))
    }


def none_left(config):
    """No lock is held, and no server keeps anything without an end."""
    end = now() + 10
    for url in config["redlock_coordinators"]["default"]:
        with redis.Redis.from_url(url) as client:
            while client.keys("soak:*:lock"):
                assert now() < end, client.keys("soak:*:lock")
            kept = [key for key in client.keys("soak:*") if b":node:" not in key]
            assert all(client.ttl(key) > 0 for key in kept), kept
