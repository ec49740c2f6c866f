"""Act 2: the ledger.  A worker process is frozen in the middle of a posting, and overtaken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from celery.exceptions import TimeoutError as NoAnswer
from rich import box
from rich.table import Table

from celery_redlock.guards.sqlalchemy import metadata as fences
from example_project.demo.outcome import Outcome
from example_project.demo.screen import Screen
from example_project.demo.stage import Stage
from example_project.journal import Entry, Reader

ACCOUNT, OTHERS = 1, (2, 3)
ORDINARY, FROZEN, OVERTAKING = 250, 1000, 500  # cents
PATIENCE = 30.0  # seconds for each thing that has to happen


class Stuck(Exception):
    """Something that had to happen did not happen in time, or a posting failed."""


class NoLedger(Exception):
    """The ledger's database can't be used; the message says why, without a password."""


def check() -> None:
    """Return if the database answers.

    Raises:
        NoLedger: it doesn't.
    """
    from example_project.ledger import engine
    from example_project.settings import ledger_url

    try:
        url = sa.make_url(ledger_url())
        with engine().connect():
            pass
    except sa.exc.ArgumentError as exc:  # its message may quote the url
        raise NoLedger("LEDGER_URL is not a url that SQLAlchemy understands") from exc
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as exc:
        shown = url.set(query={}).render_as_string(hide_password=True)
        reason = str(exc).partition("\n")[0]
        raise NoLedger(f"LEDGER_URL={shown}: this database can't be used: {reason}") from exc


class Ledger:
    """The demo's view of the ledger: posts through Celery, reads from the database.

    Args:
        locked: False: the plain task, as the negative control.
    """

    def __init__(self, *, locked: bool) -> None:
        """Import the shop, whose settings are there by now, and open empty accounts."""
        from example_project import ledger

        self.url = ledger.engine().url
        self._ledger = ledger
        self._task = ledger.post_entry if locked else ledger.post_entry_without_lock
        self.task_name = self._task.__name__
        ledger.metadata.drop_all(ledger.engine())
        ledger.metadata.create_all(ledger.engine())
        fences.create_all(ledger.engine())
        with ledger.engine().begin() as connection:
            rows = [{"id": number, "cents": 0} for number in (ACCOUNT, *OTHERS)]
            connection.execute(sa.insert(ledger.accounts), rows)

    def ask(self, account: int, cents: int) -> Any:
        """Have it posted by a worker; gives the AsyncResult."""
        return self._task.delay(account, cents)

    def answer(self, asked: Any) -> Any:
        """What became of a posting: the new balance, or the error that it ended with.

        Raises:
            Stuck: there was no answer in time.
        """
        try:
            return asked.get(timeout=PATIENCE, propagate=False)
        except NoAnswer as exc:
            raise Stuck(f"a posting had no answer after {PATIENCE:.0f} s") from exc

    def balance(self, account: int) -> int:
        """What the account says, in cents."""
        accounts = self._ledger.accounts
        query = sa.select(accounts.c.cents).where(accounts.c.id == account)
        with self._ledger.engine().connect() as connection:
            return int(connection.execute(query).scalar_one())

    def close(self) -> None:
        """Remove the tables from a database that isn't ours; a file of ours stays to look at."""
        if self.url.get_backend_name() != "sqlite":
            self._ledger.metadata.drop_all(self._ledger.engine())
        self._ledger.engine().dispose()


def play(here: Stage, screen: Screen, *, locked: bool) -> Outcome:
    """Run the act.

    Args:
        here: with servers and a worker running.
        screen: where progress is shown.
        locked: False: the plain task, as the negative control.
    """
    ledger = Ledger(locked=locked)
    screen.note(f"act 2: postings with {ledger.task_name}() in {ledger.url.get_backend_name()}")
    revived = here.revive_lock_servers()
    if revived:
        screen.note(f"lock servers {' and '.join(map(str, revived))} are back, with their memory")
    story = Story(Reader(here.journal.path), screen)
    try:
        _ordinary_day(ledger)
        asked = _freeze(ledger, story)
        problems = _judge(ledger, asked, story, locked=locked)
    except Stuck as exc:
        problems = [f"the ledger got stuck: {exc}"]
    finally:
        ledger.close()
    return Outcome(
        title=f"Act 2: a worker process is frozen in the middle of {ledger.task_name}()",
        body=[story.table()],
        summary=(
            "the frozen holder's older fencing token was refused after the newer one, "
            "and every balance is exact"
        ),
        problems=problems,
    )


