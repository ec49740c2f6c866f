"""What a guard says where its client library is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
for missing in {missing!r}:
    sys.modules[missing] = None
import celery_redlock.guards.{guard}
"""


def imported(guard, *missing):
    """The last line of what Python says when it imports a guard without some libraries."""
    code = CODE.format(guard=guard, missing=missing)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    return (done.stderr.strip().splitlines() or [""])[-1]


@pytest.mark.parametrize(
    "guard,library,extra", [("sqlalchemy", "sqlalchemy", "sql"), ("django", "django", "django")]
)
def test_the_error_says_what_to_install(guard, library, extra):
    """One line with the command."""
    said = imported(guard, library)
    assert said.startswith("celery_redlock.exceptions.ImproperlyConfigured")
    assert said.endswith(
        f"needs {library}, which is not installed: pip install 'celery_redlock[{extra}]'"
    )


@pytest.mark.parametrize("guard", ["redis", "http", "object_store"])
def test_a_guard_that_is_handed_its_client_imports_nothing(guard):
    """It works with whatever client there is."""
    assert imported(guard, "sqlalchemy", "django", "boto3", "botocore", "valkey") == ""
