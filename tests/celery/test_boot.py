"""What a worker looks at before it starts, against real lock servers."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from celery import Celery
from sqlalchemy import create_engine

from celery_redlock import LockedTask, Locks, boot
from celery_redlock.boot import refuse_to_start
from celery_redlock.clock import now
from celery_redlock.coordinators.sql import create_all
from localservers import free_port, valkey_cluster
from tests.celery.app import CONFIG
from tests.celery.processes import _ROOT


def alone(name):
    """An application without the shared tasks of other test modules."""
    app = Celery(name, broker="memory://", set_as_current=False)
    for shared in [task for task in app.tasks if not task.startswith("celery.")]:
        app.tasks.unregister(shared)
    return app


def boots(urls, *, mode="correctness", **settings):
    """What a worker of an application with one task does at boot: the exit status, or None."""
    app = alone("boots")
    app.conf.update(redlock_coordinators={"default": urls}, redlock_mode=mode, **settings)

    @app.task(shared=False, base=LockedTask, name="shop.pay")
    def pay(account, *, fencing_token=None):
        raise AssertionError("must not run")

    try:
        refuse_to_start(sender=SimpleNamespace(app=app))
    except SystemExit as exc:
        return exc.code
    finally:
        Locks.for_app(app).close()
    return None


@pytest.fixture
def said(caplog):
    """What was logged, by level."""
    caplog.set_level(logging.INFO, "celery_redlock.boot")

    def at(level):
        return " | ".join(r.getMessage() for r in caplog.records if r.levelname == level)

    return at


UNFIT = [
    ({"appendfsync": "everysec"}, "appendfsync is everysec, not always"),
    ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru, not noeviction"),
]


@pytest.mark.parametrize(("settings", "reason"), UNFIT, ids=["not durable", "evicting"])
def test_a_server_that_may_forget_stops_correctness_and_warns_efficiency(
    servers, said, settings, reason
):
    """The message names the server, the setting, the cure and a task that needs it."""
    cluster = servers.start(valkey_cluster, 3)
    with cluster[1].client() as admin:
        for name, value in settings.items():
            admin.config_set(name, value)
    assert boots(cluster.urls) == 1
    told = said("CRITICAL")
    assert "shop.pay" in told
    assert reason in told
    assert str(cluster[1].port) in told
    assert str(cluster[0].port) not in told
    assert "set appendonly yes" in told

    assert boots(cluster.urls, mode="efficiency") is None
    assert str(cluster[1].port) in said("WARNING")


def test_durable_servers_are_fine(valkey_3, said):
    """The control: nothing is said, and nothing is left behind."""
    assert boots(valkey_3.urls, redlock_node_timeout=1.0) is None
    assert said("CRITICAL") + said("WARNING") == ""
    for server in valkey_3:
        with server.client() as admin:
            assert admin.keys("*") == []


@pytest.mark.parametrize("kind", ["etcd", "zookeeper", "postgres", "mariadb"])
def test_sound_servers_of_every_kind_are_fine(kind, request, said, monkeypatch):
    """The worker starts, and no thread or connection is left that its children would inherit."""
    url = request.getfixturevalue(kind).url
    if kind in {"postgres", "mariadb"}:
        engine = create_engine(url)
        create_all(engine)
        engine.dispose()
    monkeypatch.setattr(boot, "PATIENCE", 30.0)  # the machine may be busy
    before = set(threading.enumerate())
    assert boots(url, redlock_node_timeout=1.0) is None
    assert said("CRITICAL") == ""
    assert "was not checked" not in said("WARNING")
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)  # what is being closed may take a moment
        assert not thread.is_alive(), thread


def test_a_replica_and_a_server_named_twice_stop_correctness(servers, said):
    """Both are mistakes in the configuration, which no patience mends."""
    cluster = servers.start(valkey_cluster, 3)
    with cluster[2].client() as admin:
        admin.replicaof("127.0.0.1", cluster[0].port)
    assert boots(cluster.urls) == 1
    assert "is a slave" in said("CRITICAL")

    twice = [cluster[0].url, cluster[0].url.replace("127.0.0.1", "localhost"), cluster[1].url]
    assert boots(twice) == 1
    assert "is the same server as" in said("CRITICAL")


def test_one_redis_is_refused_for_correctness_with_the_reason(valkey, said):
    """It can't give tokens, so it isn't even asked."""
    assert boots(valkey.url) == 1
    assert "one Redis forgets its locks" in said("CRITICAL")
    assert boots(valkey.url, mode="efficiency") is None


@pytest.mark.parametrize("mode", ["correctness", "efficiency"])
def test_servers_that_are_down_only_warn(mode, said):
    """They may be up when the first task comes; each is named."""
    ports = [free_port() for _ in range(3)]
    assert boots([f"redis://127.0.0.1:{port}/0" for port in ports], mode=mode) is None
    assert all(str(port) in said("WARNING") for port in ports)
    assert said("CRITICAL") == ""


def test_servers_that_hang_are_given_up_in_time(servers, said, monkeypatch):
    """A worker starts within the patience, and says which coordinator it could not check."""
    monkeypatch.setattr(boot, "PATIENCE", 0.5)
    cluster = servers.start(valkey_cluster, 3)
    for server in cluster:
        server.pause()
    started = now()
    assert boots(cluster.urls) is None
    assert now() - started < 5.0
    assert "was not checked within 0.5 s" in said("WARNING")
    for server in cluster:
        server.resume()


def test_a_database_without_its_table_stops_correctness(tmp_path, said):
    """The message says what makes the table; with it, the worker starts."""
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    assert boots(url) == 1
    assert "create_all" in said("CRITICAL")
    engine = create_engine(url)
    create_all(engine)
    engine.dispose()
    assert boots(url) is None


@pytest.fixture
def shop():
    """An application with locks in memory, for mistakes in its tasks."""
    app = alone("shop")
    app.conf.redlock_coordinators = {"default": "memory://boot"}
    return app


def refused(app):
    """Whether a worker of this application would not start."""
    try:
        refuse_to_start(sender=SimpleNamespace(app=app))
    except SystemExit:
        return True
    return False


@pytest.mark.parametrize("routed", [True, False])
def test_the_mode_of_the_queue_that_a_task_is_routed_to_counts(shop, said, routed):
    """Named by the route, and by a glob of the queue; without the route the worker starts."""

    @shop.task(shared=False, base=LockedTask, name="shop.pay")
    def pay(account):
        raise AssertionError("must not run")

    shop.conf.redlock_queues = {"bill*": {"mode": "correctness"}}
    if routed:
        shop.conf.task_routes = {"shop.*": {"queue": "billing"}}
    assert refused(shop) == routed
    assert ("shop.pay is in correctness mode but its body" in said("CRITICAL")) == routed
    # The worker reads only the queues that it was told to read.
    assert set(shop.amqp.queues) == set(shop.amqp.queues.consume_from) == {"celery"}


def test_the_mode_of_the_application_counts_and_every_task_is_named(shop, said):
    """All that is wrong is said at once."""
    for name in ("shop.pay", "shop.refund"):

        @shop.task(shared=False, base=LockedTask, name=name)
        def pay(account):
            raise AssertionError("must not run")

    shop.conf.redlock_mode = "correctness"
    assert refused(shop)
    assert all(f"task {name} is in" in said("CRITICAL") for name in ("shop.pay", "shop.refund"))


def test_a_router_that_needs_a_call_is_not_held_against_the_task(shop, said):
    """Where the route depends on the arguments, the publish and the run check it."""

    @shop.task(shared=False, base=LockedTask, name="shop.pay")
    def pay(account):
        raise AssertionError("must not run")

    shop.conf.task_routes = [lambda name, args, kwargs, options, task=None: args[0]]
    assert not refused(shop)
    assert "shop.pay" in said("INFO")
    assert "IndexError" in said("INFO")


def test_a_check_that_breaks_is_told_and_stops_nobody(shop, said, monkeypatch):
    """A fault of ours in a check must not keep workers down."""

    @shop.task(shared=False, base=LockedTask, name="shop.pay")
    def pay(account):
        raise AssertionError("must not run")

    coordinator = Locks.for_app(shop).coordinator("default", "efficiency")
    monkeypatch.setattr(coordinator, "check", lambda: 1 / 0)
    assert not refused(shop)
    assert "could not be checked: ZeroDivisionError" in said("WARNING")


@pytest.mark.config(
    include=["tests.celery.fenced_tasks"],
    redlock_queues={"billing": {"mode": "correctness"}},
    task_routes={"tests.celery.fenced_tasks.without_a_token": {"queue": "billing"}},
)
def test_a_real_worker_ends_with_exit_code_1_and_names_the_task(config):
    """Before it takes any task, and without a traceback."""
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.celery.app", "worker", "-P", "solo"],
        env={**os.environ, CONFIG: json.dumps(config), "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = ended.stdout + ended.stderr
    assert ended.returncode == 1, told
    assert re.search("refuses to start: task .*without_a_token is in correctness mode", told), told
    assert "Traceback" not in told


@pytest.mark.config(include=["tests.celery.fenced_tasks"])
def test_a_real_worker_starts_though_the_lock_servers_are_down(worker, config):
    """It warns of each, and is ready; its tasks will say what they can't do."""
    urls = [f"redis://127.0.0.1:{free_port()}/0" for _ in range(3)]
    running = worker(pool="solo", config={"redlock_coordinators": {"default": urls}})
    assert "can't be used" in running.log
