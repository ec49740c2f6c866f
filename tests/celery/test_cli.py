"""``celery redlock``, as a person types it."""

import json
import os
import subprocess
import sys

import pytest

from celery_redlock import Locks
from localservers import valkey_cluster
from tests.celery.app import CONFIG
from tests.celery.processes import _ROOT


@pytest.fixture
def redlock(config):
    """Runs the command: its exit status, and what it said."""
    # The entry point is there once the package is installed; this finds the same group.
    program = (
        "import sys; from celery.bin.celery import celery; from celery_redlock.cli import redlock;"
        "celery.add_command(redlock); celery(sys.argv[1:], auto_envvar_prefix='CELERY')"
    )

    def run(*words, **changed):
        environment = {CONFIG: json.dumps({**config, **changed}), "PYTHONPATH": str(_ROOT)}
        ended = subprocess.run(
            [sys.executable, "-c", program, "-A", "tests.celery.app", "redlock", *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run


def test_the_doctor_finds_sound_servers_sound(redlock):
    """Durable servers give no error, and the exit status says so."""
    status, said = redlock("doctor")
    assert status == 0, said
    assert "default" in said
    assert "ok" in said


def test_the_doctor_finds_what_is_wrong(redlock, servers):
    """A server listed twice is an error with a cure, and the exit status is 1."""
    three = servers.start(valkey_cluster, 3)
    url = three[0].url
    other = url.replace("127.0.0.1", "localhost")
    status, said = redlock("doctor", redlock_coordinators={"default": [url, other, three[1].url]})
    assert status == 1, said
    assert "same server" in said


def test_settings_that_cannot_be_used_are_told_in_one_line(redlock):
    """No traceback for a mistake of the user's."""
    status, said = redlock("doctor", redlock_tll=3)
    assert status == 1
    assert "did you mean redlock_ttl" in said
    assert "Traceback" not in said


def test_an_emptied_server_is_admitted_again(redlock, servers, app):
    """After a server has lost its memory it gives no tokens, until it is admitted."""
    three = servers.start(valkey_cluster, 3)
    app.conf.redlock_coordinators = {"default": three.urls}
    locks = Locks.for_app(app)
    with locks.lock("k", mode="correctness") as lease:
        first = lease.fencing_token
    locks.close()
    with three[0].client() as client:
        client.flushall()
    status, said = redlock("admit", redlock_coordinators={"default": three.urls})
    assert status == 0, said
    assert "Traceback" not in said
    locks = Locks(app)  # as a process that starts now
    with locks.lock("k", mode="correctness") as lease:
        assert lease.fencing_token > first
    locks.close()


def test_what_has_no_epoch_needs_no_admission(redlock):
    """Another kind of coordinator says so."""
    status, said = redlock("admit", redlock_coordinators={"default": "memory://"})
    assert status == 1
    assert "no Redlock" in said
