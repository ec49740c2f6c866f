"""Tasks of every scope, for the tests of uniqueness at publish."""

from celery import Task, shared_task
from celery.exceptions import Ignore, Reject

from celery_redlock import LockedTask
from tests.celery.journal import pass_gate, record


def _body(task, name, **facts):
    record(
        "start",
        name=name,
        run=f"{task.request.id} {task.request.retries}",
        id=task.request.id,
        **facts,
    )
    pass_gate(name)
    record("end", name=name, run=f"{task.request.id} {task.request.retries}")
    return name


@shared_task(base=LockedTask, bind=True, lock_scope="until_executing")
def until_executing(self, name, size=1):
    """Unique until it starts."""
    return _body(self, name)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_scope="until_and_while_executing",
    lock_on_conflict="reschedule",
)
def until_and_while(self, name, size=1):
    """Unique until it starts, and alone while it runs."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed")
def until_executed(self, name, size=1):
    """Unique until it has ended."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_scope="until_expired", lock_queue_ttl=2)
def until_expired(self, name):
    """Once in two seconds."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True)
def while_executing(self, name):
    """Not unique, only alone."""
    return _body(self, name)


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed", lock_on_duplicate="raise")
def raises(self, name):
    """A duplicate is an error."""
    return _body(self, name)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_scope="until_executed",
    lock_on_duplicate="keep_latest",
    lock_args=["name"],
)
def keeps_latest(self, name, value=0):
    """Once more, with the newest value."""
    return _body(self, name, value=value)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_scope="until_and_while_executing",
    lock_on_duplicate="keep_latest",
    lock_args=["name"],
)
def keeps_latest_of_queue(self, name, value=0):
    """Once more, with the newest value that came while it waited."""
    return _body(self, name, value=value)


@shared_task(
    base=LockedTask,
    bind=True,
    lock_scope="until_executed",
    lock_on_duplicate="replace",
    lock_on_conflict="reschedule",
    lock_args=["name"],
)
def replaces(self, name, value=0):
    """The newer one takes the place of the one that waits."""
    return _body(self, name, value=value)


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed", max_retries=2)
def ends(self, how):
    """Ends as it is told."""
    record("start", name=how, id=self.request.id, retries=self.request.retries)
    if how == "failure":
        raise ValueError(how)
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject(how, requeue=False)
    if how == "retry":
        pass_gate("retry")
        raise self.retry(countdown=1, exc=ValueError(how))
    return how


class Broken(LockedTask):
    """Fails before its body is reached."""

    name = "tests.celery.unique_tasks.broken"
    lock_scope = "until_executed"

    def before_start(self, task_id, args, kwargs):
        """Never lets the body start."""
        raise ValueError("before the start")

    def run(self, name):
        """Is never reached."""
        raise AssertionError("must not run")


@shared_task(base=Broken, name=Broken.name)
def broken(name):
    """Is never reached."""


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed", lock_args=["name"])
def schedules_itself(self, name, left=0):
    """Sends itself again, with the same key."""
    record("start", name=name, run=self.request.id, id=self.request.id, left=left)
    if left:
        result = schedules_itself.delay(name, left=left - 1)
        record("sent", id=result.id, duplicate=result.duplicate)
    record("end", name=name, run=self.request.id)
    return left


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed", lock_key="line:{name}")
def first_in_line(self, name):
    """Sends another task with the same key."""
    record("start", name=name, run=self.request.id, task="first")
    second_in_line.delay(name)
    record("end", name=name, run=self.request.id, task="first")


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed", lock_key="line:{name}")
def second_in_line(self, name):
    """Is sent by a task with the same key."""
    record("start", name=name, run=self.request.id, task="second")
    record("end", name=name, run=self.request.id, task="second")


@shared_task(base=LockedTask, bind=True, lock_scope="until_executed", lock_args=["name"])
def replaced(self, name, again=True):
    """Is replaced by itself, with the same key and id."""
    record("start", name=name, run=self.request.id)
    record("end", name=name, run=self.request.id)
    if again:
        return self.replace(replaced.s(name, again=False))
    return name


@shared_task
def gather(results):
    """What the members of a chord gave."""
    return results


@shared_task(bind=True, base=Task)
def plain(self, name):
    """A task that takes no lock of its own."""
    return _body(self, name)


@shared_task(
    base=LockedTask, bind=True, lock_scope="until_executed", lock_key=["one:{a}", "one:{b}"]
)
def has_two_keys(self, a, b):
    """Is unique in two things at once."""
    return _body(self, f"{a}{b}")


@shared_task
def sends(name, count):
    """Publishes a unique task several times."""
    for _ in range(count):
        result = until_executed.delay(name)
        record("sent", id=result.id, duplicate=result.duplicate)
