"""One Redis, or a quorum of independent ones (Redlock): locks, and fencing tokens on demand.

Works on Redis 6.0 and newer and on Valkey, through redis-py, which makes the connections; what
goes over them is this package's own.  Never retries, sleeps or starts a thread.

The smallest rights that an ACL user needs, where ``app`` is the prefix of the names::

    user locks on >secret resetkeys ~app:* resetchannels -@all
         +evalsha +script|load +get +mget +set +del +exists +pttl +pexpire +time
         +info +config|get +delifeq +delex

``delifeq`` and ``delex`` only save time where the server has them (leave out the one that it
doesn't know).  ``config|get`` is needed for fencing tokens; without it a server counts as not
durable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from celery_redlock.clock import now
from celery_redlock.coordinators.base import Conflict, Finding, Grant, Held, Holder
from celery_redlock.coordinators.notes import HandedOver
from celery_redlock.coordinators.redis_acquire import Acquisition
from celery_redlock.coordinators.redis_batch import CHUNK, Renewal, extend_many
from celery_redlock.coordinators.redis_capabilities import capabilities_of, refuse_unfenceable
from celery_redlock.coordinators.redis_channel import Channel, Greeter
from celery_redlock.coordinators.redis_check import check_servers
from celery_redlock.coordinators.redis_commands import LOAD_SCRIPTS, NOBODY, Names
from celery_redlock.coordinators.redis_epoch import HIGHEST_FLOOR, admit, raise_floor
from celery_redlock.coordinators.redis_fitness import Fitness
from celery_redlock.coordinators.redis_keep import Keeping, extend, release
from celery_redlock.coordinators.redis_listen import Listener, listen_to_holder
from celery_redlock.coordinators.redis_look import inspect, server_time
from celery_redlock.coordinators.redis_node import Node, greeting
from celery_redlock.coordinators.redis_notes import hand_over, leave
from celery_redlock.coordinators.redis_pool import Channels
from celery_redlock.coordinators.redis_tokens import Tokens
from celery_redlock.coordinators.redis_urls import node_from_client, node_from_url, refuse_bad_set
from celery_redlock.coordinators.urls import CoordinatorSettings
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured
from celery_redlock.quorum import Round

__all__ = ["RedlockCoordinator", "from_urls"]

T = TypeVar("T")

_encode = json.JSONEncoder(separators=(",", ":")).encode
_COUNTER_LIFE = 3600.0  # seconds that a counter of tokens is kept; the node's highest stays


class RedlockCoordinator:
    """Locks on one Redis, or on a majority of an odd number of independent ones.

    Args:
        nodes: the servers, as :func:`from_urls` and :meth:`from_clients` make them.
        settings: what every coordinator of the application shares.

    Raises:
        ImproperlyConfigured: these servers can't make a quorum, or can't give fencing tokens.
    """

    def __init__(self, nodes: Sequence[Node], settings: CoordinatorSettings) -> None:
        """Connect to nothing yet."""
        refuse_bad_set([node.shown for node in nodes])
        self.capabilities = capabilities_of(len(nodes), settings)
        if settings.fenced:
            refuse_unfenceable(nodes, self.capabilities)
        self._nodes = tuple(nodes)
        self._everywhere = frozenset(range(len(nodes)))
        self._settings = settings
        self._names = Names(settings.prefix, settings.kind)
        # A forgotten queue lock costs a double run that the run lock still prevents.
        rest = settings.max_ttl if settings.kind == "lock" else 0.0
        fitness = Fitness(self._nodes, fenced=settings.fenced, rest=rest)
        hello = greeting(self._names.epoch, self._names.probe, LOAD_SCRIPTS)
        greeter = Greeter(hello, fitness.judge, LOAD_SCRIPTS)
        self._channels = Channels(lambda: Channel(self._nodes, greeter))
        self._tokens = Tokens(max(_COUNTER_LIFE, 2 * settings.max_ttl)) if settings.fenced else None

    @classmethod
    def from_clients(
        cls, clients: Sequence[Any], settings: CoordinatorSettings
    ) -> RedlockCoordinator:
        """A coordinator over the servers of ``redis.Redis`` objects.

        Their kind of connection and their options are used, but not their connections, and
        not their retries, timeouts and health checks.

        Raises:
            ImproperlyConfigured: as for the constructor, or this is no such object.
        """
        nodes = [node_from_client(client, settings.node_timeout) for client in clients]
        return cls(nodes, settings)

    def acquire(self, key: str, owner: str, ttl: float, holder: Holder) -> Grant | Conflict:
        """Ask for the lock once.

        An attempt that ended without a grant has given its owner up: ask again with a new one.

        Raises:
            CoordinatorUnavailable: nobody can say.
            ImproperlyConfigured: an argument is not allowed, or one server is listed twice.
        """
        self._refuse_bad_arguments(key, owner, ttl)
        facts = _encode(vars(holder))
        attempt = Acquisition(
            self._names, key, owner, facts, self._settings.max_ttl, self._everywhere
        )
        tokens = self._tokens
        if tokens is None:
            return self._talk(lambda channel: attempt.run(channel, self._round(ttl)))
        return self._talk(
            lambda channel: tokens.acquire(channel, attempt, lambda: self._round(ttl))
        )

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Prolong this exact grant; None if it is not ours any more.

        Raises:
            CoordinatorUnavailable: nobody can say; the old grant's deadline still stands.
            ImproperlyConfigured: the ttl is not allowed.
        """
        self._refuse_bad_arguments(grant.key, grant.owner, ttl)
        this = self._round(ttl, until=grant.valid_until)
        if this.started >= this.until:
            return None
        return self._talk(
            lambda channel: extend(channel, self._names, grant, this, self._keeping())
        )

    def extend_all(
        self, grants: Sequence[Grant], ttl: float
    ) -> list[Grant | CoordinatorUnavailable | None]:
        """Prolong many grants at once, at about the price of their bytes.

        Args:
            grants: any number of them.
            ttl: seconds, for all of them.

        Returns:
            for each, in order: the prolonged grant; None if it is not ours any more; or the
            error that :meth:`extend` would have raised.

        Raises:
            ImproperlyConfigured: the ttl is not allowed.
        """
        answers: list[Grant | CoordinatorUnavailable | None] = []
        for start in range(0, len(grants), CHUNK):
            answers += self._extend_chunk(grants[start : start + CHUNK], ttl)
        return answers

    def _extend_chunk(
        self, grants: Sequence[Grant], ttl: float
    ) -> list[Grant | CoordinatorUnavailable | None]:
        renewals: dict[int, Renewal] = {}
        for place, grant in enumerate(grants):
            self._refuse_bad_arguments(grant.key, grant.owner, ttl)
            this = self._round(ttl, until=grant.valid_until)
            if this.started < this.until:
                renewals[place] = Renewal(grant, this)
        asked, keeping = list(renewals.values()), self._keeping()
        if not asked:
            return [None] * len(grants)
        answers = iter(self._talk(lambda ch: extend_many(ch, self._names, asked, keeping)))
        return [next(answers) if place in renewals else None for place in range(len(grants))]

    def release(self, grant: Grant) -> bool:
        """Give this exact grant back; False if it was not ours any more.

        Raises:
            CoordinatorUnavailable: too few servers answered; worth repeating until the grant
                has run out.
        """
        preferred = grant.record.channel if grant.record is not None else None
        return self._talk(lambda channel: release(channel, self._names, grant), preferred)

    def inspect(self, key: str) -> Held | None:
        """Who holds the lock now; None if nobody does on a majority.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        return self._talk(lambda channel: inspect(channel, self._names, key, now()))

    def server_time(self) -> float:
        """The median of the servers' wall clocks, in seconds since the epoch.

        Raises:
            CoordinatorUnavailable: too few servers answered.
        """
        return self._talk(server_time)

    def leave_note(self, key: str, owner: str, note: bytes, order: int, ttl: float) -> bool:
        """Leave a note with a lock, in the place of an older one.

        Returns:
            False if the lock isn't held by this owner.

        Raises:
            CoordinatorUnavailable: nobody can say whether it was left.
        """
        return self._talk(lambda ch: leave(ch, self._names, key, owner, note, order, ttl))

    def hand_over(self, grant: Grant, heir: str, ttl: float, holder: Holder) -> HandedOver | None:
        """Give a lock back, or hand it over to an heir together with the note that was left.

        Raises:
            CoordinatorUnavailable: nobody can say.
        """
        self._refuse_bad_arguments(grant.key, heir, ttl)
        longest, drift = self._settings.max_ttl, self._settings.drift
        return self._talk(
            lambda ch: hand_over(ch, self._names, grant, heir, ttl, holder, longest, drift)
        )

    def listen(self, key: str) -> Listener | None:
        """What hears at once that the lock was given back; None where no server tells."""
        return listen_to_holder(self._nodes, self._names.lock(key))

    def check(self) -> list[Finding]:
        """What an operator should know of these servers.  Never raises."""
        return check_servers(
            self._nodes,
            self._names,
            fenced=self._settings.fenced,
            timeout=self._settings.node_timeout,
            rest=self._settings.max_ttl,
        )

    def close(self) -> None:
        """Close the calling thread's connections; they are made again if need be."""
        self._channels.close()

    def admit(self) -> dict[str, str]:
        """Make these servers one set again, after some were replaced, emptied or added.

        Only for fencing tokens; see :func:`~celery_redlock.coordinators.redis_epoch.admit` for
        what is done.  To replace a server: start the new one, durable and empty, put its url in
        the place of the old one's in every process's configuration, and run this once.

        Returns:
            what each server was made, by its address.

        Raises:
            CoordinatorUnavailable: too few of the former servers answered.
            ImproperlyConfigured: this coordinator gives no fencing tokens.
        """
        if self._tokens is None:
            raise ImproperlyConfigured("only servers that give fencing tokens need admission")
        self._tokens.forget_epoch()
        return self._talk(lambda channel: admit(channel, self._names, self._settings.max_ttl))

    def raise_floor(self, floor: int) -> int:
        """Make every token from now on higher than ``floor``; the floor that is in force.

        A new epoch begins, as after :meth:`admit`: an attempt that is under way may fail once.

        Args:
            floor: the highest token that any resource has seen, from 0 to 2**53 - 2.

        Raises:
            CoordinatorUnavailable: a server did not answer, or they changed meanwhile; ask again.
            ImproperlyConfigured: ``floor`` is out of range, or these servers give no tokens.
        """
        if self._tokens is None:
            raise ImproperlyConfigured("only servers that give fencing tokens have a floor")
        if not 0 <= floor <= HIGHEST_FLOOR:
            raise ImproperlyConfigured(
                f"floor={floor!r}: must be from 0 to 2**53 - 2, since the servers' numbers are "
                "exact up to there"
            )
        self._tokens.forget_epoch()
        longest = self._settings.max_ttl
        return self._talk(lambda channel: raise_floor(channel, self._names, longest, floor))

    def _keeping(self) -> Keeping:
        tokens, longest = self._tokens, self._settings.max_ttl
        return Keeping(longest, tokens.epoch, tokens.life) if tokens else Keeping(longest)

    def _round(self, ttl: float, until: float = math.inf) -> Round:
        fenced, drift = self._tokens is not None and until == math.inf, self._settings.drift
        return Round(len(self._nodes), now(), ttl, drift, fenced, until)

    def _talk(self, talk: Callable[[Channel], T], preferred: Channel | None = None) -> T:
        channel = self._channels.take(preferred)
        try:
            answer = talk(channel)
        except CoordinatorUnavailable:
            self._channels.give(channel)
            raise
        except BaseException:
            channel.close()  # interrupted: what it is in the middle of is not known
            raise
        self._channels.give(channel)
        return answer

    def _refuse_bad_arguments(self, key: str, owner: str, ttl: float) -> None:
        shortest, longest = self.capabilities.min_ttl, self._settings.max_ttl
        if not key:
            raise ImproperlyConfigured("a lock needs a name, and got an empty one")
        if owner.split() != [owner] or owner == NOBODY:
            raise ImproperlyConfigured(f"an owner must be a text without blanks, not {owner!r}")
        if not shortest < ttl <= longest:
            raise ImproperlyConfigured(
                f"ttl must be more than {shortest:.3g} s (the time that servers may take to "
                f"answer, and the clock drift) and at most redlock_max_ttl = {longest:g} s, "
                f"not {ttl:g} s"
            )

    def __repr__(self) -> str:
        return f"<RedlockCoordinator {', '.join(node.shown for node in self._nodes)}>"


def from_urls(urls: Sequence[str], settings: CoordinatorSettings) -> RedlockCoordinator:
    """The coordinator over these servers; connects at its first use, not here.

    Args:
        urls: one, or an odd number of at least 3; see
            :func:`~celery_redlock.coordinators.redis_urls.node_from_url` for their forms.
        settings: what every coordinator of the application shares.

    Raises:
        ImproperlyConfigured: these servers can't make a quorum, or can't give fencing tokens.
    """
    nodes = [node_from_url(url, settings.node_timeout) for url in urls]
    return RedlockCoordinator(nodes, settings)
