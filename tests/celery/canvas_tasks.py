"""Locked tasks as members of Celery's canvas."""

from celery import shared_task

from celery_redlock import LockedTask
from tests.celery.journal import record


@shared_task(base=LockedTask, bind=True, lock_args=("key",))
def add(self, key, *numbers):
    """The sum; one for each key at a time."""
    record("start", name=key, run=self.request.id)
    record("end", name=key, run=self.request.id)
    return sum(numbers)


@shared_task(base=LockedTask, bind=True, lock_args=("key",), lock_on_conflict="reschedule")
def patient(self, key, number):
    """The number; comes back while its key is taken."""
    record("start", name=key, run=self.request.id)
    record("end", name=key, run=self.request.id)
    return number


@shared_task(base=LockedTask, bind=True, lock_args=("key",), lock_on_conflict="raise")
def strict(self, key):
    """Fails while its key is taken."""
    return key


@shared_task(base=LockedTask, bind=True, lock_args=("key",), lock_on_conflict="revoke")
def modest(self, key):
    """Is revoked while its key is taken."""
    return key


@shared_task(base=LockedTask, bind=True, lock_args=("key",))
def fails(self, key):
    """Raise."""
    raise ValueError(key)


@shared_task(base=LockedTask, bind=True, lock_args=("key",))
def replaces_itself(self, key, number):
    """End as another call with the same lock."""
    raise self.replace(add.s(key, number, 1))


@shared_task
def collect(results):
    """What the members gave."""
    return results


@shared_task
def told(*args):
    """Write down what a callback got."""
    record("told", args=[str(arg) for arg in args])
