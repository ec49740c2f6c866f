"""What travels in the header, and what is made of options and errors of a publish: no server."""

import pickle
import socket
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from kombu.exceptions import EncodeError, OperationalError
from kombu.utils import json

from celery_redlock import ImproperlyConfigured, LockedTask, Locks
from celery_redlock.publish import HEADER, Ticket, with_header
from celery_redlock.routes import queue_of
from celery_redlock.sending import is_promised, life_in_queue, surely_not_sent
from celery_redlock.successor import Call, successor_id

TICKET = Ticket("id", ("a", "b"), "owner", "until_executed", 60.0, "default", "replace")


@pytest.fixture
def app(request):
    """An application whose locks are in memory."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.redlock_coordinators = {"default": f"memory://{request.node.name}"}
    return app


@pytest.mark.parametrize("carry", [json, pickle])
def test_a_ticket_survives_its_journey(carry):
    """It is the same behind any serializer."""
    header = {"queue": "q"}
    TICKET.into(header)
    there = carry.loads(carry.dumps(header))
    assert Ticket.of(there, "id") == TICKET
    assert Ticket.pop(there, "id") == TICKET
    assert there == {"queue": "q"}


def test_a_ticket_is_of_no_use_in_another_message():
    """A header that was copied into another call frees nothing there."""
    header = {}
    TICKET.into(header)
    assert Ticket.of(header, "another") is None
    assert Ticket.of(header, None) is None
    assert Ticket.pop(header, "another") is None
    assert header == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"keys": "a"},
        {"keys": []},
        {"keys": [3]},
        {"owner": ""},
        {"owner": None},
        {"scope": "from_the_future"},
        {"ttl": "long"},
        {"ttl": 0},
    ],
)
def test_a_malformed_ticket_is_none(broken):
    """Nothing from outside is trusted to be in order."""
    header = {}
    TICKET.into(header)
    header["ticket"].update(broken)
    assert Ticket.of(header, "id") is None


def test_what_a_newer_version_adds_to_a_ticket_is_ignored():
    """Producers may be deployed before their workers."""
    header = {}
    TICKET.into(header)
    header["ticket"]["from_the_future"] = 1
    assert Ticket.of(header, "id") == TICKET


def test_a_ticket_shows_no_password(app):
    """A coordinator that is named by its url is not written into messages."""
    seen = []

    class Sent(Exception):
        pass

    def catch(producer, name, message, **options):
        seen.append(message[0][HEADER])
        raise Sent

    @app.task(
        shared=False,
        base=LockedTask,
        lock_scope="until_executed",
        lock_coordinator="memory://user:secret@host",
    )
    def t():
        raise AssertionError("only published")

    app.amqp.send_task_message = lambda producer, name, message, headers=None, **o: catch(
        producer, name, (headers,)
    )
    with pytest.raises(Sent):
        t.delay()
    assert seen[0]["ticket"]["coordinator"] == ""
    assert "secret" not in repr(seen)


def test_a_coordinator_that_is_not_known_any_more_is_replaced_by_the_present_one(app):
    """After a change of the settings, old messages still find their way."""
    locks = Locks.for_app(app)
    lock = Ticket("id", ("a",), "o", "until_executed", 60.0, "renamed").lock(locks, "default")
    assert lock.coordinator is locks.coordinator("default", "efficiency", "queue")


def test_other_headers_are_left_alone():
    """Ours is added to what is there, and nobody's dict is changed."""
    theirs = {"x": 1, HEADER: {"queue": "q"}}
    assert with_header(theirs, waits=2) == {"x": 1, HEADER: {"queue": "q", "waits": 2}}
    assert theirs == {"x": 1, HEADER: {"queue": "q"}}
    assert with_header(None) == {HEADER: {}}


def test_a_call_of_ours_that_is_no_dict_is_refused(app):
    """By class and by name."""

    @app.task(shared=False, base=LockedTask, name="t")
    def t():
        raise AssertionError("only published")

    with pytest.raises(ImproperlyConfigured, match="must be a dict"):
        t.apply_async(lock=3)
    with pytest.raises(ImproperlyConfigured, match="must be a dict"):
        app.send_task("t", lock=3)


def test_a_lock_for_a_task_that_takes_none_is_refused(app):
    """It would go unheeded."""

    @app.task(shared=False, base=LockedTask)
    def ours():
        raise AssertionError("only published")

    @app.task(shared=False, name="plain")
    def plain():
        raise AssertionError("only published")

    app.finalize()
    with pytest.raises(ImproperlyConfigured, match="plain takes no lock"):
        plain.apply_async(lock={"ttl": 3})


# Which calls are somebody's own.


@pytest.mark.parametrize(
    "option",
    [
        {"task_id": "x"},
        {"group_id": "x"},
        {"chord": {"task": "x"}},
        {"chain": [{"task": "x"}]},
        {"link": [{"task": "x"}]},
        {"link_error": [{"task": "x"}]},
        {"root_id": "x"},
        {"parent_id": "x"},
        {"retries": 1},
        {"replaced_task_nesting": 1},
    ],
)
def test_what_somebody_waits_for_is_promised(option):
    """Each of these alone is enough."""
    assert is_promised(option) is True


def test_a_plain_call_is_not_promised():
    """Also with options that say nothing of the kind, and with empty ones."""
    assert is_promised({"task_id": None, "link": None, "chain": [], "queue": "q"}) is False


# How long a lock lives.


