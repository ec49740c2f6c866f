"""Every history of a few attempts to take one lock, with the real code that decides them.

What may happen at any moment: a request reaches its server, once or twice; a reply reaches its
client; a lock expires on a server, or is released there; a counter expires; an attempt gives up.
What is lost is what never happens.  Servers are alike, so states that differ only by their order
are one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_redlock.quorum import Drift, Round, Verdict, Vote, behind, judge
from tests.model import node as real_node
from tests.model.node import EMPTY, NodeState

__all__ = ["Attempt", "Rules", "Violation", "World", "search"]

Decide = Callable[[Round, Mapping[int, Vote], float, int], Verdict]

Step = tuple[Any, ...]

# What has become of a request to one server.
UNSENT, UNDER_WAY, ANSWERED, HEARD = range(4)


class Slot(NamedTuple):
    """One attempt's dealings with one server.

    Attributes:
        asked: what has become of the acquire.
        token: what the server answered; 0 if it said no, or nothing.
        lifting: what has become of the request to raise the token.
        lifted: what it answered to that: 1 for yes.
    """

    asked: int = UNSENT
    token: int = 0
    lifting: int = UNSENT
    lifted: int = 0


class Place(NamedTuple):
    """One server, and every attempt's dealings with it."""

    state: NodeState
    slots: tuple[Slot, ...]


class Attempt(NamedTuple):
    """One attempt to take the lock.

    Attributes:
        phase: ``"new"``, ``"asking"``, ``"won"`` or ``"over"``.
        target: the token that the servers are raised to.
        token: what was won.
        before: the attempts that had won before this one started.
    """

    phase: str = "new"
    target: int = 0
    token: int = 0
    before: frozenset[int] = frozenset()


class World(NamedTuple):
    """Everything, at one moment.

    Attributes:
        places: the servers.
        attempts: the clients'.
        repeats: how many requests may still arrive a second time.
    """

    places: tuple[Place, ...]
    attempts: tuple[Attempt, ...]
    repeats: int = 0


class Violation(Exception):
    """A state that must not be; it has the steps that lead there."""


@dataclass(frozen=True)
class Rules:
    """What a search allows, and what decides.

    Attributes:
        nodes: how many servers there are.
        after: for each attempt, the attempt that must have ended before it starts, or None;
            attempts in such a row are one client's.
        floors: for each attempt, the least token that it asks for.
        repeats: how many requests may arrive a second time.
        early: whether a lock may expire while its owner relies on it.
        counters_expire: whether a server may lose the lock's counter, but not its highest token.
        forgets: whether a server may be emptied and go on voting, which must not be.
        few: the fewest answers on which a verdict may rest.
        decide: the verdict of the votes so far.
        server: the module of the servers' scripts.
    """

    nodes: int = 3
    after: Sequence[int | None] = (None, None, 0)
    floors: Sequence[int] = (0, 0, 0)
    repeats: int = 0
    early: bool = True
    counters_expire: bool = False
    forgets: bool = False
    few: int = 2
    decide: Decide = judge
    server: Any = real_node
    round: Round = field(default_factory=lambda: Round(3, 0.0, 10.0, Drift(), fenced=True))

    def begin(self) -> World:
        """Nothing has happened yet."""
        count = len(self.after)
        place = Place(EMPTY, (Slot(),) * count)
        return World((place,) * self.nodes, (Attempt(),) * count, self.repeats)


def search(rules: Rules) -> int:
    """Visit every state that can be reached; how many there are.

    Raises:
        Violation: a token was given twice, or is not above one that had been given before, or
            two attempts hold the lock at once though no lock expired early.
    """
    first = rules.begin()
    came_from: dict[World, tuple[World, Step] | None] = {first: None}
    frontier = [first]
    while frontier:
        world = frontier.pop()
        for name, following in _steps(rules, world):
            world_now = _sorted(following)
            if world_now not in came_from:
                came_from[world_now] = (world, name)
                wrong = _wrong(rules, world_now)
                if wrong:
                    raise Violation(wrong, _path(came_from, world_now))
                if not all(map(_is_deaf, world_now.attempts)):  # else nothing can be won any more
                    frontier.append(world_now)
    return len(came_from)


