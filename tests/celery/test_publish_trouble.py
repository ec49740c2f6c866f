"""Publishing while lock servers or the broker fail: bounded, loud, and nothing is lost."""

import json
import logging
import os
import subprocess
import sys
import time

import pytest
from kombu.exceptions import OperationalError

from celery_redlock import ImproperlyConfigured, Locks, events, signals
from celery_redlock.admission import BUDGET
from localservers import Proxy, Valkey
from tests.celery import unique_tasks as tasks
from tests.celery.app import CONFIG, close_app, make_app
from tests.celery.processes import _ROOT
from tests.celery.test_publish_scopes import queue_lock

pytestmark = pytest.mark.config(include=["tests.celery.unique_tasks"])

SLACK = 0.15  # seconds for everything else that a publish does, on a busy machine


@pytest.fixture
def proxies(valkey_3):
    """A proxy before each of three lock servers."""
    made = [Proxy(server.url).start() for server in valkey_3]
    yield made
    for proxy in made:
        proxy.close()


@pytest.fixture
def app(config, proxies):
    """An application whose lock servers are behind the proxies."""
    app = make_app({**config, "redlock_coordinators": {"default": [p.url for p in proxies]}})
    # Connections to the broker and the result backend are made before anything is timed.
    app.send_task("tests.celery.tasks.pid")
    yield app
    for proxy in proxies:
        proxy.heal()
    close_app(app)


@pytest.fixture
def unlocked(app):
    """The events of calls that were published without their queue lock."""
    seen = []

    def note(sender, event, **_):
        if sender is app:
            seen.append(event)

    signals.unavailable.connect(note)
    yield seen
    signals.unavailable.disconnect(note)


def waiting(config, valkey):
    """How many messages are in the queue."""
    with valkey.client() as client:
        return client.llen("celery")


def timed(call):
    """What a call gives, and how many seconds it took."""
    start = time.monotonic()
    return call(), time.monotonic() - start


BREAKAGES = {
    "hangs": lambda proxies: [proxy.hold() for proxy in proxies],
    "carries out, but never answers": lambda proxies: [p.hold(requests=False) for p in proxies],
    "is down": lambda proxies: [proxy.refuse() for proxy in proxies],
    "is slow": lambda proxies: [proxy.delay(1.0) for proxy in proxies],
    "hangs on a majority": lambda proxies: [proxy.hold() for proxy in proxies[:2]],
}


@pytest.mark.parametrize("warm", [True, False], ids=["known before", "met for the first time"])
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_lock_store_that_fails_costs_a_quarter_of_a_second(
    app, config, valkey, proxies, unlocked, caplog, breakage, warm
):
    """Whatever it does, the message goes out in time, loudly, and isn't called a duplicate."""
    if warm:
        tasks.until_executed.delay("warm")
    before = waiting(config, valkey)
    BREAKAGES[breakage](proxies)
    took = []
    for number in range(1, 4):
        result, seconds = timed(lambda: tasks.until_executed.delay("a"))
        took.append(seconds)
        assert result.duplicate is False
        assert waiting(config, valkey) == before + number
        assert len(unlocked) == number
    assert min(took) < BUDGET + SLACK  # the others: this machine may be busy
    assert max(took) < 1.0
    assert unlocked[0].policy == "publish"
    assert isinstance(unlocked[0], events.Unavailable)
    warnings = [r for r in caplog.records if "WITHOUT ITS QUEUE LOCK" in r.message]
    assert len(warnings) == 3
    assert warnings[0].levelno == logging.WARNING


@pytest.mark.parametrize("how", ["hold", "refuse"])
def test_a_minority_that_fails_costs_nothing(app, proxies, unlocked, how):
    """With two of three servers the queue lock is taken, and duplicates are found."""
    first = tasks.until_executed.delay("warm")
    getattr(proxies[0], how)()
    tasks.until_executed.delay("a")  # finds out
    first, seconds = timed(lambda: tasks.until_executed.delay("b"))
    assert seconds < BUDGET
    assert first.duplicate is False
    assert tasks.until_executed.delay("b").id == first.id
    assert not unlocked


def test_a_lock_store_that_is_out_of_memory(servers, config, valkey, caplog):
    """It refuses to store anything: the message goes out."""
    full = servers.start(Valkey, durable=False, config={"maxmemory-policy": "noeviction"})
    app = make_app({**config, "redlock_coordinators": {"default": full.url}})
    try:
        with full.client() as client:
            client.config_set("maxmemory", "1")
        result, seconds = timed(lambda: tasks.until_executed.delay("a"))
        assert seconds < BUDGET + SLACK
        assert result.duplicate is False
        assert waiting(config, valkey) == 1
        assert "OOM" in caplog.text
    finally:
        close_app(app)


