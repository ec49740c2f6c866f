"""The services that grant locks: one protocol, one module for each kind."""

from celery_redlock.coordinators.base import (
    Aftermath,
    Capabilities,
    Conflict,
    Coordinator,
    Failure,
    Finding,
    Grant,
    Held,
    Holder,
)
from celery_redlock.coordinators.urls import CoordinatorSettings, from_urls, without_password

__all__ = [
    "Aftermath",
    "Capabilities",
    "Conflict",
    "Coordinator",
    "CoordinatorSettings",
    "Failure",
    "Finding",
    "Grant",
    "Held",
    "Holder",
    "from_urls",
    "without_password",
]
