"""Real workers of every pool on local processes, without Docker.

A test asks for ``worker`` (a factory), ``app``, ``journal``, and says with
``@pytest.mark.config(redlock_ttl=2)`` what is different about its application.  ``celery_setup``
is pytest-celery's own setup on the same processes.
"""

import pytest
from pytest_celery import CeleryTestBackend, CeleryTestBroker

from tests.celery.app import close_app, make_app
from tests.celery.containers import LocalWorker, ProcessContainer
from tests.celery.journal import Journal
from tests.celery.processes import Beat, Worker

POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")


@pytest.fixture
def config(request, valkey, valkey_3):
    """The application's configuration; a test module may override it, a test may mark it.

    Broker, results and journal are in one server, the locks in three others.
    """
    base = {
        "broker_url": valkey.url_as("", None, 0),
        "result_backend": valkey.url_as("", None, 1),
        "tests_journal": valkey.url_as("", None, 2),
        "broker_connection_retry_on_startup": True,
        "include": ["tests.celery.tasks"],
        "redlock_coordinators": {
            "default": valkey_3.urls,
            "single": valkey_3[0].url_as("", None, 3),
        },
    }
    for mark in reversed(list(request.node.iter_markers("config"))):
        base.update(mark.kwargs)
    return base


@pytest.fixture
def app(config):
    """The application as a producer sees it."""
    app = make_app(config)
    yield app
    close_app(app)


@pytest.fixture
def journal(config):
    """What the tasks did."""
    journal = Journal(config["tests_journal"])
    yield journal
    journal.close()


@pytest.fixture
def worker(config, servers):
    """Starts workers: ``worker(pool="prefork", concurrency=2)``; see :class:`Worker`."""

    def start(**options):
        return servers.start(Worker, {**config, **options.pop("config", {})}, **options)

    return start


@pytest.fixture
def beat(config, servers):
    """Starts beats: ``beat(scheduler="…")``; see :class:`Beat`."""

    def start(**options):
        return servers.start(Beat, {**config, **options.pop("config", {})}, **options)

    return start


@pytest.fixture(params=POOLS)
def pool(request):
    """Each pool in turn."""
    return request.param


# pytest-celery's setup, on local processes.


@pytest.fixture
def celery_broker(valkey, config):
    """The broker as pytest-celery's node."""
    return CeleryTestBroker(ProcessContainer(valkey, config["broker_url"]))


@pytest.fixture
def celery_backend(valkey, config):
    """The result backend as pytest-celery's node."""
    return CeleryTestBackend(ProcessContainer(valkey, config["result_backend"]))


@pytest.fixture
def celery_setup_app(app):
    """The producer's application."""
    return app


@pytest.fixture
def celery_worker(worker, app):
    """A prefork worker as pytest-celery's node."""
    return LocalWorker(worker(), app)


# The table of the matrix, printed when the run is over.


def pytest_terminal_summary(terminalreporter):
    """Print which rows passed in which columns; ``-`` is what a pool has no means for."""
    cells = {}
    for kind, reports in terminalreporter.stats.items():
        for report in reports:
            for name, where in getattr(report, "user_properties", ()):
                if name == "matrix" and kind in {"passed", "failed", "error"}:
                    cells.setdefault(tuple(where), set()).add(kind)
    if cells:
        terminalreporter.section("what becomes of a lock: early and late acknowledgement", "-")
        for line in _table(cells):
            terminalreporter.line(line)


def _table(cells):
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = sorted({column for _, column in cells})
    wide = max(map(len, rows))
    yield " " * wide + "  " + "  ".join(columns)
    for row in rows:
        marks = [_mark(cells.get((row, column))).center(len(column)) for column in columns]
        yield row.ljust(wide) + "  " + "  ".join(marks)


def _mark(kinds):
    return "-" if kinds is None else "ok" if kinds == {"passed"} else "FAILED"
