"""Django's settings for beats whose schedule is in a database."""

import os

DATABASE = "BEAT_TESTS_DATABASE"
"""The environment variable that names the SQLite file."""

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ[DATABASE],
        "OPTIONS": {"timeout": 20},
    }
}
