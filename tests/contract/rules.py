"""The contract: what every coordinator must do, one function for each rule.

A rule is a function of a :class:`Subject` that raises AssertionError if the coordinator breaks
it.  The rules are plain functions, so that broken coordinators can be held against them too.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, Coordinator, Grant, Holder

# An expiry may be noticed late (a server looks once a second, or once a tick), never early.
LATE = 6.0

Rule = Callable[["Subject"], None]
RULES: list[Rule] = []

ME = Holder(
    task="shop.pay",
    id="4711",
    attempt="a1",
    host="høst",
    pid=42,
    boot_nonce="n",
    since=1700000000.25,
    queue="billing",
)


@dataclass
class Subject:
    """Two clients of one coordinator.

    Attributes:
        one, two: the clients; in memory they may be the same object.
        prefix: starts every key of this test.
    """

    one: Coordinator
    two: Coordinator
    prefix: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def short(self) -> float:
        """A ttl in seconds that is worth waiting for."""
        return max(0.4, self.one.capabilities.min_ttl * 1.1)

    @property
    def long(self) -> float:
        """A ttl in seconds that no test outlives."""
        return 60.0

    @property
    def key(self) -> str:
        """A lock that this test alone uses."""
        return f"{self.prefix}:lock"

    def grant(self, ttl: float = 0.0, key: str = "", who: Coordinator | None = None) -> Grant:
        """Take the lock with a new owner."""
        got = (who or self.one).acquire(key or self.key, new_owner(), ttl or self.long, ME)
        assert isinstance(got, Grant), got
        return got

    def refused(self, key: str = "") -> Conflict:
        """Ask as a stranger for a lock that is held."""
        got = self.two.acquire(key or self.key, new_owner(), self.long, Holder(task="other"))
        assert isinstance(got, Conflict), got
        return got

    def grant_when_free(self) -> Grant:
        """Ask as a stranger until the lock is free."""
        deadline = now() + self.short + LATE
        while True:
            got = self.two.acquire(self.key, new_owner(), self.long, ME)
            if isinstance(got, Grant):
                return got
            assert now() < deadline, f"{self.key} is still held: {got}"
            time.sleep(0.02)


def new_owner() -> str:
    """A random value, as every attempt makes one."""
    return secrets.token_hex(16)


def rule(function: Rule) -> Rule:
    """Make the function part of the contract."""
    RULES.append(function)
    return function


# Acquire


@rule
def a_free_lock_is_granted(subject: Subject) -> None:
    """The grant carries what was asked for, and is trusted for no longer than the ttl."""
    owner, before = new_owner(), now()
    grant = subject.one.acquire(subject.key, owner, 30.0, ME)
    after = now()
    assert isinstance(grant, Grant)
    assert (grant.key, grant.owner, grant.ttl) == (subject.key, owner, 30.0)
    assert before + 25.0 < grant.valid_until <= after + 30.0


@rule
def a_held_lock_names_its_holder(subject: Subject) -> None:
    """A conflict says who holds the lock, and when to come again."""
    subject.grant(ttl=30.0)
    conflict = subject.refused()
    assert (conflict.key, conflict.holder) == (subject.key, ME)
    assert conflict.retry_after is None or 0.0 < conflict.retry_after <= 31.0
    assert conflict.certain


@rule
def asking_again_gives_the_same_grant(subject: Subject) -> None:
    """The same owner gets its own lock again, with the same token."""
    first = subject.grant()
    again = subject.one.acquire(first.key, first.owner, first.ttl, ME)
    assert isinstance(again, Grant)
    assert (again.owner, again.fencing_token) == (first.owner, first.fencing_token)


@rule
def other_keys_are_other_locks(subject: Subject) -> None:
    """Keys that differ in anything at all are different locks, and come back as they were."""
    stem = f"{subject.prefix}:"
    tails = ["k", "K", "k ", " k", "k\n", "é", "e\u0301", "鍵 🔒", "a/b", "a/b/c", "{a}:b", "%41"]
    tails += ["*", "_", "'; --", "x" * 1000, "x" * 999 + "y"]
    for tail in tails:
        assert subject.grant(key=stem + tail).key == stem + tail
        subject.refused(key=stem + tail)


# Extend


@rule
def an_extend_prolongs(subject: Subject) -> None:
    """The new grant is trusted longer, is the same lock's, and keeps its token."""
    first = subject.grant(ttl=subject.short)
    before = now()
    longer = subject.one.extend(first, 30.0)
    assert isinstance(longer, Grant)
    assert (longer.key, longer.owner) == (first.key, first.owner)
    assert longer.fencing_token == first.fencing_token
    assert before + 25.0 < longer.valid_until <= now() + 30.0
    held = subject.two.inspect(subject.key)
    assert held is not None
    assert held.ttl_left > subject.short + LATE


