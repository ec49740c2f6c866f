"""Fixtures that give tests real servers, and a run that never passes for want of one.

A missing server skips on a laptop, and the end of the run says what was not tested; with
``CI=true`` it is a failure, and so is every other skip.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from localservers import (
    Cluster,
    Etcd,
    MariaDB,
    MissingServer,
    Postgres,
    RabbitMQ,
    Valkey,
    ZooKeeper,
    etcd_cluster,
    valkey_cluster,
    zookeeper_ensemble,
)

T = TypeVar("T")

ON_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
_MISSING = "missing server"


class Servers:
    """Starts servers, and turns a missing one into a skip (a failure on CI)."""

    def __init__(self) -> None:
        self._running: list[Any] = []

    def start(self, make: Callable[..., T], *args: Any, **options: Any) -> T:
        """``make(*args, **options)``, started, and closed when the fixture ends.

        For a server (``Valkey``), a cluster (``valkey_cluster``), or a function that gives
        a tuple of them.  The test may break what it gets.
        """
        try:
            made: Any = make(*args, **options)
        except MissingServer as exc:
            if ON_CI:
                pytest.fail(str(exc))
            pytest.skip(str(exc))
        several = made if isinstance(made, tuple) else (made,)
        for one in several:
            self._running.append(one)
            if not (one[0] if isinstance(one, Cluster) else one).alive:
                one.start()
        return made

    def close(self) -> None:
        """Stop everything, the newest first."""
        while self._running:
            self._running.pop().close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Starts servers for this test alone: ``servers.start(Valkey, password="x")``."""
    own = Servers()
    yield own
    own.close()


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    """Starts servers that live until the end of the run; no test may break them."""
    own = Servers()
    yield own
    own.close()


def _shared(name: str, make: Callable[..., Any], *args: Any) -> Any:
    @pytest.fixture(scope="session", name=name)
    def fixture(shared_servers: Servers) -> Any:
        return shared_servers.start(make, *args)

    return fixture


# Shared servers: no test may break them.  They are not emptied, so a test uses names of its own.
etcd = _shared("etcd", Etcd)
etcd_3 = _shared("etcd_3", etcd_cluster)
zookeeper = _shared("zookeeper", ZooKeeper)
zookeeper_3 = _shared("zookeeper_3", zookeeper_ensemble)
postgres = _shared("postgres", Postgres)
mariadb = _shared("mariadb", MariaDB)
rabbitmq = _shared("rabbitmq", RabbitMQ)
_valkey = _shared("_valkey", Valkey)
_valkey_3 = _shared("_valkey_3", valkey_cluster, 3)
_valkey_5 = _shared("_valkey_5", valkey_cluster, 5)


@pytest.fixture
def valkey(_valkey: Valkey) -> Valkey:
    """One durable server, empty; shared, so it must be left alive."""
    return _flushed(_valkey)


@pytest.fixture
def valkey_3(_valkey_3: Cluster[Valkey]) -> Cluster[Valkey]:
    """Three independent durable servers, empty; shared, so they must be left alive."""
    for server in _valkey_3:
        _flushed(server)
    return _valkey_3


@pytest.fixture
def valkey_5(_valkey_5: Cluster[Valkey]) -> Cluster[Valkey]:
    """Five independent durable servers, empty; shared, so they must be left alive."""
    for server in _valkey_5:
        _flushed(server)
    return _valkey_5


def _flushed(server: Valkey) -> Valkey:
    with server.client() as client:
        client.flushall()
    return server


# A run that never passes for want of something.


def _as_failure(report: Any) -> None:
    if ON_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"{reason}\n(with CI=true nothing is skipped)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note a missing server; turn a skipped test into a failure on CI."""
    report = yield
    missing = call.excinfo and call.excinfo.value.__context__  # of the skip, or of the failure
    if isinstance(missing, MissingServer):
        report.user_properties.append((_MISSING, f"{missing.program} ({missing.cure})"))
    _as_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Turn a skipped module into a failure on CI."""
    report = yield
    _as_failure(report)
    return report


def pytest_collection_modifyitems(items):
    """Keep together, when tests run in several processes, what shares its servers."""
    for item in items:
        kind = getattr(item, "callspec", None) and item.callspec.params.get("kind")
        group = f"contract of {kind}" if kind else item.location[0]
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_terminal_summary(terminalreporter):
    """Say what was not tested."""
    wanting = Counter(
        what
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, what in getattr(report, "user_properties", ())
        if name == _MISSING
    )
    if wanting:
        terminalreporter.section("not tested for want of", yellow=True)
        for what, times in sorted(wanting.items()):
            terminalreporter.line(f"{what}: {times} test{'s' if times > 1 else ''}")
