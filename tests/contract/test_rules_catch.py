"""The contract is worth something: each broken coordinator breaks a rule of it."""

import dataclasses
import itertools

import pytest

from celery_redlock.clock import now
from celery_redlock.coordinators import Conflict, Grant, Held
from celery_redlock.coordinators.memory import MemoryCoordinator, _Record
from celery_redlock.fencing import FencingToken
from tests.contract import rules
from tests.contract.rules import Subject


class NeverRefuses(MemoryCoordinator):
    """Grants whatever is asked for."""

    def acquire(self, key, owner, ttl, holder):
        self._held.pop(key, None)
        return super().acquire(key, owner, ttl, holder)


class NeverAgain(MemoryCoordinator):
    """Takes the holder itself for a stranger when it asks again."""

    def acquire(self, key, owner, ttl, holder):
        record = self._live(key)
        return (
            Conflict(key, record.holder, 1.0)
            if record
            else super().acquire(key, owner, ttl, holder)
        )


class ForgetsTheHolder(MemoryCoordinator):
    """Says that somebody holds it, not who."""

    def acquire(self, key, owner, ttl, holder):
        got = super().acquire(key, owner, ttl, holder)
        return Conflict(got.key, None, got.retry_after) if isinstance(got, Conflict) else got


class FoldsKeys(MemoryCoordinator):
    """Takes keys that differ in case or blanks for one, as some databases do."""

    def acquire(self, key, owner, ttl, holder):
        got = super().acquire(key.lower().strip(), owner, ttl, holder)
        return dataclasses.replace(got, key=key)


class CutsKeys(MemoryCoordinator):
    """Keeps the first 255 characters of a key."""

    def acquire(self, key, owner, ttl, holder):
        return dataclasses.replace(super().acquire(key[:255], owner, ttl, holder), key=key)


class AddsUp(MemoryCoordinator):
    """Adds the ttl to what is left of the lease."""

    def extend(self, grant, ttl):
        record = self._live(grant.key)
        return super().extend(grant, ttl + record.expires - now()) if record else None


class RevivesTheDead(MemoryCoordinator):
    """Takes a lock back that is not ours any more."""

    def extend(self, grant, ttl):
        self._held.setdefault(
            grant.key, _Record(grant.owner, rules.ME, 0.0, int(grant.fencing_token))
        ).expires = now() + ttl
        return super().extend(grant, ttl)


class ExtendsForAnyone(MemoryCoordinator):
    """Extends without looking at the owner."""

    def extend(self, grant, ttl):
        record = self._live(grant.key)
        return (
            super().extend(dataclasses.replace(grant, owner=record.owner), ttl) if record else None
        )


class PretendsToExtend(MemoryCoordinator):
    """Promises a longer lease and changes nothing."""

    def extend(self, grant, ttl):
        return (
            dataclasses.replace(grant, valid_until=now() + ttl) if self._live(grant.key) else None
        )


class ReleasesForAnyone(MemoryCoordinator):
    """Deletes without looking at the owner."""

    def release(self, grant):
        return self._held.pop(grant.key, None) is not None


class NeedsTheToken(MemoryCoordinator):
    """Takes a grant without its token for somebody else's."""

    def release(self, grant):
        return grant.fencing_token is not None and super().release(grant)


class NeverReleases(MemoryCoordinator):
    """Says yes, and leaves the lock to its ttl."""

    def release(self, grant):
        return True


class AlwaysContent(MemoryCoordinator):
    """Says yes to a release of what was never held."""

    def release(self, grant):
        return super().release(grant) or True


class NeverExpires(MemoryCoordinator):
    """Keeps a lock for ever."""

    def _live(self, key):
        return self._held.get(key)


class ExpiresEarly(MemoryCoordinator):
    """Promises more trust than the lock has life."""

    def acquire(self, key, owner, ttl, holder):
        got = super().acquire(key, owner, ttl / 2, holder)
        if isinstance(got, Grant):
            return dataclasses.replace(got, ttl=ttl, valid_until=got.valid_until + ttl / 2)
        return got


class OneTokenForAll(MemoryCoordinator):
    """Numbers nothing."""

    def acquire(self, key, owner, ttl, holder):
        self._tokens[key] = 6
        return super().acquire(key, owner, ttl, holder)


class TokensOfTheLockRecord(MemoryCoordinator):
    """Counts in a record that a release deletes."""

    def release(self, grant):
        self._tokens.pop(grant.key, None)
        return super().release(grant)


class NewTokenAtAnExtend(MemoryCoordinator):
    """Hands out a token that the resource hasn't been told of."""

    def extend(self, grant, ttl):
        got = super().extend(grant, ttl)
        token = FencingToken(int(grant.fencing_token) + 1, grant.key)
        return dataclasses.replace(got, fencing_token=token) if got else None


