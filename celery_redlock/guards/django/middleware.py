"""Django middleware for the ``Fencing-Token`` header.  Claims nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_redlock.exceptions import StaleTokenError
from celery_redlock.guards.argument import library
from celery_redlock.guards.http.header import HEADER, Refused, token_from, unsafe_method

__all__ = ["FencingTokenMiddleware"]


class FencingTokenMiddleware:
    """Gives each request a ``fencing_token`` attribute, and answers 412 to a stale one.

    A view calls ``claim(request.fencing_token, lock=...)`` first in its transaction; the
    attribute is None where the request may do without a token.  To decide which requests need
    one, override :meth:`required`.

    Args:
        get_response: what answers the request.
    """

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        """Wrap the rest of the site."""
        self._get_response = get_response

    def required(self, request: Any) -> bool:
        """Whether a missing token is refused with 428; of unsafe methods by default."""
        return unsafe_method(request.method, request.path)

    def __call__(self, request: Any) -> Any:
        """Answer one request."""
        try:
            request.fencing_token = token_from(
                request.headers.get(HEADER), required=self.required(request)
            )
        except Refused as exc:
            return _answer(exc)
        return self._get_response(request)

    def process_exception(self, request: Any, exception: BaseException) -> Any:  # noqa: ARG002
        """412 where a view was refused by its guard."""
        if isinstance(exception, StaleTokenError):
            return _answer(Refused.stale(exception))
        return None


def _answer(refused: Refused) -> Any:
    http = library("django.http", "celery_redlock[django]")
    return http.HttpResponse(
        refused.text, status=refused.status.value, content_type="text/plain; charset=utf-8"
    )
