"""One connection to each lock server, asked all at once and heard in one thread.

Knows nothing of locks: bytes go out, replies come in, in the order in which the servers give
them.  Starts no thread, and waits for nothing but the replies to the present round.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_link import Broken, Expected, Link, connect
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import ErrorReply
from celery_redlock.native import get_ident

__all__ = ["Channel", "Channels", "Greeter", "Reply", "Silence"]


class Silence(str):
    """Stands for a reply that won't come; its text says why."""

    __slots__ = ()


class Reply(NamedTuple):
    """One reply of the present round.

    Attributes:
        node: the number of the server.
        tag: what the request was tagged with.
        value: what the server said, an :class:`ErrorReply`, or a :class:`Silence`.
    """

    node: int
    tag: Any
    value: Any


class Greeter(NamedTuple):
    """What a new connection begins with.

    Attributes:
        commands: what is asked.
        judge: takes the node and the answers; says why the node may not be asked, or ``""``.
        reload: what is sent before a request is repeated that met a server without scripts.
    """

    commands: Sequence[bytes]
    judge: Callable[[Node, Sequence[Any]], str]
    reload: Sequence[bytes] = ()


class Channel:
    """The connections of one conversation; used by one thread at a time.

    Args:
        nodes: the servers.
        greeter: what a new connection begins with.
    """

    def __init__(self, nodes: Sequence[Node], greeter: Greeter) -> None:
        """Nothing is connected yet."""
        self.nodes = nodes
        self.links: list[Link | None] = [None] * len(nodes)
        self.asked: dict[int, Link] = {}
        self._greeter = greeter
        self._selector = selectors.DefaultSelector()
        self._round = 0
        self._waiting = 0
        self._deadline = 0.0
        self._lost: list[Reply] = []

    def begin(self, *, tidy: bool = True) -> None:
        """Start a round: what is still due from earlier ones is heard, but not handed out.

        Args:
            tidy: close the connections on which a reply is overdue.
        """
        self._round += 1
        self._waiting = 0
        self.asked = {}
        for number, link, mask in self._ready(0.0):
            try:
                self._hear(number, link, mask)
            except Broken:  # closed while nobody was looking, so nobody is to blame
                self._forget(number, link)
        self._lost = []
        if tidy:
            instant = now()
            for number, old in enumerate(self.links):
                if old is not None and old.oldest + old.node.timeout <= instant:
                    self._drop(number, _silent(old.node))

    def send(self, number: int, *commands: bytes, tags: Sequence[Any] = (None,)) -> None:
        """Ask one server, connecting first if need be; each command has its tag.

        A failure is not raised but comes as a reply, a :class:`Silence`.
        """
        self._waiting += len(commands)
        try:
            link = self.links[number] or self._open(number)
            instant = now()
            self._deadline = instant + link.node.timeout
            expected = [
                Expected(self._round, tag, instant, command)
                for command, tag in zip(commands, tags, strict=True)
            ]
            if link.answers is None:
                self.asked[number] = link
                self._ask(number, link, expected)
            else:
                link.queued += expected
        except Broken as exc:
            known = {lost.tag for lost in self._drop(number, str(exc))}
            missing = [tag for tag in tags if tag not in known]
            self._lost += [Reply(number, tag, Silence(exc)) for tag in missing]

    def post(self, number: int, *commands: bytes) -> bool:
        """Send without waiting for answers, on an open connection only; whether it was sent."""
        link = self.links[number]
        if link is None or link.answers is not None:
            return False
        try:
            instant = now()
            self._ask(number, link, [Expected(0, None, instant, one) for one in commands])
        except Broken as exc:
            self._drop(number, str(exc))
            return False
        return True

    def replies(self) -> Iterator[Reply]:
        """The replies to this round's requests as they come; ends when none is due any more.

        A request may be sent between two of them.
        """
        while self._waiting > 0:
            for number, link, mask in self._ready(max(0.0, self._deadline - now())):
                try:
                    heard = self._hear(number, link, mask)
                except Broken as exc:
                    self._drop(number, str(exc))
                    continue
                self._waiting -= len(heard)
                yield from heard
            if self._waiting > len(self._lost) and now() >= self._deadline:
                self._time_out()
            while self._lost:
                self._waiting -= 1
                yield self._lost.pop()

    def dismiss(self, number: int, reason: str) -> None:
        """Close the connection to a server that isn't what it was; it is left out for a while."""
        self._drop(number, reason)

    def close(self) -> None:
        """Close the connections for good."""
        for number, link in enumerate(self.links):
            if link is not None:
                self._forget(number, link)
        self._selector.close()

    def abandon(self) -> None:
        """Close what a fork has inherited, without touching what the parent still uses."""
        for link in self.links:
            if link is not None:
                link.close()  # closes this process's descriptor only
        self._selector.close()  # without unregistering: the parent's selector shares its state

    # Connections

    def _open(self, number: int) -> Link:
        link = connect(self.nodes[number])
        self.links[number] = link
        self._selector.register(link.socket, selectors.EVENT_READ, number)
        self._write(number, link, b"".join(self._greeter.commands))
        return link

    def _ask(self, number: int, link: Link, expected: Sequence[Expected]) -> None:
        link.due.extend(expected)
        self._write(number, link, b"".join([one.command for one in expected]))

    def _write(self, number: int, link: Link, data: bytes) -> None:
        was_clear = not link.unsent
        link.write(data)
        if was_clear and link.unsent:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(link.socket, both, number)

    def _forget(self, number: int, link: Link) -> None:
        self.links[number] = None
        self._selector.unregister(link.socket)
        link.close()

    def _drop(self, number: int, reason: str) -> list[Reply]:
        """Close a connection that failed; what this round will not hear for that reason."""
        self.nodes[number].trip(reason, now())
        link = self.links[number]
        if link is None:
            return []
        self._forget(number, link)
        lost = [
            Reply(number, expected.tag, Silence(reason))
            for expected in (*link.due, *link.queued)
            if expected.round == self._round
        ]
        self._lost += lost
        return lost

    # Replies

    def _ready(self, timeout: float) -> Iterator[tuple[int, Link, int]]:
        for key, mask in self._selector.select(timeout):
            link = self.links[key.data]
            if link is not None and link.socket is key.fileobj:
                yield key.data, link, mask

    def _hear(self, number: int, link: Link, mask: int) -> list[Reply]:
        """What has arrived for this round on one connection; all of it is taken off first."""
        if mask & selectors.EVENT_WRITE:
            link.flush()
            if not link.unsent:
                self._selector.modify(link.socket, selectors.EVENT_READ, number)
        if not mask & selectors.EVENT_READ:
            return []
        heard: list[Reply] = []
        for value in link.read():
            if link.answers is not None:
                self._greeted(number, link, link.answers, value)
                continue
            expected = link.due.popleft()
            if expected.round != self._round:
                continue
            if isinstance(value, ErrorReply) and self._again(number, link, expected, value):
                continue
            heard.append(Reply(number, expected.tag, value))
        return heard

    def _greeted(self, number: int, link: Link, answers: list[Any], value: Any) -> None:
        answers.append(value)
        if len(answers) < len(self._greeter.commands):
            return
        link.answers = None
        reason = self._greeter.judge(link.node, answers)
        if reason:
            raise Broken(reason)
        instant = now()
        owed = [Expected(0, None, instant, command) for command in link.node.take_owed(instant)]
        wanted = [one._replace(sent=instant) for one in link.queued if one.round == self._round]
        link.queued = []
        if wanted:
            self.asked[number] = link
            self._deadline = max(self._deadline, instant + link.node.timeout)
        if owed or wanted:
            self._ask(number, link, [*owed, *wanted])

    def _again(self, number: int, link: Link, expected: Expected, value: ErrorReply) -> bool:
        """Load the scripts and ask again, once, if the server has forgotten them meanwhile."""
        if value.code != "NOSCRIPT" or not expected.command:
            return False
        load = [Expected(0, None, expected.sent, command) for command in self._greeter.reload]
        self._ask(number, link, [*load, expected])
        link.due[-1] = expected._replace(command=b"")
        return True

    def _time_out(self) -> None:
        for number, link in enumerate(self.links):
            if link is None:
                continue
            if link.answers is not None:
                self._drop(number, _silent(link.node))
                continue
            late = [expected for expected in link.due if expected.round == self._round]
            if late:
                # The connection stays, so that a release can follow the acquire on it.
                link.node.trip(_silent(link.node), now())
                self._lost += [Reply(number, one.tag, Silence(_silent(link.node))) for one in late]
        self._waiting = len(self._lost)


