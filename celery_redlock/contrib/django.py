"""Tasks under Django: published when the transaction commits, and unique within it.

Needs Django.  Where Django's ``transaction.on_commit`` runs nothing, as after a rollback, nothing
is locked and nothing is published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.contrib.django.task import DjangoTask
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from celery_redlock import signals
from celery_redlock.events import Event
from celery_redlock.exceptions import DuplicateTask
from celery_redlock.locks import Locks, Plan
from celery_redlock.publish import call_options
from celery_redlock.routes import queue_of
from celery_redlock.sending import is_promised
from celery_redlock.task import LockedTask
from celery_redlock.uniqueness import QUEUE_SCOPES

__all__ = ["DjangoLockedTask"]

logger = logging.getLogger(__name__)

NEWEST = frozenset({"keep_latest", "replace"})
"""The policies under which the newest of several calls counts."""


class DjangoLockedTask(LockedTask, DjangoTask):
    """A :class:`~celery_redlock.LockedTask` with Celery's additions for Django.

    Where its scope begins at publish, two equal calls in one transaction are one publish: of the
    first one, or of the newest one under ``keep_latest`` and ``replace``.  The queue lock is
    taken when the transaction commits, not before.
    """

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call ``delay`` when the transaction commits; at once where there is none.

        Raises:
            DuplicateTask: an equal call waits for the commit already, and the policy is to say so.
            ImproperlyConfigured: the task's options can't be used.
        """
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        using: str | None = None,
        **options: Any,
    ) -> None:
        """Call ``apply_async`` when the transaction commits; at once where there is none.

        Args:
            args: the call's positional arguments.
            kwargs: the call's keyword arguments.
            using: the database whose transaction is meant; None: the default one.
            options: as for ``apply_async``.

        Raises:
            DuplicateTask: an equal call waits for the commit already, and the policy is to say so.
            ImproperlyConfigured: an option of the task or of the call can't be used.
        """
        self.refuse_if_broken()
        alias = using or DEFAULT_DB_ALIAS
        plan, mark = _mark(self, args or (), kwargs or {}, options)
        waiting = [] if mark is None else _waiting(alias, mark)
        if waiting and plan.options.on_duplicate == "raise":
            raise DuplicateTask(", ".join(mark[1]) if mark else "")
        block = waiting[0][1].block if waiting else _Block()
        call = _Call(mark, block, lambda: self.apply_async(args, kwargs, **options))
        transaction.on_commit(call, using=alias)
        hooks = connections[alias].run_on_commit
        if waiting and plan.options.on_duplicate in NEWEST:
            # The first of them that is reached is the one that is published.  An older one is
            # reached only where the savepoint of the newer one was rolled back.
            hooks.insert(waiting[0][0], hooks.pop())


_Mark = tuple[str, tuple[str, ...]]


class _Block:
    """The equal calls of one transaction, of which one is published."""

    def __init__(self) -> None:
        self.published = False


class _Call:
    """What happens at the commit; Django calls it."""

    def __init__(self, mark: _Mark | None, block: _Block, publish: Callable[[], Any]) -> None:
        self.mark, self.block, self._publish = mark, block, publish

    def __call__(self) -> None:
        if self.mark is not None and self.block.published:
            logger.info("%s was not published: an equal call of this transaction was", self.mark[0])
            return
        self.block.published = True
        self._publish()


def _mark(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
) -> tuple[Plan, _Mark | None]:
    """How the call is locked, and what it has in common with equal calls; None: nothing."""
    call = options.get("lock")
    router = task.app.amqp.router
    queue = queue_of(task.app, router.route(dict(options), task.name, args, kwargs, task))
    plain = call_options(task, call, args, kwargs) if call is not None else None
    plan = Locks.for_app(task.app).plan(task, queue, plain)
    if plan.options.scope not in QUEUE_SCOPES or is_promised(options):
        return plan, None
    return plan, (task.name, plan.keys.names(args, kwargs))


def _waiting(alias: str, mark: _Mark) -> list[tuple[int, _Call]]:
    """The equal calls that wait for the commit, with their places; rolled back ones are gone."""
    hooks = connections[alias].run_on_commit
    found = [(place, hook[1]) for place, hook in enumerate(hooks)]
    return [(n, call) for n, call in found if isinstance(call, _Call) and call.mark == mark]


def _warn_of_open_transaction(event: Event, **_: Any) -> None:
    """Whoever gets the lock next can't see yet what was written under it."""
    for connection in connections.all(initialized_only=True):
        blocks = getattr(connection, "atomic_blocks", ())
        # A test case's own transaction is always open.
        if any(not getattr(block, "_from_testcase", False) for block in blocks):
            logger.warning(
                "lock %r was given back while a transaction is open on database %r: its next "
                "holder doesn't see what was written; open the transaction inside of the lock",
                event.key,
                connection.alias,
            )


signals.released.connect(
    _warn_of_open_transaction, weak=False, dispatch_uid="celery_redlock.django"
)
