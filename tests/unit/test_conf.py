"""The settings of an application: what is read, and what is refused with which words."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_redlock.conf import Settings
from celery_redlock.exceptions import ImproperlyConfigured
from celery_redlock.locks import Locks
from celery_redlock.quorum import Drift

URLS = [f"redis://:secret@lock{i}:6379/0" for i in range(1, 6)]


def app_with(**settings):
    """An application with these settings, and one coordinator unless another is named."""
    app = Celery("shop", set_as_current=False)
    app.conf.update({"redlock_coordinators": {"default": "memory://conf"}, **settings})
    return app


def test_the_defaults_are_those_of_the_documentation():
    """Nothing but the coordinators needs to be written."""
    settings = Settings.read(app_with())
    assert settings.shared.prefix == "shop"
    assert settings.shared.node_timeout == 0.05
    assert settings.shared.drift == Drift(0.01, 0.002)
    assert settings.visibility_heartbeat is True
    assert settings.beat_scheduler == "celery.beat:PersistentScheduler"


def test_times_may_be_timedeltas():
    """Every time is seconds, or a timedelta."""
    settings = Settings.read(app_with(redlock_max_ttl=timedelta(minutes=10)))
    assert settings.shared.max_ttl == 600.0


def test_settings_under_djangos_namespace_are_read():
    """CELERY_REDLOCK_* of a settings object works like the plain names."""
    django = SimpleNamespace(
        CELERY_REDLOCK_COORDINATORS={"default": URLS}, CELERY_REDLOCK_TTL=12, DEBUG=True
    )
    app = Celery("shop", set_as_current=False)
    app.config_from_object(django, namespace="CELERY")
    settings = Settings.read(app)
    assert settings.coordinators == {"default": tuple(URLS)}
    assert settings.app_level.values == {"ttl": 12}


def test_an_unknown_setting_under_djangos_namespace_is_refused():
    """A misspelt CELERY_REDLOCK_* is found as well."""
    django = SimpleNamespace(CELERY_REDLOCK_COORDINATORS={"default": URLS}, CELERY_REDLOCK_TLL=12)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(django, namespace="CELERY")
    with pytest.raises(ImproperlyConfigured, match="(?i)redlock_tll.*did you mean redlock_ttl"):
        Settings.read(app)


BAD = [
    ({"redlock_coordinators": None}, "redlock_coordinators is missing"),
    ({"redlock_coordinators": {}}, "redlock_coordinators is missing"),
    ({"redlock_coordinators": "redis://a"}, "must be a dict from names to urls.*not a str"),
    ({"redlock_coordinators": {"default": 7}}, r"redlock_coordinators\['default'\] must be a url"),
    ({"redlock_coordinators": {"default": []}}, r"redlock_coordinators\['default'\] must be"),
    ({"redlock_coordinators": {"default": "lock1"}}, r"redlock_coordinators\['default'\] must be"),
    ({"redlock_tll": 3}, "unknown setting redlock_tll; did you mean redlock_ttl"),
    ({"redlock_ttl": 0}, "redlock_ttl=0.*more than 0"),
    ({"redlock_ttl": True}, "redlock_ttl=True.*number of seconds"),
    ({"redlock_ttl": float("nan")}, "redlock_ttl=nan.*finite"),
    ({"redlock_node_timeout": -1}, "redlock_node_timeout=-1.*more than 0"),
    ({"redlock_clock_drift": 0.9}, "redlock_clock_drift=0.9.*below 0.5"),
    ({"redlock_clock_drift": "x"}, "redlock_clock_drift='x'"),
    ({"redlock_prefix": "a b"}, "redlock_prefix='a b'.*white space"),
    ({"redlock_queues": ["q"]}, "redlock_queues must be a dict"),
    ({"redlock_queues": {"q": 3}}, r"redlock_queues\['q'\] must be a dict of options, not a int"),
    ({"redlock_queues": {"q": {"tll": 3}}}, "tll.*did you mean.*ttl"),
    ({"redlock_queues": {"q": {"ttl": -3}}}, r"redlock_queues\['q'\]\['ttl'\]=-3"),
    ({"redlock_tasks": 3}, "redlock_tasks must be a dict"),
    ({"redlock_on_unavailable": "drop"}, "redlock_on_unavailable='drop'.*'reschedule'"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_what_cannot_be_used_is_refused_with_its_name(settings, message):
    """Each wrong setting gets one message that names it, its value and what is allowed."""
    with pytest.raises(ImproperlyConfigured, match=message):
        Settings.read(app_with(**settings))


PAIRS = [
    ({"lock_coordinator": "ledger"}, {}, "'ledger' is not in redlock_coordinators.*'default'"),
    ({"lock_ttl": 0.2}, {}, "ttl=0.2.*too short.*more than 0.2"),
    ({"lock_ttl": 3}, {"redlock_node_timeout": 1}, "ttl=3.*more than 4.*redlock_node_timeout=1"),
    ({"lock_ttl": 301}, {}, "ttl=301.*above redlock_max_ttl=300"),
    ({"lock_min_hold": 3600}, {}, "min_hold=3600.*above redlock_max_ttl"),
    ({"lock_coordinator": "ftp://x"}, {}, "malformed coordinator url 'ftp://x'"),
    ({"lock_coordinator": ["memory://a", "etcd://b:1"]}, {}, "must be of one kind"),
]


@pytest.mark.parametrize(("options", "settings", "message"), PAIRS)
def test_options_that_do_not_fit_the_coordinator_are_refused(options, settings, message):
    """What can only be known with the settings at hand is refused at the first use."""
    from celery_redlock import LockedTask

    app = app_with(**settings)

    @app.task(base=LockedTask, shared=False, **options)
    def f():
        raise AssertionError("must not run")

    with pytest.raises(ImproperlyConfigured, match=message):
        f()


def test_no_password_in_any_message():
    """A url that can't be used is shown without its password."""
    app = app_with(redlock_coordinators={"default": ["redis://:hunter2@a", "etcd://:hunter2@b"]})
    with pytest.raises(ImproperlyConfigured) as caught:
        Locks.for_app(app).coordinator("default", "efficiency")
    assert "hunter2" not in str(caught.value)
    assert "redis://a" in str(caught.value)


def test_a_queue_takes_its_own_entry_before_a_glob():
    """An exact name wins; among globs, the first that matches."""
    settings = Settings.read(
        app_with(
            redlock_queues={
                "bill*": {"ttl": 1},
                "billing": {"ttl": 2},
                "*": {"ttl": 3},
            }
        )
    )
    found = [settings.queue_level(queue).values.get("ttl") for queue in ("billing", "bills", "x")]
    assert found == [2, 1, 3]
    assert settings.queue_level(None).values == {}


def test_the_locks_are_made_once_and_again_after_a_change():
    """An application's locks are kept until one of its settings is assigned anew."""
    app = app_with()
    first = Locks.for_app(app)
    assert Locks.for_app(app) is first
    app.conf.redlock_ttl = 11
    assert Locks.for_app(app) is not first


def test_a_lock_outside_a_task_is_refused_with_the_same_words():
    """Locks.lock checks its options as a task does."""
    locks = Locks.for_app(app_with())
    with pytest.raises(ImproperlyConfigured, match="tll.*did you mean ttl"), locks.lock("k", tll=3):
        raise AssertionError("must not run")
    with pytest.raises(ImproperlyConfigured, match="must be the lock's name"), locks.lock(""):
        raise AssertionError("must not run")
