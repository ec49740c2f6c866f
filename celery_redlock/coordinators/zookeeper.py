"""Locks in a ZooKeeper ensemble; the fencing token is the czxid.  Starts no thread; kazoo does.

A lock is a node ``…/<lock>`` with a child ``…/<lock>/<owner>``, made by one transaction that
fails if the node exists.  The number of that transaction orders it among all that the ensemble
ever did, so it is the token (plus the floor, if one was ever raised).  The child names the exact
grant: to extend, the transaction checks the child and writes the node; to release, it deletes
both; so no former owner can prolong or delete a newer lock.

**The nodes are not ephemeral.**  An ephemeral node lives as long as the session of the process
that made it, and a lock here lives for its ttl: a queue lock is taken by a publisher that may
exit at once, a guardian renews for a child that can't, a coordinator that is closed keeps its
locks.  None of these can be done with another process's session.  So a session that expires
costs nothing (the next one goes on), and an expired ttl is judged like this:

* Each write stamps the node with the leader's clock.  Who finds the lock held compares that
  stamp with the same clock now, as learnt from a write of its own.  If the ttl is over it takes
  the lock over in one transaction, which fails if the holder extended it meanwhile.
* Clocks of two servers are never compared.  If the stamp is another leader's (the upper half
  of the transaction's number tells), or lies in the future because the clock stepped back, the
  contender has the node stamped anew and waits for one ttl from then on.
* So a lock is exclusive however late anybody is, unless the leader's clock steps forward; then
  it may end early, its extend is refused, and the fencing token keeps its holder from writing.

A holder that died is forgotten after its ttl, and its node is removed by the next who takes the
lock or by :meth:`ZooKeeperCoordinator.prune`.  A lock whose ttl is over but which nobody took is
still its holder's to extend.

Urls: ``zookeeper://[user:password@]host1:2181,host2:2181/chroot``; a user and password become a
digest, and the nodes are closed to others.  ``?ca=…&cert=…&key=…`` (paths of PEM files) asks for
TLS.  One answer may take a second, or a quarter of a shorter ttl (``redlock_node_timeout`` if
that is more); a server that hangs is left by kazoo after a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.addresses import Addresses, parse
from celery_redlock.coordinators.aftermath import ZOOKEEPER
from celery_redlock.coordinators.base import Capabilities, Conflict, Finding, Grant, Held, Holder
from celery_redlock.coordinators.patience import answer_timeout
from celery_redlock.coordinators.per_process import PerProcess
from celery_redlock.coordinators.urls import CoordinatorSettings, needs
from celery_redlock.coordinators.zookeeper_check import findings
from celery_redlock.coordinators.zookeeper_clock import Seen
from celery_redlock.coordinators.zookeeper_nodes import Content, Floor, Paths, child, deletion
from celery_redlock.coordinators.zookeeper_session import Outcome, Session
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.fencing import FencingToken

__all__ = ["ZooKeeperCoordinator", "from_urls"]

PORT = 2181


class ZooKeeperCoordinator:
    """Locks in one ensemble.

    Args:
        addresses: where its servers are.
        settings: what every coordinator of the application shares.
    """

    capabilities = Capabilities(
        name="ZooKeeper",
        fencing=True,
        exclusion="linearizable; a ttl's end by the leader's clock",
        survives_failover=True,
        survives_restart=True,
        after=ZOOKEEPER,
    )

    def __init__(self, addresses: Addresses, settings: CoordinatorSettings) -> None:
        """Connect to nothing yet."""
        self._settings = settings
        self._addresses = addresses
        self._paths = Paths(addresses.path, settings.prefix, settings.kind)
        self._sessions: PerProcess[Session] = PerProcess(lambda: Session(addresses), Session.close)
        self._shown = ",".join(map(str, addresses.hosts)) + addresses.path

    def acquire(self, key: str, owner: str, ttl: float, holder: Holder) -> Grant | Conflict:
        """Ask for the lock once.

        Raises:
            CoordinatorUnavailable: nobody can say; what may have been granted is undone as soon
                as the server answers again.
        """
        session, path, until = self._sessions.get(), self._paths.lock(key), self._until(ttl)
        content = Content(owner, holder, float(ttl))
        start = now()
        made, floor = self._put(session, path, content, until)
        if made.stat is None:
            over = self._contend(session, key, content, until)
            if not isinstance(over, Seen):
                return over
            start = now()
            made, floor = self._put(session, path, content, until, _removal(path, over))
            if made.stat is None:  # somebody else was quicker, or the holder came back
                return Conflict(key, certain=False)
        try:
            token = floor.token(key, made.stat.czxid)
            return self._granted(key, content, token, start, ttl)
        except CoordinatorUnavailable:
            session.undo(deletion(path, owner))
            raise

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Prolong this exact grant; None if it is not ours any more.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        session, path, until = self._sessions.get(), self._paths.lock(grant.key), self._until(ttl)
        content = self._content_of(session, grant, until)
        if content is None:
            return None
        content = replace(content, ttl=float(ttl))

        def fill(transaction: Any) -> None:
            transaction.check(child(path, grant.owner), -1)
            transaction.set_data(path, content.to_bytes())

        start = now()
        outcome = session.transact(fill, until)
        if outcome.stat is None:
            self._expect(session, outcome, "NoNodeError")
            return None
        return self._granted(grant.key, content, grant.fencing_token, start, ttl)

    def release(self, grant: Grant) -> bool:
        """Give this exact grant back; False if it was not ours any more.

        Raises:
            CoordinatorUnavailable: it could not be said.
        """
        session, path = self._sessions.get(), self._paths.lock(grant.key)
        outcome = session.transact(deletion(path, grant.owner), self._until())
        if outcome.failed:
            self._expect(session, outcome, "NoNodeError")
        return not outcome.failed

    def inspect(self, key: str) -> Held | None:
        """Who holds the lock now.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        session, until = self._sessions.get(), self._until()
        seen = self._see(session, self._paths.lock(key), until, latest=True)
        if seen is None:
            return None
        content, left = seen.content, self._left(session, seen, until)
        if left is not None and left <= 0:
            return None
        floor = Floor.of(session.read(self._paths.floor, until))
        token = floor.token(key, seen.czxid) if floor.written < seen.czxid else None
        left = content.ttl if left is None else left
        return Held(key, content.owner, content.holder or Holder(), left, token)

    def server_time(self) -> float:
        """The leader's wall clock, in seconds since the epoch, learnt by a write.

        Raises:
            CoordinatorUnavailable: there was no answer.
        """
        return self._sessions.get().time(self._paths.clock, self._until()).time

    def raise_floor(self, floor: int) -> int:
        """Make every token from now on higher than ``floor``; the floor that is in force.

        For a move from another coordinator, whose tokens were higher than this ensemble's
        numbers, or to a new ensemble that starts with low ones.  It is never lowered, and a
        lock that is held keeps its token.

        Args:
            floor: the highest token that any resource has seen, from 0 to 2**62.

        Raises:
            CoordinatorUnavailable: it could not be done, or somebody else raises it too.
            ImproperlyConfigured: ``floor`` is out of range.
        """
        if not 0 <= floor <= 2**62:  # it is added to a number that grows for ever
            raise ImproperlyConfigured(f"floor={floor!r}: must be from 0 to 2**62")
        session, path, until = self._sessions.get(), self._paths.floor, self._until()
        found = session.read(path, until, latest=True)
        before = Floor.of(found)
        if before.value >= floor:
            return before.value
        if found is None:
            session.ensure(self._paths.base, until)

        def fill(transaction: Any) -> None:
            if found is None:
                transaction.create(path, b"0")
            transaction.set_data(path, str(floor).encode(), found[1].version if found else 0)

        if session.transact(fill, until).failed:
            raise CoordinatorUnavailable("the floor was being raised at the same time; ask again")
        return floor

    def prune(self, older_than: float = 86400.0) -> int:
        """Remove the nodes of holders that died; how many they were.

        Others take such a node over when they want its lock, so only those remain whose locks
        nobody wants any more.

        Args:
            older_than: seconds for which the ttl must have been over, 0 or more.

        Raises:
            CoordinatorUnavailable: there was no answer; some may have been removed.
        """
        return sum(self._removed(session, path, older_than) for session, path in self._every_lock())

    def check(self) -> list[Finding]:
        """What an operator should know: servers, roles, permissions.  Never raises."""
        return findings(self._addresses, self, answer_timeout(self._settings.node_timeout))

    def close(self) -> None:
        """Let go of connections; the coordinator may be used again afterwards."""
        self._sessions.close()

    def __repr__(self) -> str:
        return f"<ZooKeeperCoordinator {self._shown}>"

    # Below: steps of the above.

    def _until(self, ttl: float | None = None) -> float:
        """The instant by which a call must have its answer."""
        return now() + 2 * answer_timeout(self._settings.node_timeout, ttl)

    def _put(
        self,
        session: Session,
        path: str,
        content: Content,
        until: float,
        first: Callable[[Any], None] = lambda transaction: None,
    ) -> tuple[Outcome, Floor]:
        """Make the lock's nodes in one transaction, and read the floor after it."""

        def fill(transaction: Any) -> None:
            first(transaction)
            transaction.create(path, content.to_bytes())
            transaction.create(child(path, content.owner))
            transaction.set_data(path, content.to_bytes())  # its answer has the numbers

        try:
            outcome, floor = session.transact(fill, until, also=self._paths.floor)
            if outcome.failed == "NoNodeError" and outcome.at == 0:
                session.ensure(path.rpartition("/")[0], until)
                outcome, floor = session.transact(fill, until, also=self._paths.floor)
            return outcome, Floor.of(floor)
        except CoordinatorUnavailable:
            session.undo(deletion(path, content.owner))
            raise

    def _contend(
        self, session: Session, key: str, content: Content, until: float
    ) -> Grant | Conflict | Seen:
        """What becomes of an acquire that found the lock's node: taken over if it is over."""
        path = self._paths.lock(key)
        seen = self._see(session, path, until)
        if seen is None:
            return Conflict(key, certain=False)
        if seen.content.owner == content.owner:
            return self._granted_before(session, key, seen, content.ttl)
        left = self._left(session, seen, until)
        if left is None:
            self._stamp_anew(session, path, seen, until)
            left = seen.content.ttl
        return seen if left <= 0 else Conflict(key, seen.content.holder, left)

    def _granted(
        self, key: str, content: Content, token: FencingToken | None, start: float, ttl: float
    ) -> Grant:
        valid_until = start + ttl - self._settings.drift.of(ttl)
        if valid_until <= now():
            raise CoordinatorUnavailable(f"the answer came after the ttl of {ttl:g} s was over")
        return Grant(key, content.owner, ttl, valid_until, token, content)

    def _granted_before(
        self, session: Session, key: str, seen: Seen, ttl: float
    ) -> Grant | Conflict:
        """The grant of an owner that asks again."""
        floor = Floor.of(session.read(self._paths.floor, self._until(ttl)))
        token = floor.token(key, seen.czxid)
        known = Grant(key, seen.content.owner, ttl, 0.0, token, seen.content)
        return self.extend(known, ttl) or Conflict(key, certain=False)

    def _content_of(self, session: Session, grant: Grant, until: float) -> Content | None:
        """What the grant's node holds; looked up where the grant doesn't carry it."""
        if isinstance(grant.record, Content):
            return grant.record
        seen = self._see(session, self._paths.lock(grant.key), until, latest=True)
        return seen.content if seen and seen.content.owner == grant.owner else None

    def _see(
        self, session: Session, path: str, until: float, *, latest: bool = False
    ) -> Seen | None:
        return Seen.of(session.read(path, until, latest=latest), now())

    def _left(self, session: Session, seen: Seen, until: float) -> float | None:
        """Seconds until a lock is over, by its leader's clock; None if that is another's."""
        left = seen.left(session.stamp, now())
        if left is not None and left > 0:
            return left
        return seen.left(session.time(self._paths.clock, until), now())

    def _stamp_anew(self, session: Session, path: str, seen: Seen, until: float) -> None:
        """Let the present leader's clock judge; whoever else changes the node does so too."""
        session.transact(
            lambda transaction: transaction.set_data(path, seen.data, seen.version), until
        )

    def _every_lock(self) -> Iterator[tuple[Session, str]]:
        session, locks = self._sessions.get(), self._paths.locks
        for bucket in session.children(locks, self._until()):
            for name in session.children(f"{locks}/{bucket}", self._until()):
                yield session, f"{locks}/{bucket}/{name}"

    def _removed(self, session: Session, path: str, older_than: float) -> bool:
        until = self._until()
        seen = self._see(session, path, until)
        if seen is None:
            return False
        left = self._left(session, seen, until)
        if left is None:
            self._stamp_anew(session, path, seen, until)
        if left is None or left > -older_than:
            return False
        return not session.transact(_removal(path, seen), until).failed

    def _expect(self, session: Session, outcome: Outcome, failed: str) -> None:
        if outcome.failed != failed:
            raise session.unavailable(outcome.failed)


def _removal(path: str, seen: Seen) -> Callable[[Any], None]:
    """Delete the lock that was seen, unless it has been extended since."""

    def fill(transaction: Any) -> None:
        transaction.check(path, seen.version)
        deletion(path, seen.content.owner)(transaction)

    return fill


def from_urls(urls: Sequence[str], settings: CoordinatorSettings) -> ZooKeeperCoordinator:
    """The coordinator of the one ensemble that the url names.

    Raises:
        ImproperlyConfigured: several urls, a malformed one, or kazoo is not installed.
    """
    if len(urls) > 1:
        raise ImproperlyConfigured(
            "a ZooKeeper coordinator is one ensemble: give one url that names all its servers, as "
            "in zookeeper://host1:2181,host2:2181,host3:2181"
        )
    addresses = parse(urls[0], PORT, ("ca", "cert", "key"))
    needs("kazoo", "zookeeper")
    return ZooKeeperCoordinator(addresses, settings)
