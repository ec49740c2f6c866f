"""Runs before the examples of each page: an application whose locks are in memory."""

from celery import Celery

from celery_redlock import *  # noqa: F403 - what a reader has imported
from celery_redlock import __all__ as public  # noqa: F401

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.update(
    task_always_eager=True,
    task_store_eager_result=True,
    redlock_coordinators={"default": "memory://docs"},
)
app.set_current()
