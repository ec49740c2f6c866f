"""Fences what Django's ORM writes; the app to install.  Touches no table but ``redlock_fence``.

Put ``"celery_redlock.guards.django"`` into ``INSTALLED_APPS`` and run ``migrate`` (for each
database that holds fenced data).  It needs no lock server.
"""

from __future__ import annotations

from celery_redlock.guards.django.transaction import claim, fenced

__all__ = ["claim", "fenced"]
