"""A database that is read only or down: the database's own error, and nothing is written."""

import socket

import pytest
import redis
import sqlalchemy as sa

from celery_redlock.fencing import FencingToken
from celery_redlock.guards.redis import claim as claim_in_redis
from celery_redlock.guards.redis import fenced_set
from celery_redlock.guards.sqlalchemy import claim, metadata
from localservers import Valkey
from tests.guards.bank import LOCK, write

TOKEN = FencingToken(5, LOCK)


def read_only(url):
    """An engine of the same database that may only read."""
    url = sa.make_url(url)
    if url.get_backend_name() == "sqlite":
        return sa.create_engine(f"sqlite:///file:{url.database}?mode=ro&uri=true")
    option = {"options": "-c default_transaction_read_only=on"}
    if url.get_backend_name() == "mysql":
        option = {"init_command": "set session transaction read only"}
    return sa.create_engine(url, connect_args=option)


def test_a_read_only_database_refuses_the_claim(bank, database_url):
    """The error says that it is read only, and neither fence nor data is written."""
    engine = read_only(database_url)
    with (
        pytest.raises(sa.exc.DBAPIError, match=r"(?i)read.?only"),
        engine.begin() as connection,
    ):
        claim(connection, TOKEN)
        write(connection, 555)
    engine.dispose()
    assert bank.balance() == 100
    with bank.engine.connect() as connection:
        assert connection.execute(sa.select(metadata.tables["redlock_fence"])).all() == []


@pytest.fixture
def closed_port():
    """A port of this machine at which nobody listens."""
    with socket.socket() as held:  # bound and not listening, so that nobody else gets it
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("kind", ["postgresql+psycopg", "mysql+pymysql", "sqlite"])
def test_a_database_that_is_down_is_its_own_error(kind, closed_port, tmp_path):
    """A database that can't be reached is told as such, and never as a stale token."""
    url = f"{kind}://somebody@127.0.0.1:{closed_port}/data"
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'no such folder' / 'data.db'}"
    engine = sa.create_engine(url)
    with pytest.raises(sa.exc.OperationalError), engine.begin() as connection:
        claim(connection, TOKEN)


def test_a_read_only_redis_refuses_the_claim_and_the_write(servers, closed_port):
    """A replica says so in its own words, and keeps what it had."""
    server = servers.start(Valkey)
    with server.client() as client:
        client.set("{account:7}:balance", 100)
        client.replicaof("127.0.0.1", closed_port)
        with pytest.raises(redis.exceptions.ReadOnlyError):
            claim_in_redis(client, TOKEN)
        with pytest.raises(redis.exceptions.ReadOnlyError):
            fenced_set(client, TOKEN, "{account:7}:balance", 555)
        assert client.get("{account:7}:balance") == b"100"
