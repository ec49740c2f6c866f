"""One connection to each lock server, asked all at once and heard in one thread.

Knows nothing of locks: bytes go out, replies come in, in the order in which the servers give
them.  Starts no thread, and waits for nothing but the replies to the present round.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_connect import begin_link, settle
from celery_redlock.coordinators.redis_link import Broken, Expected, Greeter, Link, Reply, Silence
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import ErrorReply

__all__ = ["Channel", "Greeter", "Reply", "Silence"]


_CLEAN_FOR = 0.01  # seconds


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
        self._cleaned = 0.0
        self._lost: list[Reply] = []

    def begin(self, *, tidy: bool = True) -> None:
        """Start a round: what is still due from earlier ones is heard, but not handed out.

        Args:
            tidy: close the connections on which a reply is overdue.
        """
        self._round += 1
        self._waiting = 0
        self._lost = []
        self.asked = {}
        instant = now()
        # Within so short a time little becomes overdue, and late replies come with new ones.
        if instant - self._cleaned >= _CLEAN_FOR:
            self._cleaned = instant
            self._clean(instant, tidy=tidy)

    def send(self, numbers: Iterable[int], command: bytes, tag: Any = None) -> None:
        """Ask some servers one thing each, connecting first where need be.

        A failure is not raised but comes as a reply, a :class:`Silence`.
        """
        instant = now()
        expected = Expected(self._round, tag, instant, command)
        self._deadline = instant + self.nodes[0].timeout
        for number in numbers:
            self._waiting += 1
            link = self.links[number]
            if link is None or link.answers is not None:
                self._send_first(number, link, [expected])
                continue
            self.asked[number] = link
            try:
                link.ask(expected)
                if link.unsent:
                    self._watch_for_room(number, link)
            except Broken as exc:
                self._drop(number, str(exc))

    def send_many(self, number: int, commands: Sequence[bytes]) -> None:
        """Ask one server several things; each is tagged with its place in the sequence."""
        instant = now()
        self._deadline = instant + self.nodes[0].timeout
        expected = [
            Expected(self._round, tag, instant, command) for tag, command in enumerate(commands)
        ]
        self._waiting += len(expected)
        link = self.links[number]
        if link is None or link.answers is not None:
            self._send_first(number, link, expected)
            return
        self.asked[number] = link
        try:
            self._ask(number, link, expected)
        except Broken as exc:
            self._drop(number, str(exc))

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
            patience = self._deadline - now() if self._waiting > len(self._lost) else 0.0
            ready = self._selector.select(max(0.0, patience))
            for key, mask in ready:
                number = key.data
                link = self.links[number]
                if link is None or link.socket is not key.fileobj:
                    continue
                try:
                    heard = self._hear(number, link, mask)
                except Broken as exc:
                    self._drop(number, str(exc))
                    continue
                self._waiting -= len(heard)
                yield from heard
            # Nobody is late whose answer lies here already, however long we were held up.
            if not ready and self._waiting > len(self._lost) and now() >= self._deadline:
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

    def _clean(self, instant: float, *, tidy: bool) -> None:
        for key, mask in self._selector.select(0):
            number = key.data
            link = self.links[number]
            if link is None or link.socket is not key.fileobj:
                continue
            try:
                self._hear(number, link, mask)
            except Broken as exc:
                if link.answers is None:  # closed while nobody was looking: nobody is to blame
                    self._forget(number, link)
                else:
                    self._drop(number, str(exc))
        self._lost = []
        for number, old in enumerate(self.links) if tidy else ():
            if old is not None and old.oldest + old.node.timeout <= instant:
                self._drop(number, _silent(old.node))

    def _send_first(self, number: int, link: Link | None, expected: Sequence[Expected]) -> None:
        """Have the greeting over first, and connect before that if need be."""
        try:
            if link is None:
                link = begin_link(self.nodes[number])
                self._open(number, link)
                self._deadline = now() + link.node.timeout
        except Broken as exc:
            self._drop(number, str(exc))
            self._lost += [Reply(number, one.tag, Silence(exc)) for one in expected]
        else:
            link.queued += expected

    def _open(self, number: int, link: Link) -> None:
        self.links[number] = link
        wanted = selectors.EVENT_WRITE if link.connecting else selectors.EVENT_READ
        self._selector.register(link.socket, wanted, number)
        if not link.connecting:
            self._greet(number, link)

    def _greet(self, number: int, link: Link) -> None:
        link.opened = now()
        link.write(b"".join([*link.preamble, *self._greeter.commands]))
        if link.unsent:
            self._watch_for_room(number, link)

    def _settle(self, number: int, link: Link) -> None:
        """Go on with a link whose connecting has ended, well or not."""
        following = settle(link)
        if following is link:
            self._selector.modify(link.socket, selectors.EVENT_READ, number)
            self._greet(number, link)
        else:
            self._forget(number, link)
            self._open(number, following)

    def _ask(self, number: int, link: Link, expected: Sequence[Expected]) -> None:
        link.due.extend(expected)
        link.write(b"".join([one.command for one in expected]))
        if link.unsent:
            self._watch_for_room(number, link)

    def _watch_for_room(self, number: int, link: Link) -> None:
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(link.socket, both, number)

    def _forget(self, number: int, link: Link, *, abort: bool = False) -> None:
        self.links[number] = None
        link.node.identity = None
        self._selector.unregister(link.socket)
        link.close(abort=abort)

    def _drop(self, number: int, reason: str) -> None:
        """Close a connection that failed; what it owes to this round is lost."""
        self.nodes[number].trip(reason, now())
        link = self.links[number]
        if link is None:
            return
        self._forget(number, link, abort=True)
        self._lost += [
            Reply(number, expected.tag, Silence(reason))
            for expected in (*link.due, *link.queued)
            if expected.round == self._round
        ]

    # Replies

    def _hear(self, number: int, link: Link, mask: int) -> list[Reply]:
        """What has arrived for this round on one connection; all of it is taken off first."""
        if link.connecting:
            self._settle(number, link)
            return []
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
            if not link.due:
                raise Broken(f"it said {value!r} without being asked")
            expected = link.due.popleft()
            if expected.round != self._round:
                continue
            if isinstance(value, ErrorReply) and self._again(number, link, expected, value):
                continue
            heard.append(Reply(number, expected.tag, value))
        return heard

    def _greeted(self, number: int, link: Link, answers: list[Any], value: Any) -> None:
        answers.append(value)
        introduced = len(link.preamble)
        if len(answers) < introduced + len(self._greeter.commands):
            return
        refused = [one for one in answers[:introduced] if isinstance(one, ErrorReply)]
        reason = refused[0] if refused else self._greeter.judge(link.node, answers[introduced:])
        if reason:
            raise Broken(reason)
        link.answers = None
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


def _silent(node: Node) -> str:
    return f"no answer within {node.timeout:g} s"
