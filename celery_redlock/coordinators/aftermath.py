"""What each coordinator still promises after a failure; the table of guarantees shows it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from celery_redlock.coordinators.base import Aftermath, Failure

__all__ = ["DATABASE", "ETCD", "MEMORY", "ONE_REDIS", "ZOOKEEPER", "redlock"]

_MINORITY = "of a minority of the servers"
_PAUSED = Aftermath(exclusion=False, order=True, when="from the end of the ttl on")
_KEPT = Aftermath(exclusion=True, order=True)

ONE_REDIS: Mapping[Failure, Aftermath] = {
    "pause": Aftermath(exclusion=False, order=False, when="from the end of the ttl on"),
    "failover": Aftermath(exclusion=False, order=False, when="its replica may lack the newest"),
    "amnesia": Aftermath(exclusion=False, order=False),
    "clock_jump": Aftermath(exclusion=False, order=False, when="a jump forward ends locks early"),
    "partition": Aftermath(exclusion=False, order=False, when="sentinels may make two masters"),
}

ETCD: Mapping[Failure, Aftermath] = {
    "pause": _PAUSED,
    "failover": _KEPT,
    "amnesia": Aftermath(
        exclusion=True, order=True, when=f"{_MINORITY}, and added anew as members"
    ),
    "clock_jump": _KEPT,
    "partition": _KEPT,
}

ZOOKEEPER: Mapping[Failure, Aftermath] = {
    "pause": _PAUSED,
    "failover": _KEPT,
    "amnesia": Aftermath(exclusion=True, order=True, when=_MINORITY),
    "clock_jump": Aftermath(
        exclusion=False, order=True, when="a jump forward of the leader ends locks early"
    ),
    "partition": _KEPT,
}

DATABASE: Mapping[Failure, Aftermath] = {
    "pause": _PAUSED,
    "failover": Aftermath(
        exclusion=False, order=False, when="unless it replicates synchronously, or is a cluster"
    ),
    "amnesia": Aftermath(
        exclusion=False, order=False, when="restored from a backup: raise the floor first"
    ),
    "clock_jump": Aftermath(exclusion=False, order=True, when="a jump forward ends locks early"),
    "partition": _KEPT,
}

MEMORY: Mapping[Failure, Aftermath] = {
    "pause": _PAUSED,
    "failover": Aftermath(exclusion=False, order=False, when="the process is all there is"),
    "amnesia": Aftermath(exclusion=False, order=False, when="the process is all there is"),
    "clock_jump": _KEPT,
    "partition": _KEPT,
}


def redlock(*, fenced: bool) -> Mapping[Failure, Aftermath]:
    """What a majority of independent servers still promises.

    Args:
        fenced: whether they are durable and give tokens.
    """
    emptied = "left out until it is admitted" if fenced else "left out until no lock can be alive"
    return {
        "pause": Aftermath(exclusion=False, order=fenced, when="from the end of the ttl on"),
        "failover": Aftermath(exclusion=True, order=fenced, when=_MINORITY),
        "amnesia": Aftermath(
            exclusion=True, order=fenced, when=f"{_MINORITY}; an emptied one is {emptied}"
        ),
        "clock_jump": Aftermath(exclusion=True, order=fenced, when=_MINORITY),
        "partition": Aftermath(exclusion=True, order=fenced, when="a majority must be reached"),
    }