class Channels:
    """The channels of one process that are not in use; made anew after a fork.

    Args:
        make: makes a new channel.
    """

    def __init__(self, make: Callable[[], Channel]) -> None:
        """Start with none."""
        self._make = make
        self._process = os.getpid()
        self._free: dict[int, deque[Channel]] = {}

    def take(self, preferred: Channel | None = None) -> Channel:
        """A channel for the caller alone: the preferred one if it is free, else any."""
        free = self._mine()
        if preferred is not None:
            try:
                free.remove(preferred)
            except ValueError:  # in use, closed, or another process's
                pass
            else:
                return preferred
        try:
            return free.pop()
        except IndexError:
            return self._make()

    def give(self, channel: Channel) -> None:
        """Take a channel back."""
        self._mine().append(channel)

    def close(self) -> None:
        """Close the calling thread's share of the channels that are not in use."""
        free = self._mine()
        while free:
            try:
                free.pop().close()
            except IndexError:  # another thread took the last one
                break

    def _mine(self) -> deque[Channel]:
        if os.getpid() != self._process:
            inherited, self._free = self._free, {}
            self._process = os.getpid()
            for channel in (one for several in inherited.values() for one in several):
                channel.abandon()
        return self._free.setdefault(_share(), deque())


def _share() -> int:
    """Whose channels may be mixed: under gevent and eventlet a socket belongs to one thread."""
    for name, module in (("gevent.monkey", "socket"), ("eventlet.patcher", "socket")):
        monkey = sys.modules.get(name)
        patched = getattr(monkey, "is_module_patched", getattr(monkey, "is_monkey_patched", None))
        if patched is not None and patched(module):
            return get_ident()
    return 0


def _silent(node: Node) -> str:
    return f"no answer within {node.timeout:g} s"
