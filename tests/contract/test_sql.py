"""SQL: what the contract can't ask of every coordinator.  Real databases, real faults."""

import secrets
import sys
import threading
import time
from collections import defaultdict
from dataclasses import replace
from importlib.resources import files

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

import celery_redlock.coordinators
from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, CoordinatorSettings, Grant, Holder, from_urls
from celery_redlock.coordinators.sql import create_all, prune, raise_floor
from celery_redlock.coordinators.sql_names import LONGEST, stored_name
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.fencing import FencingToken
from localservers import MariaDB, Postgres

ME = Holder(task="shop.pay", pid=42)
KINDS = ("sqlite", "postgres", "mariadb")


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    """The url of a database, for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'locks.db'}"
    return request.getfixturevalue(request.param).url


@pytest.fixture
def with_table():
    """Makes engines of databases, which then have the table."""
    made = []

    def connect(url):
        made.append(create_engine(url))
        create_all(made[-1])
        return made[-1]

    yield connect
    for engine in made:
        engine.dispose()


@pytest.fixture
def engine(url, with_table):
    """Somebody else's engine of the same database, which has the table, empty."""
    engine = with_table(url)
    write(engine, "DELETE FROM redlock_locks")
    return engine


@pytest.fixture
def client():
    """Makes coordinators, and closes them."""
    made = []

    def connect(url, **settings):
        made.append(from_urls(url, CoordinatorSettings(prefix="shop", **settings)))
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def locks(client, url, engine):
    """A coordinator of the database."""
    return client(url)


def take(locks, key="k", ttl=60.0):
    """Take a lock that must be free."""
    got = locks.acquire(key, secrets.token_hex(16), ttl, ME)
    assert isinstance(got, Grant), got
    return got


def rows(engine):
    """Every row of the table, by its name."""
    with engine.connect() as connection:
        found = connection.execute(text("SELECT * FROM redlock_locks")).mappings().all()
    return {
        row["name"].decode() if isinstance(row["name"], bytes) else row["name"]: dict(row)
        for row in found
    }


def write(engine, statement, **values):
    """Change the table as an administrator does."""
    with engine.begin() as connection:
        return connection.execute(text(statement), values).rowcount


# Rows and tokens


def test_a_release_keeps_the_row_and_its_version(locks, engine):
    """The version is the token, and must outlive the grant that it numbers."""
    grant = take(locks)
    assert rows(engine)["shop:lock:k"]["version"] == grant.fencing_token
    locks.release(grant)
    row = rows(engine)["shop:lock:k"]
    assert (row["owner"], row["holder"]) == (None, None)
    assert row["version"] == grant.fencing_token
    assert take(locks).fencing_token == grant.fencing_token + 1


def test_a_refused_release_and_extend_change_nothing(locks, engine):
    """A grant that was overtaken finds no row that it may touch."""
    old = take(locks)
    locks.release(old)
    take(locks)
    before = rows(engine)
    assert locks.release(old) is False
    assert locks.extend(old, 600.0) is None
    assert rows(engine) == before


def test_a_grant_with_another_token_is_not_ours(locks):
    """Owner and version both name the grant."""
    grant = take(locks)
    other = replace(grant, fencing_token=FencingToken(grant.fencing_token + 1, "k"))
    assert locks.extend(other, 60.0) is None
    assert locks.release(other) is False
    assert locks.release(grant) is True


def test_the_callers_rollback_takes_no_lock_away(locks, engine):
    """A lock that was taken while the caller had a transaction open survives its rollback."""
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        grant = take(locks)
        connection.rollback()
    assert locks.inspect("k").owner == grant.owner


def test_the_callers_open_transaction_does_not_hide_a_lock(locks, client, url, engine):
    """Others see the lock before the caller commits."""
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        grant = take(locks)
        other = client(url).acquire("k", "other", 60.0, ME)
    assert isinstance(other, Conflict)
    assert locks.release(grant) is True


