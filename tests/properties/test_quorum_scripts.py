"""The Lua scripts do on a real server what the model's server does, in any order of calls."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock.coordinators.redis_commands import (
    ACQUIRE,
    EXTEND,
    HEAL,
    RAISE,
    RELEASE,
    Names,
)
from tests.model import node
from tests.model.node import EMPTY, NodeState

LIFE = 60_000  # ms; nothing expires by itself within an example
BASE = 3
EPOCH = f"1:set:3:{BASE}"
OWNERS = ["ann", "bob", "cy"]
_examples = itertools.count()

owners = st.sampled_from(OWNERS)
tokens = st.integers(1, 30)
calls = st.one_of(
    st.tuples(st.just("acquire"), owners, st.integers(0, 20)),
    st.tuples(st.just("raise"), owners, tokens),
    st.tuples(st.just("release"), owners, st.booleans()),
    st.tuples(st.just("heal"), owners, tokens),
    st.tuples(st.just("extend"), owners, st.none()),
    st.tuples(st.just("expire"), owners, st.none()),
    st.tuples(st.just("lose counter"), owners, st.none()),
    st.tuples(st.just("other epoch"), owners, st.none()),
)


class Server:
    """One lock on a real server, driven by the scripts themselves."""

    def __init__(self, client: Any) -> None:
        """Start with nothing stored, in an epoch."""
        self.client = client
        self.names = Names(f"scripts-{next(_examples)}")
        client.set(self.names.epoch, EPOCH)

    def run(self, script: Any, keys: tuple[str, ...], *words: object) -> Any:
        """Run a script; the answer with its texts decoded."""
        answer = self.client.eval(script.text, len(keys), *keys, *words)
        parts = answer if isinstance(answer, list) else [answer]
        decoded = [part.decode() if isinstance(part, bytes) else part for part in parts]
        return decoded if isinstance(answer, list) else decoded[0]

    def call(self, what: str, owner: str, value: Any, epoch: str = EPOCH) -> Any:
        """One call, answered in the model's words."""
        names = self.names
        keys: tuple[str, ...]
        lock, grave, counter = names.lock("k"), names.grave("k", owner), names.counter("k")
        if what == "acquire":
            keys = (lock, grave, counter, names.highest, names.epoch, names.resting)
            words = (owner, LIFE, LIFE, '{"task":"t 1 x"}', epoch, value, LIFE)
            return _said(self.run(ACQUIRE, keys, *words))
        if what == "raise":
            keys = (lock, counter, names.highest, names.epoch)
            return self.run(RAISE, keys, owner, value, epoch, LIFE) == 1
        if what == "release":
            return self.run(RELEASE, (lock, grave), owner, LIFE if value else 0) == 1
        if what == "heal":
            keys = (lock, grave, counter, names.highest, names.epoch)
            stored = f"{owner} {value} {{}}"
            return self.run(HEAL, keys, owner, LIFE, LIFE, stored, epoch, value, LIFE) == 1
        if what == "extend":
            return self.run(EXTEND, (lock,), owner, LIFE, LIFE) == 1
        return self.client.delete(lock if what == "expire" else counter) * 0

    def state(self) -> NodeState:
        """What lies on the server now."""
        names = self.names
        value = (self.client.get(names.lock("k")) or b"").decode()
        owner, _, rest = value.partition(" ")
        counter, highest = (
            int(self.client.get(name) or 0) for name in (names.counter("k"), names.highest)
        )
        graves = {one for one in OWNERS if self.client.exists(names.grave("k", one))}
        token = int(rest.partition(" ")[0] or 0)
        return NodeState(owner, token, counter, highest, frozenset(graves))


def _said(answer: Any) -> node.Answer:
    if isinstance(answer, str):
        return "yes", int(answer)
    if answer[0] == 1:
        return "yes", int(answer[1])
    if answer[0] == 0:
        return "no", int(answer[1].split()[1])
    return {-1: ("buried", 0), -2: ("epoch", 0)}[answer[0]]


def expected(state: NodeState, what: str, owner: str, value: Any) -> tuple[NodeState, Any]:
    """What the model's server does."""
    if what == "acquire":
        return node.acquire(state, owner, value, BASE)
    if what == "raise":
        return node.lift(state, owner, value)
    if what == "release":
        return node.release(state, owner, bury=value)
    if what == "heal":
        return node.heal(state, owner, value)
    if what == "extend":
        return state, state.owner == owner
    if what == "expire":
        return node.expire(state), 0
    return state._replace(counter=0), 0


@pytest.fixture
def client(valkey):
    """An administrator's client of one server."""
    with valkey.client() as made:
        yield made


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=st.lists(calls, max_size=12))
def test_scripts_and_model_agree(client, history):
    """After every call both have given the same answer and are in the same state."""
    server, state = Server(client), EMPTY
    for what, owner, value in history:
        if what == "other epoch":
            before = server.state()
            assert server.call("acquire", owner, 1, epoch="2:set:3:9") == ("epoch", 0)
            assert not server.call("raise", owner, 99, epoch="2:set:3:9")
            assert not server.call("heal", owner, 99, epoch="2:set:3:9")
            assert server.state() == before
            continue
        state, answer = expected(state, what, owner, value)
        assert server.call(what, owner, value) == answer, (what, owner, value)
        assert server.state() == state, (what, owner, value)


def test_a_model_that_is_wrong_is_noticed(client):
    """Negative control: a server that forgets to raise its highest token differs at once."""
    server = Server(client)
    server.call("acquire", "ann", 7)
    assert server.state() != node.acquire(EMPTY, "ann", 7, BASE)[0]._replace(highest=0)
