"""The application of beats under test: as any other, with crontabs, which JSON can't carry."""

import json
import os

from celery.schedules import crontab

from tests.celery.app import CONFIG, make_app

app = make_app(json.loads(os.environ[CONFIG]))
for name, fields in (app.conf.get("tests_crontabs") or {}).items():
    app.conf.beat_schedule[name] = {"task": f"tests.{name}", "schedule": crontab(**fields)}
