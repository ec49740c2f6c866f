"""etcd's leases, each used by one lock at a time.  Knows no keys.

Granting and revoking a lease are written to the cluster's log, renewing one is not.  So a lease
that its lock no longer needs is kept for the next lock of this process with the same ttl.  It
is not renewed while nobody uses it, so an unused lease ends within its ttl.

A lease belongs to whoever granted it until a key is bound to it, and from then on to whoever
deletes that key: only one process can have done that.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from celery_redlock.clock import now
from celery_redlock.coordinators.etcd_gateway import NOT_FOUND, Budget, Gateway, Refused
from celery_redlock.coordinators.per_process import PerProcess
from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["EtcdLease", "Leases"]

_KEPT = 8  # unused leases for each ttl


@dataclass(frozen=True)
class EtcdLease:
    """A lease in the cluster.

    Attributes:
        id: its number, as decimal text.
        ttl: whole seconds from a renewal to its end.
        renewed: the instant before the request that renewed it last.
    """

    id: str
    ttl: int
    renewed: float


@dataclass
class _Unused:
    by_ttl: defaultdict[int, list[EtcdLease]] = field(default_factory=lambda: defaultdict(list))


class Leases:
    """The leases of one process and cluster.

    Args:
        gateway: speaks to the cluster.
    """

    def __init__(self, gateway: Gateway) -> None:
        """Start without a lease."""
        self._gateway = gateway
        self._unused: PerProcess[_Unused] = PerProcess(_Unused, lambda unused: None)

    def take(self, ttl: int, budget: Budget) -> EtcdLease:
        """A lease that nobody else uses, renewed just now.

        Args:
            ttl: whole seconds.
            budget: how long it may take.

        Raises:
            CoordinatorUnavailable: no endpoint answered in time.
            ImproperlyConfigured: the cluster's leases live longer than that at the least.
            Refused: the cluster says no.
        """
        unused = self._unused.get().by_ttl[ttl]
        while unused:
            try:
                lease = unused.pop()
            except IndexError:  # another thread took the last one
                break
            if lease.renewed + lease.ttl > now():
                renewed = self.renew(lease.id, ttl, budget)
                if renewed is not None:
                    return renewed
        return self._grant(ttl, budget)

    def give_back(self, lease: EtcdLease) -> None:
        """Keep a lease that no key is bound to for the next lock, or let it run out."""
        unused = self._unused.get().by_ttl[lease.ttl]
        if len(unused) < _KEPT:
            unused.append(lease)

    def renew(self, number: str, ttl: int, budget: Budget) -> EtcdLease | None:
        """Begin a lease's ttl anew; None if it has ended.

        Raises:
            CoordinatorUnavailable: no endpoint answered in time.
            Refused: the cluster says no.
        """
        start = now()
        # A stream of answers, of which one request gets one.
        answer = self._gateway.call("lease/keepalive", {"ID": number}, budget).body
        result = answer.get("result") or {}
        left = int(result.get("TTL", 0))
        return EtcdLease(number, ttl, start) if left > 0 else None

    def left(self, number: str, budget: Budget) -> float | None:
        """Seconds until a lease ends, cut to a whole number; None if it has ended.

        Raises:
            CoordinatorUnavailable: no endpoint answered in time.
            Refused: the cluster says no.
        """
        answer = self._gateway.call("lease/timetolive", {"ID": number}, budget).body
        left = int(answer.get("TTL", 0))
        return float(left) if left >= 0 else None

    def revoke(self, number: str, budget: Budget) -> None:
        """End a lease, with the key that is bound to it or will be by a late request.

        Raises:
            CoordinatorUnavailable: no endpoint answered in time.
            Refused: the cluster says no.
        """
        try:
            self._gateway.call("lease/revoke", {"ID": number}, budget)
        except Refused as exc:
            if exc.code != NOT_FOUND:
                raise

    def _grant(self, ttl: int, budget: Budget) -> EtcdLease:
        start = now()
        answer = self._gateway.call("lease/grant", {"TTL": str(ttl)}, budget).body
        number, granted = str(answer["ID"]), int(answer["TTL"])
        if granted > ttl:
            self.revoke(number, budget)
            raise ImproperlyConfigured(
                f"ttl: this etcd cluster's leases live {granted} s at the least (one and a half "
                f"times its election timeout), so a lock of {ttl} s is not possible; ask for a "
                f"ttl of {granted} s or more, or lower the cluster's --election-timeout"
            )
        return EtcdLease(number, ttl, start)
