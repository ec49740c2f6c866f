"""The application under test: made anew for each test, and by each worker from its environment."""

import json
import os
from typing import Any

from celery import Celery

from celery_redlock import Locks

CONFIG = "CELERY_REDLOCK_TESTS_CONFIG"  # the environment variable that carries it, as JSON


def make_app(config: dict[str, Any]) -> Celery:
    """An application with this configuration, whose task modules are imported."""
    app = Celery("tests")
    app.conf.update(config)
    app.loader.import_default_modules()
    return app


def close_app(app: Celery) -> None:
    """Close every connection that a producer's application has made."""
    Locks.for_app(app).close()
    # What the client closes is neither its subscriptions nor its pool.
    app.backend.result_consumer.stop()
    app.backend.client.connection_pool.disconnect()
    app.close()


if CONFIG in os.environ:  # in a worker: ``celery -A tests.celery.app worker``
    app = make_app(json.loads(os.environ[CONFIG]))
