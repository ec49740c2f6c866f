"""``guards.django``: the app, its migration, and what a claim accepts, refuses and leaves behind."""

import threading
import unittest
from io import StringIO
from unittest import mock
from urllib.parse import urlsplit

import pymysql
import pytest

from tests import django_site

pymysql.install_as_MySQLdb()
django_site.set_up()

from django import test as django_test  # noqa: E402 -- Django must be set up first
from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.db.utils import DatabaseError, OperationalError, ProgrammingError  # noqa: E402

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError  # noqa: E402
from celery_redlock.fencing import FencingToken, FencingTokens  # noqa: E402
from celery_redlock.guards.django import claim, fenced  # noqa: E402
from celery_redlock.guards.django.models import Fence  # noqa: E402
from tests.guards.malformed import MALFORMED  # noqa: E402

LOCK = "account:7"


def token(number, lock=LOCK):
    """A token of the account's lock."""
    return FencingToken(number, lock)


def settings_of(kind, url):
    """Django's way to name a database that is known by its url."""
    parts = urlsplit(url)
    engine = {"postgres": "postgresql", "mariadb": "mysql"}[kind]
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parts.path.strip("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": str(parts.port),
    }


@pytest.fixture(params=["default", "postgres", "mariadb"])
def alias(request):
    """The alias of a database of each kind, with the app's table and an account, both new."""
    if request.param != "default":
        own = settings_of(request.param, request.getfixturevalue(request.param).url)
        connections.settings[request.param] = {**connections.settings["default"], **own}
    name = request.param
    drop = "drop table if exists {}"
    for table in ("redlock_fence", "django_migrations", "guarded_account"):
        execute(name, drop.format(table))
    migrate(name)
    execute(name, "create table guarded_account (id integer primary key, balance integer)")
    execute(name, "insert into guarded_account values (7, 100)")
    yield name
    for table in ("redlock_fence", "django_migrations", "guarded_account"):
        execute(name, drop.format(table))
    connections[name].close()


def migrate(name, *what):
    """Run the app's migrations."""
    call_command("migrate", *what, database=name, verbosity=0)


def execute(name, statement, *values):
    """Run a statement by itself."""
    with connections[name].cursor() as cursor:
        cursor.execute(statement, values)


def read(name):
    """What is on the account now."""
    with connections[name].cursor() as cursor:
        cursor.execute("select balance from guarded_account where id = 7")
        return cursor.fetchone()[0]


def write(name, balance):
    """Put a balance on the account."""
    execute(name, "update guarded_account set balance = %s where id = 7", balance)


def fences(name):
    """What the fence rows hold."""
    return dict(Fence.objects.using(name).values_list("lock_name", "fencing_token"))


def test_a_token_may_claim_and_write_as_often_as_it_likes(alias):
    """The rightful holder's second transaction passes, and the row keeps its token."""
    for balance in (110, 120):
        with fenced(token(5), using=alias):
            write(alias, balance)
    with transaction.atomic(using=alias):
        claim(token(5), using=alias)
        claim(token(5), using=alias)
        write(alias, 130)
    assert read(alias) == 130
    assert fences(alias) == {LOCK: 5}


def test_a_lower_token_is_refused_and_nothing_is_written(alias):
    """The error names the lock and both tokens, and the whole transaction is gone."""
    with fenced(token(9), using=alias):
        pass
    with pytest.raises(StaleTokenError) as caught, transaction.atomic(using=alias):
        write(alias, 555)
        claim(token(8), using=alias)
    assert (caught.value.lock, caught.value.fencing_token, caught.value.stored) == (LOCK, 8, 9)
    assert read(alias) == 100
    assert fences(alias) == {LOCK: 9}


def test_a_swallowed_refusal_can_still_write_nothing(alias):
    """After the refusal the transaction runs no statement, and is rolled back."""
    with fenced(token(9), using=alias):
        pass
    with transaction.atomic(using=alias):
        write(alias, 555)
        with pytest.raises(StaleTokenError):
            claim(token(8), using=alias)
        with pytest.raises(transaction.TransactionManagementError):
            write(alias, 556)
    assert read(alias) == 100


def test_names_that_differ_in_anything_are_different_locks(alias):
    """Case, trailing blanks and accents count, also where the database's text ignores them."""
    names = ["lock", "LOCK", "lock ", "löck", "шлюз", "锁"]
    for number, name in enumerate(names, start=1):
        with fenced(token(number, name), using=alias):
            pass
    assert fences(alias) == {name: number for number, name in enumerate(names, start=1)}
    assert str(Fence.objects.using(alias).get(lock_name="LOCK")) == "LOCK;2"


