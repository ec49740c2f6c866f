"""The app's name in Django's registry.  Holds no logic."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["FenceConfig"]


class FenceConfig(AppConfig):
    """The app that brings the table of fences."""

    name = "celery_redlock.guards.django"
    label = "redlock_fence"
    verbose_name = "Fencing tokens of locks"