def _sorted(world: World) -> World:
    return World(tuple(sorted(world.places)), world.attempts, world.repeats)


def _path(came_from: Mapping[World, tuple[World, Step] | None], world: World) -> list[Step]:
    steps: list[Step] = []
    while (origin := came_from[world]) is not None:
        world, name = origin
        steps.append(name)
    return steps[::-1]


def _wrong(rules: Rules, world: World) -> str:
    won = {n: one for n, one in enumerate(world.attempts) if one.token}
    for number, one in won.items():
        for other, another in won.items():
            if number != other and one.token == another.token:
                return f"attempts {number} and {other} both have token {one.token}"
        if any(world.attempts[earlier].token >= one.token for earlier in one.before):
            return f"attempt {number} has token {one.token}, and a former one had no lower one"
    if not rules.early and sum(one.phase == "won" for one in world.attempts) > 1:
        return "two attempts hold the lock at once"
    return ""


def _steps(rules: Rules, world: World) -> Iterator[tuple[Step, World]]:
    for number, attempt in enumerate(world.attempts):
        if attempt.phase == "new":
            yield from _start(rules, world, number)
        elif attempt.phase == "won" and not rules.early:
            yield ("ends", number), _over(world, number)
    for where, place in enumerate(world.places):
        yield from _server_steps(rules, world, where, place)
        for number, attempt in enumerate(world.attempts):
            slot = place.slots[number]
            if slot.asked != UNSENT:
                yield from _request_steps(rules, world, where, number)
            if attempt.phase == "asking":
                yield from _reply_steps(rules, world, where, number)


def _start(rules: Rules, world: World, number: int) -> Iterator[tuple[Step, World]]:
    former = rules.after[number]
    if former is not None:
        phase = world.attempts[former].phase
        # Where a lock may be lost at any time, nothing tells a lost one from one given back.
        if phase == "new" or (phase == "won" and not rules.early):
            return
        if phase == "asking":  # gives up, which is worth a step only where something follows
            world = _over(world, former)
    before = frozenset(n for n, one in enumerate(world.attempts) if one.token)
    attempt = Attempt("asking", before=before)
    places = tuple(_with_slot(place, number, Slot(UNDER_WAY)) for place in world.places)
    yield ("starts", number), _with_attempt(world._replace(places=places), number, attempt)


def _server_steps(
    rules: Rules, world: World, where: int, place: Place
) -> Iterator[tuple[Step, World]]:
    state = place.state
    if state.owner and (rules.early or world.attempts[int(state.owner)].phase == "over"):
        yield ("expires", state.owner, where), _with_state(world, where, rules.server.expire(state))
    if rules.counters_expire and state.counter:
        yield ("counter expires", where), _with_state(world, where, state._replace(counter=0))
    if rules.forgets and state.highest:
        yield ("is emptied", where), _with_state(world, where, EMPTY)


def _request_steps(
    rules: Rules, world: World, where: int, number: int
) -> Iterator[tuple[Step, World]]:
    place = world.places[where]
    slot = place.slots[number]
    first = slot.asked == UNDER_WAY
    # A request that meets a held lock changes nothing, as if it had been lost.
    if (first or world.repeats) and not place.state.owner:
        state, (says, token) = rules.server.acquire(place.state, str(number), rules.floors[number])
        if first:
            heard = HEARD if says != "yes" or _is_deaf(world.attempts[number]) else ANSWERED
            slot_now = slot._replace(asked=heard, token=token if heard == ANSWERED else 0)
        else:
            slot_now = slot
            world = world._replace(repeats=world.repeats - 1)
        place_now = _with_slot(Place(state, place.slots), number, slot_now)
        yield ("acquires", number, where, says, token), _with_place(world, where, place_now)
    if slot.lifting == UNDER_WAY:
        target = world.attempts[number].target
        state, done = rules.server.lift(place.state, str(number), target)
        deaf = _is_deaf(world.attempts[number])
        lifted = slot._replace(lifting=HEARD if deaf else ANSWERED, lifted=int(done and not deaf))
        yield (
            ("raises", number, target, where, done),
            _with_place(world, where, _with_slot(Place(state, place.slots), number, lifted)),
        )


