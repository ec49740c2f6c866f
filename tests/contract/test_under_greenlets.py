"""Under gevent and eventlet: greenlets and the watchdog's native thread share a coordinator."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.kinds import KINDS

ROOT = Path(__file__).parents[2]
NAMED = {kind.name: kind for kind in KINDS}
# One for each way in which a client waits: a socket, kazoo's own handlers, libpq's socket.
CASES = [
    (NAMED["etcd"], "gevent"),
    (NAMED["etcd"], "eventlet"),
    (NAMED["zookeeper"], "gevent"),
    (NAMED["zookeeper"], "eventlet"),
    (NAMED["postgres"], "gevent"),
]


@pytest.mark.parametrize("kind, hub", CASES, ids=str)
def test_greenlets_and_a_native_thread_share_a_coordinator(kind, hub, shared_ports, tmp_path):
    """Each thread's hub has connections of its own, and a hub that stands still stops nobody."""
    (url,) = kind.urls(shared_ports(kind), tmp_path)
    kind.prepare(url)
    # What gevent and eventlet warn of, on being imported, is theirs.
    command = [sys.executable, "-W", "ignore", "-m", "tests.contract.under_a_hub", hub, url]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.stdout == "all went well\n", ended.stderr
    assert ended.returncode == 0
