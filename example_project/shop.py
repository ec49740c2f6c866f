"""The shop's Celery application: ``celery -A example_project.shop worker``."""

from __future__ import annotations

import os

from celery import Celery

from example_project.settings import REPORT_EVERY, lock_servers, needed

app = Celery(
    "shop",
    broker=needed("SHOP_BROKER"),
    backend=needed("SHOP_BACKEND"),
    include=[f"example_project.{name}" for name in ("thumbnails", "ledger", "reports")],
)
app.conf.update(
    redlock_coordinators={"default": lock_servers()},
    redlock_ttl=10,
    # How long one lock server may take to answer.  Generous, because a disk that is busy
    # delays servers that write each change to it before they answer.
    redlock_node_timeout=float(os.environ.get("SHOP_NODE_TIMEOUT", "0.25")),
    worker_prefetch_multiplier=1,  # a free slot takes the next task; nothing waits behind a long one
    beat_schedule={
        "stock": {"task": "example_project.reports.report_stock", "schedule": REPORT_EVERY}
    },
    broker_connection_retry_on_startup=True,
)