def _reply_steps(
    rules: Rules, world: World, where: int, number: int
) -> Iterator[tuple[Step, World]]:
    place = world.places[where]
    slot = place.slots[number]
    attempt = world.attempts[number]
    if slot.asked == ANSWERED:
        heard = _with_place(world, where, _with_slot(place, number, slot._replace(asked=HEARD)))
        if rules.few == 1 or any(one.slots[number].asked == HEARD for one in world.places):
            yield ("hears", number, where), _decide(rules, heard, number)
            return
        # One answer decides nothing, so the first two are heard in one step.
        for other in range(where + 1, rules.nodes):
            second = heard.places[other]
            if second.slots[number].asked == ANSWERED:
                both = second.slots[number]._replace(asked=HEARD)
                world_now = _with_place(heard, other, _with_slot(second, number, both))
                yield ("hears", number, where, other), _decide(rules, world_now, number)
    elif slot.lifting == ANSWERED:
        token = attempt.target if slot.lifted else 0
        lifted = _with_slot(place, number, slot._replace(lifting=HEARD, token=token))
        yield (
            ("hears of the raise", number, where),
            _decide(rules, _with_place(world, where, lifted), number),
        )


def _decide(rules: Rules, world: World, number: int) -> World:
    """What the client makes of its votes: the real code."""
    attempt = world.attempts[number]
    slots = [place.slots[number] for place in world.places]
    votes = {n: _vote(slot) for n, slot in enumerate(slots) if slot.asked == HEARD}
    verdict = rules.decide(rules.round, votes, 0.0, attempt.target)
    if verdict.state == "won":
        now_won = attempt._replace(phase="won", token=verdict.token, target=verdict.target)
        return _deafened(_with_attempt(world, number, now_won), number)
    if verdict.state == "lost":
        return _over(world, number)
    if verdict.target:
        world = _with_attempt(world, number, attempt._replace(target=verdict.target))
        for where in behind(votes, verdict.target):
            place = world.places[where]
            if place.slots[number].lifting == UNSENT:
                slot = place.slots[number]._replace(lifting=UNDER_WAY)
                world = _with_place(world, where, _with_slot(place, number, slot))
    return world


def _vote(slot: Slot) -> Vote:
    if slot.token:
        return Vote("yes", slot.token)
    return Vote("failed") if slot.lifting == HEARD else Vote("no", owner="other")


def _is_deaf(attempt: Attempt) -> bool:
    """Whether nobody listens to the answers any more."""
    return attempt.phase in {"won", "over"}


def _over(world: World, number: int) -> World:
    attempt = world.attempts[number]._replace(phase="over", target=world.attempts[number].target)
    return _deafened(_with_attempt(world, number, attempt), number)


def _deafened(world: World, number: int) -> World:
    """Forget the answers that nobody listens to: worlds that differ only by them are one."""
    places = tuple(
        _with_slot(place, number, _deaf_slot(place.slots[number])) for place in world.places
    )
    attempt = world.attempts[number]
    raising = any(place.slots[number].lifting == UNDER_WAY for place in places)
    quiet = attempt if raising else attempt._replace(target=0)
    return _with_attempt(world._replace(places=places), number, quiet)


def _deaf_slot(slot: Slot) -> Slot:
    asked = HEARD if slot.asked == ANSWERED else slot.asked
    lifting = UNDER_WAY if slot.lifting == UNDER_WAY else UNSENT
    return Slot(asked, 0, lifting, 0)


def _with_slot(place: Place, number: int, slot: Slot) -> Place:
    slots = place.slots
    return Place(place.state, (*slots[:number], slot, *slots[number + 1 :]))


def _with_place(world: World, where: int, place: Place) -> World:
    places = world.places
    changed = (*places[:where], place, *places[where + 1 :])
    return World(changed, world.attempts, world.repeats)


def _with_state(world: World, where: int, state: NodeState) -> World:
    return _with_place(world, where, Place(state, world.places[where].slots))


def _with_attempt(world: World, number: int, attempt: Attempt) -> World:
    attempts = world.attempts
    changed = (*attempts[:number], attempt, *attempts[number + 1 :])
    return World(world.places, changed, world.repeats)
