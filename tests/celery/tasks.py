"""A few tasks that any test may use; a topic with tasks of its own has a module of its own."""

import os

from celery import shared_task

from celery_redlock import LockedTask, current_lease
from tests.celery.journal import pass_gate, record


@shared_task
def pid() -> int:
    """Tell which process ran it; no lock."""
    return os.getpid()


@shared_task
def wait_at_gate(name: str) -> str:
    """Say that it has started, and end when the gate opens; no lock."""
    record("start", name=name)
    pass_gate(name)
    record("end", name=name)
    return name


@shared_task(base=LockedTask, bind=True)
def locked(self, name: str) -> str:
    """The same under a lock on its argument."""
    lease = current_lease()
    record("start", name=name, run=self.request.id, key=lease.key if lease else None)
    pass_gate(name)
    record("end", name=name, run=self.request.id)
    return name