class Story:
    """What happened to the account, as told at the end.

    Args:
        reader: of the journal.
        screen: where each line is shown at once.
    """

    def __init__(self, reader: Reader, screen: Screen) -> None:
        """Nothing happened yet."""
        self.reader = reader
        self.screen = screen
        self.lines: list[tuple[float, str, str, str]] = []

    def tell(self, what: str, who: str = "", token: object = "") -> None:
        """Add a line."""
        self.lines.append((time.monotonic(), who, str(token or ""), what))
        self.screen.note(f"{what} {who and f'({who})'}")

    def wait_for(self, what: str, cents: int) -> Entry:
        """The journal's next line of that kind about a posting of so many cents.

        Raises:
            Stuck: it did not come.
        """
        try:
            return self.reader.wait_for(
                lambda entry: entry.what == what and entry.facts["cents"] == cents, PATIENCE
            )
        except TimeoutError as exc:
            raise Stuck(f"no posting of {money(cents)} was {what}: {exc}") from exc

    def table(self) -> Table:
        """The lines, with seconds since the first."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("seconds", justify="right")
        for heading in ("host/pid", "fencing token", "account 1"):
            table.add_column(heading)
        for at, who, token, what in self.lines:
            table.add_row(f"{at - self.lines[0][0]:.1f}", who, token, what)
        return table


def _ordinary_day(ledger: Ledger) -> None:
    """A few postings that nothing disturbs."""
    asked = [ledger.ask(number, ORDINARY) for number in (ACCOUNT, *OTHERS) for _ in range(2)]
    for answer in map(ledger.answer, asked):
        if isinstance(answer, BaseException):
            raise Stuck(f"an ordinary posting failed with {type(answer).__name__}: {answer}")


def _freeze(ledger: Ledger, story: Story) -> tuple[Any, Entry, Entry]:
    """Freeze a holder between its reading and its writing; let another one overtake it."""
    story.tell(f"balance is {money(ledger.balance(ACCOUNT))} after two ordinary postings")
    slow = ledger.ask(ACCOUNT, FROZEN)
    first = story.wait_for("read", FROZEN)
    with frozen(int(first.who.rpartition("/")[2])):
        story.tell(
            f"+{money(FROZEN)}: read {money(first.facts['balance'])}, then frozen (SIGSTOP)",
            first.who,
            first.facts["fencing_token"],
        )
        ledger.ask(ACCOUNT, OVERTAKING)
        second = story.wait_for("posted", OVERTAKING)
        story.tell(
            f"+{money(OVERTAKING)}: posted, balance {money(second.facts['balance'])}",
            second.who,
            second.facts["fencing_token"],
        )
    story.tell("goes on (SIGCONT), and tries to write", first.who, first.facts["fencing_token"])
    return slow, first, second


def _judge(
    ledger: Ledger, asked: tuple[Any, Entry, Entry], story: Story, *, locked: bool
) -> list[str]:
    """What the thawed process achieved, and whether the books are right."""
    slow, first, second = asked
    tokens = first.facts["fencing_token"], second.facts["fencing_token"]
    answer = ledger.answer(slow)
    problems = []
    refused = type(answer).__name__ == "StaleTokenError"
    if refused:
        story.tell("refused by the database: StaleTokenError", first.who, tokens[0])
        if answer.stored != tokens[1]:
            problems.append(f"the ledger had seen {answer.stored}, not {tokens[1]}")
        ledger.ask(ACCOUNT, FROZEN)
        posted = story.wait_for("posted", FROZEN)
        is_now = money(posted.facts["balance"])
        text = f"+{money(FROZEN)}: asked for again and posted, balance {is_now}"
        story.tell(text, posted.who, posted.facts["fencing_token"])
    else:
        story.tell(f"was not refused; its answer: {answer!r}", first.who, tokens[0])
        problems.append("the frozen process overwrote what was posted after it")
    if locked and not tokens[0] < tokens[1]:
        problems.append(f"the fencing token did not rise: first {tokens[0]}, then {tokens[1]}")
    wanted = {ACCOUNT: 2 * ORDINARY + FROZEN + OVERTAKING, **dict.fromkeys(OTHERS, 2 * ORDINARY)}
    for number, cents in wanted.items():
        if ledger.balance(number) != cents:
            is_now = money(ledger.balance(number))
            problems.append(f"account {number} has {is_now} instead of {money(cents)}")
    return problems


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process for a while; it goes on in any case."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def money(cents: int) -> str:
    """Cents as people write them."""
    return f"{cents / 100:.2f}"
