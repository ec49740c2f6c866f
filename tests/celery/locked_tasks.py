"""Tasks of every policy, for the tests of the base class on real workers."""

from celery import shared_task

from celery_redlock import LockedTask, LockLost, current_lease
from tests.celery.journal import pass_gate, record


def _body(task, name):
    lease = current_lease()
    record(
        "start",
        name=name,
        run=f"{task.request.id} {task.request.retries}",
        id=task.request.id,
        retries=task.request.retries,
        key=lease.key if lease else None,
        ttl=lease.grants[0].ttl if lease else None,
    )
    pass_gate(name)
    record("end", name=name, run=f"{task.request.id} {task.request.retries}")
    return name


@shared_task(base=LockedTask, bind=True)
def skips(self, name):
    """The default: a second runner is skipped."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_on_conflict="revoke")
def revokes(self, name):
    """A second runner ends as REVOKED."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_on_conflict="raise")
def raises(self, name):
    """A second runner fails."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_on_conflict="reschedule", max_retries=0)
def reschedules(self, name):
    """A second runner comes back later, without any retry to spend."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_on_conflict="reschedule", lock_give_up_after=1.5)
def gives_up(self, name):
    """A second runner comes back later, but not for ever."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_wait=20)
def waits(self, name):
    """A second runner waits in its slot."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_ttl=2)
def short_ttl(self, name):
    """A body that is longer than its ttl."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_on_unavailable="reschedule")
def comes_back(self, name):
    """While nobody can say, it comes back later."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, max_retries=1)
def retries_once(self, name):
    """Its first run ends with a retry."""
    record("start", name=name, run=f"{self.request.id} {self.request.retries}")
    record("end", name=name, run=f"{self.request.id} {self.request.retries}")
    if not self.request.retries:
        raise self.retry(countdown=1)
    return name


@shared_task(base=LockedTask, bind=True, lock_args=())
def fails(self, name):
    """A body that raises."""
    raise ValueError(name)


@shared_task
def collect(results):
    """What the members of a chord gave."""
    return results


@shared_task(
    base=LockedTask,
    bind=True,
    lock_ttl=2,
    autoretry_for=(LockLost,),
    retry_kwargs={"countdown": 1},
    max_retries=2,
)
def tries_again(self, name):
    """A body that is run again when its lock was lost."""
    return _body(self, name)


class Tells(LockedTask):
    """A base class that is told of a loss."""

    def on_lock_lost(self, exc, task_id, args, kwargs):
        """Write it down."""
        record("told", key=exc.key, id=task_id, args=list(args))


@shared_task(base=Tells, bind=True, lock_ttl=2)
def told(self, name):
    """A body whose loss is told."""
    return _body(self, name)
