"""No login of a lock server where Celery shows an application's settings."""

import pytest
from celery import Celery

from celery_redlock import LockOptions, Locks

URLS = {"default": ["redis://u:hunter2@a", "redis://:hunter2@b", "redis://:hunter2@c"]}


@pytest.fixture
def app():
    """An application whose settings have logins in them."""
    app = Celery("censored", broker="memory://", set_as_current=False)
    app.conf.redlock_coordinators = URLS
    app.conf.redlock_queues = {"q": {"coordinator": "redis://:hunter2@d"}}
    app.conf.redlock_coordinator = "redis://:hunter2@e"
    Locks.for_app(app)
    return app


def test_settings_are_shown_without_logins(app):
    """``celery inspect conf`` and ``celery report`` show the addresses only."""
    shown = f"{app.conf.table(censored=True)} {app.conf.humanize(censored=True)}"
    assert "hunter2" not in shown
    assert "redis://a" in shown
    assert "redis://d" in shown


def test_the_settings_themselves_are_untouched(app):
    """What is censored is what is shown, not what is used."""
    assert app.conf.redlock_coordinators == URLS
    assert "hunter2" in str(app.conf.table(censored=False))


def test_celerys_own_censoring_still_works(app):
    """Settings of Celery's that it hides stay hidden."""
    app.conf.security_key_password = "hunter2"
    app.conf.broker_url = "redis://:hunter2@broker/0"
    assert "hunter2" not in str(app.conf.table(censored=True))


def test_options_show_no_login():
    """The coordinator of options may be a url, so it is not shown."""
    assert "hunter2" not in repr(LockOptions(coordinator="redis://u:hunter2@h/0"))
