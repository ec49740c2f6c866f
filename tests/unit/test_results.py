"""Our values as results, in every serializer; and every result knows whether it was folded."""

import pytest
from celery import Celery, chain, group
from kombu import serialization

from celery_redlock import FencingToken, LockedTask, Locks, Skipped


@pytest.fixture(params=["json", "yaml", "pickle", "msgpack"])
def serializer(request):
    """Each serializer that Celery has."""
    app = Celery("results", set_as_current=False)
    app.conf.redlock_coordinators = {"default": "memory://results"}
    app.conf.result_serializer = request.param
    Locks.for_app(app)
    return request.param


@pytest.mark.parametrize("value", [Skipped("k", {"task": "t"}), {"token": FencingToken(7, "x")}])
def test_our_values_travel_like_plain_ones(serializer, value):
    """A skip must not become a failure because a serializer doesn't know its class."""
    kind, encoding, data = serialization.dumps(value, serializer)
    assert serialization.loads(data, kind, encoding, accept=[kind]) == value


def test_every_result_says_whether_its_call_was_folded():
    """Eager results, those of a chain and of a group, and one made by hand."""
    app = Celery("folded", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.redlock_coordinators = {"default": "memory://folded"}
    app.conf.task_always_eager = True

    @app.task(base=LockedTask, shared=False)
    def f(x):
        return x

    results = [f.delay(1), chain(f.s(1), f.s())(), group(f.s(1), f.s(2))(), f.AsyncResult("id")]
    assert [result.duplicate for result in results] == [False] * 4
