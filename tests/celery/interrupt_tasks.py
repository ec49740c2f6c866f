"""Locked tasks whose lock is taken away while they run."""

import contextlib
import time

from celery import shared_task

from celery_redlock import LockedTask
from tests.celery.journal import record

LONG = 30


@shared_task(base=LockedTask, bind=True, lock_ttl=3)
def sleeps(self, name):
    """Block in a call."""
    record("start", name=name)
    time.sleep(LONG)


@shared_task(base=LockedTask, bind=True, lock_ttl=3)
def swallows(self, name):
    """Go on after every Exception, as loops that must not die do."""
    record("start", name=name)
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


@shared_task(base=LockedTask, bind=True, lock_ttl=3)
def swallows_once(self, name):
    """Go on even after the first interrupt."""
    record("start", name=name)
    with contextlib.suppress(BaseException):
        time.sleep(LONG)
    record("swallowed", name=name)
    time.sleep(LONG)


@shared_task(base=LockedTask, bind=True, lock_ttl=3)
def cleans_up(self, name):
    """Clean up when it is stopped, as a body with an open transaction does."""
    record("start", name=name)
    try:
        time.sleep(LONG)
    finally:
        time.sleep(0.2)
        record("cleaned up", name=name)


@shared_task(bind=True)
def calls(self, name):
    """Call a locked task directly, and survive the loss of its lock."""
    try:
        sleeps(name)
    except Exception as exc:
        return type(exc).__name__
