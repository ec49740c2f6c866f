"""Tasks under Django: published at the commit, unique within a transaction, and its settings."""

import json
import logging

import pytest

pytest.importorskip("django")

from celery import Celery
from django.db import connection, transaction
from django.test import TestCase

from celery_redlock import DuplicateTask, LockedTask, Locks, current_lease
from tests import django_site
from tests.celery.app import close_app, make_app
from tests.celery.test_publish_scopes import queue_lock

django_site.set_up()

from celery_redlock.contrib.django import DjangoLockedTask  # noqa: E402 - Django comes first


class Undo(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def app(config):
    """An application with Django's tasks, over a real broker and real lock servers."""
    app = make_app({**config, "include": []})

    @app.task(shared=False, base=DjangoLockedTask, name="unique", lock_scope="until_executed")
    def unique(name, value=0):
        raise AssertionError("only published")

    @app.task(shared=False, base=DjangoLockedTask, name="plain")
    def plain(name):
        raise AssertionError("only published")

    for policy in ("keep_latest", "replace", "raise"):

        @app.task(
            shared=False,
            base=DjangoLockedTask,
            name=policy,
            lock_scope="until_executed",
            lock_on_duplicate=policy,
            lock_args=["name"],
        )
        def with_policy(name, value=0):
            raise AssertionError("only published")

    yield app
    connection.close()
    close_app(app)


@pytest.fixture
def sent(valkey):
    """The arguments of the calls that are in the queue, in order."""

    def look():
        import base64

        with valkey.client() as client:
            messages = [json.loads(one) for one in reversed(client.lrange("celery", 0, -1))]
        bodies = [json.loads(base64.b64decode(message["body"])) for message in messages]
        return [(*args, *kwargs.values()) for args, kwargs, _ in bodies]

    return look


def test_lock_and_publish_come_at_the_commit(app, sent):
    """Inside the transaction nothing is locked and nothing is sent."""
    task = app.tasks["unique"]
    with transaction.atomic():
        task.delay_on_commit("a")
        assert queue_lock(app, task, "a") is None
        assert sent() == []
    assert queue_lock(app, task, "a") is not None
    assert sent() == [("a",)]


def test_after_a_rollback_there_is_no_lock_and_no_message(app, sent):
    """The next call is published."""
    task = app.tasks["unique"]
    with pytest.raises(Undo), transaction.atomic():
        task.delay_on_commit("a")
        raise Undo
    assert queue_lock(app, task, "a") is None
    assert sent() == []
    assert task.delay("a").duplicate is False


@pytest.mark.parametrize("locks", ["up", "down"])
def test_two_calls_in_one_block_are_one_publish(app, sent, locks):
    """However they are written, and whether or not there are queue locks at the commit."""
    if locks == "down":
        app.conf.redlock_coordinators = {"default": "redis://127.0.0.1:1/0"}
    task = app.tasks["unique"]
    with transaction.atomic():
        task.delay_on_commit("a")
        task.delay_on_commit(name="a")
        with transaction.atomic():
            task.apply_async_on_commit(("a",), {"value": 0})
        task.delay_on_commit("b")
    assert sent() == [("a",), ("b",)]


def test_two_calls_in_two_blocks_are_two_calls(app, sent):
    """What a former transaction has published is the queue lock's business."""
    task = app.tasks["plain"]
    for _ in range(2):
        with transaction.atomic():
            task.delay_on_commit("a")
    assert sent() == [("a",), ("a",)]


def test_without_uniqueness_every_call_is_published(app, sent):
    """A task that is only alone while it runs may be called twice."""
    with transaction.atomic():
        app.tasks["plain"].delay_on_commit("a")
        app.tasks["plain"].delay_on_commit("a")
    assert sent() == [("a",), ("a",)]


@pytest.mark.parametrize("policy", ["keep_latest", "replace"])
def test_where_the_newest_counts_the_newest_is_published(app, sent, policy):
    """The last call of the transaction is the one that is sent."""
    task = app.tasks[policy]
    with transaction.atomic():
        for value in (1, 2, 3):
            task.delay_on_commit("a", value=value)
    assert sent() == [("a", 3)]


def test_a_newer_call_that_is_rolled_back_counts_for_nothing(app, sent):
    """Its savepoint is undone, so the one before it is sent."""
    task = app.tasks["keep_latest"]
    with transaction.atomic():
        task.delay_on_commit("a", value=1)
        with pytest.raises(Undo), transaction.atomic():
            task.delay_on_commit("a", value=2)
            raise Undo
    assert sent() == [("a", 1)]


def test_a_first_call_that_is_rolled_back_counts_for_nothing(app, sent):
    """The second one is sent in its place."""
    task = app.tasks["unique"]
    with transaction.atomic():
        with pytest.raises(Undo), transaction.atomic():
            task.delay_on_commit("a")
            raise Undo
        task.delay_on_commit("a", 0)
    assert sent() == [("a", 0)]


def test_raise_is_told_at_the_second_call(app, sent):
    """An error after the commit would help nobody."""
    task = app.tasks["raise"]
    with transaction.atomic():
        task.delay_on_commit("a")
        with pytest.raises(DuplicateTask):
            task.delay_on_commit("a")
    assert sent() == [("a",)]


def test_without_a_transaction_it_is_published_at_once(app, sent):
    """As Django's own ``on_commit``."""
    app.tasks["unique"].delay_on_commit("a")
    assert sent() == [("a",)]


def test_a_call_with_an_id_of_its_own_is_not_folded(app, sent):
    """Its id is promised to somebody."""
    task = app.tasks["unique"]
    with transaction.atomic():
        task.delay_on_commit("a")
        task.apply_async_on_commit(("a",), task_id="mine")
    assert sent() == [("a",), ("a",)]


def test_a_lock_that_is_given_back_inside_a_transaction_is_warned_of(app, caplog):
    """Its next holder could not see what was written."""
    locks = Locks.for_app(app)
    with transaction.atomic(), locks.lock("k"):
        pass
    assert "while a transaction is open on database 'default'" in caplog.text
    caplog.clear()
    with locks.lock("k"), transaction.atomic():
        pass
    assert "transaction" not in caplog.text


def test_the_transaction_of_a_test_case_is_not_warned_of(app, caplog):
    """It is always open, and never committed."""

    class Case(TestCase):
        def runTest(self):
            with Locks.for_app(app).lock("k"):
                pass
            with transaction.atomic():
                app.tasks["unique"].delay_on_commit("a")

    caplog.set_level(logging.WARNING)
    result = Case().run()
    assert result.wasSuccessful(), result.failures + result.errors
    assert "transaction" not in caplog.text


def test_settings_under_djangos_namespace(valkey, settings_of):
    """``CELERY_REDLOCK_*`` is read like ``redlock_*``."""
    app = settings_of(
        CELERY_BROKER_URL="memory://",
        CELERY_TASK_ALWAYS_EAGER=True,
        CELERY_REDLOCK_COORDINATORS={"default": valkey.url},
        CELERY_REDLOCK_TTL=17,
        CELERY_REDLOCK_QUEUES={"billing": {"ttl": 19}},
        CELERY_REDLOCK_PREFIX="shop",
    )

    @app.task(shared=False, base=DjangoLockedTask, name="t", lock_key="k")
    def t():
        return current_lease().grants[0].ttl

    assert t() == 17
    locks = Locks.for_app(app)
    assert locks.plan(t, "billing", None).options.ttl == 19
    assert locks.settings.shared.prefix == "shop"
    locks.close()


@pytest.fixture
def settings_of():
    """An application that reads Django's settings, with some of them set."""
    from django.test import override_settings

    overrides = []

    def make(**values):
        override = override_settings(**values)
        override.enable()
        overrides.append(override)
        app = Celery("site", set_as_current=False)
        app.config_from_object("django.conf:settings", namespace="CELERY")
        return app

    yield make
    for override in overrides:
        override.disable()


def test_it_has_everything_that_djangos_task_has(app):
    """It stands in for both of its bases."""
    from celery.contrib.django.task import DjangoTask

    task = app.tasks["unique"]
    assert isinstance(task, LockedTask)
    assert isinstance(task, DjangoTask)
