"""The small tasks of the matrix, each twice: acknowledged early, and acknowledged late."""

import os
import signal
import time

from celery import shared_task
from celery.exceptions import Ignore

from celery_redlock import LockedTask, current_lease, pool_child
from celery_redlock.watchdog import watchdog
from tests.celery.journal import pass_gate, record

EARLY, LATE = "early", "late"
TTL = 3


def note(task, event, name, **facts):
    """Write down what a body does, with its token."""
    lease = current_lease()
    token = lease.fencing_token if lease else None
    record(
        event,
        name=name,
        run=f"{task.request.id}/{os.getpid()}",
        id=task.request.id,
        key=lease.key if lease else None,
        token=token,
        **facts,
    )


def work(self, name):
    """Say that it has started, wait for the gate, and say that it ends."""
    note(self, "start", name)
    pass_gate(name)
    note(self, "end", name)
    return name


def fenced(self, name, fencing_token):
    """The same in correctness mode."""
    return work(self, name)


def fail(self, name):
    """Raise."""
    note(self, "start", name)
    raise ValueError(name)


def ignore(self, name):
    """End without a result."""
    note(self, "start", name)
    raise Ignore


def retry_once(self, name):
    """End with a retry the first time."""
    note(self, "start", name)
    if not self.request.retries:
        raise self.retry(countdown=1)
    return name


def too_long(self, name):
    """Run into the hard time limit with SIGTERM blocked: only SIGKILL ends it."""
    note(self, "start", name)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    time.sleep(60)


def loses_its_lock(self, name):
    """Stop renewing, by force, and go on for as long as it is let."""
    note(self, "start", name)
    dog = watchdog()
    for hold in list(dog._holds):  # the fault is made here
        if hold.lease is current_lease():
            dog.forget(hold)
            pool_child.finish(hold.lease.grants[0].owner)
    pass_gate(name)
    note(self, "end", name)
    return name


OPTIONS = {
    fenced: {"lock_mode": "correctness"},
    too_long: {"time_limit": 1},
}
UNIQUE = {"lock_scope": "until_executed"}


def make(body, ack, **options):
    """One variant of a body as a task."""
    late = ack == LATE
    name = f"matrix.{options.pop('called', body.__name__)}.{ack}"
    chosen = {
        "acks_late": late,
        "reject_on_worker_lost": late,
        "max_retries": 2,
        "lock_ttl": TTL,
        "lock_reschedule_delay": (1, 2),
    }
    return shared_task(
        **{
            "base": LockedTask,
            "bind": True,
            "name": name,
            **chosen,
            **OPTIONS.get(body, {}),
            **options,
        }
    )(body)


TASKS = {
    (body.__name__, ack): make(body, ack)
    for body in (work, fenced, fail, ignore, retry_once, too_long, loses_its_lock)
    for ack in (EARLY, LATE)
}
TASKS |= {("unique", ack): make(work, ack, called="unique", **UNIQUE) for ack in (EARLY, LATE)}


@shared_task
def collect(results):
    """What the members of a chord gave."""
    return results
