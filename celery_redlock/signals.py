"""Celery-style signals, one for each kind of event; each is sent with ``event=<dataclass>``.

A receiver can never break a lock: what it raises is logged by Celery's dispatcher, and goes no
further.  The sender is the Celery application.
"""

from __future__ import annotations

from typing import Any

from celery.utils.dispatch import Signal

from celery_redlock import events

__all__ = [
    "aborted",
    "acquired",
    "conflict",
    "duplicate",
    "lost",
    "release_failed",
    "released",
    "renewal_failed",
    "renewed",
    "rescheduled",
    "skipped",
    "stale",
    "taken_over",
    "unavailable",
]


def _signal(name: str) -> Any:
    return Signal(name=name, providing_args={"event"})


acquired = _signal("acquired")
conflict = _signal("conflict")
duplicate = _signal("duplicate")
skipped = _signal("skipped")
rescheduled = _signal("rescheduled")
renewed = _signal("renewed")
renewal_failed = _signal("renewal_failed")
lost = _signal("lost")
aborted = _signal("aborted")
taken_over = _signal("taken_over")
released = _signal("released")
release_failed = _signal("release_failed")
unavailable = _signal("unavailable")
stale = _signal("stale")

BY_EVENT: dict[type[events.Event], Any] = {
    events.Acquired: acquired,
    events.ConflictMet: conflict,
    events.DuplicateMet: duplicate,
    events.SkippedTask: skipped,
    events.Rescheduled: rescheduled,
    events.Renewed: renewed,
    events.RenewalFailed: renewal_failed,
    events.Lost: lost,
    events.Aborted: aborted,
    events.TakenOver: taken_over,
    events.Released: released,
    events.ReleaseFailed: release_failed,
    events.Unavailable: unavailable,
    events.StaleToken: stale,
}


def sink_for(app: Any) -> events.Sink:
    """The sink that sends each event of one application as its signal."""

    def send(event: events.Event) -> None:
        signal = BY_EVENT[type(event)]
        if signal.receivers:  # nobody listens: cost nothing
            signal.send(sender=app, event=event)

    return send
