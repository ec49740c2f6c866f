"""The token of a body that holds several locks, at every guard."""

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken, FencingTokens
from celery_redlock.guards.argument import checked
from celery_redlock.guards.http.header import headers
from celery_redlock.guards.sqlalchemy import claim, metadata
from tests.guards.bank import Account, read, write


def tokens(first, second):
    """The tokens of accounts 7 and 8, handed in the wrong way round."""
    return FencingTokens([FencingToken(second, "account:8"), FencingToken(first, "account:7")])


def fences(engine):
    """What the fence rows hold."""
    table = metadata.tables["redlock_fence"]
    with engine.connect() as connection:
        return {row.lock_name: row.fencing_token for row in connection.execute(sa.select(table))}


def test_one_claim_claims_every_lock_in_sorted_order(bank):
    """Of the statements, account 7's come first, whatever the order of the tokens."""
    said = []
    sa.event.listen(
        bank.engine, "before_cursor_execute", lambda *args: said.append(f"{args[2]} {args[3]}")
    )
    with orm.Session(bank.engine) as session, session.begin():
        claim(session, tokens(5, 3))
        session.get(Account, 7).balance -= 10
        session.get(Account, 8).balance += 10
    assert fences(bank.engine) == {"account:7": 5, "account:8": 3}
    assert (bank.balance(7), bank.balance(8)) == (90, 10)
    first, second = (
        next(place for place, text in enumerate(said) if name in text)
        for name in ("account:7", "account:8")
    )
    assert first < second


@pytest.mark.parametrize("stale", [(4, 3), (5, 2)], ids=["the first", "the second"])
def test_one_stale_token_of_several_refuses_all(bank, stale):
    """Neither account nor fence is changed, whichever of the two was overtaken."""
    with bank.engine.begin() as connection:
        claim(connection, tokens(5, 3))
    with pytest.raises(StaleTokenError), bank.engine.begin() as connection:
        claim(connection, tokens(*stale))
        write(connection, 555)
    assert fences(bank.engine) == {"account:7": 5, "account:8": 3}
    assert bank.balance() == 100


def test_one_token_of_several_can_be_claimed_alone(bank):
    """By subscription or by ``lock=``; a lock that was not taken is refused."""
    with bank.engine.begin() as connection:
        claim(connection, tokens(5, 3)["account:8"])
    assert fences(bank.engine) == {"account:8": 3}
    with bank.engine.begin() as connection:
        claim(connection, tokens(5, 4), lock="account:8")
    assert fences(bank.engine) == {"account:8": 4}
    with (
        pytest.raises(ImproperlyConfigured, match="'account:9'.*'account:7', 'account:8'"),
        bank.engine.begin() as connection,
    ):
        claim(connection, tokens(5, 4), lock="account:9")


def test_a_resource_of_one_lock_asks_which_token_is_meant():
    """A guess would fence the wrong lock; the error shows what to write."""
    with pytest.raises(ImproperlyConfigured, match=r"fencing_token\['account:7'\]"):
        checked(tokens(5, 3))
    with pytest.raises(ImproperlyConfigured, match="of several locks"):
        headers(tokens(5, 3))
    assert headers(tokens(5, 3)["account:8"]) == {"Fencing-Token": "account:8;3"}


def test_opposite_transfers_at_once_neither_deadlock_nor_lose(bank):
    """Four threads move money to and fro, all locks claimed first: every transfer is there."""
    failed = []

    def move(source, target, first):
        try:
            for number in range(first, 40, 4):
                with bank.engine.begin() as connection:
                    try:
                        claim(connection, tokens(number + 1, number + 1))
                    except StaleTokenError:
                        continue
                    balances = {n: read(connection, n) for n in (source, target)}
                    write(connection, balances[source] - 1, source)
                    write(connection, balances[target] + 1, target)
        except Exception as exc:
            failed.append(exc)

    ways = [(7, 8, 0), (8, 7, 1), (7, 8, 2), (8, 7, 3)]
    threads = [threading.Thread(target=move, args=way) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert bank.balance(7) + bank.balance(8) == 100
    assert fences(bank.engine) == {"account:7": 40, "account:8": 40}


@pytest.mark.parametrize("database_url", ["postgres", "mariadb"], indirect=True)
def test_claims_in_opposite_orders_deadlock(bank):
    """The control: one at a time and unsorted, two transactions wait for each other."""
    both_have_one = threading.Barrier(2)
    ended = {}

    def move(*order):
        try:
            with bank.engine.begin() as connection:
                claim(connection, order[0])
                both_have_one.wait(30)
                claim(connection, order[1])
            ended[order[0].lock] = "well"
        except sa.exc.OperationalError as exc:
            ended[order[0].lock] = "deadlock" if "deadlock" in str(exc).lower() else str(exc)

    first, second = tokens(5, 3).tokens
    threads = [threading.Thread(target=move, args=o) for o in [(first, second), (second, first)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended.values()) == ["deadlock", "well"]
