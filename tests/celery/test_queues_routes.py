"""Options per queue: resolved at publish however the queue is chosen, and carried to the worker."""

import pytest
from celery.signals import before_task_publish
from kombu.entity import Exchange, Queue

from celery_redlock import ImproperlyConfigured, Locks
from tests.celery import queue_tasks as tasks
from tests.celery.app import close_app, make_app

pytestmark = pytest.mark.config(include=["tests.celery.queue_tasks"])

QUEUES = {
    "celery": {"ttl": 11},
    "urgent": {"ttl": 12},
    "report-*": {"ttl": 13},
    "report-exact": {"ttl": 14},
    "low": {"ttl": 15},
    "high": {"ttl": 16},
}


@pytest.fixture(params=["redis", "rabbitmq"])
def config(request, config):
    """The application over one broker or the other."""
    if request.param == "rabbitmq":
        config["broker_url"] = request.getfixturevalue("rabbitmq").url
    config["redlock_queues"] = QUEUES
    return config


@pytest.mark.config(
    task_routes=["tests.celery.queue_tasks.route", {"tests.*.look_with_ttl": {"queue": "low"}}]
)
def test_every_way_to_choose_a_queue(app, worker, journal):
    """The default queue, ``queue=``, a glob, an exact name, a router function, ``task_routes``."""
    queues = "celery,urgent,report-new,report-exact,other,low"
    worker(concurrency=1, queues=queues)
    ways = {
        tasks.look.delay(): ("celery", 11),
        tasks.look.delay(name="urgent"): ("urgent", 12),
        tasks.look.apply_async(queue="report-new"): ("report-new", 13),
        tasks.look.apply_async(queue="report-exact"): ("report-exact", 14),
        tasks.look.apply_async(queue="other"): ("other", 30),
        tasks.look_with_ttl.delay(): ("low", 44),
        app.send_task(tasks.look.name, queue="report-new"): ("report-new", 13),
        tasks.look.si().set(queue="report-exact").apply_async(): ("report-exact", 14),
        tasks.look.apply_async(queue="low", lock={"ttl": 17}): ("low", 17),
    }
    for result, expected in ways.items():
        assert result.get(timeout=10) == expected[1], expected
        (ran,) = journal.entries("ran", id=result.id)
        assert (ran["queue"], ran["ttl"]) == expected


def topic_app(config):
    """An application with two queues on one topic exchange."""
    app = make_app(config)
    exchange = Exchange(f"tasks-{config['task_default_queue']}", type="topic")
    app.conf.task_queues = [
        Queue(config["task_default_queue"], Exchange("plain"), routing_key="plain"),
        Queue("high", exchange, routing_key="hi.#"),
        Queue("low", exchange, routing_key="*.low"),
    ]
    with app.connection_for_write() as connection:
        for queue in app.conf.task_queues:
            queue(connection.default_channel).declare()
    app.conf.task_routes = {
        tasks.look_with_ttl.name: {"exchange": exchange.name, "routing_key": "hi"}
    }
    return app, exchange


@pytest.mark.config(task_default_queue="default-of-topics")
def test_topic_exchanges(config, journal):
    """Where a message is sent to an exchange, the queue is the one that is bound so."""
    app, exchange = topic_app(config)
    try:
        seen = []
        look = app.tasks[tasks.look.name]

        def note(headers=None, **_):
            seen.append(headers["redlock"].get("queue"))

        before_task_publish.connect(note)
        for key in ("hi", "hi.a.b", "a.low", "nowhere.at.all"):
            look.apply_async(exchange=exchange.name, routing_key=key)
        look.apply_async(exchange=exchange, routing_key="x.low")
        look.apply_async(queue="high", routing_key="hi.x")
        app.tasks[tasks.look_with_ttl.name].delay()
        look.delay()
        assert seen == ["high", "high", "low", None, "low", "high", "high", "default-of-topics"]
        before_task_publish.disconnect(note)
    finally:
        close_app(app)


def test_retries_stay_in_their_queue(app, worker, journal):
    """A retry in the same queue keeps that queue's options."""
    worker(concurrency=1, queues="celery,low,high")
    result = tasks.look_again.apply_async(queue="low")
    assert result.get(timeout=15) == 15
    runs = journal.entries("ran", id=result.id)
    assert [(run["queue"], run["ttl"]) for run in runs] == [("low", 15), ("low", 15)]


def test_a_retry_in_another_queue_gets_its_options(app, worker, journal):
    """The header says where the message is now."""
    worker(concurrency=1, queues="celery,low,high")
    result = tasks.look_again.apply_async(("high",), queue="low")
    assert result.get(timeout=15) == 16
    runs = journal.entries("ran", id=result.id)
    assert [(run["queue"], run["ttl"]) for run in runs] == [("low", 15), ("high", 16)]


@pytest.mark.config(redlock_max_ttl=60)
def test_a_queue_can_demand_fencing_tokens(app, config, worker, journal):
    """A task that has no parameter for one is refused at publish; in the next queue it isn't."""
    app.conf.redlock_queues = {"ledger": {"mode": "correctness"}}
    for publish in (
        lambda: tasks.look.apply_async(queue="ledger"),
        lambda: app.send_task(tasks.look.name, queue="ledger"),
        lambda: tasks.look.apply_async(queue="ledger", lock={"mode": "efficiency"}),
    ):
        with pytest.raises(ImproperlyConfigured, match="fencing_token"):
            publish()
    tasks.look.apply_async(queue="other")
    worker(queues="ledger", config={"redlock_queues": {"ledger": {"mode": "correctness"}}})
    result = tasks.pay.apply_async((7,), queue="ledger", lock={"mode": "efficiency"})
    result.get(timeout=15)
    (ran,) = journal.entries("ran", id=result.id)
    assert ran["mode"] == "correctness"
    assert ran["token"] is not None


def test_a_message_that_does_not_say_its_queue(app, worker, journal):
    """From a producer without this package, the queue is told by its routing key."""
    worker(concurrency=1, queues="low")
    with app.producer_pool.acquire(block=True) as producer:
        producer.publish(
            ([], {}, {}),
            routing_key="low",
            serializer="json",
            headers={"task": tasks.look.name, "id": "foreign", "lang": "py"},
            correlation_id="foreign",
        )
    (ran,) = journal.wait_for("ran", id="foreign")
    assert (ran["queue"], ran["ttl"]) == ("low", 15)


def test_a_header_from_outside_frees_nobodys_lock(app, worker, journal):
    """Somebody else's ticket, copied into another message, is of no use there."""
    locks = Locks.for_app(app)
    coordinator = locks.coordinator("default", "efficiency", "queue")
    coordinator.acquire("victim", "its-owner", 60.0, locks.holder(id="victim"))
    ticket = {
        "id": "victim",
        "keys": ["victim"],
        "owner": "its-owner",
        "scope": "until_executed",
        "ttl": 60,
    }
    worker(concurrency=1)
    result = tasks.look.apply_async(headers={"redlock": {"ticket": ticket}})
    result.get(timeout=10)
    assert coordinator.inspect("victim").owner == "its-owner"
