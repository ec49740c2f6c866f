"""Tasks that wait for their lock, outside of a slot or inside of one."""

from celery import shared_task

from celery_redlock import LockedTask
from tests.celery.journal import record


def _body(task, name):
    run = task.request.id
    record("start", name=name, run=run, id=task.request.id, retries=task.request.retries)
    record("end", name=name, run=run)
    return name


@shared_task(base=LockedTask, bind=True, lock_on_conflict="reschedule", max_retries=0)
def leaves_its_slot(self, name):
    """Comes back later, with the delays that nobody has chosen."""
    return _body(self, name)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_on_conflict="reschedule",
    lock_reschedule_delay=(5, 30),
    max_retries=0,
)
def is_capped(self, name):
    """Would come back later than the broker bears."""
    return _body(self, name)


@shared_task(
    base=LockedTask, bind=True, lock_on_conflict="reschedule", lock_give_up_after=2, max_retries=0
)
def gives_up(self, name):
    """Comes back for two seconds."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_wait=60)
def stays_in_its_slot(self, name):
    """Waits where it is."""
    return _body(self, name)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_wait=2,
    lock_on_conflict="reschedule",
    max_retries=0,
)
def stays_then_leaves(self, name):
    """Waits where it is for a while, then comes back later."""
    return _body(self, name)


@shared_task
def unrelated(name):
    """Has no lock."""
    record("start", name=name)
