"""The option matrix: the call over the task over the queue over the application, for all of them.

Each combination is really published; what a worker makes of the message is computed from the
message itself, as the worker does.
"""

import itertools
import json

import pytest

from celery_redlock import ImproperlyConfigured, LockedTask, LockOptions, Locks
from celery_redlock.options import OPTION_NAMES
from celery_redlock.publish import HEADER, options_in
from tests.celery.app import close_app, make_app

# Of each option four values, for the call, the task, the queue and the application.
VALUES = {
    "coordinator": ["one", "two", "three", "four"],
    "key": ["call:{x}", "task:{x}", "queue:{x}", "app:{x}"],
    "args": [["x"], [], ["x", "y"], ["y"]],
    "scope": ["until_executed", "until_expired", "until_executing", "until_and_while_executing"],
    "ttl": [11, 12, 13, 14],
    "renew_interval": [1, 2, 3, 4],
    "wait": [1, 2, 3, 4],
    "on_conflict": ["raise", "revoke", "reschedule", "skip"],
    "on_duplicate": ["raise", "keep_latest", "replace", "return_existing"],
    "on_unavailable": ["raise", "reschedule", "run", "raise"],
    "on_lost": ["kill", "flag", "abort", "flag"],
    "min_hold": [1, 2, 3, 4],
    "max_hold": [11, 12, 13, 14],
    "queue_ttl": [11, 12, 13, 14],
    "reschedule_delay": [[1, 5], [2, 5], [3, 5], [4, 5]],
    "give_up_after": [11, 12, 13, 14],
}
LEVELS = ("call", "task", "queue", "application")
SUBSETS = [
    subset for size in range(5) for subset in itertools.combinations(range(len(LEVELS)), size)
]

DEFAULTS = vars(LockOptions())
MODES = list(itertools.product(["efficiency", "correctness", None], repeat=4))


@pytest.fixture
def published(config, valkey, valkey_3):
    """Publishes one call with an option at some levels; the options that a worker sees."""
    apps, numbers = [], itertools.count()  # no call is a duplicate of another one

    def publish(name, values):
        coordinators = dict.fromkeys(("default", "one", "two", "three", "four"), valkey_3.urls)
        app = make_app({**config, "include": [], "redlock_coordinators": coordinators})
        apps.append(app)
        call, task, queue, application = values
        if application is not None:
            app.conf[f"redlock_{name}"] = application
        if queue is not None:
            app.conf.redlock_queues = {"special": {name: queue}}
        attributes = {} if task is None else {f"lock_{name}": task}

        @app.task(shared=False, base=LockedTask, name="t", **attributes)
        def t(x, y=0, *, fencing_token=None):
            raise AssertionError("only published")

        with valkey.client() as client:
            client.delete("special")
            t.apply_async(
                (next(numbers),), queue="special", lock=None if call is None else {name: call}
            )
            message = json.loads(client.lpop("special"))
        header = message["headers"][HEADER]
        assert header["queue"] == "special"
        plan = Locks(app).plan(t, header["queue"], options_in(header))
        return plan, header

    yield publish
    for app in apps:
        app.conf.redlock_queues = app.conf.redlock_ttl = None  # what was wrong may be there still
        close_app(app)


def as_kept(value):
    """A value as options keep it."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if isinstance(value, int) else value


@pytest.mark.parametrize("name", VALUES)
def test_the_nearest_level_wins(published, name):
    """For each set of levels that say something, the nearest one's value reaches the worker."""
    for subset in SUBSETS:
        values = [VALUES[name][level] if level in subset else None for level in range(4)]
        plan, _ = published(name, values)
        nearest = as_kept(VALUES[name][subset[0]]) if subset else DEFAULTS[name]
        assert getattr(plan.options, name) == nearest, subset


@pytest.mark.parametrize("modes", MODES)
def test_the_stricter_mode_wins(published, modes):
    """One level that says correctness is enough, wherever it is."""
    plan, _ = published("mode", modes)
    assert plan.options.mode == ("correctness" if "correctness" in modes else "efficiency")


def test_the_matrix_is_complete():
    """No option is forgotten here."""
    assert {*VALUES, "mode"} == set(OPTION_NAMES)


@pytest.mark.parametrize("level", range(4))
def test_a_wrong_value_is_refused_at_publish_and_its_level_is_named(published, level):
    """The message says where it is written."""
    values = [None] * 4
    values[level] = -5
    where = ["the call", "task t", "queue 'special'", "the application"][level]
    with pytest.raises(ImproperlyConfigured, match=where):
        published("ttl", values)


def test_an_option_that_the_worker_does_not_know_yet_is_ignored(app):
    """A producer that is deployed first may send what its workers don't know."""
    assert options_in({"options": {"ttl": 5, "from_the_future": 1}}) == {"ttl": 5}
    assert options_in({"options": {"from_the_future": 1}}) is None
    assert options_in({"options": "nonsense"}) is None
    assert options_in({}) is None
