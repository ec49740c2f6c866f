"""Databases of each kind, empty, with an account to write to."""

import pytest
import sqlalchemy as sa

from celery_redlock.guards.sqlalchemy import metadata
from tests.guards.bank import Bank, tables


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database_url(request, tmp_path):
    """The url of a database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'data.db'}"
    return request.getfixturevalue(request.param).url


@pytest.fixture
def engine(database_url):
    """An engine; the fence and the account are there, and new."""
    made = sa.create_engine(database_url)
    for owned in (metadata, tables):
        owned.drop_all(made)
        owned.create_all(made)
    yield made
    for owned in (metadata, tables):
        owned.drop_all(made)
    made.dispose()


@pytest.fixture
def bank(engine):
    """One account with 100 on it."""
    return Bank(engine)
