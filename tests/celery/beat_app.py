"""The application of beats under test: crontabs, a clock that may be wrong, publishes that fail."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from celery.schedules import crontab
from kombu.exceptions import OperationalError

from tests.celery.app import CONFIG, make_app

CLOCK = "BEAT_TESTS_CLOCK"
"""Names a file that holds how many seconds this beat's clock is wrong."""
FAILURE = "BEAT_TESTS_FAILURE"
"""``raise``: the second publish fails; ``die``: the process is killed right after it;
``stop``: it is asked to end then."""


def prepare(app):
    """Give the application what its environment and configuration ask for."""
    for name, fields in (app.conf.get("tests_crontabs") or {}).items():
        app.conf.beat_schedule[name] = {"task": f"tests.{name}", "schedule": crontab(**fields)}
    if CLOCK in os.environ:
        right, wrong_by = app.now, Path(os.environ[CLOCK])
        app.now = lambda: right() + timedelta(seconds=float(wrong_by.read_text()))
    if FAILURE in os.environ:
        app.send_task = failing_once(app.send_task, os.environ[FAILURE])
    return app


def failing_once(publish, how):
    """A publish whose second call fails."""
    tried = []

    def send_task(*args, **options):
        tried.append(args)
        if len(tried) == 2 and how == "raise":
            raise OperationalError("no broker, this once")
        result = publish(*args, **options)
        if len(tried) == 2 and how == "die":
            os._exit(9)
        if len(tried) == 2 and how == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)  # a handler that is there has been called by now
        return result

    return send_task


if CONFIG in os.environ:  # in a beat
    app = prepare(make_app(json.loads(os.environ[CONFIG])))
