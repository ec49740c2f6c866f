"""A task whose message is kept from being delivered again while it runs."""

from celery import shared_task

from celery_redlock.visibility import VisibilityHeartbeat
from tests.celery.journal import pass_gate, record


@shared_task(bind=True, acks_late=True)
def kept(self, name: str) -> str:
    """Run until the gate opens, with the heartbeat on its message."""
    heartbeat = VisibilityHeartbeat.for_app(self.app)
    heartbeat.add(self.request, acks_late=self.acks_late)
    try:
        record("start", name=name)
        pass_gate(name)
        record("end", name=name)
    finally:
        heartbeat.remove(self.request)
    return name
