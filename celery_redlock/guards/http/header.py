"""The ``Fencing-Token`` header, from both ends.  Pure: sends and answers nothing."""

from __future__ import annotations

from http import HTTPStatus

from celery_redlock.exceptions import ImproperlyConfigured, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.argument import checked

__all__ = ["HEADER", "Refused", "headers", "raise_if_stale", "token_from", "unsafe_method"]

HEADER = "Fencing-Token"
"""The header's name; its value is ``<lock>;<token>``."""


def headers(fencing_token: int | None, *, lock: str | None = None) -> dict[str, str]:
    """The request header that carries the token to a service.

    Args:
        fencing_token: the token of the grant.
        lock: the lock's name; required beside a plain int.

    Raises:
        ImproperlyConfigured: the token is missing, malformed or of another lock.
    """
    return {HEADER: checked(fencing_token, lock).header}


def raise_if_stale(status: int, fencing_token: FencingToken) -> None:
    """Return unless a service refused the token.

    Args:
        status: the response's status code.
        fencing_token: the token that was sent.

    Raises:
        StaleTokenError: the status is 412.
    """
    if status == HTTPStatus.PRECONDITION_FAILED:
        raise StaleTokenError(fencing_token.lock, fencing_token)


def unsafe_method(method: str, path: str) -> bool:  # noqa: ARG001 -- one's own rule may need it
    """Whether a request may change something, by its method."""
    return method.upper() not in {"GET", "HEAD", "OPTIONS", "TRACE"}


class Refused(Exception):
    """A request that is not let through, with what to answer it.

    Attributes:
        status: 400 (malformed), 412 (stale) or 428 (missing).
        text: why, in one line.
    """

    def __init__(self, status: HTTPStatus, text: str) -> None:
        """Keep what to answer."""
        self.status = status
        self.text = text
        super().__init__(status, text)

    @classmethod
    def stale(cls, exc: StaleTokenError) -> Refused:
        """412, which clients don't retry as they do 409 and 5xx."""
        return cls(HTTPStatus.PRECONDITION_FAILED, str(exc))


def token_from(
    value: str | None, *, required: bool, lock: str | None = None
) -> FencingToken | None:
    """The token of a request, or None if it may do without.

    Args:
        value: the header's value; None or empty: it has none.
        required: whether a missing one is refused.
        lock: the name of the lock that the requested resource belongs to, if it is known.

    Raises:
        Refused: the token is missing, malformed or of another lock.
    """
    if not value:
        if required:
            raise Refused(
                HTTPStatus.PRECONDITION_REQUIRED,
                f"this request needs a {HEADER} header: '<lock>;<token>'",
            )
        return None
    # Names are percent-encoded, so two semicolons are two headers that a proxy has joined.
    if value.count(";") != 1 or not value.isascii():
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"malformed {HEADER} header: expected one '<lock>;<token>'"
        )
    try:
        return checked(FencingToken.from_header(value), lock)
    except (ImproperlyConfigured, ValueError) as exc:  # Python counts the digits of huge numbers
        raise Refused(HTTPStatus.BAD_REQUEST, str(exc)) from exc
