"""From urls and client objects to nodes.  Connects to nothing, except to ask sentinels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.urls import needs, without_password
from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["node_from_client", "node_from_url", "refuse_bad_set"]

SENTINEL = "redis+sentinel://"
_SENTINEL_PORT = 26379


def refuse_bad_set(shown: Sequence[str]) -> None:
    """Return if these servers can make a quorum.

    Args:
        shown: their addresses, without passwords.

    Raises:
        ImproperlyConfigured: none, an even number, or one of them twice.
    """
    count = len(shown)
    listed = ", ".join(shown)
    twice = sorted({one for one in shown if shown.count(one) > 1})
    if twice:
        raise ImproperlyConfigured(
            f"the lock server {', '.join(twice)} is listed twice in {listed}; two majorities "
            "could then hold one lock: list each server once"
        )
    if count % 2 == 0:
        raise ImproperlyConfigured(
            f"{count} lock servers can't make a quorum that is worth more than {count - 1}: use "
            f"one server, or an odd number of at least 3 (5 is usual), not {listed}"
            if count
            else "a coordinator needs at least one lock server: use one, or an odd number from 3 on"
        )


def node_from_url(url: str, timeout: float) -> Node:
    """The node that a url names.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py takes them, or
            ``redis+sentinel://[user:password@]host[:port],.../service[/db]`` with the queries
            of redis-py, and ``sentinel_username`` and ``sentinel_password`` for the sentinels.
        timeout: seconds that the server may take to answer.

    Raises:
        ImproperlyConfigured: the url can't be understood, or redis-py is missing.
    """
    if url.startswith(SENTINEL):
        return _node_behind_sentinels(url, timeout)
    redis = needs("redis", "redis")
    shown = without_password(url)
    try:
        pool = redis.ConnectionPool.from_url(url)
    except ValueError as exc:
        raise ImproperlyConfigured(f"malformed lock server url {shown!r}: {exc}") from exc
    options = dict(pool.connection_kwargs)
    if url.startswith("unix:"):
        shown = f"unix://{options.get('path', '')}"
    return Node(shown, pool.connection_class, options, timeout)


def node_from_client(client: Any, timeout: float) -> Node:
    """The node that a ``redis.Redis`` object talks to; its own connections are left alone.

    Args:
        client: its kind of connection and its options are used, but not its retries, timeouts
            and health checks.
        timeout: seconds that the server may take to answer.

    Raises:
        ImproperlyConfigured: this is no ``redis.Redis`` object, or one for a Redis Cluster.
    """
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_class"):
        raise ImproperlyConfigured(
            f"a lock server must be a url or a redis.Redis object, not {type(client).__name__}"
        )
    options = dict(pool.connection_kwargs)
    name = getattr(pool, "service_name", None)
    if name is not None:
        shown = f"{SENTINEL}{name}"
    elif "path" in options:
        shown = f"unix://{options['path']}"
    else:
        scheme = "rediss" if "ssl" in pool.connection_class.__name__.lower() else "redis"
        address = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        shown = f"{scheme}://{address}/{options.get('db') or 0}"
    return Node(shown, pool.connection_class, options, timeout, keep=client)


def _node_behind_sentinels(url: str, timeout: float) -> Node:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    shown = f"{SENTINEL}{hosts}/{service}"
    if not service or not hosts or not (db or "0").isdigit():
        raise ImproperlyConfigured(
            f"malformed sentinel url {shown!r}: expected "
            f"{SENTINEL}host:{_SENTINEL_PORT},host:{_SENTINEL_PORT}/service/db"
        )
    query = dict(parse_qsl(parts.query))
    tls = query.pop("ssl", "").lower() in {"1", "true", "yes"}
    watcher = {
        name: query.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if f"sentinel_{name}" in query
    }
    scheme = "rediss" if tls else "redis"
    address = f"{login}@master" if login else "master"
    plain = node_from_url(f"{scheme}://{address}/{db or 0}?{urlencode(query)}", timeout)
    sentinels = [_address(one, shown) for one in hosts.split(",")]
    locate = _ask_sentinels(
        needs("redis.sentinel", "redis"), sentinels, unquote(service), watcher, timeout
    )
    return Node(shown, plain.connection_class, plain.options, timeout, locate=locate)


def _ask_sentinels(
    module: Any,
    sentinels: Sequence[tuple[str, int]],
    service: str,
    watcher: dict[str, str],
    timeout: float,
) -> Callable[[], tuple[str, int]]:
    quick = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": None}

    def locate() -> tuple[str, int]:
        asked = module.Sentinel(sentinels, sentinel_kwargs={**quick, **watcher})
        try:
            host, port = asked.discover_master(service)
        finally:
            for one in asked.sentinels:
                one.close()
        return str(host), int(port)

    return locate


def _address(text: str, shown: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(_SENTINEL_PORT))
    if not host or not port.isdigit():
        raise ImproperlyConfigured(f"malformed sentinel address {text!r} in {shown!r}")
    return host.strip("[]"), int(port)
