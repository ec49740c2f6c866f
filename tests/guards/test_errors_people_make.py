"""Fencing done wrong, in each way that people do it: the wrong way loses, the guard doesn't.

Each test is its own negative control: the same history runs with the mistake and without.
"""

import pytest
import sqlalchemy as sa

from celery_redlock.coordinators.base import Grant, Holder
from celery_redlock.coordinators.memory import MemoryCoordinator
from celery_redlock.exceptions import StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.sqlalchemy import claim, metadata
from tests.guards.bank import LOCK, depositing, lost, read, run, schedules, write

fence = metadata.tables["redlock_fence"]


def claiming(number, lock=LOCK):
    """What the guard does first in a transaction."""
    return lambda connection: claim(connection, FencingToken(number, lock))


def granted(coordinator, owner):
    """A grant of the account's lock."""
    grant = coordinator.acquire(LOCK, owner, 30, Holder())
    assert isinstance(grant, Grant)
    return grant


def held(coordinator):
    """What the coordinator says of the account's lock."""
    now = coordinator.inspect(LOCK)
    assert now is not None
    return now


def nothing(connection):
    """No guard."""


def losing(bank, programs_of):
    """The orders of steps in which a deposit is lost, of all that there are.

    Holder 1 looks first: it had the lock before holder 2 did.
    """
    found = []
    for schedule in schedules(*(len(program) for program in programs_of())):
        with bank.engine.begin() as connection:
            connection.execute(sa.delete(fence))
        if schedule[0] == 0 and lost(bank, schedule, *programs_of()):
            found.append(schedule)
    return found


def test_claim_first_loses_nothing_in_any_order(bank):
    """Two holders, each reading and writing in a transaction of its own, in every order."""
    assert losing(bank, lambda: [depositing(bank, claiming(n), claiming(n)) for n in (1, 2)]) == []


def test_without_a_guard_updates_are_lost(bank):
    """The control for all that follows: the histories do have the danger in them."""
    assert losing(bank, lambda: [depositing(bank, nothing, nothing) for _ in (1, 2)])


def test_checking_only_at_write_time_loses_an_update(bank):
    """Even with perfect tokens: 1 reads, 2 reads, 1 writes, 2 writes."""
    found = losing(bank, lambda: [depositing(bank, nothing, claiming(n)) for n in (1, 2)])
    assert [0, 1, 0, 1] in found


def test_a_check_and_a_write_in_two_transactions_lose_an_update(bank):
    """Between the two, the newer holder comes and goes."""

    def programs():
        return [depositing(bank, claiming(n), claiming(n), apart=True) for n in (1, 2)]

    assert [0, 0, 1, 1, 1, 0] in losing(bank, programs)


def test_strictly_lower_refuses_the_rightful_holder_s_second_write(bank):
    """With ``<`` for ``<=`` nobody could write twice; with the guard, one can."""

    def strictly(connection):
        stored = connection.execute(sa.select(fence.c.fencing_token)).scalar()
        if stored is not None and not stored < 1:
            raise StaleTokenError(LOCK, 1, stored)
        claim(connection, FencingToken(1, LOCK))

    assert run([0, 0], depositing(bank, strictly, strictly)) == [False]
    assert run([0, 0], depositing(bank, claiming(1), claiming(1))) == [True]


def test_comparing_with_the_latest_issued_token_loses_an_update(bank):
    """The answer to "is mine the latest?" is true for holder 1 until a moment before it writes."""
    coordinator = MemoryCoordinator()
    first = granted(coordinator, "first")
    second = []

    def programs():
        def latest(connection):
            if held(coordinator).owner != "first":
                raise StaleTokenError(LOCK, 1)

        one = depositing(bank, nothing, latest, apart=True)
        two = depositing(bank, nothing, nothing)

        def taking_over():
            coordinator.release(first)
            second.append(granted(coordinator, "second"))
            two[0]()

        return [one, [taking_over, two[1]]]

    assert lost(bank, [0, 0, 1, 1, 0], *programs())
    assert second


