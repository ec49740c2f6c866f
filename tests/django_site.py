"""The one Django site of the tests: a process can have only one, so all tests that need one use it.

Call :func:`set_up` before the first import of a model.
"""

import tempfile
from pathlib import Path

import django
from django.conf import settings

APPS = ["celery_redlock.guards.django"]


def set_up() -> None:
    """Configure Django once, with a SQLite file as its default database."""
    if settings.configured:
        return
    folder = tempfile.TemporaryDirectory(prefix="django-site-")
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(Path(folder.name) / "default.db"),
            }
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=APPS,
        ROOT_URLCONF="tests.guards.django_urls",
        SECRET_KEY="only for tests",
        USE_TZ=True,
        # Kept here so that it is removed when the process ends, and not before.
        TEST_FOLDER=folder,
    )
    django.setup()
