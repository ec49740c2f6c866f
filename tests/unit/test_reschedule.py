"""How long a task that couldn't get its lock is put off."""

from types import SimpleNamespace

import pytest

from celery_redlock.reschedule import countdown, longest_countdown

DELAY = (1.0, 30.0)


def test_the_countdown_is_whole_and_at_least_one():
    """Quorum queues refuse less than a second, and Celery wants whole ones."""
    for waits in range(50):
        seconds = countdown(waits, DELAY, 1000.0)
        assert isinstance(seconds, int)
        assert 1 <= seconds <= 30


def test_the_countdown_grows_and_is_jittered():
    """Later tries wait longer, and two tasks don't come back at the same moment."""
    assert {countdown(0, DELAY, 1000.0) for _ in range(50)} == {1}
    late = {countdown(10, DELAY, 1000.0) for _ in range(200)}
    assert min(late) >= 15
    assert len(late) > 5


@pytest.mark.parametrize(("timeout", "longest"), [(3600, 1800.0), (8, 4.0), (1, 1.0)])
def test_a_countdown_stays_under_half_the_visibility_timeout(timeout, longest):
    """A message that waits in a worker must not be delivered a second time meanwhile."""
    app = SimpleNamespace(
        conf=SimpleNamespace(broker_transport_options={"visibility_timeout": timeout})
    )
    assert longest_countdown(app) == longest
    assert all(countdown(waits, DELAY, longest) <= longest for waits in range(40))


def test_without_a_visibility_timeout_the_brokers_default_counts():
    """The Redis transport's own default is an hour."""
    app = SimpleNamespace(conf=SimpleNamespace(broker_transport_options=None))
    assert longest_countdown(app) == 1800.0
