"""Fences what is kept in Redis or Valkey: compares and writes in one script.

It needs no lock server, never retries, and gives no fence key an expiry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.argument import checked

__all__ = ["claim", "fenced_eval", "fenced_set"]

Value: TypeAlias = str | bytes | int | float

# Every 64-bit token has this many digits, with zeros in front, so that text compares as numbers
# do.  Lua's own numbers are floats, which are not exact above 2**53.
_DIGITS = 19

_STALE = "REDLOCKSTALE"
_NO_FENCE = "REDLOCKNOFENCE"

# KEYS[1]: the fence.  ARGV[1]: the token.  Both are taken away, so that what follows counts its
# own from 1.  SET also removes an expiry that somebody gave to the fence.
_CLAIM = f"""
local fence, token = table.remove(KEYS, 1), table.remove(ARGV, 1)
local stored = redis.pcall('GET', fence)
if stored and (type(stored) == 'table' or not string.match(stored, '^{"%d" * _DIGITS}$')) then
  return redis.error_reply('{_NO_FENCE} it holds something else')
end
if stored and stored > token then
  return redis.error_reply('{_STALE} ' .. stored)
end
redis.call('SET', fence, token)
"""


def claim(
    client: Any, fencing_token: int | None, *, lock: str | None = None, fence_key: str | None = None
) -> None:
    """Make the token known to the data, so that no older holder can write any more.

    Call it before the first read of what the lock protects; :func:`fenced_set` and
    :func:`fenced_eval` check again with each write.

    Args:
        client: a ``redis.Redis``, ``redis.RedisCluster`` or ``valkey.Valkey`` client.
        fencing_token: the token of the grant.
        lock: the name of the lock that the data belongs to: required beside a plain int,
            checked beside a :class:`~celery_redlock.FencingToken`.
        fence_key: where the highest token is kept; default ``"redlock-fence:{<lock>}"``.  In
            a cluster it must share the data's hash slot.

    Raises:
        StaleTokenError: the data has seen a higher token.
        ImproperlyConfigured: the token is missing, malformed or of another lock; the fence
            key holds something else; or the client is a pipeline or asynchronous.
    """
    fenced_eval(client, fencing_token, "return 1", lock=lock, fence_key=fence_key)


def fenced_set(
    client: Any,
    fencing_token: int | None,
    key: str,
    value: Value,
    *,
    lock: str | None = None,
    fence_key: str | None = None,
) -> None:
    """Set ``key`` to ``value`` unless a newer holder has been there.

    Args:
        client: as for :func:`claim`.
        fencing_token: the token of the grant.
        key: the key to set.
        value: what to set it to.
        lock: as for :func:`claim`.
        fence_key: as for :func:`claim`.

    Raises:
        StaleTokenError: the data has seen a higher token; nothing was written.
        ImproperlyConfigured: as for :func:`claim`; also if the keys are in different slots.
    """
    script = "return redis.call('SET', KEYS[1], ARGV[1])"
    fenced_eval(client, fencing_token, script, [key], [value], lock=lock, fence_key=fence_key)


def fenced_eval(
    client: Any,
    fencing_token: int | None,
    script: str,
    keys: Sequence[str] = (),
    args: Sequence[Value] = (),
    *,
    lock: str | None = None,
    fence_key: str | None = None,
) -> Any:
    """Run a script of your own, and claim the token first in the same atomic step.

    A client that retries by itself may run it twice, as with any script.

    Args:
        client: as for :func:`claim`.
        fencing_token: the token of the grant.
        script: Lua; its ``KEYS`` and ``ARGV`` are ``keys`` and ``args``, counted from 1.
        keys: every key that the script touches.
        args: what else it needs.
        lock: as for :func:`claim`.
        fence_key: as for :func:`claim`.

    Returns:
        what the script returns.

    Raises:
        StaleTokenError: the data has seen a higher token; the script did not run.
        ImproperlyConfigured: as for :func:`claim`; also if the keys are in different slots.
    """
    token = checked(fencing_token, lock)
    fence = fence_key or f"redlock-fence:{{{token.lock}}}"
    _refuse_deferred(client)
    if script.startswith("#!"):
        raise ImproperlyConfigured(
            "fenced_eval() puts the claim in front of the script, so the script can't begin "
            "with a '#!' line: leave it out"
        )
    arguments = [fence, *keys, f"{token:0{_DIGITS}d}", *args]
    try:
        answer = client.eval(f"{_CLAIM}do\n{script}\nend", 1 + len(keys), *arguments)
    except Exception as exc:  # noqa: BLE001 -- of redis-py or valkey-py; goes on from there
        _explain(exc, token, fence)
    return answer


def _refuse_deferred(client: Any) -> None:
    """A pipeline would look at the answer after its other commands were done."""
    if hasattr(client, "execute"):
        raise ImproperlyConfigured(
            "a pipeline doesn't stop at a stale token, so its other commands would not be "
            "fenced: hand in the client, and what belongs together to fenced_eval()"
        )
    if hasattr(client, "__aenter__"):
        raise ImproperlyConfigured(
            f"{type(client).__module__}.{type(client).__name__} is asynchronous: this guard "
            "needs a synchronous client"
        )


def _explain(exc: Exception, token: FencingToken, fence: str) -> NoReturn:
    said = str(exc)
    if said.startswith(_STALE):
        raise StaleTokenError(token.lock, token, int(said.split()[1])) from None
    if said.startswith(_NO_FENCE):
        raise ImproperlyConfigured(
            f"Redis key {fence!r} holds something else than a fencing token of {_DIGITS} "
            "digits: give the fence a key of its own (fence_key=)"
        ) from exc
    if "CROSSSLOT" in said or "same key slot" in said:
        raise ImproperlyConfigured(
            f"the fence {fence!r} and the data are in different hash slots, so they can't be "
            "compared and written in one step: give both keys the same {hash tag}"
        ) from exc
    raise exc
