"""Waiters over real servers: woken by the release, by the expiry, and never busy."""

import threading

import pytest

from celery_redlock import waiting
from celery_redlock.coordinators import CoordinatorSettings, from_urls
from celery_redlock.coordinators.base import Holder
from celery_redlock.lock import Claimant, Session
from celery_redlock.options import LockOptions

LATE = 60.0


@pytest.fixture(params=[1, 3], ids=["one server", "three servers"])
def coordinator(request, valkey_3):
    """A coordinator over one real server, or over three."""
    made = from_urls(valkey_3.urls[: request.param], CoordinatorSettings(prefix="waiting"))
    yield made
    made.close()


def wait_in_thread(coordinator, seconds):
    """A thread that waits for the lock, and an event that tells when it has got it."""
    got = threading.Event()

    def run():
        claimant = Claimant(coordinator, ("k",), LockOptions(), Holder(), lambda event: None)
        session = Session(claimant)
        if session.take(seconds) is None:
            got.set()
        session.give_back()
        coordinator.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def listeners(server):
    """How many connections of a server wait for changes."""
    with server.client() as client:
        return sum("t" in entry["flags"] for entry in client.client_list())


def until_listening(servers):
    """Wait until one server has a listener."""
    for _ in range(2000):
        if any(map(listeners, servers)):
            return
        threading.Event().wait(0.005)
    pytest.fail("nobody listens")


def test_a_release_wakes_the_waiter(coordinator, valkey_3, monkeypatch):
    """With polling put off for a minute the waiter gets the lock as soon as it is given back."""
    monkeypatch.setattr(waiting, "RECHECK", LATE)
    grant = coordinator.acquire("k", "holder", 200, Holder())
    thread, got = wait_in_thread(coordinator, 100)
    until_listening(valkey_3)
    assert not got.is_set()
    coordinator.release(grant)
    assert got.wait(LATE / 4)
    thread.join(10)


def test_an_administrator_who_deletes_the_lock_wakes_the_waiter(coordinator, valkey_3, monkeypatch):
    """Whoever removes the key, the waiter hears of it."""
    monkeypatch.setattr(waiting, "RECHECK", LATE)
    coordinator.acquire("k", "holder", 200, Holder())
    thread, got = wait_in_thread(coordinator, 100)
    until_listening(valkey_3)
    for server in valkey_3:
        with server.client() as client:
            client.delete("waiting:{k}:lock")
    assert got.wait(LATE / 4)
    thread.join(10)


def test_a_dead_holders_lease_ends_the_waiting(coordinator, monkeypatch):
    """Nobody gives the lock back, and the waiter has it when the lease is over."""
    monkeypatch.setattr(waiting, "RECHECK", LATE)
    coordinator.acquire("k", "holder", 1.0, Holder())
    thread, got = wait_in_thread(coordinator, 100)
    assert got.wait(LATE / 4)
    thread.join(10)


def test_without_listening_nobody_is_woken(coordinator, valkey_3, monkeypatch):
    """The control: with polls a minute apart and nothing to listen to, the release is missed."""
    monkeypatch.setattr(waiting, "POLL_FIRST", LATE)
    monkeypatch.setattr(waiting, "POLL_LONGEST", LATE)
    monkeypatch.setattr(type(coordinator), "listen", lambda self, key: None)
    grant = coordinator.acquire("k", "holder", 200, Holder())
    thread, got = wait_in_thread(coordinator, 3)
    coordinator.release(grant)
    assert not got.wait(1.0)
    thread.join(10)


def test_a_waiter_asks_few_questions(coordinator, valkey_3):
    """In two seconds of waiting a server sees at most twenty commands a second."""
    coordinator.acquire("k", "holder", 200, Holder())
    before = [commands(server) for server in valkey_3]
    thread, _ = wait_in_thread(coordinator, 2)
    thread.join(20)
    for server, count in zip(valkey_3, before, strict=True):
        assert commands(server) - count <= 2 * 20 + 40  # and those of a new connection


def commands(server):
    """How many commands a server has seen."""
    with server.client() as client:
        return client.info("stats")["total_commands_processed"]


def test_a_server_that_cannot_tell_is_polled(servers):
    """An account without the right to listen waits by polling, and gets the lock."""
    from localservers import Valkey

    server = servers.start(Valkey)
    with server.client() as client:
        client.execute_command(
            *["ACL", "SETUSER", "locks", "on", ">secret", "~*", "+@all", "-client|tracking"]
        )
    url = server.url.replace("redis://", "redis://locks:secret@")
    coordinator = from_urls(url, CoordinatorSettings(prefix="waiting"))
    grant = coordinator.acquire("k", "holder", 200, Holder())
    assert coordinator.listen("k") is None
    thread, got = wait_in_thread(coordinator, 30)
    coordinator.release(grant)
    assert got.wait(15)
    thread.join(10)
    coordinator.close()
