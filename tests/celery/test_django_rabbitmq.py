"""Django's transactions and calls that are published at their commit, with RabbitMQ as the broker."""

from uuid import uuid4

import pytest

from tests import django_site
from tests.celery.app import close_app, make_app
from tests.celery.test_publish_scopes import queue_lock

django_site.set_up()

from django.db import connection, transaction  # noqa: E402 - settings come first

from celery_redlock.contrib.django import DjangoLockedTask  # noqa: E402 - Django comes first


class Undo(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def app(config, rabbitmq):
    """An application with a task of Django's kind, and a queue of its own."""
    own = {"broker_url": rabbitmq.url, "task_default_queue": f"q-{uuid4()}", "include": []}
    app = make_app({**config, **own})

    @app.task(shared=False, base=DjangoLockedTask, name="unique", lock_scope="until_executed")
    def unique(name):
        raise AssertionError("only published")

    yield app
    connection.close()
    close_app(app)


def waiting(app):
    """How many messages are in the queue."""
    with app.connection_for_read() as broker:
        queue = app.amqp.queues[app.conf.task_default_queue](broker.default_channel)
        queue.declare()
        return queue.queue_declare(passive=True).message_count


def test_after_a_rollback_there_is_no_lock_and_no_message(app):
    """The next call is published, and one that commits as well."""
    task = app.tasks["unique"]
    with pytest.raises(Undo), transaction.atomic():
        task.delay_on_commit("a")
        raise Undo
    assert queue_lock(app, task, "a") is None
    assert waiting(app) == 0
    with transaction.atomic():
        task.delay_on_commit("a")
        task.delay_on_commit("a")
    assert queue_lock(app, task, "a") is not None
    assert waiting(app) == 1
