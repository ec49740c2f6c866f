"""Publishing a task again, to try for its lock later, without spending its ``retries``."""

from __future__ import annotations

import logging
import math
import random
import time
from typing import Any, NoReturn

from celery.exceptions import Retry

from celery_redlock import events
from celery_redlock.attempt import Attempt
from celery_redlock.exceptions import LockNotAcquired
from celery_redlock.publish import header_of, with_header

__all__ = ["countdown", "longest_countdown", "reschedule", "waits_of"]

logger = logging.getLogger(__name__)


def waits_of(request: Any) -> int:
    """How often a running task has been put off so far."""
    waits = header_of(request).get("waits", 0)
    return waits if isinstance(waits, int) and waits > 0 else 0


def countdown(waits: int, delay: tuple[float, float], longest: float) -> int:
    """Whole seconds of at least 1 until the next try: growing, jittered and capped.

    Whole, because quorum queues refuse a countdown below one second.

    Args:
        waits: how often the task has been put off before, 0 or more.
        delay: the first and the longest delay in seconds.
        longest: what the broker bears, in seconds.
    """
    first, most = delay
    grown = min(most, first * 2 ** min(waits, 30))
    jittered = math.ceil(random.uniform(grown / 2, grown))  # noqa: S311 - not a secret
    return max(1, min(jittered, math.floor(longest)))


def longest_countdown(app: Any) -> float:
    """Seconds that a message may wait in a worker without being delivered a second time.

    A broker with a visibility timeout delivers again what was not acknowledged in time, and a
    message with a countdown is not acknowledged while it waits: half of that timeout is safe.
    """
    transport_options = app.conf.broker_transport_options or {}
    return max(1.0, float(transport_options.get("visibility_timeout", 3600)) / 2)


def reschedule(attempt: Attempt, why: str, error: LockNotAcquired | None = None) -> NoReturn:
    """Publish the task again with its own id and counter, and end this run as a retry.

    Args:
        attempt: the run that couldn't get its lock.
        why: for the log.
        error: what to fail with once the task has waited too long; None: it never does.

    Raises:
        Retry: always, once the message is out.
        LockNotAcquired: the task has waited for ``give_up_after`` already.
    """
    options, request = attempt.plan.options, attempt.request
    header, waits = header_of(request), waits_of(request)
    since = header.get("waiting_since")
    since = float(since) if isinstance(since, (int, float)) else time.time()
    patience = options.give_up_after
    if error is not None and patience is not None and time.time() - since >= patience:
        attempt.claimant.tell(events.SkippedTask, policy="give_up")
        logger.warning("%s gives up after %.0f s: %s", attempt.named, time.time() - since, why)
        raise error
    seconds = countdown(waits, options.reschedule_delay, longest_countdown(attempt.task.app))
    _publish(attempt, with_header(request.headers, waits=waits + 1, waiting_since=since), seconds)
    attempt.claimant.tell(events.Rescheduled, countdown=float(seconds), waits=waits + 1)
    logger.info("%s rescheduled in %d s: %s", attempt.named, seconds, why)
    raise Retry(f"lock: tried again in {seconds} s: {why}", when=seconds)


def _publish(attempt: Attempt, headers: dict[str, Any], seconds: int) -> None:
    """Send the message; while the broker doesn't take it, wait in the slot: nothing is lost."""
    request, pause = attempt.request, 1.0
    while True:
        try:
            attempt.task.signature_from_request(
                request, attempt.args, attempt.kwargs, countdown=seconds, headers=headers
            ).apply_async(retries=request.retries)
        except Exception:
            logger.exception("%s could not be published again; waiting in its slot", attempt.named)
            time.sleep(pause)
            pause = min(pause * 2, 30.0)
        else:
            return
