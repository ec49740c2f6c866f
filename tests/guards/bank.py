"""Accounts in a database, and every order in which two holders of one lock can use them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import sqlalchemy as sa
from sqlalchemy import orm

from celery_redlock.exceptions import StaleTokenError

LOCK = "account:7"

tables = sa.MetaData()


class Base(orm.DeclarativeBase):
    metadata = tables


class Account(Base):
    __tablename__ = "guarded_account"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    balance: orm.Mapped[int]


class Bank:
    """Account 7 with 100 on it, and 8 and 9 with nothing."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        with engine.begin() as connection:
            rows = [{"id": 7, "balance": 100}, {"id": 8, "balance": 0}, {"id": 9, "balance": 0}]
            connection.execute(sa.insert(Account), rows)

    def balance(self, account: int = 7) -> int:
        """What is on an account now."""
        with self.engine.connect() as connection:
            return read(connection, account)


def read(connection: sa.Connection, account: int = 7) -> int:
    """What a transaction sees on an account."""
    return connection.execute(sa.select(Account.balance).where(Account.id == account)).scalar_one()


def write(connection: sa.Connection, balance: int, account: int = 7) -> None:
    """Put a balance on an account."""
    connection.execute(sa.update(Account).where(Account.id == account).values(balance=balance))


Step = Callable[[], None]
Program = Sequence[Step]


def depositing(bank: Bank, reading, writing, *, apart: bool = False) -> list[Step]:
    """One holder's program: read the balance in one transaction, write 10 more in another.

    Args:
        bank: where.
        reading: what the guard does first in the transaction that reads.
        writing: what it does first in the one that writes.
        apart: True: what it does before writing is a transaction of its own.
    """
    seen: list[int] = []

    def look() -> None:
        with bank.engine.begin() as connection:
            reading(connection)
            seen.append(read(connection))

    def check() -> None:
        with bank.engine.begin() as connection:
            writing(connection)

    def save() -> None:
        with bank.engine.begin() as connection:
            if not apart:
                writing(connection)
            write(connection, seen[0] + 10)

    return [look, check, save] if apart else [look, save]


def schedules(first: int, second: int) -> Iterator[list[int]]:
    """Every order of the steps of two programs, as 0s and 1s."""
    for places in combinations(range(first + second), first):
        yield [0 if i in places else 1 for i in range(first + second)]


def run(schedule: Sequence[int], *programs: Program) -> list[bool]:
    """Run programs in the order of a schedule; a refused one stops.  Which ended well."""
    steps = [iter(program) for program in programs]
    well = [True for _ in programs]
    for who in schedule:
        if well[who]:
            try:
                next(steps[who])()
            except StaleTokenError:
                well[who] = False
    return well


def lost(bank: Bank, schedule: Sequence[int], *programs: Program) -> bool:
    """Whether a deposit that ended well is missing from account 7 afterwards."""
    with bank.engine.begin() as connection:
        write(connection, 100)
    deposits = sum(run(schedule, *programs))
    return bank.balance() != 100 + 10 * deposits
