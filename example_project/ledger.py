"""Correctness: a balance that stays exact even if a worker is frozen in the middle of a posting.

``lock_mode="correctness"`` hands each run a fencing token.  Every transaction claims it first,
so whoever was overtaken while it was frozen is refused by the database itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import sqlalchemy as sa

from celery_redlock import FencingToken, LockedTask
from celery_redlock.guards.sqlalchemy import claim
from example_project.journal import Journal
from example_project.settings import ledger_url, out
from example_project.shop import app

metadata = sa.MetaData()
accounts = sa.Table(
    "shop_account",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cents", sa.BigInteger, nullable=False),
)
entries = sa.Table(
    "shop_entry",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("account_id", sa.ForeignKey(accounts.c.id), nullable=False),
    sa.Column("cents", sa.BigInteger, nullable=False),
    sa.Column("fencing_token", sa.BigInteger),
)


@cache
def engine() -> sa.Engine:
    """The database; made at the first use in each process, so that a fork shares none of it."""
    url = sa.make_url(ledger_url())
    patience = {"timeout": 30} if url.get_backend_name() == "sqlite" else {}
    return sa.create_engine(url, connect_args=patience)


@contextmanager
def transaction(fencing_token: FencingToken | None) -> Iterator[sa.Connection]:
    """A transaction whose first statement claims the token.

    Raises:
        StaleTokenError: a newer holder of the lock has been here.
    """
    with engine().begin() as connection:
        if fencing_token is not None:
            claim(connection, fencing_token)
        yield connection


# Nothing interrupts this body when its lock is lost: on_lost is only a flag here, so that the
# fence alone has to hold, as it must wherever a body can't be interrupted in time.
@app.task(
    base=LockedTask,
    lock_mode="correctness",
    lock_key="account:{account_id}",
    lock_ttl=2,
    lock_wait=1,
    lock_on_lost="flag",
)
def post_entry(account_id: int, cents: int, *, fencing_token: FencingToken) -> int:
    """Add to an account's balance; gives the new balance in cents."""
    return post(account_id, cents, fencing_token)


@app.task
def post_entry_without_lock(account_id: int, cents: int) -> int:
    """The same as a plain task, to see what lock and fence are for."""
    return post(account_id, cents, None)


def post(account_id: int, cents: int, fencing_token: FencingToken | None) -> int:
    """Read the balance, have the posting approved, write the new balance."""
    journal, about = Journal(out() / "journal.jsonl"), f"account {account_id}"
    token = None if fencing_token is None else int(fencing_token)
    said = {"cents": cents, "fencing_token": token}
    with transaction(fencing_token) as connection:
        balance: int = connection.execute(
            sa.select(accounts.c.cents).where(accounts.c.id == account_id)
        ).scalar_one()
    journal.write("read", about, balance=balance, **said)
    approve(account_id, cents)  # slow, so no transaction is held open meanwhile
    with transaction(fencing_token) as connection:
        connection.execute(
            sa.update(accounts).where(accounts.c.id == account_id).values(cents=balance + cents)
        )
        connection.execute(sa.insert(entries).values(account_id=account_id, **said))
    journal.write("posted", about, balance=balance + cents, **said)
    return balance + cents


def approve(account_id: int, cents: int) -> str:
    """Sign the posting with a key that is slow to derive (about a third of a second)."""
    text = f"{account_id}:{cents}".encode()
    return hashlib.pbkdf2_hmac("sha256", text, b"the shop's seal", 1_500_000).hex()