def test_asking_the_lock_for_the_current_token_lets_a_stale_holder_in(bank):
    """The token must be the grant's own: the current one is the other's."""
    coordinator = MemoryCoordinator()
    grant = granted(coordinator, "first")
    own = grant.fencing_token

    def current(connection):
        claim(connection, held(coordinator).fencing_token)

    def carried(connection):
        claim(connection, own)

    coordinator.release(grant)
    newer = granted(coordinator, "second").fencing_token
    two = depositing(bank, claiming(newer), claiming(newer))
    assert lost(bank, [0, 1, 1, 0], depositing(bank, nothing, current), two)
    two = depositing(bank, claiming(newer), claiming(newer))
    assert not lost(bank, [0, 1, 1, 0], depositing(bank, nothing, carried), two)


def test_a_fence_rolled_back_apart_from_the_data_lets_a_stale_holder_in(bank):
    """Claimed in a savepoint that is undone: the write stays and the fence does not."""

    def apart(connection):
        savepoint = connection.begin_nested()
        connection.execute(
            sa.insert(fence).values(lock_name=LOCK, fencing_token=2)  # claim() itself refuses
        )
        savepoint.rollback()

    two = depositing(bank, apart, apart)
    assert lost(bank, [0, 1, 1, 0], depositing(bank, nothing, claiming(1)), two)
    with bank.engine.begin() as connection:
        connection.execute(sa.delete(fence))
    two = depositing(bank, claiming(2), claiming(2))
    assert not lost(bank, [0, 1, 1, 0], depositing(bank, nothing, claiming(1)), two)


def _moving_from_7(bank, number, to, lock_of):
    """A holder's program: take all from account 7, then give it to another account.

    ``lock_of`` says which fence guards an account: one for each row, or one for the lock.
    """
    seen = []

    def fenced(connection, *accounts):
        for lock in sorted({lock_of(account) for account in accounts}):
            claim(connection, FencingToken(number, lock))

    def take():
        with bank.engine.begin() as connection:
            fenced(connection, 7)
            seen.append(read(connection))

    def give():
        with bank.engine.begin() as connection:
            fenced(connection, to)
            write(connection, seen[0], to)

    def clear():
        with bank.engine.begin() as connection:
            fenced(connection, 7)
            write(connection, 0, 7)

    return [take, give, clear]


def test_one_fence_for_each_row_lets_a_stale_holder_write_other_rows(bank):
    """Holder 2 moved the money to account 8; holder 1 then gives it to 9 as well."""
    schedule = [0, 1, 1, 1, 0, 0]

    def total(lock_of):
        for account, balance in ((7, 100), (8, 0), (9, 0)):
            with bank.engine.begin() as connection:
                connection.execute(sa.delete(fence))
                write(connection, balance, account)
        one = _moving_from_7(bank, 1, 9, lock_of)
        two = _moving_from_7(bank, 2, 8, lock_of)
        run(schedule, one, two)
        return sum(bank.balance(account) for account in (7, 8, 9))

    assert total(lambda account: f"row:{account}") == 200
    assert total(lambda account: LOCK) == 100


def test_one_fence_for_many_locks_refuses_rightful_holders(bank):
    """Tokens of two locks can't be compared: the second lock's holder is no stale one."""
    assert run([0, 0], depositing(bank, claiming(50, "a"), claiming(50, "a"))) == [True]
    shared = depositing(bank, claiming(3, "a"), claiming(3, "a"))  # of lock "b", in a's row
    assert run([0, 0], shared) == [False]
    assert run([0, 0], depositing(bank, claiming(3, "b"), claiming(3, "b"))) == [True]


@pytest.mark.parametrize("how", ["it expired", "it came from an older backup"])
def test_a_fence_that_forgets_lets_a_stale_holder_in(bank, how):
    """A fence with a ttl, or restored from a backup, no longer knows holder 2."""
    two = depositing(bank, claiming(2), claiming(2))

    def forgetting():
        two[1]()
        with bank.engine.begin() as connection:
            if how == "it expired":
                connection.execute(sa.delete(fence))
            else:
                connection.execute(sa.update(fence).values(fencing_token=1))

    one = depositing(bank, claiming(1), claiming(1))
    assert lost(bank, [0, 1, 1, 0], one, [two[0], forgetting])
    with bank.engine.begin() as connection:
        connection.execute(sa.delete(fence))
    one = depositing(bank, claiming(1), claiming(1))
    two = depositing(bank, claiming(2), claiming(2))
    assert not lost(bank, [0, 1, 1, 0], one, two)


