"""A locked task that beats send, and which writes down for which slot it ran."""

from celery import shared_task

from celery_redlock import LockedTask
from tests.celery.journal import record


@shared_task(base=LockedTask, bind=True, lock_args=())
def report(self):
    """Write down the slot."""
    record("report", slot=self.request.redlock["slot"], run=self.request.id)
