"""Locks in an etcd cluster, by its JSON gateway.  Needs no client library, starts no thread.

A lock is a key bound to a lease, put by a transaction if there is no such key.  The revision of
that transaction orders it among all that the cluster ever did, so it is the fencing token.  The
key's create revision names the exact grant: no former owner can prolong or delete a newer one.

* An extend renews the lease, then reads the key.  Another ttl than before binds the key to
  another lease.
* A release deletes the key and keeps the lease for the next lock, which saves a write.
* An acquire whose answer is lost revokes its lease: a request that is still under way then
  finds no lease and writes nothing.
* A holder that died is forgotten when its lease ends.  Leases are whole seconds, so that is up
  to a second after the ttl, and up to another until the cluster notices; a change of its leader
  gives every lease its whole ttl anew.  A cluster has a shortest lease, 2 s unless its election
  timeout was changed; a ttl that would be made longer by it is refused.

Trust is counted from before the request that renewed the lease.  Use etcd 3.4.32, 3.5.14 or
newer: before, a leader that had just been cut off could renew leases for a moment, and the
revision could go back after a crash (``check()`` says so).

Urls: ``etcd://[user:password@]host1:2379,host2:2379,host3:2379``, or ``etcds://`` for TLS with
``?ca=…&cert=…&key=…`` (paths of PEM files).  Several urls are members of one cluster.  One
answer may take a second, or a quarter of a shorter ttl (``redlock_node_timeout`` if that is
more); a call passes over one member that hangs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.addresses import Addresses, parse
from celery_redlock.coordinators.aftermath import ETCD
from celery_redlock.coordinators.base import Capabilities, Conflict, Finding, Grant, Held, Holder
from celery_redlock.coordinators.etcd_check import findings
from celery_redlock.coordinators.etcd_gateway import Answer, Budget, Gateway, Refused
from celery_redlock.coordinators.etcd_keys import (
    Entry,
    Floor,
    binary,
    created_at,
    put,
    read,
    the_only,
    written_at,
)
from celery_redlock.coordinators.etcd_leases import EtcdLease, Leases
from celery_redlock.coordinators.patience import answer_timeout
from celery_redlock.coordinators.urls import CoordinatorSettings
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured

__all__ = ["EtcdCoordinator", "from_urls"]

PORT = 2379


class EtcdCoordinator:
    """Locks in one etcd cluster.

    Args:
        addresses: where its members are.
        settings: what every coordinator of the application shares.

    Raises:
        ImproperlyConfigured: a certificate can't be used.
    """

    capabilities = Capabilities(
        name="etcd",
        fencing=True,
        exclusion="linearizable",
        survives_failover=True,
        survives_restart=True,
        min_ttl=1.0,
        after=ETCD,
    )

    def __init__(self, addresses: Addresses, settings: CoordinatorSettings) -> None:
        """Connect to nothing yet."""
        self._settings = settings
        self._gateway = Gateway(addresses)
        self._leases = Leases(self._gateway)
        self._shown = ",".join(map(str, addresses.hosts))
        self._floor = Floor()

    def acquire(self, key: str, owner: str, ttl: float, holder: Holder) -> Grant | Conflict:
        """Ask for the lock once.

        Raises:
            CoordinatorUnavailable: nobody can say; what may have been granted is undone.
            ImproperlyConfigured: the ttl is shorter than a lease can be.
        """
        seconds, budget = _whole(ttl), self._budget(ttl)
        with self._errors_mapped():
            lease = self._leases.take(seconds, budget)
            mine = Entry(owner, holder, seconds, 0, lease=lease.id)
            try:
                found = self._put_if_free(key, mine, budget)
                if found.lease == lease.id:
                    return self._granted(key, found, lease, ttl)
            except CoordinatorUnavailable:
                self._undo(lease)
                raise
            self._leases.give_back(lease)
            if found.owner == owner:
                return self._granted_before(key, found, ttl)
            return Conflict(key, found.holder, self._left(found, budget))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Prolong this exact grant; None if it is not ours any more.

        Raises:
            CoordinatorUnavailable: nobody can say.
            ImproperlyConfigured: the ttl is shorter than a lease can be.
        """
        seconds, budget = _whole(ttl), self._budget(ttl)
        with self._errors_mapped():
            entry = self._entry_of(grant, budget)
            if entry is None:
                return None
            if entry.ttl != seconds:
                return self._rebound(grant.key, entry, ttl, budget)
            lease = self._leases.renew(entry.lease, seconds, budget)
            current = self._look(grant.key, budget)
            if current is None or current.revision != entry.revision:
                return None
            if current.lease != entry.lease:  # somebody else extended it by another ttl
                return self.extend(replace(grant, record=current), ttl)
            return None if lease is None else self._granted(grant.key, current, lease, ttl)

    def release(self, grant: Grant) -> bool:
        """Give this exact grant back; False if it was not ours any more.

        Raises:
            CoordinatorUnavailable: it could not be said.
        """
        budget = self._budget()
        name = self._name(grant.key)
        delete = {"requestDeleteRange": {"key": binary(name), "prevKv": True}}
        with self._errors_mapped():
            entry = self._entry_of(grant, budget)
            if entry is None:
                return False
            answer = self._transaction(
                [created_at(name, entry.revision)], [delete], [read(name)], budget
            )
        if not answer.body.get("succeeded"):
            # A first try whose answer was lost may have deleted it.
            return answer.repeated and the_only(answer.body, 0) is None
        before = answer.body["responses"][0]["response_delete_range"].get("prev_kvs", [])
        deleted = Entry.of(before[0]) if before else None
        if deleted is not None and deleted.ttl:
            self._leases.give_back(EtcdLease(deleted.lease, deleted.ttl, now()))
        return True

    def inspect(self, key: str) -> Held | None:
        """Who holds the lock now.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        budget = self._budget()
        with self._errors_mapped():
            entry = self._look(key, budget)
            left = self._leases.left(entry.lease, budget) if entry else None
        if entry is None or left is None:
            return None
        return Held(key, entry.owner, entry.holder or Holder(), left, entry.token(key))

    server_time_step = 1.0

    def server_time(self) -> float:
        """The wall clock of the member that answers, in seconds since the epoch, cut to whole ones.

        Raises:
            CoordinatorUnavailable: no member answered.
        """
        body = {"key": binary(self._floor_name)}
        with self._errors_mapped():
            date = self._gateway.call("kv/range", body, self._budget()).date
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise CoordinatorUnavailable(
                "the etcd cluster told no time", {self._shown: "no header Date in the answer"}
            ) from None

    def raise_floor(self, floor: int) -> int:
        """Make every token from now on higher than ``floor``; the floor that is in force.

        For a move from another coordinator, whose tokens were higher than this cluster's
        revisions, or to a new cluster that starts with low ones.  It is never lowered.

        Args:
            floor: the highest token that any resource has seen, from 0 to 2**62.

        Raises:
            CoordinatorUnavailable: it could not be done, or somebody else raises it too.
            ImproperlyConfigured: ``floor`` is out of range.
        """
        if not 0 <= floor <= 2**62:  # it is added to a number that grows for ever
            raise ImproperlyConfigured(f"floor={floor!r}: must be from 0 to 2**62")
        budget, name = self._budget(), self._floor_name
        with self._errors_mapped():
            found = self._gateway.call("kv/range", {"key": binary(name)}, budget).body
            before = Floor.of(the_only(found))
            if before.value >= floor:
                return before.value
            answer = self._transaction(
                [written_at(name, before.written)], [put(name, str(floor))], [], budget
            )
        if not answer.body.get("succeeded"):
            raise CoordinatorUnavailable("the floor was being raised at the same time; ask again")
        return floor

    def check(self) -> list[Finding]:
        """What an operator should know: members, versions, alarms, permissions.  Never raises."""
        return findings(self._gateway, self._leases, self, answer_timeout(self._node_timeout))

    def close(self) -> None:
        """Let go of connections; the coordinator may be used again afterwards."""
        self._gateway.close()

    def __repr__(self) -> str:
        return f"<EtcdCoordinator {self._shown}>"

    # Below: steps of the above.

    @property
    def _node_timeout(self) -> float:
        return self._settings.node_timeout

    def _budget(self, ttl: float | None = None) -> Budget:
        return Budget.of(answer_timeout(self._node_timeout, ttl))

    def _name(self, key: str) -> str:
        return f"{self._settings.prefix}/{self._settings.kind}/{key}"

    @property
    def _floor_name(self) -> str:
        return f"{self._settings.prefix}/floor"

    def _transaction(
        self,
        compare: Sequence[Mapping[str, Any]],
        success: Sequence[Mapping[str, Any]],
        failure: Sequence[Mapping[str, Any]],
        budget: Budget,
    ) -> Answer:
        body = {"compare": compare, "success": success, "failure": failure}
        return self._gateway.call("kv/txn", body, budget)

    def _put_if_free(self, key: str, mine: Entry, budget: Budget) -> Entry:
        """Put the entry unless there is one; what is there now."""
        name, floor_name = self._name(key), self._floor_name
        for _ in range(3):
            floor = self._floor
            entry = replace(mine, floor=floor.value)
            answer = self._transaction(
                [created_at(name, 0), written_at(floor_name, floor.written)],
                [put(name, entry.value(), entry.lease)],
                [read(name), read(floor_name)],
                budget,
            ).body
            if answer.get("succeeded"):
                return replace(entry, revision=int(answer["header"]["revision"]))
            self._floor = Floor.of(the_only(answer, 1))
            found = Entry.of(the_only(answer, 0))
            if found is not None:
                return found
            # The lock is free, so it was the floor that had been raised.
        raise CoordinatorUnavailable("the floor of the tokens was raised again and again")

    def _granted(self, key: str, entry: Entry, lease: EtcdLease, ttl: float) -> Grant:
        valid_until = lease.renewed + ttl - self._settings.drift.of(ttl)
        if valid_until <= now():
            raise CoordinatorUnavailable(f"the answer came after the ttl of {ttl:g} s was over")
        token = entry.token(key)
        return Grant(key, entry.owner, ttl, valid_until, token, entry)

    def _granted_before(self, key: str, entry: Entry, ttl: float) -> Grant | Conflict:
        """The grant of an owner that asks again."""
        again = self.extend(Grant(key, entry.owner, ttl, 0.0, record=entry), ttl)
        return again or Conflict(key, certain=False)

    def _rebound(self, key: str, entry: Entry, ttl: float, budget: Budget) -> Grant | None:
        """Bind a key to another lease; None if it is gone."""
        lease = self._leases.take(_whole(ttl), budget)
        bound = entry.bound_to(lease.id, lease.ttl)
        name = self._name(key)
        answer = self._transaction(
            [created_at(name, entry.revision)],
            [put(name, bound.value(), lease.id)],
            [],
            budget,
        )
        if not answer.body.get("succeeded"):
            self._leases.give_back(lease)
            return None
        self._leases.give_back(EtcdLease(entry.lease, entry.ttl, now()))
        return self._granted(key, bound, lease, ttl)

    def _entry_of(self, grant: Grant, budget: Budget) -> Entry | None:
        """What names the exact grant; looked up by its owner where the grant doesn't carry it."""
        if isinstance(grant.record, Entry):
            return grant.record
        entry = self._look(grant.key, budget)
        return entry if entry is not None and entry.owner == grant.owner else None

    def _look(self, key: str, budget: Budget) -> Entry | None:
        body = {"key": binary(self._name(key))}
        return Entry.of(the_only(self._gateway.call("kv/range", body, budget).body))

    def _left(self, entry: Entry, budget: Budget) -> float | None:
        """Seconds until another's lease has surely ended, if that can be learnt."""
        with suppress(CoordinatorUnavailable, Refused):
            left = self._leases.left(entry.lease, budget)
            return None if left is None else left + 1.0
        return None

    def _undo(self, lease: EtcdLease) -> None:
        with suppress(CoordinatorUnavailable, Refused):  # else it runs out by its ttl
            each = answer_timeout(self._node_timeout, float(lease.ttl))
            self._leases.revoke(lease.id, Budget(each, now() + each))

    @contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        try:
            yield
        except Refused as exc:
            raise CoordinatorUnavailable(
                "the etcd cluster refused the request", {self._shown: str(exc)}
            ) from exc


def _whole(ttl: float) -> int:
    least = EtcdCoordinator.capabilities.min_ttl
    if ttl < least:
        raise ImproperlyConfigured(
            f"ttl={ttl:g}: etcd counts in whole seconds, so a lock lives {least:g} s at the "
            "least; ask for more"
        )
    return math.ceil(ttl)


def from_urls(urls: Sequence[str], settings: CoordinatorSettings) -> EtcdCoordinator:
    """The coordinator of the one cluster whose members the urls name.

    Raises:
        ImproperlyConfigured: a url is malformed, has an unknown option, or differs from the
            others in more than its hosts; or a certificate can't be used.
    """
    several = [parse(url, PORT, ("ca", "cert", "key")) for url in urls]
    first = several[0]
    for one in several:
        if replace(one, hosts=()) != replace(first, hosts=()) or one.path:
            raise ImproperlyConfigured(
                "the urls of an etcd coordinator name the members of one cluster: they differ "
                "only in their hosts and have no path, as in etcd://host1:2379,host2:2379"
            )
    hosts = tuple(dict.fromkeys(host for one in several for host in one.hosts))
    return EtcdCoordinator(replace(first, hosts=hosts), settings)