def _fence_of(bank, kind):
    """A fence column of another type than the guard's, and a claim that uses it."""
    table = sa.Table(f"fence_of_{kind.__name__.lower()}", sa.MetaData(), sa.Column("token", kind))
    table.drop(bank.engine, checkfirst=True)
    table.create(bank.engine)

    def claim_there(connection, token):
        stored = connection.execute(sa.select(table.c.token)).scalar()
        if stored is not None and stored > token:
            raise StaleTokenError(LOCK, None)
        connection.execute(sa.delete(table))
        connection.execute(sa.insert(table).values(token=token))

    return table, claim_there


@pytest.mark.parametrize(
    "kind,older,newer",
    [
        pytest.param(sa.Text, "9", "10", id="text of unequal length"),
        pytest.param(sa.Double, float(2**53), float(2**53 + 1), id="floats above 2**53"),
    ],
)
def test_tokens_kept_as_text_or_floats_are_compared_wrongly(bank, kind, older, newer):
    """As text 9 is above 10, and as floats neighbours are equal; as 64-bit integers neither."""
    table, claim_there = _fence_of(bank, kind)

    def holder(token):
        def guard(connection):
            claim_there(connection, token)

        return depositing(bank, guard, guard)

    right = run([0, 1, 1, 0], holder(older), holder(newer)) == [False, True]
    assert not right
    table.drop(bank.engine)
    guards = [claiming(int(older)), claiming(int(newer) if kind is sa.Text else 2**53 + 1)]
    programs = [depositing(bank, guard, guard) for guard in guards]
    assert run([0, 1, 1, 0], *programs) == [False, True]


def test_accepting_a_missing_token_lets_a_stale_holder_in(bank):
    """A writer that is let through without a token is not fenced at all."""

    def lenient(number):
        return lambda connection: claiming(number)(connection) if number else None

    two = depositing(bank, claiming(2), claiming(2))
    assert lost(bank, [0, 1, 1, 0], depositing(bank, lenient(None), lenient(None)), two)


def test_moving_to_lower_numbers_refuses_everybody_until_they_start_at_a_floor(bank):
    """A new coordinator that counts from 1 is behind the fence; one that starts above isn't."""
    assert run([0, 0], depositing(bank, claiming(10**15), claiming(10**15))) == [True]
    assert run([0, 0], depositing(bank, claiming(1), claiming(1))) == [False]
    floor = 10**15 + 1
    assert run([0, 0], depositing(bank, claiming(floor), claiming(floor))) == [True]


@pytest.mark.parametrize("reads_first,sees", [(False, 110), (True, 100)])
@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_a_read_before_the_claim_makes_later_reads_old(bank, reads_first, sees):
    """MariaDB's default isolation reads from a snapshot of the first read: claim before it.

    Holder 1 deposits 10 before holder 2 claims, but after holder 2's transaction began.
    """
    with bank.engine.connect() as begun:
        if reads_first:
            read(begun, 8)
        with bank.engine.begin() as older:
            claim(older, FencingToken(1, LOCK))
            write(older, 110)
        claim(begun, FencingToken(2, LOCK))
        assert read(begun) == sees


@pytest.mark.parametrize("database_url", ["postgres", "mariadb"], indirect=True)
def test_a_fence_in_the_row_itself_needs_no_table(bank):
    """``UPDATE … SET fence = :t WHERE id = :i AND fence <= :t`` and one row changed."""
    with bank.engine.begin() as connection:
        connection.execute(sa.text("alter table guarded_account add fence bigint default 0"))

    def deposit(token):
        statement = (
            "update guarded_account set balance = balance + 10, fence = :t "
            "where id = 7 and fence <= :t"
        )
        with bank.engine.begin() as connection:
            return connection.execute(sa.text(statement), {"t": token}).rowcount

    assert [deposit(2), deposit(2), deposit(1)] == [1, 1, 0]
    assert bank.balance() == 120
