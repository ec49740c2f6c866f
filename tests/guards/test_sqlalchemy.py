"""``guards.sqlalchemy``: what a claim accepts, refuses, and leaves behind."""

import asyncio
import threading
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.sqlalchemy import claim, claim_async, metadata
from tests.guards.bank import LOCK, Account, read, write
from tests.guards.malformed import MALFORMED


def token(number, lock=LOCK):
    """A token of the account's lock."""
    return FencingToken(number, lock)


def fences(engine):
    """What the fence rows hold."""
    table = metadata.tables["redlock_fence"]
    with engine.connect() as connection:
        return {row.lock_name: row.fencing_token for row in connection.execute(sa.select(table))}


def claimed(engine, number, lock=LOCK):
    """Claim in a transaction of its own."""
    with engine.begin() as connection:
        claim(connection, token(number, lock))


def test_a_token_may_claim_and_write_as_often_as_it_likes(bank):
    """The rightful holder's second transaction passes, and the row keeps its token."""
    for balance in (110, 120, 130):
        with bank.engine.begin() as connection:
            claim(connection, token(5))
            write(connection, balance)
    assert bank.balance() == 130
    assert fences(bank.engine) == {LOCK: 5}


def test_a_lower_token_is_refused_and_nothing_is_written(bank):
    """The error names the lock and both tokens, and the whole transaction is gone."""
    claimed(bank.engine, 9)
    with pytest.raises(StaleTokenError) as caught, bank.engine.begin() as connection:
        write(connection, 555)
        claim(connection, token(8))
    assert (caught.value.lock, caught.value.fencing_token, caught.value.stored) == (LOCK, 8, 9)
    assert bank.balance() == 100
    assert fences(bank.engine) == {LOCK: 9}


def test_a_swallowed_refusal_can_still_write_nothing(bank):
    """After the refusal the transaction is closed for the rest of its block."""
    claimed(bank.engine, 9)
    with (
        pytest.raises(sa.exc.InvalidRequestError, match="closed transaction"),
        orm.Session(bank.engine) as session,
        session.begin(),
    ):
        with pytest.raises(StaleTokenError):
            claim(session, token(8))
        session.execute(sa.update(Account).values(balance=555))
    assert bank.balance() == 100


def test_a_refused_token_stays_refused(bank):
    """Trying a stale write again with the same token never helps."""
    claimed(bank.engine, 9)
    for _ in range(3):
        with pytest.raises(StaleTokenError):
            claimed(bank.engine, 8)


def test_each_lock_has_a_fence_of_its_own(engine):
    """A high token of one lock doesn't stop a low one of another."""
    claimed(engine, 100, "a")
    claimed(engine, 1, "b")
    assert fences(engine) == {"a": 100, "b": 1}


def test_names_that_differ_in_anything_are_different_locks(engine):
    """Case, trailing blanks and accents count, also where the database's text ignores them."""
    names = ["lock", "LOCK", "lock ", "löck", "lock\t", "шлюз", "锁"]
    for number, name in enumerate(names, start=1):
        claimed(engine, number, name)
    assert fences(engine) == {name: number for number, name in enumerate(names, start=1)}


def test_tokens_are_exact_up_to_63_bits(engine):
    """Neighbours above 2**53, which are one float, are told apart."""
    for number in (2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1):
        claimed(engine, number)
        assert fences(engine) == {LOCK: number}
    with pytest.raises(StaleTokenError):
        claimed(engine, 2**63 - 2)


def test_digits_don_t_count_but_the_number_does(engine):
    """10 is newer than 9."""
    claimed(engine, 9)
    claimed(engine, 10)
    with pytest.raises(StaleTokenError):
        claimed(engine, 9)


@pytest.mark.parametrize("given,lock,says", MALFORMED)
def test_a_missing_malformed_or_foreign_token_is_refused(bank, given, lock, says):
    """One clear error each, and nothing is written."""
    with pytest.raises(ImproperlyConfigured, match=says), bank.engine.begin() as connection:
        write(connection, 555)
        claim(connection, given, lock=lock)
    assert bank.balance() == 100
    assert fences(bank.engine) == {}


def test_a_plain_int_needs_its_lock_beside_it(engine):
    """A token that went through JSON is compared with the one that stayed a token."""
    with engine.begin() as connection:
        claim(connection, 5, lock=LOCK)
    with pytest.raises(StaleTokenError), engine.begin() as connection:
        claim(connection, token(4), lock=LOCK)


