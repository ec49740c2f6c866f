"""The servers that the other tests rest on."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from localservers import MissingServer, Process, Server, ServerFailed, Valkey


def test_durable_server_remembers_after_a_crash(servers):
    """What was answered before a SIGKILL is there after the restart."""
    server = servers.start(Valkey)
    server.client().set("name", "value")
    server.crash()
    server.restart()
    assert server.client().get("name") == b"value"


def test_restart_without_memory_comes_back_empty(servers):
    """A server can be brought back as from a lost disk, on the same url."""
    server = servers.start(Valkey)
    server.client().set("name", "value")
    url = server.url
    server.restart(memory=False)
    assert (server.url, server.client().get("name")) == (url, None)


def test_paused_server_is_silent_until_resumed(servers):
    """A paused server accepts a connection and answers nothing."""
    server = servers.start(Valkey, durable=False)
    server.pause()
    with server.connect(0.2) as connection:
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(64)
        server.resume()
        connection.settimeout(5)
        assert connection.recv(64) == b"+PONG\r\n"


_START_TWO = """
import signal
from localservers import valkey_cluster
cluster = valkey_cluster(2, durable=False).start()
print(*[server.pid for server in cluster], cluster[0].folder, flush=True)
signal.pause()
"""


def test_servers_die_with_the_process_that_started_them():
    """A SIGKILL of the test process leaves no server and no folder behind."""
    with subprocess.Popen([sys.executable, "-c", _START_TWO], stdout=subprocess.PIPE) as starter:
        *pids, folder = starter.stdout.readline().split()
        watched = [os.pidfd_open(int(pid)) for pid in pids]
        starter.kill()
    for pidfd in watched:
        assert _ended(pidfd, 5)
        os.close(pidfd)
    assert _gone(folder.decode(), 5)


def test_a_program_that_ends_at_once_is_reported_with_its_last_words():
    """A failed start names the program, its status, and what it wrote."""
    with pytest.raises(ServerFailed, match=r"sh ended with 3:\noh no"):
        Never(["/bin/sh", "-c", "echo oh no; exit 3"]).start()


def test_a_missing_program_names_its_package():
    """The error for a missing server says what brings it."""
    with pytest.raises(MissingServer, match=r"no-such-server.*Debian package nothing"):
        Server.find("no-such-server", "install the Debian package nothing")


def test_stop_ends_the_children_too():
    """Nothing of a process group is left after a stop."""
    process = Process(["/bin/sh", "-c", "sleep 100 & echo $!; wait"])
    process.launch()
    process.wait_for_log("\n")
    child = os.pidfd_open(int(process.log))
    process.close()
    assert _ended(child, 5)
    os.close(child)
    assert process.returncode == -signal.SIGTERM


def test_no_stranger_gets_the_id_of_a_process_that_has_ended():
    """An ended program keeps its id until it is killed; after that no signal is sent to it."""
    process = Process(["/bin/sh", "-c", "exit 3"])
    process.launch()
    assert process.wait() == 3
    assert not process.alive
    os.killpg(process.pid, 0)  # the id is still its own
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    process.send(signal.SIGKILL, children=True)  # nobody is there, and nobody is looked for
    assert process.returncode == 3
    process.close()


def test_a_signal_that_ended_it_is_told():
    """An end by a signal has the negative number of that signal."""
    process = Process(["/bin/sh", "-c", "sleep 100"])
    process.launch()
    process.send(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    process.close()


class Never(Process):
    """Is never ready."""

    def ready(self) -> bool:
        """No."""
        return False


def _ended(pidfd: int, timeout: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout)[0])


def _gone(folder: str, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while Path(folder).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_an_undertaker_that_was_ended_is_replaced():
    """Whoever ends it, the servers that come later are looked after again."""
    me = psutil.Process()

    def undertakers():
        found = psutil.process_iter(["cmdline"])
        return [
            one
            for one in found
            if one.info["cmdline"]
            and one.info["cmdline"][-1] == str(me.pid)
            and any("undertaker" in word for word in one.info["cmdline"])
        ]

    with Valkey():
        for one in undertakers():
            one.kill()
            one.wait(10)
    with Valkey() as server:
        assert server.alive
        assert len(undertakers()) == 1