class LooksBlindly(MemoryCoordinator):
    """Never sees a holder."""

    def inspect(self, key):
        return None


class ShowsTheDead(MemoryCoordinator):
    """Shows whoever held the lock last."""

    def inspect(self, key):
        last = self._held.get(key)
        return (
            Held(key, last.owner, last.holder, 25.0, FencingToken(last.token, key))
            if last
            else None
        )


class MixesUpThreads(MemoryCoordinator):
    """Gives every thread the grant that was made last."""

    def acquire(self, key, owner, ttl, holder):
        got = super().acquire(key, owner, ttl, holder)
        self.last, last = got, getattr(self, "last", got)
        return last if isinstance(last, Grant) and isinstance(got, Grant) else got


class LocksDieWithTheConnection(MemoryCoordinator):
    """Loses its locks when it is closed."""

    def close(self):
        self._held.clear()


class ClosesForGood(MemoryCoordinator):
    """Can't be used after a close."""

    closed = False

    def close(self):
        self.closed = True

    def extend(self, grant, ttl):
        return None if self.closed else super().extend(grant, ttl)


class SaysNothing(MemoryCoordinator):
    """Has no findings at all."""

    def check(self):
        return []


class NoReason(MemoryCoordinator):
    """Has no fencing and doesn't say why."""

    capabilities = dataclasses.replace(MemoryCoordinator.capabilities, fencing=False)


class RacesWithItself(MemoryCoordinator):
    """Grants every third request although the lock is held, as an unlocked check would."""

    def __init__(self):
        super().__init__()
        self._number = itertools.count(1)

    def acquire(self, key, owner, ttl, holder):
        if next(self._number) % 3 == 0:
            self._held.pop(key, None)
        return super().acquire(key, owner, ttl, holder)


@pytest.mark.parametrize(
    "broken, rule",
    [
        (NeverRefuses, rules.a_held_lock_names_its_holder),
        (NeverAgain, rules.asking_again_gives_the_same_grant),
        (ForgetsTheHolder, rules.a_held_lock_names_its_holder),
        (FoldsKeys, rules.other_keys_are_other_locks),
        (CutsKeys, rules.other_keys_are_other_locks),
        (AddsUp, rules.an_extend_sets_the_ttl_and_never_adds),
        (RevivesTheDead, rules.an_extend_of_a_released_lock_is_refused),
        (ExtendsForAnyone, rules.another_owner_cannot_extend),
        (ExtendsForAnyone, rules.an_extend_of_an_expired_lock_is_refused),
        (PretendsToExtend, rules.an_extend_prolongs),
        (PretendsToExtend, rules.an_extended_lock_outlives_its_first_ttl),
        (ReleasesForAnyone, rules.another_owner_cannot_release),
        (ReleasesForAnyone, rules.a_late_release_spares_the_next_owner),
        (NeedsTheToken, rules.the_owner_alone_names_a_grant),
        (NeverReleases, rules.a_released_lock_is_free_at_once),
        (AlwaysContent, rules.a_second_release_is_refused),
        (NeverExpires, rules.a_look_at_an_expired_lock_shows_nobody),
        (NeverExpires, rules.a_lock_expires_and_not_too_early),
        (ExpiresEarly, rules.a_lock_expires_and_not_too_early),
        (OneTokenForAll, rules.tokens_rise_with_every_grant),
        (OneTokenForAll, rules.the_token_rises_over_an_expiry),
        (TokensOfTheLockRecord, rules.tokens_rise_with_every_grant),
        (NewTokenAtAnExtend, rules.an_extend_prolongs),
        (LooksBlindly, rules.a_look_shows_the_holder),
        (ShowsTheDead, rules.a_look_at_an_expired_lock_shows_nobody),
        (MixesUpThreads, rules.threads_with_different_locks_do_not_meet),
        (RacesWithItself, rules.one_of_many_threads_wins),
        (LocksDieWithTheConnection, rules.a_closed_coordinator_can_be_used_again),
        (ClosesForGood, rules.a_closed_coordinator_can_be_used_again),
        (SaysNothing, rules.a_check_of_a_sound_coordinator_finds_no_error),
        (NoReason, rules.without_fencing_there_is_a_reason),
    ],
)
def test_a_broken_coordinator_is_caught(broken, rule, monkeypatch):
    """A coordinator that is broken in this way doesn't pass this rule."""
    monkeypatch.setattr(rules, "LATE", 0.3)
    coordinator = broken()
    with pytest.raises(AssertionError):
        rule(Subject(coordinator, coordinator))
