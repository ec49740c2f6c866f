"""The task of the soak, which writes its begin and its end to a file that outlives every process."""

import os
import time

from celery import current_app, shared_task

from celery_redlock import LockedTask, current_lease


def write(event, task, key, token):
    """One line, written at once: the kernel keeps it whole, and in order, whoever is killed."""
    line = f"{event} {key} {task.request.id} {os.getpid()} {token} {current_lease().key}\n"
    log = os.open(current_app.conf["tests_log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)


@shared_task(
    base=LockedTask,
    bind=True,
    acks_late=True,
    reject_on_worker_lost=True,
    max_retries=None,
    lock_mode="correctness",
    lock_key="soak:{key}",
    lock_ttl=2,
    lock_wait=1,
    lock_reschedule_delay=(1, 2),
)
def exclusive(self, key, number, seconds, fencing_token):
    """One body of a key at a time."""
    write("begin", self, key, fencing_token)
    time.sleep(seconds)
    write("end", self, key, fencing_token)
    return number
