"""Tasks that are running when their worker is told to end."""

import os

from celery import shared_task

from celery_redlock import LockedTask, current_lease
from tests.celery.journal import pass_gate, record

TTL = 3


def _body(task, name):
    lease = current_lease()
    run = f"{task.request.id}/{os.getpid()}"
    record(
        "start", name=name, run=run, id=task.request.id, key=lease.key, token=lease.fencing_token
    )
    pass_gate(name)
    record("end", name=name, run=run, id=task.request.id)
    return name


@shared_task(base=LockedTask, bind=True, lock_ttl=TTL, lock_mode="correctness")
def early(self, name, fencing_token):
    """Its message is acknowledged before the body."""
    return _body(self, name)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_ttl=TTL,
    lock_mode="correctness",
    acks_late=True,
    reject_on_worker_lost=True,
)
def late(self, name, fencing_token):
    """Its message is acknowledged after the body."""
    return _body(self, name)
