"""Keeps the logins in lock servers' urls out of ``celery inspect conf`` and ``celery report``.

Celery censors settings by their names (those with PASS, TOKEN, KEY … in them) and the urls of
brokers and backends; of ours it knows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.app import utils

from celery_redlock.coordinators.urls import without_password

__all__ = ["censor_settings"]


def censor_settings() -> None:
    """Have Celery show our settings without logins; does nothing the second time."""
    theirs = utils.filter_hidden_settings
    if getattr(theirs, "knows_redlock", False):
        return

    def filter_hidden_settings(conf: Mapping[str, Any]) -> Any:
        return theirs({key: _shown(value) if _ours(key) else value for key, value in conf.items()})

    filter_hidden_settings.knows_redlock = True  # type: ignore[attr-defined]
    utils.filter_hidden_settings = filter_hidden_settings


def _ours(key: Any) -> bool:
    return "redlock" in str(key).lower()


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return without_password(value) if "://" in value else value
    if isinstance(value, Mapping):
        return {key: _shown(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(inner) for inner in value]
    return value
