"""Moving from one coordinator to another: a floor, so that no resource sees a token go back."""

import secrets
import time

import pytest
import sqlalchemy as sa

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.exceptions import (
    CoordinatorUnavailable,
    ImproperlyConfigured,
    StaleTokenError,
)
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.sqlalchemy import claim, metadata
from localservers import valkey_cluster
from tests.contract.kinds import KINDS, members
from tests.contract.rules import LATE

ME = Holder(task="moving")
AHEAD = 10**12  # by which the former coordinator's tokens were higher
ALONE = next(kind for kind in KINDS if kind.name == "redis")
THREE = next(kind for kind in KINDS if kind.name == "redlock_3")


TARGETS = [kind for kind in KINDS if kind.fenced and kind is not THREE]
every_target = pytest.mark.parametrize("kind", TARGETS, ids=str)


@pytest.fixture
def target(kind, connect, shared_ports):
    """A coordinator that is moved to."""
    return connect(kind, shared_ports(kind))


@pytest.fixture
def data(tmp_path):
    """A database with fenced data."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'data.db'}")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def take(coordinator, key="account:7"):
    """Take a lock that must be free."""
    grant = coordinator.acquire(key, secrets.token_hex(16), 30.0, ME)
    assert isinstance(grant, Grant), grant
    return grant


def once_settled(call):
    """What the call gives, once servers that were changed agree again."""
    deadline = now() + 2 * LATE
    while True:
        try:
            return call()
        except CoordinatorUnavailable:
            if now() > deadline:
                raise
            time.sleep(0.02)


def write(engine, fencing_token):
    """Claim in a transaction, as every writer does."""
    with engine.begin() as connection:
        claim(connection, fencing_token)


def highest_fence(engine):
    """The highest token that the database has seen, as the documentation says to ask for it."""
    with engine.connect() as connection:
        return connection.execute(
            sa.text("SELECT MAX(fencing_token) FROM redlock_fence")
        ).scalar_one()


@every_target
def test_from_the_floor_on_the_data_accepts_the_new_tokens(target, data):
    """Without the floor the new holder is refused; with it it writes, and tokens go on rising."""
    early = take(target)
    former = int(early.fencing_token) + AHEAD
    write(data, FencingToken(former, "account:7"))
    with pytest.raises(StaleTokenError):  # the control
        write(data, early.fencing_token)
    target.release(early)

    assert target.raise_floor(highest_fence(data)) >= former
    tokens = []
    for _ in range(2):
        grant = once_settled(lambda: take(target))
        write(data, grant.fencing_token)
        target.release(grant)
        tokens.append(int(grant.fencing_token))
    assert former < tokens[0] < tokens[1]


@every_target
def test_a_floor_is_never_lowered_and_a_held_lock_keeps_its_token(target):
    """Raising it again lower changes nothing; whoever holds a lock goes on with what it has."""
    grant = take(target)
    floor = int(grant.fencing_token) + AHEAD
    assert target.raise_floor(floor) == floor
    assert target.raise_floor(5) == floor
    again = once_settled(lambda: target.extend(grant, 30.0))
    assert again.fencing_token == grant.fencing_token
    assert once_settled(lambda: target.release(again)) is True


def test_servers_without_tokens_have_no_floor(connect, shared_ports):
    """One Redis says so, instead of promising an order that it doesn't keep."""
    with pytest.raises(ImproperlyConfigured, match="give fencing tokens"):
        connect(ALONE, shared_ports(ALONE)).raise_floor(5)


@pytest.mark.parametrize("floor", [-1, 2**63])
@every_target
def test_a_floor_out_of_range_is_refused(target, floor):
    """The message says what is allowed, and tokens are given as before."""
    before = take(target)
    target.release(before)
    with pytest.raises(ImproperlyConfigured, match=rf"floor={floor}: must be from 0 to"):
        target.raise_floor(floor)
    assert take(target).fencing_token - before.fencing_token < AHEAD


def test_a_floor_that_redis_cannot_count_to_is_refused(connect, shared_ports):
    """The message says up to where its numbers are exact."""
    with pytest.raises(ImproperlyConfigured, match=r"from 0 to 2\*\*53 - 2"):
        connect(THREE, shared_ports(THREE)).raise_floor(2**53 - 1)


def test_a_redlock_raises_its_floor_only_if_every_server_answers(servers, connect):
    """A server that was away would stay behind; once it is back, the floor is raised."""
    cluster = servers.start(valkey_cluster, 3)
    target = connect(THREE, [server.port for server in members(cluster)], node_timeout=0.5)
    grant = take(target)
    floor = int(grant.fencing_token) + AHEAD
    target.release(grant)
    cluster[0].crash()
    with pytest.raises(CoordinatorUnavailable, match="all lock servers must answer"):
        target.raise_floor(floor)
    grant = take(target)  # nothing was changed
    assert grant.fencing_token < floor
    target.release(grant)
    cluster[0].start()
    assert once_settled(lambda: target.raise_floor(floor)) == floor
    assert once_settled(lambda: take(target)).fencing_token > floor
