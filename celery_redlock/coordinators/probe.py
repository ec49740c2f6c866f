"""A real probe for checks: takes a lock of its own, extends it and gives it back."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Coordinator, Finding, Grant, Holder
from celery_redlock.exceptions import CoordinatorUnavailable, RedlockError

__all__ = ["probe"]

T = TypeVar("T")

SLOW = 0.25  # part of the timeout that a round trip may take without a remark
# The names are few, because a database keeps a row for each name for ever.
NAMES, TRIES = 64, 5


def probe(coordinator: Coordinator, subject: str, timeout: float, cure: str) -> list[Finding]:
    """What taking, extending and releasing a lock shows: permissions and the round trip.

    Args:
        coordinator: what is tried.
        subject: what the findings are about, without a password.
        timeout: seconds that one answer may take.
        cure: how to mend a refusal.
    """
    took: list[float] = []
    try:
        refused = _steps(coordinator, took)
    except RedlockError as exc:
        step = ("take", "extend", "give back")[min(len(took), 2)]
        said = f"a probe could not {step} a lock: {exc}"
        passing = isinstance(exc, CoordinatorUnavailable)
        return [Finding("error", subject, said, cure, passing=passing)]
    if refused:
        return [Finding("error", subject, f"a probe {refused}", cure, passing=True)]
    slowest = max(took)
    said = f"a probe took, extended and gave back a lock; slowest answer {slowest * 1000:.1f} ms"
    if slowest > timeout * SLOW:
        return [
            Finding(
                "warning",
                subject,
                f"{said}, close to the timeout of {timeout * 1000:.0f} ms",
                "bring the servers nearer or relieve them, or raise redlock_node_timeout",
            )
        ]
    return [Finding("ok", subject, said)]


def _steps(coordinator: Coordinator, took: list[float]) -> str:
    """Take, extend, release; what was refused in words, or nothing."""

    def timed(ask: Callable[..., T], *args: Any) -> T:
        start = now()
        answer = ask(*args)
        took.append(now() - start)
        return answer

    ttl = max(10.0, 2 * coordinator.capabilities.min_ttl)
    for _ in range(TRIES):  # other checks may be running
        key, owner = f"celery_redlock probe {secrets.randbelow(NAMES)}", secrets.token_hex(16)
        took.clear()
        grant = timed(coordinator.acquire, key, owner, ttl, Holder(task="a probe"))
        if isinstance(grant, Grant):
            break
    else:
        return f"was refused a lock {TRIES} times; are that many checks running?"
    longer = timed(coordinator.extend, grant, ttl)
    given = timed(coordinator.release, grant)
    if longer is None:
        return "could not extend its lock: it was gone"
    return "" if given else "could not give its lock back: it was gone"
