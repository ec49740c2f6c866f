"""Tasks that meet a limit of their pool."""

from celery import shared_task

from celery_redlock import LockedTask
from tests.celery.journal import pass_gate, record


@shared_task(base=LockedTask, bind=True, lock_key=["first:{name}", "second:{name}"], lock_ttl=60)
def holds_two(self, name):
    """Hold two locks until the gate opens."""
    record("start", name=name)
    pass_gate(name)
    record("end", name=name)
    return name


@shared_task(base=LockedTask)
def quick(number):
    """Over at once."""
    return number
