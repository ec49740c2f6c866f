"""The fencing token on a real prefork worker, with three durable lock servers."""

import celery
import pytest

from celery_redlock import ImproperlyConfigured
from tests.celery import fenced_tasks as tasks

pytestmark = pytest.mark.config(
    include=["tests.celery.fenced_tasks"],
    redlock_queues={"billing": {"mode": "correctness"}},
    redlock_ttl=10,
    redlock_reschedule_delay=1,
)

FORMS: list[tuple] = [
    (tasks.keyword_only, (7,), {}, []),
    (tasks.keyword_only, (), {"account": 7}, []),
    (tasks.in_front, (7,), {}, [5]),
    (tasks.in_front, (7, 9), {}, [9]),
    (tasks.in_front, (), {"account": 7, "cents": 9}, [9]),
    (tasks.positional_only, (7,), {}, [5]),
    (tasks.positional_only, (7, 9), {}, [9]),
    (tasks.positional_only, (7,), {"cents": 9}, [9]),
    (tasks.bound, (7,), {}, [True]),
    (tasks.retried, (7,), {}, []),
    (tasks.ClassBased, (7,), {}, []),
]
if celery.VERSION >= (5, 5):  # what pydantic=True needs
    FORMS.append((tasks.modelled, ({"account": 7, "cents": 9},), {}, [9, "Posting"]))


@pytest.fixture
def running(worker):
    """A prefork worker with two children that also reads the queue of the bills."""
    return worker(concurrency=2, queues="celery,billing")


def test_the_token_reaches_every_form_of_body_and_rises(app, running, journal):
    """Decorated, bound, class-based, retried, with a model: the lease's own token, ever higher."""
    tokens = []
    for task, args, kwargs, rest in FORMS:
        seen = app.tasks[task.name].apply_async(args, kwargs).get(timeout=20)
        what = (seen["lock"], seen["known"], seen["lease's"], seen["rest"])
        assert what == ("account:7", True, seen["token"], rest), task.name
        tokens.append(seen["token"])
    assert tokens == sorted(set(tokens))
    attempts = [entry["token"] for entry in journal.entries("token")]
    assert len(attempts) == 2
    assert attempts[0] < attempts[1]
    assert journal.entries("around")


def test_a_token_from_outside_is_never_used(app, running):
    """A forged message can't bring one: neither as an argument nor in a header."""
    message = {"fencing_token": 99}
    forged = {"headers": {"redlock": {"fencing_token": 99, "token": 99}, "fencing_token": 99}}
    results = [
        app.send_task(tasks.keyword_only.name, (7,), message, **forged),
        app.send_task(tasks.positional_only.name, (7,), **forged),
    ]
    for result in results:
        seen = result.get(timeout=20)
        assert seen["token"] == seen["lease's"] > 99
    with pytest.raises(TypeError, match="fencing_token"):
        tasks.keyword_only.delay(7, fencing_token=99)


def test_the_queue_gives_the_mode_and_asks_for_the_parameter(app, running):
    """In its queue a task gets a token; one without the parameter is refused, each time."""
    assert tasks.by_queue.apply_async((7,), queue="billing").get(timeout=20)["known"] is True
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match="without_a_token.*no parameter named"):
            tasks.without_a_token.apply_async((7,), queue="billing")
    assert tasks.without_a_token.delay(7).get(timeout=20) == 7
    # A producer that knows nothing of locks: the worker refuses before the body.
    stranger = celery.Celery("stranger", set_as_current=False, autofinalize=False)
    stranger.conf.update(app.conf.table(with_defaults=False))
    sent = stranger.send_task(tasks.without_a_token.name, (7,), queue="billing")
    with pytest.raises(ImproperlyConfigured, match="no parameter named fencing_token"):
        app.AsyncResult(sent.id).get(timeout=20)
    stranger.close()


@pytest.mark.parametrize("wait", [0, 20])
def test_two_opposite_transfers_never_deadlock(app, running, journal, wait):
    """Twenty of them, both ways at once: one at a time, and each has tokens of its own for both.

    Without a wait the second comes back later; with one it waits in its slot.
    """
    journal.open_gate("transfer", times=40)
    pairs = [(7, 8), (8, 7)] * 10
    results = [tasks.transfer.apply_async(pair, lock={"wait": wait}) for pair in pairs]
    seen = [result.get(timeout=90) for result in results]
    assert journal.most_at_once() == 1
    assert {tuple(tokens) for tokens in seen} == {("account:7", "account:8")}
    for lock in ("account:7", "account:8"):
        assert len({tokens[lock] for tokens in seen}) == 20


def test_one_account_twice_is_one_lock(app, running, journal):
    """A transfer to oneself has one key, and its token can be asked for all the same."""
    journal.open_gate("transfer")
    assert list(tasks.transfer.delay(7, 7).get(timeout=20)) == ["account:7"]
