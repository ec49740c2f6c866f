"""Fences an HTTP service: the token travels in a header, and a stale one gets 412.

The middleware keeps no token itself: what is claimed is claimed in the transaction of the
effect, by the service's own guard.
"""

from __future__ import annotations

from celery_redlock.guards.http.asgi import FencedASGI
from celery_redlock.guards.http.header import (
    HEADER,
    Refused,
    headers,
    raise_if_stale,
    token_from,
    unsafe_method,
)
from celery_redlock.guards.http.held_back import TOKEN, TRANSACTION
from celery_redlock.guards.http.wsgi import FencedWSGI

__all__ = [
    "HEADER",
    "TOKEN",
    "TRANSACTION",
    "FencedASGI",
    "FencedWSGI",
    "Refused",
    "headers",
    "raise_if_stale",
    "token_from",
    "unsafe_method",
]
