"""What an operator should know of a ZooKeeper ensemble.  Changes nothing but a probe's lock."""

from __future__ import annotations

import re
import socket

from celery_redlock.coordinators.addresses import Addresses, Host
from celery_redlock.coordinators.base import Coordinator, Finding
from celery_redlock.coordinators.probe import probe

__all__ = ["findings"]


def findings(addresses: Addresses, coordinator: Coordinator, timeout: float) -> list[Finding]:
    """The findings about every server, then those about the ensemble.

    Args:
        addresses: where the servers are.
        coordinator: what the probe goes through.
        timeout: seconds that one answer may take.
    """
    said: dict[Host, str] = {}
    if not addresses.options:  # a server that speaks TLS answers this question in no other way
        said = {host: _asked(host, timeout) for host in addresses.hosts}
    found = [_server(str(host), answer) for host, answer in said.items()]
    modes = [match[1] for answer in said.values() if (match := re.search(r"Mode: (\w+)", answer))]
    ensemble = ",".join(map(str, addresses.hosts))
    if modes.count("standalone") > 1 or ("standalone" in modes and len(modes) > 1):
        said_so = "some of the servers stand alone, so one lock would be granted twice"
        found.append(Finding("error", ensemble, said_so, "name the servers of one ensemble"))
    elif modes == ["standalone"]:
        cure = "run an ensemble of three or five servers"
        found.append(Finding("warning", ensemble, "one server: locks wait while it is down", cure))
    cure = "let the user create, write and delete nodes under the chroot"
    return [*found, *probe(coordinator, ensemble, timeout, cure)]


def _server(subject: str, answer: str) -> Finding:
    version = re.search(r"version: ([\w.]+)", answer)
    mode = re.search(r"Mode: (\w+)", answer)
    if mode:
        told = f"ZooKeeper {version[1] if version else '(version unknown)'}, {mode[1]}"
        return Finding("ok", subject, told)
    if "whitelist" in answer:
        return Finding("ok", subject, "it answers, but may not say what it is (4lw whitelist)")
    cure = "start it, or correct its address in redlock_coordinators"
    return Finding("warning", subject, f"it does not serve: {answer.strip()[:200]}", cure)


def _asked(host: Host, timeout: float) -> str:
    """The answer to ``srvr``, or what went wrong."""
    answer = b""
    try:
        with socket.create_connection((host.name, host.port), timeout) as connection:
            connection.sendall(b"srvr")
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError as exc:
        return answer.decode(errors="replace") or exc.strerror or str(exc)
    return answer.decode(errors="replace") or "it closed the connection"
