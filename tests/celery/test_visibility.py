"""A long task is not delivered a second time by a Redis broker with a short visibility timeout."""

import os
import signal
from types import SimpleNamespace

import pytest
import redis
from celery import Celery

from celery_redlock.native import Event
from celery_redlock.visibility import VisibilityHeartbeat
from tests.celery import visibility_tasks

TIMEOUT = 2  # seconds; the transport takes whole ones
TRANSPORT = {
    "visibility_timeout": TIMEOUT,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}


def request(tag, **facts):
    """A task's request, as far as the heartbeat looks at it."""
    return SimpleNamespace(properties={"delivery_tag": tag}, **facts)


class Touches(list):
    """A broker that notes what is touched, or can't be reached."""

    down = False

    def __call__(self, tags, score):
        if self.down:
            raise ConnectionError("nobody there")
        self.append(sorted(tags))


@pytest.fixture
def toy_app():
    """An application whose broker nobody connects to."""
    with Celery("toy", broker="redis://127.0.0.1:1/0", set_as_current=False) as app:
        app.conf.broker_transport_options = {"visibility_timeout": 10}
        yield app


@pytest.fixture
def touches():
    """What the broker was told."""
    return Touches()


@pytest.fixture
def heartbeat(toy_app, touches, monkeypatch):
    """A heartbeat whose passes the test makes itself: its thread doesn't start."""
    monkeypatch.setattr("celery_redlock.visibility.native_thread", lambda target, name: None)
    return VisibilityHeartbeat(toy_app, touches, clock=lambda: 100.0)


def test_a_short_task_costs_the_broker_nothing(heartbeat, touches):
    """Nothing is sent in the first second, and nothing once the task is over."""
    heartbeat.add(request("a"), acks_late=True)
    assert heartbeat.beat(100.5) == pytest.approx(0.5)
    heartbeat.remove(request("a"))
    assert heartbeat.beat(200.0) == float("inf")
    assert touches == []


def test_long_tasks_are_touched_together_and_again(heartbeat, touches):
    """One command for all of them, several times within a visibility timeout."""
    heartbeat.add(request("a"), acks_late=True)
    heartbeat.add(request("b"), acks_late=True)
    assert heartbeat.beat(101.0) == pytest.approx(2.0)
    assert heartbeat.beat(103.0) == pytest.approx(2.0)
    assert touches == [["a", "b"], ["a", "b"]]


def test_two_runs_of_one_message_are_one(heartbeat, touches):
    """A redelivered copy in the same process keeps the message until both have ended."""
    heartbeat.add(request("a"), acks_late=True)
    heartbeat.add(request("a"), acks_late=True)
    heartbeat.remove(request("a"))
    heartbeat.beat(101.0)
    heartbeat.remove(request("a"))
    heartbeat.remove(request("a"))
    heartbeat.beat(110.0)
    assert touches == [["a"]]


def test_an_unreachable_broker_is_tried_again_and_reported_once(heartbeat, touches, caplog):
    """The first failure is a warning; nothing is raised, and the tries go on."""
    heartbeat.add(request("a"), acks_late=True)
    touches.down = True
    assert heartbeat.beat(101.0) == pytest.approx(2.0)
    heartbeat.beat(103.0)
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "delivered again" in warnings[0].message
    touches.down = False
    heartbeat.beat(105.0)
    assert touches == [["a"]]


@pytest.mark.parametrize(
    "acks_late, facts",
    [
        (False, {}),  # it is acknowledged already
        (True, {"is_eager": True}),  # it has no message
    ],
)
def test_messages_that_need_it_not_are_left_alone(heartbeat, touches, acks_late, facts):
    """Only unacknowledged messages can be delivered again."""
    heartbeat.add(request("a", **facts), acks_late=acks_late)
    heartbeat.add(request(None), acks_late=True)
    assert heartbeat.beat(200.0) == float("inf")


