"""What stops a worker from starting: tasks and lock servers that can't do what they must.

Bounded in time.  A server that is down is no reason: it may be up when the first task comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Coordinator, Finding
from celery_redlock.exceptions import RedlockError
from celery_redlock.locks import Locks, Plan

__all__ = ["PATIENCE", "refuse_to_start"]

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that the checks of all coordinators may take together."""


def refuse_to_start(sender: Any = None, **_: Any) -> None:
    """Stop a worker whose locked tasks can't work, with everything that is wrong at once.

    A receiver of Celery's signal ``worker_init``.

    Args:
        sender: the worker.

    Raises:
        SystemExit: something is wrong; the worker ends with exit status 1.
    """
    app = sender.app
    plans, wrong = _plans(app)
    wrong += _wrong_servers(plans)
    if wrong:
        for problem in dict.fromkeys(wrong):
            logger.critical("celery_redlock refuses to start: %s", problem)
        raise SystemExit(1)


def _plans(app: Any) -> tuple[dict[str, Plan], list[str]]:
    """How each locked task is locked in the queue that it is routed to; and what can't be."""
    plans: dict[str, Plan] = {}
    wrong = []
    for name, task in sorted(app.tasks.items()):
        if not hasattr(task.__class__, "_lock_error") or name.startswith("celery."):
            continue
        try:
            task.refuse_if_broken()
            plans[name] = Locks.for_app(app).plan(task, _queue_of(app, name), None)
        except RedlockError as exc:
            wrong.append(str(exc))
    return plans, wrong


def _queue_of(app: Any, name: str) -> str | None:
    """The queue that a task is routed to, as far as that can be known without a call."""
    queues = app.amqp.queues
    before = set(queues)
    try:
        route = app.amqp.router.route({}, name, (), {})
    except Exception as exc:  # noqa: BLE001 - a router of the user's own may look at arguments
        logger.info("where %s is routed can't be known before it is called: %r", name, exc)
        return None
    finally:
        for made in set(queues) - before:  # else an older Celery's worker would read from it
            del queues[made]
    found = getattr(route.get("queue"), "name", None)
    return found if isinstance(found, str) else None


def _wrong_servers(plans: Mapping[str, Plan]) -> list[str]:
    """What the checks of all coordinators say against starting; the rest is logged."""
    users: dict[Coordinator, list[str]] = {}
    strict = set()
    for name, plan in plans.items():
        users.setdefault(plan.coordinator, []).append(name)
        if plan.options.mode == "correctness":
            strict.add(plan.coordinator)
    wrong = []
    for coordinator, findings in _checked(users):
        for finding in findings:
            said = _sentence(finding)
            if finding.level == "error" and not finding.passing and coordinator in strict:
                wrong.append(
                    f"coordinator {coordinator.capabilities.name}, which gives task "
                    f"{users[coordinator][0]} its fencing tokens, can't be relied on: {said}"
                )
            elif finding.level != "ok":
                logger.warning("celery_redlock: %s", said)
    return wrong


def _sentence(finding: Finding) -> str:
    cure = f" ({finding.cure})" if finding.cure else ""
    return f"{finding.subject}: {finding.message}{cure}"


def _checked(
    coordinators: Iterable[Coordinator],
) -> Iterator[tuple[Coordinator, list[Finding]]]:
    """The findings about each coordinator; all are asked at the same time."""
    answers: dict[Coordinator, list[Finding]] = {}

    def ask(coordinator: Coordinator) -> None:
        try:
            answers[coordinator] = coordinator.check()
        except Exception as exc:
            logger.exception("checking %r failed", coordinator)
            said = f"could not be checked: {type(exc).__name__}"
            answers[coordinator] = [Finding("warning", repr(coordinator), said)]
        finally:
            coordinator.close()  # this thread's connections; the pool's children make their own

    threads = {
        one: threading.Thread(target=ask, args=(one,), name="celery_redlock check", daemon=True)
        for one in coordinators
    }
    for thread in threads.values():
        thread.start()
    end = now() + PATIENCE
    for coordinator, thread in threads.items():
        thread.join(max(0.0, end - now()))
        late = Finding("warning", repr(coordinator), f"was not checked within {PATIENCE:g} s")
        yield coordinator, answers.get(coordinator, [late])