def test_tokens_are_exact_up_to_63_bits(alias):
    """Neighbours above 2**53, which are one float, are told apart."""
    for number in (2**53, 2**53 + 1, 2**63 - 1):
        with fenced(token(number), using=alias):
            pass
        assert fences(alias) == {LOCK: number}
    with pytest.raises(StaleTokenError), fenced(token(2**63 - 2), using=alias):
        pass


@pytest.mark.parametrize("given,lock,says", MALFORMED)
def test_a_missing_malformed_or_foreign_token_is_refused(alias, given, lock, says):
    """One clear error each, and nothing is written."""
    with pytest.raises(ImproperlyConfigured, match=says), transaction.atomic(using=alias):
        write(alias, 555)
        claim(given, lock=lock, using=alias)
    assert read(alias) == 100
    assert fences(alias) == {}


def test_a_plain_int_needs_its_lock_beside_it(alias):
    """A token that went through JSON is compared with the one that stayed a token."""
    with fenced(5, lock=LOCK, using=alias):
        pass
    with pytest.raises(StaleTokenError), fenced(token(4), lock=LOCK, using=alias):
        pass


def test_a_missing_table_is_named_with_its_cure(alias):
    """The error says what to install and to run, and the data is untouched."""
    migrate(alias, "redlock_fence", "zero")
    with pytest.raises(ImproperlyConfigured, match="run migrate"), transaction.atomic(using=alias):
        write(alias, 555)
        claim(token(1), using=alias)
    assert read(alias) == 100


def test_another_error_of_the_database_is_passed_on(alias):
    """A table of the right name but the wrong shape is not called missing."""
    execute(alias, "drop table redlock_fence")
    execute(alias, "create table redlock_fence (x integer)")
    with pytest.raises((ProgrammingError, OperationalError)), fenced(token(1), using=alias):
        pass


def test_the_token_of_several_locks_claims_them_all(alias):
    """One that is stale refuses all of them."""
    with fenced(FencingTokens([token(3, "account:8"), token(5)]), using=alias):
        write(alias, 90)
    assert fences(alias) == {LOCK: 5, "account:8": 3}
    with (
        pytest.raises(StaleTokenError),
        fenced(FencingTokens([token(2, "account:8"), token(6)]), using=alias),
    ):
        write(alias, 555)
    assert (read(alias), fences(alias)) == (90, {LOCK: 5, "account:8": 3})


READ_ONLY = {
    "default": "pragma query_only = {}",
    "postgres": "set default_transaction_read_only = {}",
    "mariadb": "set session transaction read {}",
}


def test_a_read_only_database_refuses_the_claim(alias):
    """Its own error says so, and neither fence nor data is written."""
    on, off = ("only", "write") if alias == "mariadb" else ("on", "off")
    execute(alias, READ_ONLY[alias].format(on))
    try:
        with pytest.raises(DatabaseError, match=r"(?i)read.?only"), fenced(token(5), using=alias):
            write(alias, 555)
    finally:
        execute(alias, READ_ONLY[alias].format(off))
    assert (read(alias), fences(alias)) == (100, {})


def test_a_claim_outside_a_transaction_is_refused(alias):
    """It would commit by itself: a check and a write in two transactions."""
    with pytest.raises(ImproperlyConfigured, match="outside a transaction"):
        claim(token(1), using=alias)
    assert fences(alias) == {}


def test_a_claim_in_an_inner_block_is_refused(alias):
    """Rolling back to its savepoint would take the fence back and keep the outer writes."""
    outer, inner = transaction.atomic(using=alias), transaction.atomic(using=alias)
    with outer, inner, pytest.raises(ImproperlyConfigured, match="inner atomic block"):
        claim(token(1), using=alias)
    assert fences(alias) == {}


def test_a_claim_in_an_inner_block_without_a_savepoint_counts(alias):
    """Such a block is rolled back only with the one around it."""
    with transaction.atomic(using=alias), transaction.atomic(using=alias, savepoint=False):
        claim(token(1), using=alias)
        write(alias, 110)
    assert read(alias) == 110
    assert fences(alias) == {LOCK: 1}


def test_fenced_inside_another_block_is_refused(alias):
    """It would be a savepoint; the error says where to claim instead."""
    with (
        transaction.atomic(using=alias),
        pytest.raises(ImproperlyConfigured, match="ATOMIC_REQUESTS"),
        fenced(token(1), using=alias),
    ):
        pass


def test_a_newer_holder_waits_for_the_transaction_of_the_older(alias):
    """Claims of one lock take turns, so the newer one reads what the older one wrote."""
    saw = []

    def newer():
        with fenced(token(2), using=alias):
            saw.append(read(alias))
        connections.close_all()

    thread = threading.Thread(target=newer)
    with fenced(token(1), using=alias):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        write(alias, 110)
    thread.join(30)
    assert saw == [110]


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_a_claim_sees_the_newest_fence_from_an_older_snapshot(alias):
    """A transaction that had read before the newer holder came is refused all the same."""
    execute(alias, "set session transaction isolation level repeatable read")

    def newer():
        with fenced(token(2), using=alias):
            pass
        connections.close_all()

    with fenced(token(1), using=alias):
        pass
    with pytest.raises(StaleTokenError), transaction.atomic(using=alias):
        read(alias)
        thread = threading.Thread(target=newer)
        thread.start()
        thread.join(30)
        claim(token(1), using=alias)


