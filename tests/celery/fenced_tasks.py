"""Tasks in correctness mode with every kind of token parameter, for tests on real workers."""

import celery
from celery import shared_task
from celery._state import connect_on_app_finalize

from celery_redlock import FencingToken, LockedTask, current_lease
from tests.celery.journal import pass_gate, record


def told(fencing_token, *rest):
    """What a body saw of its token, in a form that JSON carries."""
    lease = current_lease()
    return {
        "token": int(fencing_token),
        "lock": fencing_token.lock,
        "lease's": int(lease.fencing_token),
        "known": isinstance(fencing_token, FencingToken),
        "rest": list(rest),
    }


correctly = {"base": LockedTask, "lock_mode": "correctness", "lock_key": "account:{account}"}


@shared_task(**correctly)
def keyword_only(account, *, fencing_token):
    """The natural form."""
    return told(fencing_token)


@shared_task(**correctly)
def in_front(fencing_token, account, cents=5):
    """The token is the first parameter; its callers don't see it."""
    return told(fencing_token, cents)


@shared_task(**correctly)
def positional_only(account, fencing_token, /, cents=5):
    """The token can't be given by its name."""
    return told(fencing_token, cents)


@shared_task(bind=True, **correctly)
def bound(self, account, *, fencing_token):
    """A bound task; its lease is at hand."""
    return told(fencing_token, self.lease.fencing_token == fencing_token)


@shared_task(
    bind=True, autoretry_for=(KeyError,), max_retries=2, retry_kwargs={"countdown": 0}, **correctly
)
def retried(self, account, *, fencing_token):
    """Its first run fails; each run gets a token of its own."""
    record("token", token=int(fencing_token), retries=self.request.retries)
    if not self.request.retries:
        raise KeyError(account)
    return told(fencing_token)


class ClassBased(LockedTask):
    """A task class; its ``__call__`` calls ours."""

    name = "tests.celery.fenced_tasks.ClassBased"
    lock_mode = "correctness"
    lock_key = "account:{account}"

    def __call__(self, *args, **kwargs):
        """Do something around the lock."""
        record("around")
        return super().__call__(*args, **kwargs)

    def run(self, account, *, fencing_token):
        """The body."""
        return told(fencing_token)


@connect_on_app_finalize
def register(app):
    """As shared_task does: for every application of the process."""
    app.register_task(ClassBased())


@shared_task(base=LockedTask, lock_mode="correctness", lock_key=["account:{a}", "account:{b}"])
def transfer(a, b, *, fencing_token):
    """Two locks, and the token of each."""
    record("start", run=f"{a}-{b} {int(fencing_token)}")
    pass_gate("transfer")
    record("end", run=f"{a}-{b} {int(fencing_token)}")
    names = sorted({f"account:{a}", f"account:{b}"})
    return {name: int(fencing_token[name]) for name in names}


@shared_task(base=LockedTask, lock_key="account:{account}")
def by_queue(account, *, fencing_token=None):
    """Its mode comes from the queue."""
    return None if fencing_token is None else told(fencing_token)


@shared_task(base=LockedTask, lock_key="account:{account}")
def without_a_token(account):
    """Fine, unless its queue asks for a token."""
    return account


if celery.VERSION >= (5, 5):
    from pydantic import BaseModel

    class Posting(BaseModel):
        """An argument that pydantic checks."""

        account: int
        cents: int

    @shared_task(
        base=LockedTask,
        lock_mode="correctness",
        lock_key="account:{posting[account]}",
        pydantic=True,
    )
    def modelled(posting: Posting, *, fencing_token: FencingToken):
        """The body sees the model, the lock what was dumped."""
        return told(fencing_token, posting.cents, type(posting).__name__)
