"""The pause: a holder is stopped for longer than its ttl, another takes over, the first resumes.

Real processes, real SIGSTOPs, real coordinators, real resources.
"""

import secrets
from dataclasses import dataclass

import pytest

from celery_redlock.coordinators import from_urls
from tests.contract.conftest import shared_ports  # noqa: F401 -- a fixture
from tests.contract.kinds import KINDS
from tests.faults.holder import HolderProcess, settings
from tests.faults.resources import balances, prepare

BY_NAME = {kind.name: kind for kind in KINDS}
DATABASES = ("sqlite", "postgres", "mariadb")


@dataclass(frozen=True)
class Setting:
    """Who grants the lock, and what is behind which guard."""

    coordinator: str
    guard: str
    resource: str

    def __str__(self) -> str:
        return f"{self.coordinator}-{self.guard}-{self.resource}"


# Every coordinator with one database, and every guard and database with one coordinator.
SETTINGS = (
    *(
        Setting(kind.name, "sqlalchemy", "postgres")
        for kind in KINDS
        if kind.fenced and kind.name != "memory"
    ),
    *(
        Setting("sqlite", "sqlalchemy", database)
        for database in DATABASES
        if database != "postgres"
    ),
    *(Setting("sqlite", "django", database) for database in DATABASES),
    Setting("sqlite", "redis", "valkey"),
)


@pytest.fixture
def resource_url(request, tmp_path):
    """The url of a resource, by its name; it holds one account with 100 on it."""

    def url(name, accounts=1):
        if name == "sqlite":
            made = f"sqlite:///{tmp_path / 'resource.db'}"
        else:
            made = request.getfixturevalue(name).url
        prepare(made, accounts)
        return made

    return url


@pytest.fixture
def holders(shared_ports, tmp_path, resource_url):  # noqa: F811
    """Starts holders that compete for the lock of one account."""
    running = []

    def start(setting, *, guarded):
        kind = BY_NAME[setting.coordinator]
        urls = kind.urls(shared_ports(kind), tmp_path)
        kind.prepare(urls[0])
        prefix = f"pause-{secrets.token_hex(4)}"
        coordinator = from_urls(urls, settings(prefix))
        spec = {
            "urls": urls,
            "prefix": prefix,
            "ttl": max(1.0, coordinator.capabilities.min_ttl * 1.1),
            "resource": setting.guard,
            "url": resource_url(setting.resource),
            "guarded": guarded,
        }
        coordinator.close()
        running.extend(HolderProcess(spec) for _ in range(2))
        return running[-2:], spec["url"]

    yield start
    for holder in running:
        holder.close()


def paused_and_overtaken(first, second):
    """First reads and is stopped; second takes over and deposits; first goes on to write."""
    older = first.ask("acquire")["token"]
    assert first.ask("look") == {"seen": 100}
    first.stop()
    newer = second.ask("acquire")["token"]  # granted only when the first one's ttl is over
    assert newer > older
    assert second.ask("look") == {"seen": 100}
    assert second.ask("save") == {"saved": 110}
    first.send("save")
    first.resume()
    return first.answer(), older, newer


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_paused_holder_is_refused_and_the_balance_is_exact(holders, setting):
    """Its write after the takeover is a StaleTokenError that names both tokens."""
    (first, second), url = holders(setting, guarded=True)
    answer, older, newer = paused_and_overtaken(first, second)
    assert answer == {"stale": older, "stored": newer}
    assert balances(url) == [110]
    assert first.ask("save") == {"stale": older, "stored": newer}
    assert first.ask("release") == {"released": False}
    assert second.ask("look") == {"seen": 110}
    assert second.ask("save") == {"saved": 120}
    assert second.ask("release") == {"released": True}
    assert balances(url) == [120]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS[-5:], ids=str)
def test_without_the_guard_the_paused_holder_overwrites_the_other(holders, setting):
    """The control: two deposits went well and one of them is missing."""
    (first, second), url = holders(setting, guarded=False)
    answer, *_ = paused_and_overtaken(first, second)
    assert answer == {"saved": 110}
    assert second.ask("look") == {"seen": 110}
    assert balances(url) == [110]


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_a_holder_that_was_stopped_before_its_first_claim_is_refused(holders, database):
    """It never touched the resource, and the newer holder's claim is enough."""
    (first, second), url = holders(Setting("sqlite", "sqlalchemy", database), guarded=True)
    older = first.ask("acquire")["token"]
    first.stop()
    newer = second.ask("acquire")["token"]
    assert second.ask("look") == {"seen": 100}
    first.send("look")
    first.resume()
    assert first.answer() == {"stale": older, "stored": newer}
    assert second.ask("save") == {"saved": 110}
    assert balances(url) == [110]


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_a_holder_that_is_stopped_inside_its_transaction_is_waited_for(holders, database):
    """It has the fence row locked, so the newer holder reads only what it has committed."""
    (first, second), url = holders(Setting("sqlite", "sqlalchemy", database), guarded=True)
    first.ask("acquire")
    assert first.ask("deposit_in_one") == {"seen": 100}
    first.stop()
    second.ask("acquire")
    second.send("look")  # waits for the row
    first.send("go on")
    first.resume()
    assert first.answer() == {"saved": 110}
    assert second.answer() == {"seen": 110}
    assert second.ask("save") == {"saved": 120}
    assert balances(url) == [120]
