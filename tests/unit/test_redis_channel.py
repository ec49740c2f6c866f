"""One conversation with several servers, played by the test at the other end of socket pairs."""

from __future__ import annotations

import os
import socket

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators.redis_channel import Channel
from celery_redlock.coordinators.redis_link import Greeter, Silence
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_pool import Channels
from celery_redlock.coordinators.redis_wire import ErrorReply, pack

HELLO = pack("HELLO")
ASK, MORE = pack("ASK"), pack("MORE")
TIMEOUT = 0.2


class Peer:
    """The server's end of a node's connections; what was sent is read when the test asks."""

    def __init__(self, refuses=False):
        self.ends = []
        self.closed = []
        self.refuses = refuses
        self.node = Node("redis://peer:1/0", self._connection, {}, TIMEOUT)

    def _connection(self, **_options):
        return _Connection(self)

    @property
    def end(self):
        """The newest connection."""
        return self.ends[-1]

    def say(self, data):
        """Send an answer."""
        self.end.sendall(data)

    def heard(self):
        """What has arrived on the newest connection since the last look."""
        self.end.setblocking(False)
        try:
            return self.end.recv(1 << 22)
        except BlockingIOError:
            return b""
        finally:
            self.end.setblocking(True)

    def hang_up(self):
        """Close the newest connection."""
        self.end.close()

    def close(self):
        """Close everything."""
        for end in self.ends:
            end.close()


class _Connection:
    """What the client library's connection looks like to a node."""

    def __init__(self, peer):
        self._peer = peer
        self._sock = None

    def connect(self):
        """Make a pair, and keep the far end."""
        if self._peer.refuses:
            raise ConnectionRefusedError("Connection refused")
        self._sock, far = socket.socketpair()
        self._peer.ends.append(far)

    def disconnect(self):
        """Remember that it was closed."""
        self._peer.closed.append(self)


@pytest.fixture
def peers():
    """Three servers."""
    made = [Peer() for _ in range(3)]
    yield made
    for peer in made:
        peer.close()


@pytest.fixture
def judged():
    """What keeps a server from being asked, by its answer to the greeting."""
    return {}


@pytest.fixture
def channel(peers, judged):
    """A channel to the three, whose connections are greeted."""
    greeter = Greeter([HELLO], lambda _, answers: judged.get(answers[0], ""), [pack("LOAD")])
    made = Channel([peer.node for peer in peers], greeter)
    made.begin()
    made.send([0, 1, 2], ASK)
    for peer in peers:
        peer.say(b"+hello\r\n")
    for peer in peers:
        peer.say(b":0\r\n")
    assert values(made) == {0: 0, 1: 0, 2: 0}
    made.begin()
    for peer in peers:
        peer.heard()
    yield made
    made.close()


def values(channel):
    """The answers of a round, by server, of which each gives one."""
    return {reply.node: reply.value for reply in channel.replies()}


def idle(channel):
    """Have the channel believe that it was not used for a while."""
    channel._cleaned = 0.0


def test_answers_come_in_the_order_of_the_servers_own_making(channel, peers):
    """The fastest is heard first, and nobody waits for the others before that."""
    channel.send([0, 1, 2], ASK, "tag")
    assert [peer.heard() for peer in peers] == [ASK] * 3
    replies = channel.replies()
    for number in (2, 0, 1):
        peers[number].say(b":%d\r\n" % number)
        assert next(replies) == (number, "tag", number)
    assert list(replies) == []


def test_a_late_answer_is_not_taken_for_a_newer_ones(channel, peers):
    """What an earlier round was not told is heard, and not handed out."""
    channel.send([0, 1], ASK)
    peers[0].say(b":1\r\n")
    assert next(channel.replies()).node == 0
    channel.begin()
    channel.send([0, 1], MORE)
    peers[1].say(b":91\r\n:92\r\n")
    peers[0].say(b":2\r\n")
    assert values(channel) == {0: 2, 1: 92}
    assert peers[1].heard() == ASK + MORE


def test_answers_that_came_together_are_all_taken_off(channel, peers):
    """A round that ends at its first answer leaves the count of what is due right."""
    channel.send([0], ASK)
    channel.send([0], MORE)
    peers[0].say(b":1\r\n:2\r\n")
    for reply in channel.replies():
        assert reply.value == 1
        break
    channel.begin()
    channel.send([0], ASK)
    peers[0].say(b":3\r\n")
    assert values(channel) == {0: 3}


def test_an_answer_in_pieces_blocks_nobody(channel, peers):
    """Half an answer of one server doesn't keep the others from being heard."""
    channel.send([0, 1], ASK)
    peers[0].say(b"$5\r\nab")
    peers[1].say(b":1\r\n")
    replies = channel.replies()
    assert next(replies).node == 1
    peers[0].say(b"cde\r\n")
    assert next(replies).value == b"abcde"


