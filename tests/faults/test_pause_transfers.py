"""A thousand concurrent transfers between ten accounts, while holders are paused and killed.

Real processes and servers.  Each transfer reads both balances in one transaction and writes them
in another, under the locks of both accounts, so a holder that is paused in between and goes on
after its ttl would overwrite what others did.
"""

import queue
import random
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from celery_redlock.coordinators import from_urls
from tests.contract.conftest import shared_ports  # noqa: F401 -- a fixture
from tests.contract.kinds import KINDS
from tests.faults.holder import HolderProcess, settings
from tests.faults.resources import balances, entries
from tests.faults.test_pause_guarded import resource_url  # noqa: F401 -- a fixture

BY_NAME = {kind.name: kind for kind in KINDS}
ACCOUNTS = 10
WORKERS = 4


@dataclass(frozen=True)
class Transfer:
    """One job, and what happens to the process that does it.

    Attributes:
        number: the entry's id.
        fault: ``"pause"``: stopped between reading and writing; ``"stop"``: stopped anywhere;
            ``"kill"``: killed anywhere; or empty.
        after: seconds from the order to the stop or kill.
    """

    number: int
    source: int
    target: int
    cents: int
    fault: str = ""
    after: float = 0.0


def jobs(many, *, faults, seed=7):
    """Transfers between random accounts, with each kind of fault spread evenly over them."""
    chance = random.Random(seed)  # noqa: S311 -- the same faults each time
    planned = {}
    for kind, times in faults.items():
        for number in chance.sample(range(many // 10, many * 9 // 10), times):
            planned[number] = kind
    for number in range(many):
        source, target = chance.sample(range(ACCOUNTS), 2)
        after = chance.uniform(0, 0.03)
        yield Transfer(
            number, source, target, chance.randint(1, 50), planned.get(number, ""), after
        )


class Office:
    """Hands transfers to worker processes until all are done, and breaks processes as planned.

    Args:
        spec: what each process is told.
        transfers: the jobs.
    """

    def __init__(self, spec, transfers):
        self.spec, self.ttl = spec, spec["ttl"]
        self.waiting = queue.Queue()
        for transfer in transfers:
            self.waiting.put(transfer)
        self.todo = self.waiting.qsize()
        self.saw = Counter()
        self.moved = threading.Condition()
        self.failed = []

    def run(self):
        """Do all of it."""
        threads = [threading.Thread(target=self.work) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.failed == []

    def work(self):
        """One worker: a process at a time."""
        holder = HolderProcess(self.spec)
        try:
            while self.todo and not self.failed:
                try:
                    transfer = self.waiting.get(timeout=0.05)
                except queue.Empty:
                    continue
                holder = self.try_one(holder, transfer)
        except Exception as exc:
            self.failed.append(exc)
        finally:
            holder.close()

    def try_one(self, holder, transfer):
        """Try a transfer once, with its fault; the process that goes on."""
        timers = self.break_it(holder, transfer)
        answer = holder.ask(
            "transfer",
            number=transfer.number,
            source=transfer.source,
            target=transfer.target,
            cents=transfer.cents,
            pause=transfer.fault == "pause",
        )
        if answer.pop("pausing", None):
            self.wait_for_others(self.ttl * 1.3)
            holder.resume()
            answer = holder.answer()
        for timer in timers:
            timer.cancel()
            timer.join()
        holder.resume()  # where it was stopped just after its answer
        self.note(transfer, next(iter(answer)))
        if "died" in answer:
            holder.close()
            holder = HolderProcess(self.spec)
        return holder

    def break_it(self, holder, transfer):
        """Have the process stopped or killed at some moment of its work."""
        if transfer.fault == "kill":
            timers = [threading.Timer(transfer.after, holder.process.kill)]
        elif transfer.fault == "stop":
            timers = [
                threading.Timer(transfer.after, holder.halt),
                threading.Timer(transfer.after + self.ttl * 1.3, holder.resume),
            ]
        else:
            timers = []
        for timer in timers:
            timer.start()
        return timers

    def wait_for_others(self, seconds):
        """Until the paused holder's locks are over, and others have gone on since."""
        time.sleep(seconds)  # the pause is the point
        with self.moved:
            goal = self.saw["done"] + 3 * ACCOUNTS
            self.moved.wait_for(lambda: self.saw["done"] >= goal or self.todo <= WORKERS, 20)

    def note(self, transfer, outcome):
        """Count what became of it; what isn't done is tried again, without its fault."""
        with self.moved:
            self.saw[outcome] += 1
            if outcome == "done":
                self.todo -= 1
            else:
                again = Transfer(transfer.number, transfer.source, transfer.target, transfer.cents)
                self.waiting.put(again)
            self.moved.notify_all()


@pytest.fixture
def office(shared_ports, tmp_path, resource_url):  # noqa: F811
    """Makes an office for a coordinator and a database."""

    def make(coordinator, database, transfers, *, guarded):
        kind = BY_NAME[coordinator]
        urls = kind.urls(shared_ports(kind), tmp_path)
        kind.prepare(urls[0])
        prefix = f"transfers-{secrets.token_hex(4)}"
        made = from_urls(urls, settings(prefix))
        ttl = max(1.0, made.capabilities.min_ttl * 1.1)
        made.close()
        spec = {
            "urls": urls,
            "prefix": prefix,
            "ttl": ttl,
            "resource": "sqlalchemy",
            "url": resource_url(database, ACCOUNTS),
            "guarded": guarded,
        }
        return Office(spec, transfers)

    return make


def by_the_ledger(found):
    """What must be on the accounts, by the entries."""
    expected = [100] * ACCOUNTS
    for _, source, target, cents in found:
        expected[source] -= cents
        expected[target] += cents
    return expected


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "coordinator,database",
    [
        ("redlock_3", "postgres"),
        ("etcd", "mariadb"),
        ("zookeeper", "postgres"),
        ("postgres", "mariadb"),
        ("sqlite", "sqlite"),
    ],
)
def test_a_thousand_transfers_with_pauses_and_kills_are_exact(office, coordinator, database):
    """Every entry is there once, every balance is what the entries say, and the sum is kept."""
    many = 1000
    faults = {"pause": 6, "stop": 4, "kill": 8}
    work = office(coordinator, database, jobs(many, faults=faults), guarded=True)
    work.run()
    url = work.spec["url"]
    found = entries(url)
    assert sorted(number for number, *_ in found) == list(range(many))
    assert balances(url) == by_the_ledger(found)
    assert sum(balances(url)) == 100 * ACCOUNTS
    assert work.saw["stale"] >= 1, work.saw  # the fence was needed
    assert work.saw["died"] >= 1, work.saw


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("coordinator,database", [("redlock_3", "postgres"), ("sqlite", "sqlite")])
def test_without_the_guard_paused_holders_make_the_sum_wrong(office, coordinator, database):
    """The control: the same transfers, pauses only, and no claims."""
    work = office(coordinator, database, jobs(300, faults={"pause": 6}), guarded=False)
    work.run()
    url = work.spec["url"]
    assert balances(url) != by_the_ledger(entries(url))
    assert work.saw["stale"] == 0
