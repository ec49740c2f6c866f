"""Locked tasks whose process is killed, leaves, or is busy for long."""

import os
import re
import signal
import time

from celery import shared_task

from celery_redlock import LockedTask, current_lease
from tests.celery.journal import record

LONG = 60


@shared_task(base=LockedTask, bind=True, lock_ttl=20)
def sleeps(self, name):
    """Hold the lock until the process is killed."""
    record("start", name=name)
    time.sleep(LONG)


@shared_task(base=LockedTask, bind=True, lock_ttl=20)
def leaves(self, name):
    """End the process without any clean-up."""
    record("start", name=name)
    os._exit(1)


@shared_task(base=LockedTask, bind=True, lock_ttl=20, time_limit=2)
def blocks_the_signal(self, name):
    """Can only be killed: a hard time limit's first signal isn't heard."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    record("start", name=name)
    time.sleep(LONG)


@shared_task(base=LockedTask, bind=True, lock_ttl=20, lock_min_hold=3)
def kept(self, name):
    """Over at once, but its lock is kept for three seconds."""
    record("end", name=name)


@shared_task(base=LockedTask, bind=True, lock_ttl=1)
def computes(self, name, seconds):
    """Keep the interpreter's lock for longer than the lock's ttl, then look at the lease."""
    record("start", name=name)
    length, end = 20, time.monotonic() + seconds
    while time.monotonic() < end:
        re.match(r"(a+)+$", "a" * length + "b")
        length = min(length + 1, 25)
    current_lease().check()
    return "held"


@shared_task(base=LockedTask, bind=True, lock_ttl=1)
def matches(self, name):
    """Match for ever, without a look at anything."""
    record("start", name=name)
    re.match(r"(a+)+$", "a" * 60 + "b")


@shared_task(base=LockedTask, bind=True, lock_ttl=2, lock_on_lost="kill", lock_min_hold=0)
def must_not_outlive(self, name):
    """Is killed rather than left alone without its lock."""
    record("start", name=name)
    time.sleep(LONG)
