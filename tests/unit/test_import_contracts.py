"""The import contracts of setup.cfg are worth something: each fails when it is broken."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# For each contract, by its name in setup.cfg: a module, and a line that it must not have.
BREACHES = {
    "layers": [
        ("celery_redlock/lock.py", "import celery_redlock.conf"),
        ("celery_redlock/coordinators/memory.py", "from celery_redlock.lease import Lease"),
        ("celery_redlock/nowhere.py", ""),
    ],
    "acyclic": [
        ("celery_redlock/coordinators/base.py", "import celery_redlock.coordinators.urls"),
        ("celery_redlock/options.py", "def late():\n    import celery_redlock.keys"),
    ],
    "pure": [
        ("celery_redlock/options.py", "import time"),
        ("celery_redlock/lease.py", "from celery_redlock.clock import now"),
        ("celery_redlock/keys.py", "def late():\n    from celery import current_app"),
        ("celery_redlock/coordinators/base.py", "import threading"),
    ],
    "engine": [
        ("celery_redlock/watchdog.py", "import celery"),
        ("celery_redlock/coordinators/memory.py", "from kombu.utils import uuid"),
        ("celery_redlock/guards/redis.py", "def late():\n    import celery"),
    ],
    "coordinators": [
        ("celery_redlock/coordinators/memory.py", "import celery_redlock.coordinators.redlock"),
    ],
    "guards": [
        ("celery_redlock/guards/redis.py", "import celery_redlock.guards.sqlalchemy"),
    ],
}


def contracts():
    """The name and the title of each contract in setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    prefix = "importlinter:contract:"
    return {
        section.removeprefix(prefix): config[section]["name"]
        for section in config.sections()
        if section.startswith(prefix)
    }


@pytest.fixture
def copy(tmp_path):
    """A copy of the package and its contracts."""
    hidden = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "celery_redlock", tmp_path / "celery_redlock", ignore=hidden)
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


def lint(folder):
    """What the linter says about the copy."""
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def broken(said):
    """The titles of the contracts that are broken."""
    return [
        title
        for line in said.stdout.splitlines()
        for title, sep, _ in [line.partition(" BROKEN")]
        if sep
    ]


def test_the_package_as_it_is_keeps_every_contract(copy):
    """Nothing is broken where nothing was changed."""
    said = lint(copy)
    assert (said.returncode, broken(said)) == (0, []), said.stdout


def test_every_contract_has_a_breach_here():
    """A contract that is new in setup.cfg must be shown to fail too."""
    assert set(BREACHES) == set(contracts())


@pytest.mark.parametrize(
    "contract, path, line",
    [(contract, *breach) for contract, breaches in BREACHES.items() for breach in breaches],
)
def test_a_breach_is_noticed(copy, contract, path, line):
    """One forbidden import breaks its contract, and the linter fails."""
    with (copy / path).open("a") as file:
        file.write(f"\n{line}\n")
    said = lint(copy)
    assert said.returncode == 1
    assert contracts()[contract] in broken(said), said.stdout + said.stderr
