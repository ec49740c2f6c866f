"""A small shop whose Celery tasks are locked: thumbnails, a ledger, and reports on a schedule."""
