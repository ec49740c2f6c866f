"""A run doesn't pass for want of a server: it says so on a laptop, and fails on CI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CASES = """
import pytest
from localservers import Server

class NotHere:
    def __init__(self):
        Server.find("no-such-server", "install the Debian package nothing")

def test_of_a_missing_server(servers):
    servers.start(NotHere)

def test_that_is_skipped():
    pytest.skip("for some reason")

@pytest.mark.skip(reason="for another")
def test_that_is_marked():
    raise AssertionError

@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail():
    raise AssertionError

def test_that_passes():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Runs a file of tests with the fixtures of this suite, as on CI or as on a laptop."""

    def pytest_run(cases, ci, *options):
        (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
        (tmp_path / "test_cases.py").write_text(cases)
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--rootdir=.",
                *options,
            ],
            cwd=tmp_path,
            env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    return pytest_run


@pytest.mark.parametrize("options", [(), ("-n2", "--dist=loadgroup")], ids=["one", "two"])
def test_on_a_laptop_what_was_not_tested_is_listed_at_the_end(run, options):
    """A missing server skips, and the last lines name it, in one process as in several."""
    said = run(CASES, "", *options)
    assert said.returncode == 0
    assert re.search(r"1 passed, 3 skipped, 1 xfailed", said.stdout)
    assert "not tested for want of" in said.stdout
    assert "no-such-server (install the Debian package nothing): 1 test\n" in said.stdout


def test_on_ci_a_missing_server_and_every_skip_is_a_failure(run):
    """Nothing is skipped with CI=true; what is known to fail may fail."""
    said = run(CASES, ci="true")
    assert said.returncode == 1
    assert re.search(r"2 failed, 1 passed, 1 xfailed, 1 error", said.stdout)
    assert "no-such-server is not installed" in said.stdout


def test_on_ci_a_skipped_module_is_a_failure(run):
    """A whole module that skips itself is noticed too."""
    module = 'import pytest\npytest.importorskip("no_such_module")\n'
    assert run(module, ci="").returncode == 5  # nothing collected
    said = run(module, ci="true")
    assert said.returncode not in {0, 5}
    assert "no_such_module" in said.stdout