@rule
def an_extend_sets_the_ttl_and_never_adds(subject: Subject) -> None:
    """Two extends of 30 seconds end 30 seconds after the second."""
    grant = subject.grant(ttl=30.0)
    for _ in range(2):
        grant = subject.one.extend(grant, 30.0) or grant
        assert grant.valid_until <= now() + 30.0
    held = subject.two.inspect(subject.key)
    assert held is not None
    assert held.ttl_left <= 31.0


@rule
def an_extend_by_the_other_client_is_as_good(subject: Subject) -> None:
    """A grant is a value: whoever has it can extend and release it."""
    grant = subject.grant()
    longer = subject.two.extend(grant, subject.long)
    assert isinstance(longer, Grant)
    assert subject.two.release(longer) is True
    assert subject.one.inspect(subject.key) is None


@rule
def an_extend_of_a_released_lock_is_refused(subject: Subject) -> None:
    """What was given back is not ours, and asking doesn't bring it back."""
    grant = subject.grant()
    subject.one.release(grant)
    assert subject.one.extend(grant, subject.long) is None
    assert subject.two.inspect(subject.key) is None


@rule
def an_extend_of_an_expired_lock_is_refused(subject: Subject) -> None:
    """A late extend leaves the next owner's lock alone."""
    old = subject.grant(ttl=subject.short)
    new = subject.grant_when_free()
    assert subject.one.extend(old, subject.long) is None
    held = subject.one.inspect(subject.key)
    assert held is not None
    assert held.owner == new.owner


@rule
def another_owner_cannot_extend(subject: Subject) -> None:
    """A grant with another owner neither prolongs the lock nor harms it."""
    grant = subject.grant()
    forged = Grant(grant.key, new_owner(), grant.ttl, grant.valid_until, grant.fencing_token)
    assert subject.two.extend(forged, subject.long) is None
    held = subject.one.inspect(subject.key)
    assert held is not None
    assert held.owner == grant.owner


# Release


@rule
def a_released_lock_is_free_at_once(subject: Subject) -> None:
    """After a release the next one gets the lock at its first try."""
    assert subject.one.release(subject.grant()) is True
    assert subject.one.inspect(subject.key) is None
    subject.grant(who=subject.two)


@rule
def a_second_release_is_refused(subject: Subject) -> None:
    """Releasing twice says so, and harms nobody."""
    grant = subject.grant()
    subject.one.release(grant)
    assert subject.one.release(grant) is False


@rule
def another_owner_cannot_release(subject: Subject) -> None:
    """Only the exact grant can be given back."""
    grant = subject.grant()
    forged = Grant(grant.key, new_owner(), grant.ttl, grant.valid_until, grant.fencing_token)
    assert subject.two.release(forged) is False
    assert subject.refused().holder == ME


@rule
def a_late_release_spares_the_next_owner(subject: Subject) -> None:
    """An owner that was overtaken can't delete its successor's lock."""
    old = subject.grant(ttl=subject.short)
    new = subject.grant_when_free()
    assert subject.one.release(old) is False
    held = subject.one.inspect(subject.key)
    assert held is not None
    assert held.owner == new.owner


@rule
def the_owner_alone_names_a_grant(subject: Subject) -> None:
    """Who knows key and owner only, as a worker's main process does, can extend and release."""
    grant = subject.grant()
    known = Grant(grant.key, grant.owner, grant.ttl, grant.valid_until)
    longer = subject.two.extend(known, subject.long)
    assert isinstance(longer, Grant)
    assert longer.valid_until > now()
    assert subject.two.release(known) is True
    assert subject.one.inspect(subject.key) is None
    assert subject.two.extend(known, subject.long) is None
    assert subject.two.release(known) is False


# Expiry


@rule
def a_lock_expires_and_not_too_early(subject: Subject) -> None:
    """Nobody else gets the lock before the first grant's trust has ended; then somebody does."""
    first = subject.grant(ttl=subject.short)
    second = subject.grant_when_free()
    assert now() >= first.valid_until
    assert second.owner != first.owner


@rule
def an_extended_lock_outlives_its_first_ttl(subject: Subject) -> None:
    """After an extend the lock is still held when the first ttl is over."""
    grant = subject.grant(ttl=subject.short)
    assert subject.one.extend(grant, subject.long) is not None
    while now() < grant.valid_until + 0.1:
        subject.refused()
        time.sleep(0.02)
    subject.refused()


# Fencing tokens


@rule
def tokens_rise_with_every_grant(subject: Subject) -> None:
    """Each grant's token is higher than all before it, whichever client took it."""
    if not subject.one.capabilities.fencing:
        return
    tokens = []
    for number in range(12):
        who = (subject.one, subject.two)[number % 2]
        grant = subject.grant(who=who)
        assert grant.fencing_token is not None
        assert grant.fencing_token.lock == subject.key
        tokens.append(int(grant.fencing_token))
        who.release(grant)
    assert tokens == sorted(set(tokens))


