"""A lock over three real servers that crash, hang, jump in time, lose keys and come back empty.

Hypothesis chooses what happens; after every step the machine knows what must not be true.
"""

from __future__ import annotations

import contextlib
import secrets
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    multiple,
    rule,
    run_state_machine_as_test,
)

from celery_redlock.clock import now
from celery_redlock.coordinators import CoordinatorSettings, Grant, Holder
from celery_redlock.coordinators.redis_commands import Names
from celery_redlock.coordinators.redlock import from_urls
from celery_redlock.exceptions import CoordinatorUnavailable
from localservers import MissingServer, Valkey, valkey_cluster

TTL = 30.0
KEYS = ["a", "b"]
numbers = st.integers(0, 2)


class Clocks:
    """The servers' wall clocks, which can be set while they run.

    Raises:
        MissingServer: there is no libfaketime.
    """

    def __init__(self, folder: Path) -> None:
        """Find the library, and make a file for each server."""
        try:
            package = Path(str(import_module("libfaketime").__file__)).parent
            library = next(path for path in sorted(package.rglob("libfaketime.so*")))
        except (ImportError, StopIteration) as exc:
            raise MissingServer("libfaketime", "pip install libfaketime") from exc
        self.files = [folder / f"clock-{number}" for number in range(3)]
        self.environments = [
            {
                "LD_PRELOAD": str(library),
                "FAKETIME_TIMESTAMP_FILE": str(file),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            for file in self.files
        ]
        for number in range(3):
            self.set(number, 0)

    def set(self, number: int, seconds: int) -> None:
        """Have one clock be that far from the truth."""
        self.files[number].write_text(f"{seconds:+d}")


class Faulty(RuleBasedStateMachine):
    """Two clients, three servers, and whatever may go wrong."""

    servers: list[Valkey]
    clocks: Clocks
    grants = Bundle("grants")

    def __init__(self) -> None:
        """Start with servers that are well, and an application that nobody has used."""
        super().__init__()
        self.names = Names(f"machine-{secrets.token_hex(4)}")
        made = CoordinatorSettings(prefix=self.names.prefix, fenced=True, node_timeout=0.4)
        urls = [server.url for server in self.servers]
        self.clients = [from_urls(urls, made) for _ in range(2)]
        self.tokens: dict[str, list[int]] = {key: [] for key in KEYS}
        self.newest: dict[str, Grant] = {}
        self.sound: set[str] = set()  # locks that nothing has ended before their time
        self.forgotten: set[int] = set()
        for number in range(3):
            self.well(number)
        self.patiently(lambda: self.take(0, "first use"))

    # What clients do

    @rule(target=grants, client=st.integers(0, 1), key=st.sampled_from(KEYS))
    def acquire(self, client: int, key: str) -> Any:
        """A grant has a higher token than any before it, and never meets a sound one."""
        try:
            answer = self.take(client, key)
        except CoordinatorUnavailable:
            return multiple()
        if not isinstance(answer, Grant):
            return multiple()
        token = int(answer.fencing_token or 0)
        assert all(token > earlier for earlier in self.tokens[key]), (token, self.tokens[key])
        held = self.newest.get(key)
        if held is not None and key in self.sound:
            assert now() >= held.valid_until, f"{answer} beside {held}"
        self.tokens[key].append(token)
        self.newest[key] = answer
        self.sound.add(key)
        return answer

    @rule(client=st.integers(0, 1), grant=grants)
    def extend(self, client: int, grant: Grant) -> None:
        """Only the newest grant of a lock can be prolonged, and keeps its token."""
        with contextlib.suppress(CoordinatorUnavailable):
            longer = self.clients[client].extend(grant, TTL)
            if longer is not None:
                assert longer.fencing_token == grant.fencing_token == self.tokens[grant.key][-1]

    @rule(client=st.integers(0, 1), grant=consumes(grants))
    def release(self, client: int, grant: Grant) -> None:
        """A grant that was overtaken is not ours any more."""
        with contextlib.suppress(CoordinatorUnavailable):
            ours = self.clients[client].release(grant)
            newest = self.newest.get(grant.key)
            if newest is not None and newest.owner == grant.owner:
                del self.newest[grant.key]
            elif newest is not None and grant.key in self.sound:
                assert not ours or newest.valid_until <= now()

    # What goes wrong

    @rule(number=numbers)
    def crash(self, number: int) -> None:
        """A power cut."""
        self.servers[number].resume()
        self.servers[number].crash()

    @rule(number=numbers)
    def pause(self, number: int) -> None:
        """It hangs, and what is sent to it arrives when it goes on."""
        if self.servers[number].alive:
            self.servers[number].pause()

    @rule(number=numbers)
    def well(self, number: int) -> None:
        """It is there again, with its memory."""
        if self.servers[number].alive:
            self.servers[number].resume()
        else:
            self.servers[number].start()

    @rule(number=numbers, key=st.sampled_from(KEYS), counter=st.booleans())
    def lose_key(self, number: int, key: str, counter: bool) -> None:
        """An administrator deletes a lock, and perhaps its counter."""
        self.well(number)
        self.sound.discard(key)
        with self.servers[number].client() as client:
            client.delete(self.names.lock(key))
            if counter:
                client.delete(self.names.counter(key))

    @rule(number=numbers, seconds=st.sampled_from([-7200, -60, 0, 60, 7200]))
    def jump(self, number: int, seconds: int) -> None:
        """A wall clock is set: locks end early, or would last for hours."""
        self.sound.clear()
        self.clocks.set(number, seconds)

    @rule(number=numbers)
    def come_back_empty(self, number: int) -> None:
        """A disk is lost; without an admission the server doesn't vote any more."""
        if len(self.forgotten | {number}) > 2:
            return  # a set of which nothing is left is a new one
        self.sound.clear()
        self.servers[number].resume()
        self.servers[number].crash()
        self.servers[number].forget()
        self.servers[number].start()
        self.forgotten.add(number)

    @rule()
    def admit(self) -> None:
        """An operator admits what has come back empty; a lost majority can't be replaced."""
        for number in range(3):
            self.well(number)
        if len(self.forgotten) < 2:
            self.patiently(self.admit_all)
            for number in self.forgotten:
                with self.servers[number].client() as client:
                    client.delete(self.names.resting)  # as if the longest ttl had passed
            self.forgotten.clear()

    # The means

    def take(self, client: int, key: str) -> Any:
        """Ask for a lock once."""
        return self.clients[client].acquire(key, secrets.token_hex(16), TTL, Holder())

    def admit_all(self) -> None:
        """Admit the servers; one that was too slow to answer is worth repeating it."""
        said = self.clients[0].admit()
        if not all(words.startswith("in epoch") for words in said.values()):
            raise CoordinatorUnavailable("not all were reached", said)

    def patiently(self, ask: Any) -> None:
        """Ask until somebody can say; the machine may be busy."""
        end = now() + 20.0
        while True:
            try:
                ask()
            except CoordinatorUnavailable:
                assert now() < end
            else:
                return

    def markers(self) -> list[Any]:
        """The epoch marker of each server, for the story."""
        found = []
        for server in self.servers:
            with server.client() as client:
                found.append(client.get(self.names.epoch))
        return found

    def teardown(self) -> None:
        """Once all are well and in one set the lock works again, and no lock is left over."""
        try:
            for number in range(3):
                self.clocks.set(number, 0)
                self.well(number)
            if len(self.forgotten) < 2:
                self.admit()
                self.patiently(lambda: self.take(1, "last"))
            else:
                with pytest.raises(CoordinatorUnavailable):
                    pytest.fail(f"{self.take(1, 'last')} by {self.markers()}")
        finally:
            for client in self.clients:
                client.close()


def test_whatever_happens_to_three_servers(servers, tmp_path):
    """Tokens rise, sound locks exclude, old grants can't be prolonged, and it recovers."""
    Faulty.clocks = servers.start(lambda: _Always(Clocks(tmp_path))).made
    machines = servers.start(valkey_cluster, 3, durable=True)
    for server, environment in zip(machines, Faulty.clocks.environments, strict=True):
        server.environment = environment
    for server in machines:
        server.restart()
    Faulty.servers = list(machines)
    run_state_machine_as_test(
        Faulty,
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            phases=[Phase.generate],  # a shorter story would take minutes to find
            suppress_health_check=list(HealthCheck),
        ),
    )


class _Always:
    """What the fixture takes for a running server."""

    alive = True

    def __init__(self, made: Any) -> None:
        self.made = made

    def close(self) -> None:
        """Nothing to close."""