def test_a_missing_table_is_named_with_its_cure(bank):
    """The error says what makes the table, and the data is untouched."""
    metadata.drop_all(bank.engine)
    with pytest.raises(ImproperlyConfigured, match="create_all"), bank.engine.begin() as connection:
        write(connection, 555)
        claim(connection, token(1))
    assert bank.balance() == 100


def test_another_error_of_the_database_is_passed_on(engine):
    """A table of the right name but the wrong shape is not called missing."""
    metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("create table redlock_fence (x integer)"))
    with pytest.raises(sa.exc.DBAPIError):
        claimed(engine, 1)
    with engine.begin() as connection:
        connection.execute(sa.text("drop table redlock_fence"))


def test_autocommit_is_refused(bank):
    """A claim that commits by itself is a check and a write in two transactions."""
    with (
        bank.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ImproperlyConfigured, match="AUTOCOMMIT"),
    ):
        claim(connection, token(1))
    assert fences(bank.engine) == {}


def test_autocommit_of_the_engine_is_refused_or_made_a_transaction(bank):
    """SQLite's driver is sent BEGIN IMMEDIATE; the others refuse."""
    autocommitting = sa.create_engine(bank.engine.url, isolation_level="AUTOCOMMIT")
    if bank.engine.dialect.name == "sqlite":
        with pytest.raises(ZeroDivisionError), autocommitting.begin() as connection:
            claim(connection, token(1))
            write(connection, 555)
            raise ZeroDivisionError
    else:
        with (
            pytest.raises(ImproperlyConfigured, match="AUTOCOMMIT"),
            autocommitting.begin() as connection,
        ):
            claim(connection, token(1))
    assert bank.balance() == 100
    assert fences(bank.engine) == {}
    autocommitting.dispose()


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_claim_in_a_savepoint_is_refused(bank, kind):
    """Rolling back to the savepoint would take the fence back and keep the rest."""
    with orm.Session(bank.engine) as session, session.begin():
        where = session if kind == "session" else session.connection()
        with where.begin_nested(), pytest.raises(ImproperlyConfigured, match="savepoint"):
            claim(where, token(1))
    assert fences(bank.engine) == {}


def test_in_a_savepoint_the_claim_of_the_outer_transaction_counts(bank):
    """A function that claims for itself can be called inside a savepoint of a claimed block."""
    with orm.Session(bank.engine) as session, session.begin():
        claim(session, token(3))
        with session.begin_nested():
            claim(session, token(3))
            session.get_one(Account, 7).balance = 130
    assert bank.balance() == 130


def test_a_session_with_changes_is_refused(bank):
    """What was changed before the claim was made from what nobody had locked."""
    with orm.Session(bank.engine) as session:
        session.get_one(Account, 7).balance = 110
        with pytest.raises(ImproperlyConfigured, match="first in its transaction"):
            claim(session, token(1))
    assert bank.balance() == 100


def test_a_second_claim_of_the_same_token_may_follow_changes(bank):
    """Functions that each claim can share one transaction, at no extra statement."""
    with orm.Session(bank.engine) as session, session.begin():
        claim(session, token(2))
        session.get_one(Account, 7).balance += 10
        claim(session, token(2))
        session.get_one(Account, 7).balance += 10
    assert bank.balance() == 120


def test_what_a_session_had_loaded_is_read_again(bank):
    """An object from before the claim shows what the former holder wrote in between."""
    with orm.Session(bank.engine, expire_on_commit=False) as session:
        account = session.get_one(Account, 7)
        session.commit()
        with bank.engine.begin() as other:
            write(other, 200)
        assert account.balance == 100  # the control: without a claim it is old
        claim(session, token(2))
        assert account.balance == 200


def test_a_scoped_session_works(bank):
    """The registry's session of this thread is the one that claims."""
    scoped = orm.scoped_session(orm.sessionmaker(bank.engine))
    claim(scoped, token(4))
    scoped.get_one(Account, 7).balance = 140
    scoped.commit()
    scoped.remove()
    assert bank.balance() == 140
    assert fences(bank.engine) == {LOCK: 4}


def test_a_session_of_several_databases_asks_for_the_connection(bank):
    """The error shows how to say which database is meant, and that way works."""
    with orm.Session(binds={Account: bank.engine}) as session, session.begin():
        with pytest.raises(ImproperlyConfigured, match="bind_arguments"):
            claim(session, token(1))
        claim(session.connection(bind_arguments={"mapper": Account}), token(1))
        session.get_one(Account, 7).balance = 110
    assert bank.balance() == 110
    assert fences(bank.engine) == {LOCK: 1}


