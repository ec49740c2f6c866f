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
from celery_redlock.publish import HEADER, with_header
from celery_redlock.redelivery import FOR_RETRY, MET, leave_sign, waiting_facts

__all__ = ["PutOff", "countdown", "longest_countdown", "put_off", "reschedule", "waits_of"]

logger = logging.getLogger(__name__)


class PutOff(Retry):
    """Ends a run whose message comes again, and leaves the task's state and result alone.

    They are those of an earlier delivery that is still at work.
    """


def waits_of(request: Any) -> int:
    """How often a running task has been put off so far."""
    waits = waiting_facts(request).get("waits", 0)
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
    since = waiting_facts(attempt.request).get("waiting_since")
    since = float(since) if isinstance(since, (int, float)) else time.time()
    patience = attempt.plan.options.give_up_after
    if error is not None and patience is not None and time.time() - since >= patience:
        attempt.claimant.tell(events.SkippedTask, policy="give_up")
        logger.warning("%s gives up after %.0f s: %s", attempt.named, time.time() - since, why)
        raise error
    seconds = _countdown_of(attempt)
    _send(attempt, why, seconds, waiting_since=since)
    raise Retry(f"lock: tried again in {seconds} s: {why}", when=seconds)


def put_off(attempt: Attempt, why: str) -> NoReturn:
    """Publish a copy of a message again until its earlier delivery is over, however long.

    It never gives up, and the time doesn't count for ``give_up_after``: were the copy dropped,
    nobody would do the work if the earlier delivery died.

    Args:
        attempt: the run of the copy.
        why: for the log.

    Raises:
        PutOff: always, once the message is out.
    """
    seconds = _countdown_of(attempt)
    leave_sign(attempt, seconds)
    _send(attempt, why, seconds, **{MET: True})
    raise PutOff(f"lock: tried again in {seconds} s: {why}", when=seconds)


def _countdown_of(attempt: Attempt) -> int:
    longest = longest_countdown(attempt.task.app)
    return countdown(waits_of(attempt.request), attempt.plan.options.reschedule_delay, longest)


def _send(attempt: Attempt, why: str, seconds: int, **facts: Any) -> None:
    request, waits = attempt.request, waits_of(attempt.request) + 1
    known = {name: waiting_facts(request).get(name) for name in ("waiting_since", MET)}
    headers = with_header(request.headers)
    headers[HEADER] |= {**known, "waits": waits, FOR_RETRY: request.retries, **facts}
    _publish(attempt, headers, seconds)
    attempt.claimant.tell(events.Rescheduled, countdown=float(seconds), waits=waits)
    logger.info("%s rescheduled in %d s: %s", attempt.named, seconds, why)


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