def test_silence_is_told_after_the_timeout_and_the_server_left_out(channel, peers):
    """The connection stays open, so that a release can follow on it."""
    channel.send([0, 1], ASK)
    peers[1].say(b":1\r\n")
    start = now()
    said = values(channel)
    assert now() - start >= TIMEOUT
    assert said == {1: 1, 0: f"no answer within {TIMEOUT:g} s"}
    assert isinstance(said[0], Silence)
    assert channel.nodes[0].cooling_until > now()
    assert channel.post(0, MORE)
    assert peers[0].heard() == ASK + MORE


def test_an_overdue_connection_is_closed_before_its_next_use(channel, peers):
    """A server that owes an answer for too long is not written to any more."""
    channel.send([0, 1], ASK)
    peers[1].say(b":1\r\n")
    assert next(channel.replies()).node == 1
    channel.links[0].due[0] = channel.links[0].due[0]._replace(sent=now() - TIMEOUT)
    idle(channel)
    channel.begin(tidy=False)
    assert channel.links[0] is not None
    idle(channel)
    channel.begin()
    assert channel.links[0] is None
    assert channel.nodes[0].trouble == f"no answer within {TIMEOUT:g} s"


def test_a_late_answer_that_lies_here_already_saves_the_connection(channel, peers):
    """Nobody is late whose answer has arrived, however long nobody looked."""
    channel.send([0, 1], ASK)
    peers[1].say(b":1\r\n")
    assert next(channel.replies()).node == 1
    link = channel.links[0]
    link.due[0] = link.due[0]._replace(sent=now() - 60.0)
    peers[0].say(b":0\r\n")
    idle(channel)
    channel.begin()
    assert channel.links[0] is link


def test_a_connection_closed_while_idle_is_made_again(channel, peers):
    """Nobody is blamed, and the next request goes over a new connection."""
    peers[0].hang_up()
    idle(channel)
    channel.begin()
    assert channel.links[0] is None
    assert channel.nodes[0].cooling_until == 0.0
    channel.send([0], ASK)
    peers[0].say(b"+hello\r\n:5\r\n")
    assert values(channel) == {0: 5}
    assert peers[0].heard() == HELLO + ASK


def test_a_connection_closed_instead_of_an_answer(channel, peers):
    """The request has failed, and the server is left out for a while."""
    channel.send([0, 1], ASK)
    peers[1].say(b":1\r\n")
    peers[0].heard()
    peers[0].hang_up()
    assert values(channel) == {0: "it closed the connection", 1: 1}
    assert channel.nodes[0].cooling_until > now()


def test_a_servers_last_words_are_passed_on(channel, peers):
    """What a full server says before it closes a new connection."""
    channel._greeter = channel._greeter._replace(commands=[HELLO, HELLO])
    channel.dismiss(0, "by the test")
    channel.begin()
    channel.send([0], ASK)
    peers[0].heard()
    peers[0].say(b"-ERR max number of clients reached\r\n")
    peers[0].hang_up()
    words = "it closed the connection, after ERR max number of clients reached"
    assert values(channel) == {0: words}


def test_writing_to_a_closed_connection_is_an_answer_too(channel, peers):
    """A broken pipe comes as a silence, also where several things are asked."""
    for number in (0, 1):
        peers[number].end.shutdown(socket.SHUT_RD)
        peers[number].hang_up()
    channel.send([0], ASK)
    assert "roken pipe" in values(channel)[0]
    channel.begin()
    channel.send_many(1, [ASK, MORE])
    lost = list(channel.replies())
    assert {reply.tag for reply in lost} == {0, 1}
    assert not channel.post(0, ASK)


def test_a_refused_connection_comes_as_a_silence(channel, peers):
    """And the others are asked all the same."""
    channel.dismiss(0, "by the test")
    peers[0].refuses = True
    channel.begin()
    channel.send([0, 1], ASK)
    peers[1].say(b":1\r\n")
    assert values(channel) == {0: "Connection refused", 1: 1}


def test_a_server_that_is_not_fit_is_not_asked(channel, peers, judged):
    """The greeting decides, before anything else is sent."""
    judged[b"replica"] = "it is a replica"
    channel.dismiss(0, "by the test")
    channel.begin()
    channel.send([0], ASK)
    peers[0].say(b"+replica\r\n")
    assert values(channel) == {0: "it is a replica"}
    assert peers[0].heard() == HELLO


