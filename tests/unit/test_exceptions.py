"""Errors: their messages, their family, and their way through pickle and a result backend."""

import pickle

import pytest
from celery import Celery

import celery_redlock.exceptions as errors
from celery_redlock.coordinators.base import Holder
from celery_redlock.coordinators.urls import CoordinatorSettings, from_urls, without_password
from celery_redlock.exceptions import (
    CoordinatorUnavailable,
    DuplicateTask,
    ImproperlyConfigured,
    LockLost,
    LockLostInterrupt,
    LockNotAcquired,
    RedlockError,
    StaleTokenError,
    describe_holder,
)
from celery_redlock.fencing import FencingToken

HOLDER = Holder("shop.pay", "4f1", "a1", "web1", 12, "n", 5.0, "billing").to_dict()
EVERY = [
    RedlockError("a message"),
    ImproperlyConfigured("ttl=-1 (LockOptions): must be more"),
    LockNotAcquired("a:5"),
    LockNotAcquired("a:5", HOLDER, 3.5),
    DuplicateTask("a:5"),
    DuplicateTask("a:5", HOLDER, 3.5, "4f1"),
    LockLost("a:5"),
    LockLost("a:5", FencingToken(7, "a:5"), "refused"),
    CoordinatorUnavailable("2 of 5 nodes answered"),
    CoordinatorUnavailable("2 of 5 nodes answered", {"redis://lock1:6379": "timed out"}),
    StaleTokenError("a:5", FencingToken(7, "a:5"), FencingToken(9, "a:5")),
    StaleTokenError("a:5", None),
]


@pytest.fixture(scope="module")
def backend():
    """A result backend in memory, which encodes as every other."""
    with Celery("test", backend="cache+memory://", set_as_current=False) as app:
        yield app.backend


@pytest.mark.parametrize("error", EVERY, ids=repr)
def test_every_error_survives_pickle(error):
    """Its type, attributes and message."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)


@pytest.mark.parametrize("error", EVERY, ids=repr)
def test_every_error_survives_the_json_of_a_result(backend, error):
    """As Celery stores it in a result backend and makes it again."""
    stored = backend.decode(backend.encode(backend.prepare_exception(error, "json")))
    again = backend.exception_to_python(stored)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_no_kind_of_error_is_left_out_above():
    """A new error has to take both ways, too."""
    kinds = {value for value in vars(errors).values() if isinstance(value, type)}
    tested = {type(error) for error in EVERY}
    assert {k for k in kinds if issubclass(k, RedlockError)} == tested


def test_the_family():
    """One handler catches them all, and a duplicate is a kind of conflict."""
    assert all(isinstance(error, RedlockError) for error in EVERY)
    assert issubclass(DuplicateTask, LockNotAcquired)


def test_the_interrupt_is_not_swallowed():
    """Neither ``except Exception`` nor a retry for every error stops it."""
    assert issubclass(LockLostInterrupt, BaseException)
    assert not issubclass(LockLostInterrupt, Exception)


@pytest.mark.parametrize(
    "error, message",
    [
        (LockNotAcquired("a:5"), "lock 'a:5' is held by somebody unknown"),
        (
            LockNotAcquired("a:5", HOLDER),
            "lock 'a:5' is held by shop.pay[4f1] on web1 (pid 12)",
        ),
        (
            DuplicateTask("a:5", task_id="4f1"),
            "lock 'a:5': an equal call is alive as task 4f1",
        ),
        (LockLost("a:5"), "lock 'a:5' was lost: it is not ours any more"),
        (
            LockLost("a:5", 7, "the majority refused"),
            "lock 'a:5' (fencing token 7) was lost: the majority refused",
        ),
        (
            CoordinatorUnavailable("1 of 3 answered", {"n1": "timed out", "n2": "refused"}),
            "1 of 3 answered (n1: timed out; n2: refused)",
        ),
        (
            StaleTokenError("a:5", 7, 9),
            "fencing token 7 of lock 'a:5' is stale: the resource has seen 9",
        ),
        (
            StaleTokenError("a:5", 7),
            "fencing token 7 of lock 'a:5' is stale: the resource has seen a higher one",
        ),
    ],
)
def test_the_messages_are_for_people(error, message):
    """Each says what happened to which lock."""
    assert str(error) == message


@pytest.mark.parametrize(
    "holder, phrase",
    [
        (None, "somebody unknown"),
        ({}, "somebody unknown"),
        ({"host": "web1", "pid": 5}, "a holder outside a task on web1 (pid 5)"),
        ({"task": "t"}, "t on ? (pid ?)"),
    ],
)
def test_a_holder_is_described_by_what_is_known(holder, phrase):
    """Missing facts don't break a message."""
    assert describe_holder(holder) == phrase


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://:hunter2@lock1:6379/0", "redis://lock1:6379/0"),
        ("rediss://u:hunter2@lock1/0?ssl_cert_reqs=none&password=hunter2", "rediss://lock1/0"),
        ("postgresql+psycopg://u:hunter2@db/app", "postgresql+psycopg://db/app"),
        ("redis+sentinel://u:hunter2@s1:1,s2:2/m", "redis+sentinel://s1:1,s2:2/m"),
        ("redis://:hunt@er2@lock1", "redis://lock1"),
        ("redis://:hunt/er2@lock1", "redis://lock1"),
        ("redis://:hunt?er2@lock1/0?a=b", "redis://lock1/0"),
        ("unix:///run/valkey.sock?db=1", "unix:///run/valkey.sock"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    """Nor the user, nor the query, where a password may stand as well."""
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "urls",
    [
        "nonsense://u:hunter2@h",
        "redis:/u:hunter2@h",
        "u:hunter2@h",
        ["redis://u:hunter2@h", "etcd://u:hunter2@h"],
        "redis://",
    ],
)
def test_no_error_about_a_url_has_a_password(urls):
    """Whatever is wrong with it."""
    with pytest.raises(ImproperlyConfigured) as caught:
        from_urls(urls, CoordinatorSettings())
    assert "hunter2" not in str(caught.value)