def test_long_and_odd_names_are_told_apart(locks, engine):
    """What a column can't hold is cut and hashed; the rest is stored as it is."""
    names = ["x" * 300, "x" * 301, "nul\0one", "nul\0two", "half \ud800", "half \ud801"]
    tokens = [take(locks, name) for name in names]
    assert len(tokens) == len({stored_name("shop", "lock", name) for name in names})
    assert all(len(name.encode()) <= LONGEST for name in rows(engine))
    assert all(isinstance(locks.acquire(name, "o", 9.0, ME), Conflict) for name in names)


# The floor


def test_a_raised_floor_lifts_new_rows_and_old_ones(locks, engine):
    """Tokens go on above another coordinator's, and one that is held keeps its own."""
    locks.release(take(locks, "old"))
    held = take(locks, "held")
    assert raise_floor(engine, 10**15) == 10**15
    assert locks.raise_floor(7) == 10**15
    assert take(locks, "new").fencing_token == 10**15 + 1
    assert take(locks, "old").fencing_token == 10**15 + 1
    kept = locks.extend(held, 60.0)
    assert kept.fencing_token == held.fencing_token < 10**15
    locks.release(kept)
    assert take(locks, "held").fencing_token == 10**15 + 1


def test_a_prune_never_takes_a_token_back(locks, engine):
    """Rows of free locks go, those of held ones stay, and the next token is higher."""
    tokens = {}
    for key in ("a", "a", "a", "b"):
        grant = take(locks, key)
        tokens[key] = grant.fencing_token
        locks.release(grant)
    held = take(locks, "held")
    assert prune(engine, 3600.0) == 0
    assert prune(engine, 0) == 2
    assert set(rows(engine)) == {"", "shop:lock:held"}
    assert locks.extend(held, 60.0) is not None
    for key, before in tokens.items():
        assert take(locks, key).fencing_token > before


def test_rows_that_are_deleted_without_a_floor_would_be_seen(locks, engine):
    """Control: a plain DELETE makes the token start anew."""
    for _ in range(3):
        grant = take(locks)
        locks.release(grant)
    write(engine, "DELETE FROM redlock_locks")
    assert take(locks).fencing_token < grant.fencing_token


def test_tokens_rise_while_others_prune(client, url, engine):
    """Of two threads that take locks while a third prunes, each sees only higher tokens."""
    locks = client(url, node_timeout=10.0)  # SQLite doesn't queue its writers
    seen, failures, done = defaultdict(list), [], threading.Event()

    def use(key):
        try:
            for _ in range(25):
                grant = take(locks, key)
                seen[key].append(int(grant.fencing_token))
                locks.release(grant)
        except BaseException as exc:
            failures.append(exc)

    def clean():
        try:
            while not done.is_set():
                prune(engine, 0)
                time.sleep(0.01)
        except BaseException as exc:
            failures.append(exc)

    users = [threading.Thread(target=use, args=(key,)) for key in ("a", "b")]
    cleaner = threading.Thread(target=clean)
    for thread in (cleaner, *users):
        thread.start()
    for thread in users:
        thread.join()
    done.set()
    cleaner.join()
    assert failures == []
    assert all(tokens == sorted(set(tokens)) and len(tokens) == 25 for tokens in seen.values())


def test_more_rows_than_a_batch_are_pruned(locks, engine):
    """A prune goes on until nothing is left, in bounded transactions."""
    with engine.begin() as connection:
        name = "CAST(:name AS CHAR(20))" if engine.dialect.name == "mysql" else ":name"
        connection.execute(
            text(
                "INSERT INTO redlock_locks (name, ttl, expires_at, version) "  # noqa: S608
                f"VALUES ({name}, 1, 0, :version)"
            ),
            [{"name": f"old{number}", "version": number} for number in range(1, 1101)],
        )
    assert prune(engine) == 1100
    assert rows(engine)[""]["version"] == 1100


@pytest.mark.parametrize("floor", [-1, 2**63 - 1])
def test_a_floor_out_of_range_is_refused(locks, floor):
    """The message says what is allowed."""
    with pytest.raises(ImproperlyConfigured, match="must be from 0"):
        locks.raise_floor(floor)


def test_a_negative_age_is_refused(engine):
    """A prune of the future makes no sense."""
    with pytest.raises(ImproperlyConfigured, match="older_than=-1"):
        prune(engine, -1)


# Clocks