@rule
def the_token_rises_over_an_expiry(subject: Subject) -> None:
    """Whoever takes over from an owner that vanished gets a higher token."""
    if not subject.one.capabilities.fencing:
        return
    first = subject.grant(ttl=subject.short)
    second = subject.grant_when_free()
    assert first.fencing_token is not None
    assert second.fencing_token is not None
    assert second.fencing_token > first.fencing_token


@rule
def without_fencing_there_is_a_reason(subject: Subject) -> None:
    """A coordinator without fencing tokens says why, for the refusal of correctness mode."""
    capabilities = subject.one.capabilities
    assert capabilities.fencing != bool(capabilities.no_fencing_because)


# Inspect


@rule
def a_look_shows_the_holder(subject: Subject) -> None:
    """A look names owner, holder, token, and the time left."""
    assert subject.two.inspect(subject.key) is None
    grant = subject.grant(ttl=30.0)
    held = subject.two.inspect(subject.key)
    assert held is not None
    assert (held.key, held.owner, held.holder) == (subject.key, grant.owner, ME)
    assert held.fencing_token == grant.fencing_token
    assert 20.0 < held.ttl_left <= 31.0


@rule
def a_look_at_an_expired_lock_shows_nobody(subject: Subject) -> None:
    """Some time after its end a lock is not shown as held."""
    subject.grant(ttl=subject.short)
    deadline = now() + subject.short + LATE
    while subject.two.inspect(subject.key) is not None:
        assert now() < deadline
        time.sleep(0.02)


# Threads, processes, life


@rule
def one_of_many_threads_wins(subject: Subject) -> None:
    """Of eight threads that ask at once through one client, never two get the lock."""
    rounds, winners, failures = 5, [], []
    meet = threading.Barrier(8, timeout=60.0)

    def contend() -> None:
        try:
            for number in range(rounds):
                meet.wait()
                got = subject.one.acquire(subject.key, new_owner(), subject.long, ME)
                meet.wait()
                if isinstance(got, Grant):
                    winners.append(number)
                    subject.one.release(got)
        except Exception as exc:
            failures.append(exc)
            meet.abort()

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(winners) == sorted(set(winners)), "two threads were granted one lock"
    assert winners, "nobody ever got the lock"


@rule
def threads_with_different_locks_do_not_meet(subject: Subject) -> None:
    """Eight threads that share a client each get their own lock, and their own answer."""
    answers: dict[str, object] = {}

    def take(key: str) -> None:
        try:
            for _ in range(3):
                answers[key] = grant = subject.grant(key=key)
                assert subject.one.release(grant)
        except BaseException as exc:
            answers[key] = exc

    keys = [f"{subject.prefix}:{number}" for number in range(8)]
    threads = [threading.Thread(target=take, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: getattr(answer, "key", answer) for key, answer in answers.items()} == {
        key: key for key in keys
    }


@rule
def a_forked_child_has_its_own_connections(subject: Subject) -> None:
    """Parent and child use one coordinator at once, and neither gets the other's answers."""
    held = subject.grant()
    child_key, parent_key = f"{subject.prefix}:child", f"{subject.prefix}:parent"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"failed"
        try:
            for _ in range(5):
                subject.one.release(subject.grant(key=child_key))
            refused = subject.one.acquire(subject.key, new_owner(), 1.0 + subject.short, ME)
            said = type(refused).__name__.encode()
        except BaseException as exc:
            said = repr(exc).encode()
        finally:
            os.write(write, said)
            os._exit(0)
    try:
        os.close(write)
        for _ in range(5):
            subject.one.release(subject.grant(key=parent_key))
        assert select.select([read], [], [], 30.0)[0], "the child says nothing"
        assert os.read(read, 4096) == b"Conflict"
    finally:
        os.close(read)
        os.waitpid(child, 0)
    assert subject.one.extend(held, subject.long) is not None
    assert subject.one.release(held) is True


@rule
def a_closed_coordinator_can_be_used_again(subject: Subject) -> None:
    """Closing lets go of connections, not of locks, and the next call connects anew."""
    grant = subject.grant()
    subject.one.close()
    assert subject.one.extend(grant, subject.long) is not None
    subject.one.close()
    subject.one.close()
    assert subject.one.release(grant) is True


@rule
def a_check_of_a_sound_coordinator_finds_no_error(subject: Subject) -> None:
    """The check says something, and nothing that would keep a worker from starting."""
    findings = subject.one.check()
    assert findings
    assert [finding for finding in findings if finding.level == "error"] == []
