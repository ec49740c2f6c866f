"""Accounts behind each guard, as a holder in a process of its own uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import sqlalchemy as sa

from celery_redlock.fencing import FencingToken
from celery_redlock.guards import redis as redis_guard
from celery_redlock.guards import sqlalchemy as sqlalchemy_guard

tables = sa.MetaData()
account = sa.Table(
    "fault_account",
    tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("balance", sa.Integer, nullable=False),
)
entry = sa.Table(
    "fault_entry",
    tables,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("source", sa.Integer, nullable=False),
    sa.Column("target", sa.Integer, nullable=False),
    sa.Column("cents", sa.Integer, nullable=False),
)


class Resource(Protocol):
    """Account 0, read in one step and written in another."""

    def look(self, token: FencingToken | None) -> int:
        """The balance; fenced if there is a token."""

    def save(self, token: FencingToken | None, balance: int) -> None:
        """Replace the balance; fenced if there is a token."""


class ThroughSQLAlchemy:
    """Guarded by ``guards.sqlalchemy``."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url)

    @contextlib.contextmanager
    def transaction(self, *tokens: FencingToken | None) -> Iterator[sa.Connection]:
        """A transaction that begins with the claim of each token."""
        with self.engine.begin() as connection:
            for token in tokens:
                if token is not None:
                    sqlalchemy_guard.claim(connection, token)
            yield connection

    def look(self, token: FencingToken | None) -> int:
        """The balance."""
        with self.transaction(token) as connection:
            return balance_of(connection, 0)

    def save(self, token: FencingToken | None, balance: int) -> None:
        """Replace the balance."""
        with self.transaction(token) as connection:
            set_balance(connection, 0, balance)


class ThroughDjango:
    """Guarded by ``guards.django``."""

    def __init__(self, url: str) -> None:
        import django
        from django.conf import settings

        settings.configure(
            DATABASES={"default": django_database(url)},
            INSTALLED_APPS=["celery_redlock.guards.django"],
        )
        django.setup()

    @contextlib.contextmanager
    def cursor(self, token: FencingToken | None) -> Iterator[Any]:
        """A cursor in a transaction that begins with the claim."""
        from django.db import connection, transaction

        from celery_redlock.guards.django import fenced

        with fenced(token) if token else transaction.atomic(), connection.cursor() as cursor:
            yield cursor

    def look(self, token: FencingToken | None) -> int:
        """The balance."""
        with self.cursor(token) as cursor:
            cursor.execute("select balance from fault_account where id = 0")
            return int(cursor.fetchone()[0])

    def save(self, token: FencingToken | None, balance: int) -> None:
        """Replace the balance."""
        with self.cursor(token) as cursor:
            cursor.execute("update fault_account set balance = %s where id = 0", [balance])


class ThroughRedis:
    """Guarded by ``guards.redis``."""

    def __init__(self, url: str) -> None:
        import redis

        self.client: Any = redis.Redis.from_url(url)

    def look(self, token: FencingToken | None) -> int:
        """The balance."""
        if token is not None:
            redis_guard.claim(self.client, token)
        return int(self.client.get("balance"))

    def save(self, token: FencingToken | None, balance: int) -> None:
        """Replace the balance."""
        if token is None:
            self.client.set("balance", balance)
        else:
            redis_guard.fenced_set(self.client, token, "balance", balance)


RESOURCES = {"sqlalchemy": ThroughSQLAlchemy, "django": ThroughDjango, "redis": ThroughRedis}


def balance_of(connection: sa.Connection, number: int) -> int:
    """What a transaction sees on an account."""
    query = sa.select(account.c.balance).where(account.c.id == number)
    return int(connection.execute(query).scalar_one())


def set_balance(connection: sa.Connection, number: int, balance: int) -> None:
    """Put a balance on an account."""
    connection.execute(sa.update(account).where(account.c.id == number).values(balance=balance))


def prepare(url: str, accounts: int = 1) -> None:
    """Make the tables anew, with 100 on each account."""
    if url.startswith("redis"):
        ThroughRedis(url).client.set("balance", 100)
        return
    engine = sa.create_engine(url)
    for owned in (tables, sqlalchemy_guard.metadata):
        owned.drop_all(engine)
        owned.create_all(engine)
    with engine.begin() as connection:
        rows = [{"id": number, "balance": 100} for number in range(accounts)]
        connection.execute(sa.insert(account), rows)
    engine.dispose()


def balances(url: str) -> list[int]:
    """What is on the accounts now, by their numbers."""
    if url.startswith("redis"):
        return [ThroughRedis(url).look(None)]
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(account.c.balance).order_by(account.c.id))
        found = list(rows.scalars())
    engine.dispose()
    return found


def entries(url: str) -> list[tuple[int, int, int, int]]:
    """Every entry of the ledger: its id, from where, to where, and how much."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(sa.select(entry))]
    engine.dispose()
    return found


def django_database(url: str) -> dict[str, Any]:
    """Django's way to name a database that SQLAlchemy names by a url."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    kind = {"postgresql": "postgresql", "mysql": "mysql"}[parts.scheme.partition("+")[0]]
    if kind == "mysql":
        import pymysql

        pymysql.install_as_MySQLdb()
    return {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": parts.path.strip("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "OPTIONS": {name: values[0] for name, values in parse_qs(parts.query).items()},
    }