def test_a_clock_that_stepped_back_makes_no_lock_last_longer(locks, engine):
    """A lock that seems to end an hour from now is cut to its ttl by the first who looks."""
    grant = take(locks, ttl=5.0)
    write(engine, "UPDATE redlock_locks SET expires_at = expires_at + 3600")
    conflict = locks.acquire("k", "other", 5.0, ME)
    assert isinstance(conflict, Conflict)
    assert conflict.retry_after <= 5.0
    assert locks.inspect("k").ttl_left <= 5.0
    assert locks.extend(grant, 5.0) is not None


def test_a_lock_that_was_released_is_free_whatever_the_clock_says(locks, engine):
    """A clock that steps back behind a release doesn't bring the lock back."""
    locks.release(take(locks))
    write(engine, "UPDATE redlock_locks SET expires_at = expires_at + 3600")
    assert isinstance(take(locks), Grant)


def test_the_databases_clock_counts_and_not_ours(locks, engine, monkeypatch):
    """A machine whose wall clock is an hour off takes locks as any other, and is told so."""
    real = time.time
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: real() + 3600)
        take(locks, ttl=20.0)
        found = locks.check()
    assert 15.0 < locks.inspect("k").ttl_left <= 20.0
    assert abs(rows(engine)["shop:lock:k"]["expires_at"] - real() - 20.0) < 5.0
    assert any("clock differs" in finding.message for finding in found)
    assert "error" not in {finding.level for finding in found}


# The table


def test_without_the_table_the_error_says_how_to_make_it(client, url, engine):
    """Each call and the check name create_all."""
    write(engine, "DROP TABLE redlock_locks")
    locks = client(url)
    with pytest.raises(CoordinatorUnavailable, match="create_all") as caught:
        locks.acquire("k", "o", 60.0, ME)
    assert len(caught.value.nodes) == 1
    with pytest.raises(CoordinatorUnavailable, match="create_all"):
        locks.raise_floor(7)
    assert any(f.level == "error" and "create_all" in f.cure for f in locks.check())


def test_the_plain_sql_file_makes_the_same_table(client, url, engine):
    """Names, types and what may be empty are those that create_all makes; and it works."""

    def columns():
        found = inspect(engine).get_columns("redlock_locks")
        return [(c["name"], str(c["type"]), c["nullable"]) for c in found]

    ours = columns()
    write(engine, "DROP TABLE redlock_locks")
    name = "sql_schema_mysql.sql" if engine.dialect.name == "mysql" else "sql_schema.sql"
    script = files(celery_redlock.coordinators).joinpath(name).read_text()
    write(engine, script)
    assert _alike(columns()) == _alike(ours)
    assert inspect(engine).get_pk_constraint("redlock_locks")["constrained_columns"] == ["name"]
    assert take(client(url)).fencing_token == 1


def _alike(columns):
    """The columns, with what each database makes of one type made one."""
    doubles = {"DOUBLE PRECISION", "DOUBLE_PRECISION", "REAL"}
    return [(name, "DOUBLE" if kind in doubles else kind, empty) for name, kind, empty in columns]


# Databases that refuse


def test_a_read_only_file_says_so(client, tmp_path, with_table):
    """One clear error, by the call and by the check."""
    path = tmp_path / "locks.db"
    with_table(f"sqlite:///{path}")
    url = f"sqlite:///file:{path}?mode=ro&uri=true"
    with pytest.raises(CoordinatorUnavailable, match="readonly database"):
        client(url).acquire("k", "o", 60.0, ME)
    assert "error" in {finding.level for finding in client(url).check()}


