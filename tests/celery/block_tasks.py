"""Tasks that hold a lock for a block of theirs, or wait in a call that no exception reaches."""

import socket
import time

from celery import current_app, shared_task

from celery_redlock import LockedTask, Locks
from tests.celery.journal import record

LONG = 60
RECEIVES_FOR = 8  # seconds


@shared_task
def holds_a_block(name, **options):
    """Hold a lock of its own in the middle of the body."""
    with Locks.for_app(current_app).lock(name, **options) as lease:
        record("start", name=name, key=lease.key)
        time.sleep(LONG)
    return "over"


@shared_task(base=LockedTask, bind=True, lock_ttl=2)
def receives(self, name, cancels):
    """Wait for what never comes; a callback ends the waiting if it is told to."""
    ear, mouth = socket.socketpair()
    try:
        if cancels:
            self.lease.on_lost(lambda lease: ear.shutdown(socket.SHUT_RDWR))
        record("start", name=name, key=self.lease.key)
        ear.settimeout(RECEIVES_FOR)
        ear.recv(1)
    finally:
        ear.close()
        mouth.close()
    time.sleep(0.2)  # a bytecode at which a thread can be stopped
    return "over"