@pytest.mark.parametrize("given", [None, "engine", object()])
def test_something_else_than_a_session_is_refused(engine, given):
    """An engine, for example, would begin a transaction of its own."""
    with pytest.raises(ImproperlyConfigured, match="needs a Session or a Connection"):
        claim(engine if given == "engine" else given, token(1))


def test_another_kind_of_database_is_refused():
    """The error names the databases that a claim works on."""
    pooled = mock.Mock(dbapi_connection=object())
    connection = mock.MagicMock(spec=sa.Connection, dialect=mock.Mock(), connection=pooled)
    connection.dialect.name = "mssql"
    connection.in_nested_transaction.return_value = False
    with pytest.raises(ImproperlyConfigured, match="and this is mssql"):
        claim(connection, token(1))


def test_a_newer_holder_waits_for_the_transaction_of_the_older(bank):
    """Claims of one lock take turns, so the newer one reads what the older one wrote."""
    saw = []

    def newer():
        with bank.engine.begin() as connection:
            claim(connection, token(2))
            saw.append(read(connection))

    thread = threading.Thread(target=newer)
    with bank.engine.begin() as connection:
        claim(connection, token(1))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        write(connection, 110)
    thread.join(30)
    assert saw == [110]


def test_a_claim_sees_the_newest_fence_from_an_older_snapshot(bank):
    """A transaction that had read before the newer holder came is refused all the same."""
    with bank.engine.connect() as begun:
        claimed(bank.engine, 1)
        read(begun)
        claimed(bank.engine, 2)
        with pytest.raises(StaleTokenError):
            claim(begun, token(1))


def test_many_holders_at_once_neither_deadlock_nor_pass_each_other(bank):
    """Eight threads claim a new lock together: each is served or stale, the highest wins."""
    barrier = threading.Barrier(8)
    served, stale, failed = [], [], []

    def holder(number):
        barrier.wait()
        try:
            with bank.engine.begin() as connection:
                claim(connection, token(number))
                served.append(number)
                write(connection, read(connection) + 10)
        except StaleTokenError:
            stale.append(number)
        except Exception as exc:
            failed.append(exc)

    threads = [threading.Thread(target=holder, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert sorted(served + stale) == list(range(1, 9))
    assert served == sorted(served)
    assert fences(bank.engine) == {LOCK: 8}
    assert bank.balance() == 100 + 10 * len(served)


def _asynchronous(url):
    return url.set(drivername="sqlite+aiosqlite") if url.drivername == "sqlite" else url


@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
def test_an_asynchronous_session_claims_with_claim_async(bank):
    """The same rule and the same errors, awaited."""

    async def main():
        engine = create_async_engine(_asynchronous(bank.engine.url))
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(ImproperlyConfigured, match="claim_async"):
                claim(session, token(5))
            await claim_async(session, token(5))
            (await session.get_one(Account, 7)).balance = 150
        with pytest.raises(StaleTokenError):
            async with engine.begin() as connection:
                await claim_async(connection, token(4))
        await engine.dispose()

    asyncio.run(main())
    assert bank.balance() == 150
    assert fences(bank.engine) == {LOCK: 5}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_with_a_begin_of_its_own_is_left_to_it(bank):
    """The documented recipe (driver's isolation_level None, BEGIN by an event) works, too."""

    @sa.event.listens_for(bank.engine, "connect")
    def connected(dbapi_connection, record):
        dbapi_connection.isolation_level = None

    @sa.event.listens_for(bank.engine, "begin")
    def begun(connection):
        connection.exec_driver_sql("BEGIN")

    bank.engine.dispose()
    with pytest.raises(ZeroDivisionError), bank.engine.begin() as connection:
        claim(connection, token(1))
        write(connection, 555)
        raise ZeroDivisionError
    assert bank.balance() == 100
    assert fences(bank.engine) == {}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_is_locked_for_writing_from_the_claim_on(bank):
    """No other connection can write between a claim and the first write that follows it."""
    hasty = sa.create_engine(bank.engine.url, connect_args={"timeout": 0})
    with bank.engine.begin() as connection:
        claim(connection, token(1))
        with pytest.raises(sa.exc.OperationalError, match="locked"), hasty.begin() as other:
            write(other, 555)
        write(connection, 110)
    hasty.dispose()
    assert bank.balance() == 110
