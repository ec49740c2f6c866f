"""Free loopback ports that stay free: each is claimed until this process ends.

The ports lie below the range that the kernel gives to outgoing connections, so a server that is
stopped for a while finds its port still free when it comes back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

__all__ = ["free_port"]

_FIRST, _LAST = 15000, 31999
_claims: dict[int, int] = {}  # for each port of ours, the descriptor of its locked file


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on and nobody else here was given.

    Raises:
        OSError: no port of the range is free.
    """
    for port in random.sample(range(_FIRST, _LAST + 1), _LAST - _FIRST + 1):
        if port not in _claims and _claim(port):
            return port
    raise OSError(f"no free port from {_FIRST} to {_LAST}")


def _claim(port: int) -> bool:
    folder = Path(tempfile.gettempdir(), f"localservers-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    claim = os.open(folder / str(port), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(claim)
        return False
    _claims[port] = claim
    return True
