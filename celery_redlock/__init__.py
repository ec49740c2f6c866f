"""Locks for Celery tasks that renew themselves, ask a majority, and hand out fencing tokens."""

from celery_redlock.exceptions import (
    CoordinatorUnavailable,
    DuplicateTask,
    ImproperlyConfigured,
    LockLost,
    LockLostInterrupt,
    LockNotAcquired,
    RedlockError,
    StaleTokenError,
)
from celery_redlock.fencing import FencingToken
from celery_redlock.installed import install
from celery_redlock.lease import Lease
from celery_redlock.lock import current_lease
from celery_redlock.locks import Locks
from celery_redlock.options import LockOptions
from celery_redlock.skipped import Skipped
from celery_redlock.task import LockedTask

__version__ = "0.1.0"

__all__ = [
    "CoordinatorUnavailable",
    "DuplicateTask",
    "FencingToken",
    "ImproperlyConfigured",
    "Lease",
    "LockLost",
    "LockLostInterrupt",
    "LockNotAcquired",
    "LockOptions",
    "LockedTask",
    "Locks",
    "RedlockError",
    "Skipped",
    "StaleTokenError",
    "current_lease",
    "install",
]
