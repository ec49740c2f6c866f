"""What an operator should know of an etcd cluster.  Asks; changes nothing but a probe's lock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from celery_redlock.coordinators.addresses import Host
from celery_redlock.coordinators.base import Coordinator, Finding
from celery_redlock.coordinators.etcd_gateway import Budget, Gateway, Refused
from celery_redlock.coordinators.etcd_leases import Leases
from celery_redlock.coordinators.probe import probe
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured

__all__ = ["findings"]

# From etcd's changelogs: members could differ after a crash until 3.5.3; before the versions
# below a leader that was cut off could renew and revoke leases, and the revision could go back
# after a crash in a compaction.
_INCONSISTENT = (3, 5, 0), (3, 5, 3)
_FIXED: dict[tuple[int, ...], tuple[int, ...]] = {(3, 4): (3, 4, 32), (3, 5): (3, 5, 14)}


def findings(
    gateway: Gateway, leases: Leases, coordinator: Coordinator, timeout: float
) -> list[Finding]:
    """The findings about every endpoint, then those about the cluster.

    Args:
        gateway: speaks to the cluster.
        leases: grants its leases.
        coordinator: what the probe goes through.
        timeout: seconds that one answer may take.
    """
    found: list[Finding] = []
    answers: dict[Host, Mapping[str, Any]] = {}
    silent: dict[Host, str] = {}
    for host in gateway.hosts:
        try:
            answers[host] = gateway.ask(host, "maintenance/status", Budget.of(timeout))
        except CoordinatorUnavailable as exc:
            silent[host] = exc.nodes.get(str(host), str(exc))
        except Refused as exc:
            said = f"it refuses to tell its status: {exc}"
            found.append(Finding("warning", str(host), said, "let the user read it"))
    found += [_silent(host, said, alone=not answers) for host, said in silent.items()]
    for host, answer in answers.items():
        found += _member(str(host), answer)
    if len(silent) < len(gateway.hosts):
        cluster = ",".join(map(str, gateway.hosts))
        cure = "give the user read and write permission for the keys that begin with the prefix"
        found += _cluster(cluster, answers)
        found += _least_ttl(cluster, leases, coordinator, timeout)
        found += probe(coordinator, cluster, timeout, cure)
    return found


def _silent(host: Host, said: str, *, alone: bool) -> Finding:
    return Finding(
        "error" if alone else "warning",
        str(host),
        f"it can't be reached: {said}",
        "start it, or correct its address in redlock_coordinators",
        passing=True,
    )


def _member(subject: str, answer: Mapping[str, Any]) -> list[Finding]:
    version = str(answer.get("version", "(unknown)"))
    found = [Finding("ok", subject, f"etcd {version}, {answer.get('dbSize', '?')} bytes stored")]
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if _INCONSISTENT[0] <= number < _INCONSISTENT[1]:
        said = f"etcd {version} may lose consistency of its revisions in a crash"
        found.append(Finding("error", subject, said, "upgrade it to 3.5.3 or newer"))
    fixed = _FIXED.get(number[:2])
    if fixed and number < fixed:
        said = (
            f"in etcd {version} a leader that was cut off may renew leases for a moment, and the "
            "revision may go back after a crash in a compaction"
        )
        cure = f"upgrade it to {'.'.join(map(str, fixed))} or newer"
        found.append(Finding("warning", subject, said, cure))
    if not int(answer.get("leader", 0)):
        cure = "bring back a majority of the members"
        found.append(Finding("error", subject, "it knows no leader", cure, passing=True))
    found += [
        Finding("error", subject, f"it reports: {alarm}", "free space or mend it, then disarm it")
        for alarm in answer.get("errors", [])
    ]
    return found


def _cluster(subject: str, answers: Mapping[Host, Mapping[str, Any]]) -> list[Finding]:
    clusters = {answer.get("header", {}).get("cluster_id") for answer in answers.values()}
    members = [answer.get("header", {}).get("member_id") for answer in answers.values()]
    if len(clusters) > 1:
        said = "the endpoints belong to different clusters, which would grant one lock twice"
        return [Finding("error", subject, said, "name the members of one cluster only")]
    if len(set(members)) < len(members):
        said = "two endpoints are the same member"
        return [Finding("warning", subject, said, "name each member once")]
    if len(members) == 1 and "," not in subject:
        said = "one endpoint is named: locks wait while it is down"
        return [Finding("warning", subject, said, "name all members of a cluster of three or five")]
    return []


def _least_ttl(
    subject: str, leases: Leases, coordinator: Coordinator, timeout: float
) -> list[Finding]:
    least = math.floor(coordinator.capabilities.min_ttl) + 1
    try:
        leases.give_back(leases.take(least, Budget.of(timeout)))
    except ImproperlyConfigured as exc:
        cure = "lower its --election-timeout, or use longer ttls only"
        return [Finding("warning", subject, str(exc), cure)]
    except (CoordinatorUnavailable, Refused):
        return []  # the probe says why
    return []
