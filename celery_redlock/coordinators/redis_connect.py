"""Making connections: without waiting where that can be, by the client library where it must.

Plain TCP and unix sockets are connected in the background, so a server that doesn't answer holds
nobody up.  TLS, credential providers and connection classes of the user's own need the client
library, which waits, for the node's timeout at the longest.  (So does a name that has to be
looked up first; how long for is the resolver's business.)
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from celery_redlock.coordinators.redis_link import Broken, Link, describe
from celery_redlock.coordinators.redis_node import Node
from celery_redlock.coordinators.redis_wire import pack

__all__ = ["Address", "begin_link", "settle"]

Address = tuple[int, Any]
"""A socket family, and an address of that family."""

_UNDER_WAY = {0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN}
_NEEDS_LIBRARY = ("credential_provider", "redis_connect_func")


def begin_link(node: Node, addresses: Sequence[Address] | None = None) -> Link:
    """A new link, which may still be connecting; :func:`settle` says when it is done.

    Args:
        node: the server.
        addresses: what to try, one after the other; None: what the node's name stands for.

    Raises:
        Broken: it can't be made.
    """
    options = dict(node.options)
    try:
        if node.locate is not None:
            options["host"], options["port"] = node.locate()
        if not _is_plain(node, options):
            return _by_library(node, options)
        return _first_of(node, addresses or _addresses(node, options), options)
    except Broken:
        raise
    except Exception as exc:  # the library's errors have no common base with the socket's
        raise Broken(describe(exc)) from exc


def settle(link: Link) -> Link:
    """The link whose connecting has ended: the same, or one to the server's next address.

    Raises:
        Broken: it has failed, and there is no other address.
    """
    error = link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if not error:
        link.connecting = False
        return link
    if not link.others:
        raise Broken(os.strerror(error))
    following = begin_link(link.node, link.others)
    following.queued = link.queued
    return following


def _is_plain(node: Node, options: Mapping[str, Any]) -> bool:
    kind = node.connection_class
    if getattr(kind, "__module__", "") != "redis.connection":
        return False
    if getattr(kind, "__name__", "") not in {"Connection", "UnixDomainSocketConnection"}:
        return False
    return not any(options.get(name) for name in _NEEDS_LIBRARY)


def _by_library(node: Node, options: Mapping[str, Any]) -> Link:
    connection = node.connection_class(**options)
    connection.connect()
    return Link(node, connection._sock, keep=connection)  # noqa: SLF001  # no other way in


def _addresses(node: Node, options: Mapping[str, Any]) -> list[Address]:
    if "path" in options:
        return [(socket.AF_UNIX, options["path"])]
    found = socket.getaddrinfo(
        options.get("host") or "localhost",
        int(options.get("port") or 6379),
        options.get("socket_type", 0),
        socket.SOCK_STREAM,
    )
    if not found:
        raise Broken(f"{node.shown} has no address")
    return [(family, address) for family, _, _, _, address in found]


def _first_of(node: Node, addresses: Sequence[Address], options: Mapping[str, Any]) -> Link:
    """A link that is connecting to the first address that doesn't refuse at once."""
    for place, (family, address) in enumerate(addresses, 1):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            _tune(sock, family, options)
            code = sock.connect_ex(address)
        except BaseException:
            sock.close()
            raise
        if code in _UNDER_WAY:
            link = Link(node, sock, preamble=_introduction(options), connecting=code != 0)
            link.others = list(addresses[place:])
            return link
        sock.close()
    raise Broken(os.strerror(code))


def _tune(sock: socket.socket, family: int, options: Mapping[str, Any]) -> None:
    sock.setblocking(False)
    if family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.get("socket_keepalive", True):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        wished = options.get("socket_keepalive_options")
        for name, value in wished.items() if isinstance(wished, Mapping) else ():
            sock.setsockopt(socket.IPPROTO_TCP, name, value)


def _introduction(options: Mapping[str, Any]) -> list[bytes]:
    """The commands that log in, name the client and choose the database."""
    commands = []
    password, user = options.get("password"), options.get("username")
    if user or password:
        commands.append(pack("AUTH", *([user] if user else []), password or ""))
    if options.get("client_name"):
        commands.append(pack("CLIENT", "SETNAME", options["client_name"]))
    if options.get("db"):
        commands.append(pack("SELECT", options["db"]))
    return commands
