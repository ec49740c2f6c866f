"""Connections to etcd's members, and one request over one of them.  Knows no fail-over.

Protocol: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.  Bytes travel as base64, 64-bit
numbers as decimal text, and what is zero or false is left out.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_redlock.clock import now
from celery_redlock.coordinators.addresses import Host

__all__ = ["Budget", "Channel", "Refused", "Request", "Silent", "describe", "exchange"]

# Codes of gRPC (https://grpc.github.io/grpc/core/md_doc_statuscodes.html): cancelled, too late,
# overloaded, unavailable.
_ELSEWHERE = {1, 4, 8, 14}
_IDLE = 8  # connections to one member that are kept


class Refused(Exception):
    """The cluster understood the request and refuses it.

    Attributes:
        code: a gRPC status code.
    """

    def __init__(self, code: int, message: str) -> None:
        """Keep what was said."""
        super().__init__(message)
        self.code = code


class Silent(Exception):
    """An endpoint gave no usable answer; the message says what was seen."""


@dataclass(frozen=True)
class Budget:
    """How long a call may take.

    Attributes:
        each: seconds for one try.
        until: the instant at which no further try may be under way.
    """

    each: float
    until: float

    @classmethod
    def of(cls, each: float) -> Budget:
        """A budget from now on, with time for one endpoint that hangs and one that answers."""
        return cls(each, now() + 2 * each)

    def left(self) -> float:
        """Seconds for the next try; 0 or less if there is none."""
        return min(self.each, self.until - now())

    def time(self) -> float:
        """As :meth:`left`, where there must be some.

        Raises:
            TimeoutError: there is none.
        """
        left = self.left()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


@dataclass
class Request:
    """One request on its way to one endpoint after the other.

    Attributes:
        repeated: whether it may have been carried out already.
        date: when the answer was given, as its header ``Date`` says; empty without one.
    """

    path: str
    data: bytes
    headers: Mapping[str, str]
    budget: Budget
    repeated: bool = False
    date: str = ""


class Channel:
    """One process's connections and login.

    Args:
        hosts: the members that are known.

    Attributes:
        token: proves who we are; empty before the login.
        order: the members, the one to ask first at the front.
    """

    def __init__(self, hosts: tuple[Host, ...]) -> None:
        """Connect to nothing yet."""
        self.token = ""
        # In random order, to spread the processes over the members.
        self.order = tuple(random.sample(hosts, len(hosts)))
        self._idle: dict[Host, list[http.client.HTTPConnection]] = {host: [] for host in hosts}

    def headers(self) -> dict[str, str]:
        """What each request says about who we are."""
        return {"Authorization": self.token} if self.token else {}

    def take(self, host: Host) -> http.client.HTTPConnection | None:
        """A connection that nobody else uses, if there is one."""
        try:
            return self._idle[host].pop()
        except IndexError:
            return None

    def keep(self, host: Host, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request."""
        if len(self._idle[host]) < _IDLE:
            self._idle[host].append(connection)
        else:
            connection.close()

    def prefer(self, host: Host) -> None:
        """Ask this member first from now on."""
        if self.order[0] != host:
            self.order = (host, *(other for other in self.order if other != host))

    def pass_over(self) -> None:
        """Ask another member first next time."""
        self.order = (*self.order[1:], self.order[0])

    def close(self) -> None:
        """Close the connections that are not in use."""
        for host in self._idle:
            while (connection := self.take(host)) is not None:
                connection.close()


def exchange(
    channel: Channel, host: Host, connection: http.client.HTTPConnection, request: Request
) -> Mapping[str, Any]:
    """Send a request and read its answer; the connection is kept if it can be used again."""
    done = False
    try:
        connection.sock.settimeout(request.budget.time())
        connection.request("POST", f"/v3/{request.path}", request.data, request.headers)
        response = connection.getresponse()
        text = response.read()
        request.date = response.getheader("Date", "")
        done = not response.will_close
        return _parsed(response.status, text)
    except (OSError, http.client.HTTPException, Silent):
        request.repeated = True  # for whoever is asked next
        raise
    finally:  # also if a signal's exception came in the middle
        if done:
            channel.keep(host, connection)
        else:
            connection.close()


def _parsed(status: int, text: bytes) -> Mapping[str, Any]:
    """The answer's JSON.

    Raises:
        Refused: it is an error that every member would give.
        Silent: it is another error, or no JSON.
    """
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Silent(f"it doesn't speak etcd's JSON gateway under /v3/ (HTTP {status})")
    error = body.get("error") if status == http.client.OK else body
    if not error:
        return body
    if not isinstance(error, dict):
        error = body
    message = str(error.get("message") or error.get("error") or f"HTTP {status}")
    code = error.get("code", error.get("grpc_code"))
    if not isinstance(code, int) or code in _ELSEWHERE:
        raise Silent(message)
    raise Refused(code, message)


def describe(error: BaseException) -> str:
    """An error of the network in a few words."""
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
