"""A client of etcd's JSON gateway: one of several endpoints, a login.  Knows no locks.

Every call goes to the endpoint that answered last; what can't be reached is passed over, each
endpoint at most once a call.  A request may therefore be carried out twice, so callers send
only what may be: a transaction that compares first, a read, a renewal.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_redlock.coordinators.addresses import Addresses, Host
from celery_redlock.coordinators.etcd_channel import (
    Budget,
    Channel,
    Refused,
    Request,
    Silent,
    describe,
    exchange,
)
from celery_redlock.coordinators.per_process import PerProcess
from celery_redlock.exceptions import CoordinatorUnavailable, ImproperlyConfigured

__all__ = ["NOT_FOUND", "Answer", "Budget", "Gateway", "Refused"]

# Codes of gRPC.
NOT_FOUND = 5
_LOGIN_AGAIN = 16
_STALE_LOGIN = ("revision of auth store is old", "user name is empty", "invalid auth token")


@dataclass(frozen=True)
class Answer:
    """What the cluster says.

    Attributes:
        body: the parsed JSON.
        repeated: whether an earlier try of the same call may have been carried out.
        date: when the answer was given, as its header ``Date`` says.
    """

    body: Mapping[str, Any]
    repeated: bool = False
    date: str = ""


class Gateway:
    """A client of one cluster, safe under fork and threads.

    Args:
        addresses: where the members are; user and password, if the cluster has them.

    Raises:
        ImproperlyConfigured: a certificate can't be used.
    """

    def __init__(self, addresses: Addresses) -> None:
        """Read the certificates; connects to nothing."""
        self.hosts = addresses.hosts
        self._login = {"name": addresses.user, "password": addresses.password}
        self._tls = _tls(addresses) if addresses.scheme == "etcds" else None
        self._channel: PerProcess[Channel] = PerProcess(lambda: Channel(self.hosts), Channel.close)

    def call(self, path: str, body: Mapping[str, Any], budget: Budget) -> Answer:
        """What the cluster answers to a request.

        Args:
            path: as ``"kv/txn"``.
            body: what becomes the JSON.
            budget: how long it may take.

        Raises:
            Refused: the cluster says no.
            CoordinatorUnavailable: no endpoint answered in time.
        """
        try:
            return self._with_login(path, body, budget)
        except Refused as exc:
            if not (exc.code == _LOGIN_AGAIN or str(exc).endswith(_STALE_LOGIN)):
                raise
            if not self._login["name"]:
                raise
        self._channel.get().token = ""
        return self._with_login(path, body, budget)

    def ask(self, host: Host, path: str, budget: Budget) -> Mapping[str, Any]:
        """What one endpoint answers to an empty request.

        Raises:
            Refused: it says no.
            CoordinatorUnavailable: it doesn't answer in time.
        """
        channel = self._channel.get()
        request = Request(path, b"{}", channel.headers(), budget)
        try:
            return self._try(channel, host, request)
        except Silent as exc:
            raise CoordinatorUnavailable(
                "this etcd endpoint did not answer", {str(host): str(exc)}
            ) from exc

    def close(self) -> None:
        """Close this process's connections."""
        self._channel.close()

    def _with_login(self, path: str, body: Mapping[str, Any], budget: Budget) -> Answer:
        channel = self._channel.get()
        if self._login["name"] and not channel.token:
            login = Request("auth/authenticate", json.dumps(self._login).encode(), {}, budget)
            channel.token = str(self._over(channel, login).body["token"])
        request = Request(path, json.dumps(body).encode(), channel.headers(), budget)
        return self._over(channel, request)

    def _over(self, channel: Channel, request: Request) -> Answer:
        """Try the endpoints one after the other, the one that answered last first."""
        silent: dict[str, str] = {}
        for host in channel.order:
            if request.budget.left() <= 0:
                break
            try:
                body = self._try(channel, host, request)
            except Silent as exc:
                silent[str(host)] = str(exc)
                continue
            channel.prefer(host)
            return Answer(body, request.repeated, request.date)
        channel.pass_over()
        for host in self.hosts:
            silent.setdefault(str(host), "not asked: no time was left")
        raise CoordinatorUnavailable("no etcd endpoint gave an answer", silent)

    def _try(self, channel: Channel, host: Host, request: Request) -> Mapping[str, Any]:
        """Ask one endpoint, over an idle connection if there is one that still lives."""
        idle = channel.take(host)
        try:
            if idle is not None:
                try:
                    return exchange(channel, host, idle, request)
                except ConnectionError:  # it was closed at the other end while it was idle
                    request.repeated = True
            return exchange(channel, host, self._connect(host, request.budget), request)
        except Silent:
            raise
        except (OSError, http.client.HTTPException) as exc:
            raise Silent(describe(exc)) from exc

    def _connect(self, host: Host, budget: Budget) -> http.client.HTTPConnection:
        timeout = budget.time()
        if self._tls is None:
            made = http.client.HTTPConnection(host.name, host.port, timeout=timeout)
        else:
            made = http.client.HTTPSConnection(
                host.name, host.port, timeout=timeout, context=self._tls
            )
        made.connect()
        return made


def _tls(addresses: Addresses) -> ssl.SSLContext:
    ca, cert, key = (addresses.options.get(name) for name in ("ca", "cert", "key"))
    shown = ", ".join(f"{name}={addresses.options[name]}" for name in addresses.options)
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert or key:
            context.load_cert_chain(cert or "", key)
    except OSError as exc:
        raise ImproperlyConfigured(
            f"the certificates of an etcds:// url can't be used ({shown}): {describe(exc)}; "
            "give paths of readable PEM files as ?ca=…&cert=…&key=…"
        ) from exc
    return context
