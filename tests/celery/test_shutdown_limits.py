"""Time limits and children that end after one task: every lock is given back, and nothing piles up."""

import os
import signal

import psutil
import pytest
import redis
from celery.exceptions import SoftTimeLimitExceeded

from celery_redlock import Locks
from celery_redlock.clock import now
from localservers import Proxy, valkey_cluster
from tests.celery import limit_tasks as tasks

SOON = 20.0
TASKS = 200  # in as many processes
pytestmark = pytest.mark.config(include=["tests.celery.limit_tasks"], redlock_node_timeout=0.3)


@pytest.fixture
def proxies(servers):
    """Proxies to three lock servers of this test alone."""
    return [servers.start(Proxy, server.url) for server in servers.start(valkey_cluster, 3)]


def test_a_soft_limit_does_not_interrupt_a_release(app, worker, journal, proxies):
    """It comes while the first of two locks is given back slowly: the second one is free as well."""
    settings = {
        "redlock_coordinators": {"default": [proxy.url for proxy in proxies]},
        "redlock_node_timeout": 5,
        "redlock_max_ttl": 120,
    }
    app.conf.update(settings)
    worker(concurrency=1, config=settings)
    result = tasks.holds_two.delay("a")
    pid = journal.wait_for("start")[0]["pid"]
    coordinator = Locks.for_app(app).coordinator("default", "efficiency")
    names = ["first:a", "second:a"]
    assert all(coordinator.inspect(name) for name in names)
    for proxy in proxies:
        proxy.hold()
    seen = [proxy.requests for proxy in proxies]
    journal.open_gate("a")
    journal.wait_for("end")
    for proxy, count in zip(proxies, seen, strict=True):
        proxy.wait_for(requests=count + 1)
    os.kill(pid, signal.SIGUSR1)
    for proxy in proxies:
        proxy.heal()
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=SOON)
    end = now() + SOON / 2  # far less than the ttl
    while any(coordinator.inspect(name) for name in names):
        assert now() < end, "a lock was left to its ttl"


def resources(running, urls):
    """Threads and descriptors of the main process, and connections at the lock servers."""
    main = psutil.Process(running.pid)
    connections = 0
    for url in urls:
        with redis.Redis.from_url(url) as client:
            connections += len(client.client_list())
    return {"threads": main.num_threads(), "files": main.num_fds(), "connections": connections}


def test_children_of_one_task_leave_nothing(app, config, worker):
    """After two hundred children there are as many threads, descriptors and connections as before."""
    running = worker(concurrency=4, options=["--max-tasks-per-child=1"])
    urls = config["redlock_coordinators"]["default"]
    before = after_tasks(range(20), running, urls)
    after = after_tasks(range(TASKS), running, urls)
    for what, count in before.items():
        assert after[what] <= count + 4, (what, before, after)
    for url in urls:
        with redis.Redis.from_url(url) as client:
            assert client.keys("*:lock") == []
            kept = [key for key in client.keys("*") if b":node:" not in key]
            assert all(client.ttl(key) > 0 for key in kept), kept


def after_tasks(numbers, running, urls):
    """What is in use when these tasks have run, and their children have been replaced."""
    results = [tasks.quick.delay(number) for number in numbers]
    assert [result.get(timeout=60) for result in results] == list(numbers)
    end, last = now() + SOON, None
    while now() < end:  # what is on its way to its end is waited for: three equal looks
        looks = [resources(running, urls) for _ in range(3)]
        if looks == [last] * 3:
            return last
        last = looks[-1]
    return last