def test_many_holders_at_once_neither_deadlock_nor_pass_each_other(alias):
    """Eight threads claim a new lock together: each is served or stale, the highest wins."""
    barrier = threading.Barrier(8)
    served, stale, failed = [], [], []

    def holder(number):
        barrier.wait()
        try:
            with fenced(token(number), using=alias):
                served.append(number)
                write(alias, read(alias) + 10)
        except StaleTokenError:
            stale.append(number)
        except Exception as exc:
            failed.append(exc)
        connections.close_all()

    threads = [threading.Thread(target=holder, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert sorted(served + stale) == list(range(1, 9))
    assert fences(alias) == {LOCK: 8}
    assert read(alias) == 100 + 10 * len(served)


def test_the_guard_works_inside_django_s_own_test_case(alias):
    """A TestCase wraps each test in transactions of its own, which are not counted."""

    class Fenced(django_test.TestCase):
        databases = frozenset({alias})

        def test_it(self):
            with fenced(token(9), using=alias):
                write(alias, 110)
            with pytest.raises(StaleTokenError), fenced(token(8), using=alias):
                pass
            assert read(alias) == 110
            outer, inner = transaction.atomic(using=alias), transaction.atomic(using=alias)
            with outer, inner, pytest.raises(ImproperlyConfigured, match="inner"):
                claim(token(9), using=alias)
            with pytest.raises(ImproperlyConfigured, match="outside"):
                claim(token(9), using=alias)

    result = unittest.TestResult()
    unittest.TestSuite([Fenced("test_it")]).run(result)
    assert result.errors == []
    assert result.failures == []
    assert result.testsRun == 1
    assert read(alias) == 100


def test_the_migration_makes_what_the_model_says():
    """Nothing is left to migrate."""
    call_command("makemigrations", "redlock_fence", check=True, dry_run=True, stdout=StringIO())


def test_the_app_passes_django_s_checks(alias):
    """Neither the model nor the field gives a warning."""
    out = StringIO()
    call_command("check", databases=[alias], fail_level="WARNING", stdout=out, stderr=out)
    assert "no issues" in out.getvalue()


@pytest.fixture
def browser(alias):
    """Django's test client, with the middleware installed."""
    if alias != "default":
        pytest.fail("ask for the default database")
    middleware = "celery_redlock.guards.django.middleware.FencingTokenMiddleware"
    with django_test.override_settings(MIDDLEWARE=[middleware]):
        yield django_test.Client(raise_request_exception=False)


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_the_middleware_answers_412_to_a_stale_token(browser, alias):
    """The view's transaction is rolled back and the client is told not to try again."""

    def post(number):
        return browser.post("/deposit/10", headers={"Fencing-Token": token(number).header})

    assert [post(9).status_code, post(9).status_code, post(8).status_code] == [200, 200, 412]
    assert read(alias) == 120
    assert "stale" in post(8).content.decode()


@pytest.mark.parametrize("alias", ["default"], indirect=True)
@pytest.mark.parametrize(
    "header,status", [(None, 428), ("nonsense", 400), ("account:7;1.5", 400), ("a;1,b;2", 400)]
)
def test_the_middleware_refuses_a_missing_or_malformed_token(browser, alias, header, status):
    """428 for a missing one and 400 for a malformed one, before the view runs."""
    headers = {"Fencing-Token": header} if header else {}
    assert browser.post("/deposit/10", headers=headers).status_code == status
    assert read(alias) == 100


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_the_middleware_lets_a_safe_request_do_without(browser, alias):
    """A GET needs no token, but may carry one."""
    assert browser.get("/look").content == b"None"
    with_token = browser.get("/look", headers={"Fencing-Token": "account:7;4"})
    assert with_token.content.decode() == "FencingToken(4, lock='account:7')"


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_the_middleware_leaves_other_exceptions_alone(browser, alias):
    """A view's own fault stays Django's 500."""
    assert browser.get("/fail").status_code == 500


def test_another_kind_of_database_is_refused(alias):
    """The error names the databases that a claim works on."""
    with (
        mock.patch.object(connections[alias], "vendor", "oracle"),
        pytest.raises(ImproperlyConfigured, match="PostgreSQL, MySQL, MariaDB and SQLite"),
        transaction.atomic(using=alias),
    ):
        claim(token(1), using=alias)