def test_the_ttl_counts_from_when_the_message_may_start(app):
    """A countdown, an eta as a datetime, and one as text."""
    eta = app.now() + timedelta(seconds=100)
    assert life_in_queue(app, {}, 60.0) == 60.0
    assert life_in_queue(app, {"countdown": 100}, 60.0) == 160.0
    assert life_in_queue(app, {"eta": eta}, 60.0) == pytest.approx(160.0, abs=5)
    assert life_in_queue(app, {"eta": eta.isoformat()}, 60.0) == pytest.approx(160.0, abs=5)
    assert life_in_queue(app, {"eta": app.now() - timedelta(days=1)}, 60.0) == 60.0


def test_a_lock_does_not_outlive_a_message_that_expires(app):
    """The broker may drop it and tell nobody."""
    expires = datetime.now(timezone.utc) + timedelta(seconds=10)
    assert life_in_queue(app, {"expires": 10}, 60.0) == 11.0
    assert life_in_queue(app, {"expires": expires}, 60.0) == pytest.approx(11.0, abs=5)
    assert life_in_queue(app, {"expires": 100}, 60.0) == 60.0
    assert life_in_queue(app, {"expires": -5}, 60.0) == 1.0


# What a failed publish means.


def chained(outer, inner):
    """One error from another."""
    try:
        try:
            raise inner
        except Exception as exc:
            raise outer from exc
    except Exception as exc:
        return exc


@pytest.mark.parametrize(
    ("error", "surely"),
    [
        (EncodeError("no"), True),
        (TypeError("no"), True),
        (ConnectionRefusedError(), True),
        (chained(OperationalError("x"), ConnectionRefusedError()), True),
        (chained(OperationalError("x"), socket.gaierror()), True),
        (OperationalError("x"), False),
        (TimeoutError(), False),
        (ConnectionResetError(), False),
        (chained(OperationalError("x"), BrokenPipeError()), False),
        (KeyboardInterrupt(), False),
        (SystemExit(), False),
    ],
)
def test_whether_a_message_may_be_out(error, surely):
    """Only what came before anything was sent has surely put no message into the broker."""
    assert surely_not_sent(error) is surely


# The one more run.


def test_the_successors_id_is_the_same_for_all_who_ask():
    """It follows from the living task and the key, and differs from every other."""
    one = successor_id("id", "k")
    assert one == successor_id("id", "k")
    assert (
        len({one, successor_id("id2", "k"), successor_id("id", "k2"), successor_id(one, "k")}) == 4
    )


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
def test_a_call_comes_back_from_its_note(app, serializer):
    """Arguments by the task's serializer, options that last, times made absolute."""
    app.conf.accept_content = [serializer]
    options = {
        "serializer": serializer,
        "countdown": 100,
        "expires": 200,
        "queue": app.amqp.queues["celery"],
        "priority": 3,
        "producer": object(),
        "headers": {"x": 1},
    }
    call = Call.of(app, "t", (1, "ä", [2]), {"b": {"c": None}}, options)
    back = Call.from_note(app, call.to_note(app))
    assert back.task == "t"
    assert (list(back.args), back.kwargs) == ([1, "ä", [2]], {"b": {"c": None}})
    assert back.options["queue"] == "celery"
    assert back.options["priority"] == 3
    assert back.options["headers"] == {"x": 1}
    assert back.options["eta"] - app.now() > timedelta(seconds=90)
    assert back.options["expires"] - app.now() > timedelta(seconds=190)
    assert "producer" not in back.options
    assert "countdown" not in back.options


def test_a_note_in_a_serializer_that_is_not_accepted_is_refused(app):
    """A note from outside is no way to have something unpickled."""
    app.conf.accept_content = ["json"]
    note = Call.of(app, "t", (1,), {}, {"serializer": "pickle"}).to_note(app)
    with pytest.raises(Exception, match="untrusted content of type pickle"):
        Call.from_note(app, note)


# Which queue it is.


def test_a_queue_by_its_name_or_itself(app):
    """Both are one."""
    assert queue_of(app, {"queue": app.amqp.queues["celery"]}) == "celery"
    assert queue_of(app, {"queue": "other"}) == "other"
    assert queue_of(app, {"exchange": "", "routing_key": "other"}) == "other"
    assert queue_of(app, {"exchange": "unknown", "routing_key": "x"}) is None
    assert queue_of(app, {}) is None


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.a", "a", True),
        ("#", "x.y", True),
        ("*.low", "x.low", True),
        ("a+b", "a+b", True),
        ("a+b", "aab", False),
    ],
)
def test_topics_fit_as_amqp_says(app, pattern, key, fits):
    """A star is one word, a hash is any number of them, and nothing else is special."""
    from kombu import Exchange, Queue

    exchange = Exchange("topics", type="topic")
    app.amqp.queues.add(Queue("q", exchange, routing_key=pattern))
    assert queue_of(app, {"exchange": "topics", "routing_key": key}) == ("q" if fits else None)


def test_direct_and_fanout_exchanges(app):
    """One by the exact key, the other always."""
    from kombu import Exchange, Queue

    app.amqp.queues.add(Queue("d", Exchange("direct", type="direct"), routing_key="k"))
    app.amqp.queues.add(Queue("f", Exchange("fanout", type="fanout")))
    assert queue_of(app, {"exchange": "direct", "routing_key": "k"}) == "d"
    assert queue_of(app, {"exchange": "direct", "routing_key": "x"}) is None
    assert queue_of(app, {"exchange": "fanout", "routing_key": "x"}) == "f"
