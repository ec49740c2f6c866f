"""Kills what a process has started once that process is gone.  Runs as a process of its own.

It is told over its standard input which process groups and folders belong to its client, one
line each: ``group <id>``, ``folder <path>``, and the same with a ``-`` in front when they are
done with.  When the client has died (its end of the pipe closes, or its pidfd says so), every
group that is left is killed and every folder removed.  Only the standard library is used, so
that it can be started with ``-I -S`` in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time

GROUP, FOLDER = b"group", b"folder"


def main(client: int) -> None:
    """Wait for the client's death, keeping the list meanwhile; then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left: dict[tuple[bytes, bytes], None] = {}
    for line in _lines(client):
        kind, _, value = line.partition(b" ")
        if kind.startswith(b"-"):
            left.pop((kind[1:], value), None)
        else:
            left[kind, value] = None
    for kind, value in left:
        if kind == GROUP:
            _kill(int(value))
    for kind, value in left:
        if kind == FOLDER:
            _remove(value)


def _lines(client: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - typing is slow to import
    poller = select.poll()
    poller.register(0, select.POLLIN)
    death = _pidfd(client)
    if death is not None:
        poller.register(death, select.POLLIN)
    buffer = b""
    while True:
        ready = {fd for fd, _ in poller.poll()}
        chunk = os.read(0, 65536) if 0 in ready else b""
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from lines
        if not chunk:  # the pipe is closed, or nothing is left in it and the client is dead
            return


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux: the pipe has to do
        return None


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _remove(folder: bytes) -> None:
    for _ in range(50):  # a killed program may write its last file while we remove the others
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]))
