"""What differs from place to place: read from ``SHOP_*`` variables, with no silent default."""

from __future__ import annotations

import os
from pathlib import Path

from celery_redlock.exceptions import ImproperlyConfigured

_MEANINGS = {
    "SHOP_BROKER": "url of the broker, such as redis://127.0.0.1:6379/0",
    "SHOP_BACKEND": "url of the result backend, such as redis://127.0.0.1:6379/1",
    "SHOP_LOCKS": "urls of the lock servers with commas between them: 1, or an odd number",
    "SHOP_OUT": "the folder for thumbnails and the journal",
}
REPORT_EVERY = float(os.environ.get("SHOP_REPORT_EVERY", "1"))  # seconds


def needed(name: str) -> str:
    """The value of a variable that has to be set.

    Raises:
        ImproperlyConfigured: it is missing or empty.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        raise ImproperlyConfigured(f"set {name}: {_MEANINGS[name]} (see example_project/README.md)")
    return value


def lock_servers() -> list[str]:
    """The urls in ``SHOP_LOCKS``."""
    return [url.strip() for url in needed("SHOP_LOCKS").split(",") if url.strip()]


def out() -> Path:
    """The folder for everything that the shop makes; created where it is missing."""
    folder = Path(needed("SHOP_OUT"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def ledger_url() -> str:
    """SQLAlchemy's url of the ledger's database; a file beside the journal unless it is set."""
    return os.environ.get("LEDGER_URL") or f"sqlite:///{out() / 'ledger.sqlite3'}"
