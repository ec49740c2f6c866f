"""Tasks whose message comes a second time while they run."""

import os

from celery import shared_task

from celery_redlock import LockedTask
from celery_redlock.signals import taken_over
from tests.celery.journal import pass_gate, record


def _body(task, name):
    run = f"{task.request.id}/{os.getpid()}"
    record("start", name=name, run=run, id=task.request.id)
    pass_gate(name)
    record("end", name=name, run=run)
    return name


@shared_task(base=LockedTask, bind=True, acks_late=True, ignore_result=True)
def forgets(self, name):
    """Has no result by which a copy could see that it is done."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, acks_late=True, lock_wait=60)
def stays(self, name):
    """A copy of it waits in its slot."""
    return _body(self, name)


@shared_task(
    base=LockedTask,
    bind=True,
    acks_late=True,
    lock_on_conflict="reschedule",
    lock_give_up_after=0.5,
    lock_reschedule_delay=(1, 2),
)
def limited(self, name):
    """Would not wait for long for somebody else."""
    return _body(self, name)


@taken_over.connect(weak=False)
def _on_taken_over(sender, event, **_):
    record("taken over", key=event.key, id=event.holder.id)
