"""Locks for Celery tasks that renew themselves, ask a majority, and hand out fencing tokens."""

__version__ = "0.1.0"