@pytest.mark.parametrize(
    "broker, conf, active",
    [
        ("redis://127.0.0.1:1/0", {}, True),
        ("rediss://127.0.0.1:1/0", {}, True),
        ("sentinel://127.0.0.1:1;sentinel://127.0.0.1:2", {}, True),
        ("redis://127.0.0.1:1/0", {"redlock_visibility_heartbeat": False}, False),
        ("redis://127.0.0.1:1/0", {"broker_transport_options": {"ack_emulation": False}}, False),
        ("memory://", {}, False),
        ("amqp://127.0.0.1:1//", {}, False),
    ],
)
def test_it_is_active_for_redis_brokers_unless_switched_off(broker, conf, active):
    """Other brokers acknowledge by themselves."""
    with Celery("toy", broker=broker, set_as_current=False) as app:
        app.conf.update(conf)
        assert VisibilityHeartbeat(app).active is active


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_only_members_that_are_there_are_scored_anew(valkey, prefix):
    """An acknowledged message doesn't come back; the key's prefix is the application's."""
    with Celery("toy", broker=valkey.url, set_as_current=False) as app:
        app.conf.broker_transport_options = {"global_keyprefix": prefix, **TRANSPORT}
        heartbeat = VisibilityHeartbeat(app, clock=lambda: 0.0)
        client = redis.Redis.from_url(valkey.url)
        client.zadd(f"{prefix}unacked_index", {"there": 1.0})
        for tag in ("there", "acknowledged"):
            heartbeat.add(request(tag), acks_late=True)
        heartbeat.beat(1.0)
        assert client.zrange(f"{prefix}unacked_index", 0, -1) == [b"there"]
        assert client.zscore(f"{prefix}unacked_index", "there") > 1e9
        assert client.keys("*unacked_index") == [f"{prefix}unacked_index".encode()]
        heartbeat._broker._drop()
        heartbeat._broker._connection.close()
        client.close()


def test_a_broker_that_hangs_delays_nobody_for_long(servers):
    """A stopped server costs the heartbeat's thread a second or two, and nobody else."""
    from localservers import Valkey

    server = servers.start(Valkey)
    with Celery("toy", broker=server.url, set_as_current=False) as app:
        heartbeat = VisibilityHeartbeat(app, clock=lambda: 0.0)
        heartbeat.add(request("a"), acks_late=True)
        os.kill(server.pid, signal.SIGSTOP)
        done = Event()
        from celery_redlock.native import native_thread

        native_thread(lambda: (heartbeat.beat(1.0), done.set()), "beat")
        assert done.wait(10)
        os.kill(server.pid, signal.SIGCONT)
        heartbeat._broker._connection.close()


@pytest.mark.config(include=["tests.celery.visibility_tasks"], broker_transport_options=TRANSPORT)
class TestWithWorkers:
    """Real workers, and a task that lasts longer than the visibility timeout."""

    @staticmethod
    def run_long(worker, journal, **options):
        """Start a task on one of two free slots, and leave it longer than the timeout."""
        worker(concurrency=2, **options)
        result = visibility_tasks.kept.delay("long")
        journal.wait_for("start")
        Event().wait(2.5 * TIMEOUT)  # the broker would have delivered it again by now
        return result

    @pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
    def test_a_long_task_runs_once(self, app, worker, journal, pool):
        """Its message is kept, and gone when it has ended."""
        result = self.run_long(worker, journal, pool=pool)
        journal.open_gate("long", times=5)
        assert result.get(timeout=10) == "long"
        assert len(journal.entries("start")) == 1

    def test_without_the_heartbeat_it_runs_twice(self, app, worker, journal):
        """Negative control: switched off, the broker delivers it again."""
        result = self.run_long(worker, journal, config={"redlock_visibility_heartbeat": False})
        journal.wait_for("start", count=2)
        journal.open_gate("long", times=5)
        assert result.get(timeout=10) == "long"

    def test_a_dead_workers_message_is_delivered_again(self, app, worker, journal):
        """The heartbeat dies with its process: the visibility timeout does its work."""
        first = worker(concurrency=1)
        visibility_tasks.kept.delay("long")
        journal.wait_for("start")
        first.kill()
        worker(concurrency=1)
        journal.wait_for("start", count=2)
        journal.open_gate("long", times=2)
