"""The task base class: the lock is taken around the body, by options from four levels."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from celery import Task
from celery.signals import worker_init
from celery.utils.functional import head_from_fun

from celery_redlock import boot, guardian
from celery_redlock.bodies import TOKEN, run_signature, task_level, unfenceable
from celery_redlock.choke import watch_publishes
from celery_redlock.coordinators.base import Coordinator
from celery_redlock.exceptions import (
    ImproperlyConfigured,
    LockLost,
    RedlockError,
    StaleTokenError,
)
from celery_redlock.keys import KeyMaker
from celery_redlock.lease import Lease
from celery_redlock.lock import current_lease
from celery_redlock.locks import Locks
from celery_redlock.options import LockOptions
from celery_redlock.publish import HEADER, call_options, options_in, with_header
from celery_redlock.run import run_locked

__all__ = ["LockedTask", "coordinator_of", "error_of", "hide_token"]

logger = logging.getLogger(__name__)


class LockedTask(Task):
    """A task whose body runs under a lock, by default keyed on its name and arguments.

    Use it as ``@app.task(base=LockedTask, lock_ttl=60)`` or derive a class from it.  Every
    option of :class:`~celery_redlock.LockOptions` can be given as a ``lock_<name>`` attribute.
    The lock is taken in the worker just before the body, renewed while the body runs, and
    given back just after it, before the result is published.

    In correctness mode the body needs a parameter named ``fencing_token``, which is filled in.

    Attributes:
        lease: the lease of the body that is running; None outside of one.
    """

    _lock_error: ClassVar[str | None] = None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check what can be known of the task now; an error is raised when the app finalizes.

        Raises:
            ImproperlyConfigured: an option is unknown or can't be used.
        """
        super().on_bound(app)
        if cls.name.startswith("celery."):
            return
        guardian.install(app, coordinator_of)
        again = "_lock_error" in vars(cls)
        cls._lock_error = error_of(cls)
        hide_token(cls)
        watch_publishes(app)
        if _is_home_of(app, cls) and again and cls._lock_error:
            raise ImproperlyConfigured(cls._lock_error)

    def __setattr__(self, name: str, value: Any) -> None:
        """Setting an option at run time takes effect at the next call."""
        super().__setattr__(name, value)
        if name.startswith("lock_"):
            setattr(type(self), name, value)
            known = self.app.__dict__.get("_celery_redlock")
            if known is not None:
                known[1].forget(self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body under its lock.

        Raises:
            ImproperlyConfigured: the task's options can't be used.
            LockNotAcquired: somebody else holds the lock, and the policy is to say so.
            CoordinatorUnavailable: nobody can say, and the policy is to say so.
            LockLost: the lock was lost while the body ran, and the body was stopped.
        """
        if self.name.startswith("celery."):
            return super().__call__(*args, **kwargs)
        self.refuse_if_broken()
        return run_locked(self, super().__call__, args, kwargs)

    _locked_call = __call__

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        lock: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Publish the task; as Celery's own, with ``lock={...}`` for this call's options.

        Raises:
            ImproperlyConfigured: an option of the task or of the call can't be used.
        """
        if self.name.startswith("celery."):
            return super().apply_async(args, kwargs, *positional, headers=headers, **options)
        headers = self._headers(headers, lock, args, kwargs)
        return super().apply_async(args, kwargs, *positional, headers=headers, **options)

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        *positional: Any,
        lock: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run the task here and now, under its lock; ``lock={...}`` as for ``apply_async``.

        Raises:
            ImproperlyConfigured: an option of the task or of the call can't be used.
        """
        headers = self._headers(headers, lock, args, kwargs)
        if not self.name.startswith("celery."):
            Locks.for_app(self.app).plan(self, None, options_in(headers[HEADER]))
        result = super().apply(args, kwargs, *positional, headers=headers, **options)
        result.duplicate = False  # it has run here: nothing is folded away without a queue
        return result

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """Retry the task; as Celery's own, but a stale fencing token stays stale.

        Raises:
            StaleTokenError: it is the reason for the retry, also with ``autoretry_for``.
        """
        if isinstance(exc, StaleTokenError):
            raise exc
        return super().retry(args, kwargs, exc, *rest, **options)

    @property
    def lease(self) -> Lease | None:
        """The lease of the body that is running; None outside of one."""
        return current_lease()

    def on_lock_lost(
        self, exc: LockLost, task_id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Override it to be told that a body was stopped because its lock was lost.

        Args:
            exc: what was lost, and why.
            task_id: the task's id; None on a direct call.
            args: the call's positional arguments.
            kwargs: the call's keyword arguments.
        """

    def _headers(
        self, headers: Mapping[str, Any] | None, lock: Any, args: Any, kwargs: Any
    ) -> dict[str, Any]:
        self.refuse_if_broken()
        if lock is None:
            return with_header(headers)
        return with_header(headers, options=call_options(self, lock, args or (), kwargs or {}))

    def refuse_if_broken(self) -> None:
        """Return if the task's own options can be used.

        Raises:
            ImproperlyConfigured: they can't; the message says which and why.
        """
        if self._lock_error:
            raise ImproperlyConfigured(self._lock_error)


def coordinator_of(app: Any, named: Any) -> Coordinator:
    """The coordinator that a child has named to its guardian."""
    name, mode = named
    return Locks.for_app(app).coordinator(name, mode)


# A task made with shared=True, which is the default, is bound to every application of the process.
_homes: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def _is_home_of(app: Any, cls: type[LockedTask]) -> bool:
    """Whether a task's body was first bound to this application.

    A broken task must not keep the other applications of the process from starting up.
    """
    run: Any = inspect.getattr_static(cls, "run")
    body = getattr(run, "__func__", run)
    return _homes.setdefault(body, weakref.ref(app))() is app


def error_of(cls: type[LockedTask]) -> str | None:
    """What is wrong with a task's own options, as far as the task alone shows it."""
    try:
        level = task_level(cls)
        # Where the mode comes from the queue or the application, Locks.plan checks it.
        options = LockOptions.layered(level)
        signature = run_signature(cls)
        KeyMaker(cls.name, signature, key=options.key, args=options.args)
    except RedlockError as exc:
        return str(exc)
    return unfenceable(cls) if options.mode == "correctness" else None


def hide_token(cls: type[LockedTask]) -> None:
    """Let Celery's check of a call's arguments not ask for the token, which we fill in."""
    header = vars(cls).get("__header__")
    signature = run_signature(cls)
    if header is None or TOKEN not in signature.parameters:
        return

    def stub() -> None:
        """Stand for the body, as its callers see it."""

    stub.__name__ = cls.__name__
    without = [p for name, p in signature.parameters.items() if name != TOKEN]
    stub.__signature__ = signature.replace(parameters=without)  # type: ignore[attr-defined]
    checked = getattr(header, "__func__", header)
    if isinstance(checked, functools.partial):  # a bound task: its first parameter is self
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        stub.__signature__ = signature.replace(parameters=[first, *without])  # type: ignore[attr-defined]
    bound = isinstance(checked, functools.partial)
    cls.__header__ = staticmethod(head_from_fun(stub, bound=bound))


worker_init.connect(boot.refuse_to_start, weak=False, dispatch_uid="celery_redlock.boot")
