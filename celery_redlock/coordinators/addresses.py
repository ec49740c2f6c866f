"""Urls that name several servers: ``scheme://user:password@host1:port,host2/path?option=…``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_redlock.coordinators.urls import without_password
from celery_redlock.exceptions import ImproperlyConfigured

__all__ = ["Addresses", "Host", "parse"]

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class Host:
    """One server.

    Attributes:
        name: its name or address; an IPv6 address without brackets.
        port: 1 to 65535.
    """

    name: str
    port: int

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{name}:{self.port}"


@dataclass(frozen=True)
class Addresses:
    """What a url says.

    Attributes:
        scheme: what stands before ``://``.
        hosts: the servers, each once, in the order of the url.
        user: empty if there is none.
        password: never shown.
        path: with its slash at the start and none at the end; empty if there is none.
        options: what stands behind the question mark.
    """

    scheme: str
    hosts: tuple[Host, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)


def parse(url: str, port: int, options: Collection[str]) -> Addresses:
    """What a url with one or more hosts says.

    Args:
        url: as ``scheme://user:password@host1:port,host2/path?option=value``.
        port: where a host doesn't name one.
        options: the names that may stand behind the question mark.

    Raises:
        ImproperlyConfigured: it is malformed, names a server twice, or has another option.
    """
    parts = urlsplit(url)
    login, _, names = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if name not in options:
            raise ImproperlyConfigured(
                f"coordinator url {without_password(url)!r}: unknown option {name!r}; "
                f"known are {', '.join(options)}"
            )
    hosts = tuple(_host(name, port, url) for name in names.split(","))
    if len(set(hosts)) < len(hosts):
        raise ImproperlyConfigured(
            f"coordinator url {without_password(url)!r} names a server twice; name each once"
        )
    path = parts.path.rstrip("/")
    return Addresses(parts.scheme, hosts, unquote(user), unquote(password), path, given)


def _host(text: str, port: int, url: str) -> Host:
    match = _HOST.fullmatch(text.strip())
    number = int(match["port"] or port) if match else 0
    if match is None or not 1 <= number <= 65535:
        raise ImproperlyConfigured(
            f"malformed coordinator url {without_password(url)!r}: expected "
            f"{urlsplit(url).scheme}://host1:port,host2:port with ports from 1 to 65535"
        )
    return Host(match["name"].strip("[]"), number)
