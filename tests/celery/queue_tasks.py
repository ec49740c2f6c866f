"""Tasks that tell which queue's options they got."""

from celery import shared_task

from celery_redlock import LockedTask, current_lease
from tests.celery.journal import record


def _tell(task, **facts):
    lease = current_lease()
    record(
        "ran",
        id=task.request.id,
        ttl=lease.grants[0].ttl,
        queue=lease.holder.queue,
        mode=lease.mode,
        **facts,
    )
    return lease.grants[0].ttl


@shared_task(base=LockedTask, bind=True)
def look(self, name="a"):
    """Has no options of its own."""
    return _tell(self)


@shared_task(base=LockedTask, bind=True, lock_ttl=44)
def look_with_ttl(self, name="a"):
    """Has a ttl of its own."""
    return _tell(self)


@shared_task(base=LockedTask, bind=True)
def look_again(self, to=None):
    """Retries once, in the same queue or in another one."""
    ttl = _tell(self, retries=self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=1, **({"queue": to} if to else {}))
    return ttl


@shared_task(base=LockedTask, bind=True)
def pay(self, account, *, fencing_token=None):
    """Can be fenced."""
    return _tell(self, token=fencing_token)


def route(name, args, kwargs, options, task=None, **_):
    """A router function: what is urgent goes to a queue of its own."""
    return {"queue": "urgent"} if kwargs and kwargs.get("name") == "urgent" else None