def test_a_coordinator_that_never_comes_back(app, config, valkey, monkeypatch, unlocked):
    """Not even one that ignores all its own timeouts holds a publisher up."""
    coordinator = Locks.for_app(app).coordinator("default", "efficiency", "queue")
    acquire = coordinator.acquire
    monkeypatch.setattr(coordinator, "acquire", lambda *a: time.sleep(1.0) or acquire(*a))
    result, seconds = timed(lambda: tasks.until_executed.delay("a"))
    assert BUDGET <= seconds < 0.9
    assert result.duplicate is False
    assert waiting(config, valkey) == 2
    assert len(unlocked) == 1
    # What it has taken in the end is given back.
    deadline = time.monotonic() + 10
    time.sleep(1.0)
    while queue_lock(app, tasks.until_executed, "a") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_answer_that_is_lost_leaves_no_lock_for_an_hour(app, proxies):
    """The servers took the lock and the publisher doesn't know: it is gone within seconds."""
    tasks.until_executed.delay("warm")
    for proxy in proxies:
        proxy.hold(requests=False)
    tasks.until_executed.delay("a")
    for proxy in proxies:
        proxy.heal()
    held = queue_lock(app, tasks.until_executed, "a")
    assert held is None or held.ttl_left <= 5.0


# The broker fails.


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request, config, valkey):
    """A proxy before the broker, and an application that publishes through it."""
    url = request.getfixturevalue("rabbitmq").url if request.param == "rabbitmq" else valkey.url
    with Proxy(url) as proxy:
        url = proxy.url if request.param == "rabbitmq" else f"redis://127.0.0.1:{proxy.port}/0"
        options = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
        if request.param == "rabbitmq":
            options = {"confirm_publish": True, "read_timeout": 0.5, "write_timeout": 0.5}
        app = make_app(
            {
                **config,
                "broker_url": url,
                "task_publish_retry": False,
                "broker_transport_options": options,
                "broker_connection_timeout": 0.5,
            }
        )
        yield app, proxy
        proxy.heal()
        close_app(app)


def test_a_publish_that_is_refused_leaves_no_lock(broker):
    """The broker is down: the caller is told, and the lock is given back at once."""
    app, proxy = broker
    proxy.refuse()
    with pytest.raises(OperationalError):
        tasks.until_executed.delay("a")
    assert queue_lock(app, tasks.until_executed, "a") is None
    proxy.heal()
    assert tasks.until_executed.delay("a").duplicate is False


def test_a_publish_of_unknown_outcome_leaves_a_lock_for_seconds(broker, caplog):
    """The broker doesn't answer: perhaps the message is out, so the lock runs out by itself.

    Until then a second call waits rather than being folded into what may never run.
    """
    app, proxy = broker
    tasks.until_executed.delay("warm")
    proxy.hold(requests=False)
    with pytest.raises(OperationalError):
        tasks.until_executed.apply_async(("a",), timeout=0.5, confirm_timeout=0.5)
    held = queue_lock(app, tasks.until_executed, "a")
    assert 0 < held.ttl_left <= 5.0
    assert "is not known" in caplog.text
    proxy.heal()
    again, seconds = timed(lambda: tasks.until_executed.delay("a"))
    assert again.duplicate is False
    assert seconds < 6.0


def test_an_argument_that_cannot_be_sent_leaves_no_lock(app):
    """An error before anything was sent undoes the lock."""
    with pytest.raises(Exception, match="not JSON serializable"):
        tasks.keeps_latest.delay("a", value=object())
    key = Locks.for_app(app).plan(tasks.keeps_latest, None, None).keys.names(("a",), {})[0]
    assert Locks.for_app(app).coordinator("default", "efficiency", "queue").inspect(key) is None


def test_an_argument_that_can_be_no_key_is_named_at_publish(app):
    """The caller is told which argument it is, before anything is sent, in every scope."""
    for task in (tasks.until_executed, tasks.while_executing):
        with pytest.raises(ImproperlyConfigured, match="argument 'name'"):
            task.delay(object())


def test_a_crash_between_lock_and_publish_frees_the_lock_in_seconds(config):
    """A publisher that dies there blocks nobody for longer, and nobody is folded into it."""
    script = """
import json, os
from celery import signals
from tests.celery.app import CONFIG, make_app
from tests.celery import unique_tasks
app = make_app(json.loads(os.environ[CONFIG]))
signals.before_task_publish.connect(lambda **_: os._exit(9), weak=False)
unique_tasks.until_executed.delay("a")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, CONFIG: json.dumps(config), "PYTHONPATH": str(_ROOT)},
        check=False,
    )
    assert done.returncode == 9
    app = make_app(config)
    try:
        held = queue_lock(app, tasks.until_executed, "a")
        assert held is not None
        assert held.ttl_left <= 5.0
        result, seconds = timed(lambda: tasks.until_executed.delay("a"))
        assert result.duplicate is False
        assert result.id != held.holder.id
        assert seconds < 6.0
    finally:
        close_app(app)


def test_a_call_is_kept_for_its_whole_ttl_once_it_is_out(app):
    """The control: a call that was published has its lock for an hour."""
    tasks.until_executed.delay("a")
    deadline = time.monotonic() + 5
    while queue_lock(app, tasks.until_executed, "a").ttl_left < 3000:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_countdown_is_added_to_the_life_of_the_lock(app):
    """The ttl counts from when the message may start."""
    tasks.until_executed.apply_async(("a",), countdown=7200)
    deadline = time.monotonic() + 5
    while queue_lock(app, tasks.until_executed, "a").ttl_left < 7200 + 3000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
