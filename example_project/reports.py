"""Beat: a report on a schedule, sent once for each tick however many beats are running.

``celery -A example_project.shop beat -S celery_redlock.beat:LockedScheduler``, on two hosts or
more.
"""

from __future__ import annotations

from example_project.journal import Journal
from example_project.settings import out
from example_project.shop import app


@app.task
def report_stock() -> dict[str, int]:
    """Write down how many thumbnails there are and how many bytes they take."""
    journal = Journal(out() / "journal.jsonl")
    sizes = [path.stat().st_size for path in (out() / "thumbnails").glob("*.webp")]
    stock = {"thumbnails": len(sizes), "bytes": sum(sizes)}
    journal.write("report", "stock", **stock)
    return stock
