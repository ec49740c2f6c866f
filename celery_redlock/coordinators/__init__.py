"""The services that grant locks: one protocol, one module for each kind."""

from celery_redlock.coordinators.base import (
    Capabilities,
    Conflict,
    Coordinator,
    Finding,
    Grant,
    Held,
    Holder,
)
from celery_redlock.coordinators.urls import CoordinatorSettings, from_urls, without_password

__all__ = [
    "Capabilities",
    "Conflict",
    "Coordinator",
    "CoordinatorSettings",
    "Finding",
    "Grant",
    "Held",
    "Holder",
    "from_urls",
    "without_password",
]