def test_a_greeting_that_hangs_costs_one_timeout(channel, peers):
    """What was to follow it is never sent."""
    channel.dismiss(0, "by the test")
    channel.begin()
    channel.send([0], ASK)
    assert values(channel) == {0: f"no answer within {TIMEOUT:g} s"}
    assert peers[0].heard() == HELLO
    assert channel.links[0] is None


def test_a_greeting_that_ends_late_sends_nothing_of_an_earlier_round(channel, peers):
    """The request that it held back belongs to a round that is over."""
    channel.dismiss(0, "by the test")
    channel.begin()
    channel.send([0, 1], ASK)
    peers[1].say(b":1\r\n")
    assert next(channel.replies()).node == 1
    peers[0].say(b"+hello\r\n")
    idle(channel)
    channel.begin()
    channel.send([0], MORE)
    peers[0].say(b":2\r\n")
    assert values(channel) == {0: 2}
    assert peers[0].heard() == HELLO + MORE


def test_what_is_owed_follows_the_greeting(channel, peers):
    """A release that couldn't be sent goes out before anything new."""
    channel.dismiss(0, "by the test")
    channel.nodes[0].owe(now() + 10.0, pack("OWED"))
    channel.begin()
    channel.send([0], ASK)
    peers[0].say(b"+hello\r\n:0\r\n:7\r\n")
    assert values(channel) == {0: 7}
    assert peers[0].heard() == HELLO + pack("OWED") + ASK


def test_more_than_the_socket_takes_at_once_arrives_whole(channel, peers):
    """Nothing blocks in sending: the rest goes out as the server reads."""
    big = pack("SET", "k", "x" * 4_000_000)
    channel.send([0], big)
    assert channel.links[0].unsent
    channel.send([0], ASK)
    got, replies = b"", channel.replies()
    peers[1].say(b"")
    while len(got) < len(big + ASK):
        got += peers[0].heard()
        if len(got) == len(big + ASK):
            break
        channel.links[0].flush()
    assert got == big + ASK
    peers[0].say(b":1\r\n:2\r\n")
    assert [next(replies).value, next(replies).value] == [1, 2]
    assert not channel.links[0].unsent


def test_room_is_waited_for_while_answers_are_heard(channel, peers):
    """The selector tells when the server has read, and the rest is sent by itself."""
    big = pack("SET", "k", "x" * 4_000_000)
    channel.send_many(0, [big, ASK])
    got = len(peers[0].heard())
    while got < len(big + ASK):
        (ready,) = channel._selector.select(5.0)
        channel._hear(0, channel.links[0], ready[1])
        got += len(peers[0].heard())
    assert not channel.links[0].unsent
    assert channel._selector.select(0) == []


def test_forgotten_scripts_are_loaded_once(channel, peers):
    """A request that meets a server without scripts is repeated after loading them."""
    channel.send([0], ASK)
    peers[0].say(b"-NOSCRIPT gone\r\n")
    replies = channel.replies()
    peers[0].say(b"+sha\r\n:1\r\n")
    assert next(replies).value == 1
    assert peers[0].heard() == ASK + pack("LOAD") + ASK
    channel.begin()
    channel.send([0], ASK)
    peers[0].say(b"-NOSCRIPT gone\r\n+sha\r\n-NOSCRIPT still gone\r\n")
    assert values(channel) == {0: ErrorReply("NOSCRIPT still gone")}


def test_what_nobody_asked_for_ends_the_connection(channel, peers):
    """An answer too many would put all later ones in the wrong place."""
    peers[0].say(b":1\r\n")
    idle(channel)
    channel.begin()
    assert channel.links[0] is None
    peers[1].say(b"HTTP/1.1 200 OK\r\n")
    channel.send([1], ASK)
    assert "doesn't speak the Redis protocol" in values(channel)[1]


# The pool


def test_the_newest_channel_is_taken_first_and_the_preferred_one_if_it_is_free():
    """So few connections are kept warm, and a release finds those of its acquire."""
    made = iter("abcd")
    pool = Channels(lambda: next(made))
    assert [pool.take() for _ in range(3)] == ["a", "b", "c"]
    for channel in "abc":
        pool.give(channel)
    assert pool.take("b") == "b"
    assert pool.take("b") == "c"
    assert pool.take() == "a"
    assert pool.take() == "d"


def test_a_child_lets_go_of_what_it_inherited(channel, peers, monkeypatch):
    """It closes its own descriptors only, and makes channels of its own."""
    pool = Channels(lambda: "new")
    pool.take()
    pool.give(channel)
    parent = os.getpid()
    monkeypatch.setattr("celery_redlock.coordinators.redis_pool.os.getpid", lambda: parent + 1)
    sockets = [link.socket for link in channel.links]
    assert pool.take(channel) == "new"
    assert all(one.fileno() == -1 for one in sockets)
    channel.links = [None] * 3
