"""The proxy that stands between a client and a server when faults are wanted."""

import socket

import pytest

from localservers import Proxy


@pytest.fixture
def through(valkey, servers):
    """A proxy in front of a server, and a bare connection through it."""
    proxy = servers.start(Proxy, valkey.url)
    with _connect(proxy) as client:
        yield proxy, client


def test_a_healthy_proxy_passes_everything(through):
    """Without a fault a command is answered as by the server."""
    proxy, client = through
    assert (_ask(client, "PING"), proxy.requests, proxy.replies) == (b"+PONG\r\n", 1, 1)


def test_a_dropped_reply_breaks_the_connection_after_the_command_was_carried_out(through, valkey):
    """The second reply is lost on its way, and its command has had its effect."""
    proxy, client = through
    proxy.drop_reply(2)
    assert _ask(client, "SET a 1") == b"+OK\r\n"
    assert _ask(client, "SET b 2") == b""
    assert valkey.client().get("b") == b"2"


def test_a_dropped_reply_may_leave_the_connection_open(through):
    """The client waits in vain for the lost reply, and the next one comes."""
    proxy, client = through
    proxy.drop_reply(1, then_close=False)
    client.sendall(b"SET a 1\r\n")
    proxy.wait_for(replies=1)
    assert _ask(client, "PING") == b"+PONG\r\n"


def test_a_dropped_request_has_no_effect(through, valkey):
    """A lost request never reaches the server."""
    proxy, client = through
    proxy.drop_request()
    assert _ask(client, "SET a 1") == b""
    assert valkey.client().get("a") is None


def test_held_requests_arrive_late(through, valkey):
    """What is sent during a partition is carried out when it heals."""
    proxy, client = through
    proxy.hold()
    client.sendall(b"SET a 1\r\n")
    proxy.wait_for(requests=1)
    assert valkey.client().get("a") is None
    proxy.heal()
    assert client.recv(64) == b"+OK\r\n"
    assert valkey.client().get("a") == b"1"


def test_held_replies_come_after_their_effect(through, valkey):
    """With only the replies held, a command has its effect and no answer."""
    proxy, client = through
    proxy.hold(requests=False)
    client.sendall(b"SET a 1\r\n")
    proxy.wait_for(replies=1)
    assert valkey.client().get("a") == b"1"
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(64)


def test_a_delay_delays(through):
    """A reply is not there before its delay is over."""
    proxy, client = through
    proxy.delay(0.3)
    client.settimeout(0.1)
    client.sendall(b"PING\r\n")
    with pytest.raises(TimeoutError):
        client.recv(64)
    client.settimeout(5)
    assert client.recv(64) == b"+PONG\r\n"


def test_refused_connections_come_back(through):
    """A refusing proxy breaks what is open and lets nobody in until it is healed."""
    proxy, client = through
    proxy.refuse()
    assert _ask(client, "PING") == b""
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
    proxy.heal()
    with _connect(proxy) as again:
        assert _ask(again, "PING") == b"+PONG\r\n"


def test_a_cut_breaks_only_what_is_open(through):
    """After a cut the old connection is dead and a new one works."""
    proxy, client = through
    proxy.cut()
    assert _ask(client, "PING") == b""
    with _connect(proxy) as again:
        assert _ask(again, "PING") == b"+PONG\r\n"


def test_the_url_keeps_its_login():
    """The proxy's url differs from the server's only in its port."""
    proxy = Proxy("redis://:secret@127.0.0.1:1/3?x=y")
    proxy.close()
    assert proxy.url == f"redis://:secret@127.0.0.1:{proxy.port}/3?x=y"


def _connect(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), 5)


def _ask(client, command):
    try:
        client.sendall(command.encode() + b"\r\n")
        return client.recv(64)
    except ConnectionError:
        return b""