def test_a_read_only_postgresql_says_so(postgres, client, with_table):
    """Nothing is written, and the check names the setting."""
    with_table(postgres.url)
    locks = client(f"{postgres.url}?options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(CoordinatorUnavailable, match="read-only transaction"):
        locks.acquire(key := secrets.token_hex(4), "o", 60.0, ME)
    found = locks.check()
    assert any("read only by default" in finding.message for finding in found)
    assert client(postgres.url).inspect(key) is None


def test_a_fast_but_forgetful_postgresql_is_an_error(servers, client, with_table):
    """With fsync off a crash could give a token out twice; synchronous_commit we mend."""
    server = servers.start(Postgres, durable=False)
    engine = with_table(server.url)
    write(engine, "ALTER ROLE postgres SET synchronous_commit = off")
    locks = client(server.url)
    assert [f.cure for f in locks.check() if f.level == "error"] == ["switch it on"]
    with locks._engines.get().connect() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"


def test_a_mariadb_without_rights_or_durability_says_so(servers, client, with_table):
    """The check names the setting; the probe finds what the user may not do."""
    server = servers.start(MariaDB)
    root = with_table(make_url(server.url).set(username="root"))
    write(root, "SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    write(root, "SET GLOBAL read_only = 1")
    locks = client(server.url)
    found = [finding for finding in locks.check() if finding.level == "error"]
    assert [finding.cure for finding in found[:2]] == [
        "name the primary, or set read_only=0",
        "set it to 1",
    ]
    with pytest.raises(CoordinatorUnavailable, match="read-only"):
        locks.acquire("k", "o", 60.0, ME)
    write(root, "SET GLOBAL read_only = 0")
    write(root, "CREATE USER reader@'%' IDENTIFIED BY 'hunter2'")
    write(root, "GRANT SELECT ON locks.* TO reader@'%'")
    reader = client(
        make_url(server.url).set(username="reader", password="hunter2").render_as_string(False)
    )
    found = [finding for finding in reader.check() if finding.level == "error"]
    assert "denied" in found[-1].message
    assert "INSERT" in found[-1].cure
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_row_that_somebody_else_has_locked_costs_a_bounded_time(
    kind, request, client, with_table
):
    """A forgotten transaction over our row makes us unavailable, and changes nothing later."""
    server = request.getfixturevalue(kind)
    engine = with_table(server.url)
    locks = client(server.url)
    grant = take(locks, key := secrets.token_hex(4))
    with engine.begin() as other:
        other.execute(text("SELECT * FROM redlock_locks FOR UPDATE"))
        start = now()
        with pytest.raises(CoordinatorUnavailable):
            locks.extend(grant, 600.0)
        assert now() - start < 3.0
    assert locks.inspect(key).ttl_left <= 60.0
    assert locks.extend(grant, 60.0) is not None


def test_a_connection_that_was_cut_is_replaced(postgres, client, with_table):
    """An administrator ends our connections: one error at the most, and the lock is still ours."""
    engine = with_table(postgres.url)
    locks = client(postgres.url)
    grant = take(locks, key := secrets.token_hex(4))
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with engine.connect() as connection:
        connection.execute(text(cut))
    with pytest.raises(CoordinatorUnavailable):
        locks.acquire(key, "other", 60.0, ME)
    assert locks.extend(grant, 60.0) is not None


# Urls


@pytest.mark.parametrize(
    "urls, said",
    [
        (["sqlite:////a.db", "sqlite:////b.db"], "one database, not 2"),
        (["sqlite://"], "in memory"),
        (["sqlite:///:memory:"], "in memory"),
        (["postgresql://host:port/db"], "malformed"),
        (["mysql+nodriver://host/db"], "malformed"),
        (["mysql+mariadbconnector://host/db"], "driver of mysql.mariadbconnector:// is not"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(urls, said):
    """The message says what is wrong with it."""
    with pytest.raises(ImproperlyConfigured, match=said):
        from_urls(urls, CoordinatorSettings())


def test_a_url_without_a_driver_gets_ours(postgres, client):
    """postgresql:// means psycopg 3, which is the one that we can keep from waiting for ever."""
    url = postgres.url.replace("+psycopg", "")
    assert repr(client(url)).startswith("<SqlCoordinator postgresql+psycopg://")


def test_another_driver_works_and_is_warned_of():
    """A driver that isn't installed is named; SQLAlchemy missing altogether too."""
    with pytest.raises(ImproperlyConfigured, match="install psycopg"):
        from_urls("postgresql+pg8000://host/db", CoordinatorSettings())


def test_without_sqlalchemy_the_error_says_what_to_install(monkeypatch):
    """The extra is named."""
    monkeypatch.delitem(sys.modules, "celery_redlock.coordinators.sql")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ImproperlyConfigured, match=r"celery_redlock\[sql\]"):
        from_urls("sqlite:////a.db", CoordinatorSettings())
