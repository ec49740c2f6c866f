"""A pair of clients for each coordinator of the table."""

import secrets

import pytest

from celery_redlock.coordinators import CoordinatorSettings, from_urls
from tests.contract.kinds import KINDS, members

pytest.register_assert_rewrite("tests.contract.rules")


@pytest.fixture(scope="session")
def shared_ports(shared_servers):
    """The ports of one running set of servers for each kind, started when first asked for."""
    started = {}

    def ports(kind):
        if kind.server is None:
            return []
        if kind.name not in started:
            made = shared_servers.start(kind.server)
            started[kind.name] = [server.port for server in members(made)]
        return started[kind.name]

    return ports


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    """Each line of the table in turn."""
    return request.param


@pytest.fixture
def connect(tmp_path):
    """Makes clients of a kind, by the ports of its servers; they are closed at the end."""
    made = []
    prefix = f"contract-{secrets.token_hex(4)}"

    def client(kind, ports, **settings):
        # The machine may be busy: a slow answer is not what these tests are about.
        settings = {"prefix": prefix, "fenced": kind.fenced, "node_timeout": 2.0, **settings}
        urls = kind.urls(ports, tmp_path)
        kind.prepare(urls[0])
        coordinator = from_urls(urls, CoordinatorSettings(**settings))
        made.append(coordinator)
        return coordinator

    yield client
    for coordinator in made:
        coordinator.close()
