"""WSGI middleware for the ``Fencing-Token`` header.  Claims nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from celery_redlock.exceptions import StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.http.header import Refused, token_from, unsafe_method
from celery_redlock.guards.http.held_back import TOKEN, TRANSACTION, Answer, Undone

__all__ = ["FencedWSGI"]

Environ: TypeAlias = dict[str, Any]
WSGI: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class FencedWSGI:
    """WSGI middleware that lets a request with a stale fencing token change nothing.

    The application finds the token in ``environ[TOKEN]`` and either claims it itself, first in
    its transaction, or is given a transaction in which it has been claimed.  A
    :class:`~celery_redlock.exceptions.StaleTokenError` that leaves the application becomes 412;
    a framework that turns exceptions into 500 by itself needs a handler for it (Flask:
    ``@app.errorhandler(StaleTokenError)``; Django: ``guards.django.middleware``).

    The answer to a request with a token is held back until the application, and the
    transaction, are through.

    Args:
        app: the application.
        transaction: called with the token, gives a context in which the token is claimed and
            the application runs; what it gives is in ``environ[TRANSACTION]``.  It is rolled
            back (left by an exception) if the application answers 400 or above.
        required: of the method and the path: whether a missing token is refused.
        lock: of the environ: the name of the lock that the resource belongs to; a token of
            another one is refused.  None: any.
    """

    def __init__(
        self,
        app: WSGI,
        *,
        transaction: Callable[[FencingToken], AbstractContextManager[Any]] | None = None,
        required: Callable[[str, str], bool] = unsafe_method,
        lock: Callable[[Environ], str | None] | None = None,
    ) -> None:
        """Wrap the application."""
        self._app = app
        self._transaction = transaction
        self._required = required
        self._lock = lock

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        required = self._required(environ["REQUEST_METHOD"], environ.get("PATH_INFO", ""))
        lock = self._lock(environ) if self._lock else None
        try:
            token = token_from(environ.get("HTTP_FENCING_TOKEN"), required=required, lock=lock)
            if token is None:
                return self._app(environ, start_response)
            answer = self._answer(environ, token)
        except StaleTokenError as exc:
            return _refuse_wsgi(Refused.stale(exc), start_response)
        except Refused as exc:
            return _refuse_wsgi(exc, start_response)
        start, *body = answer.messages
        start_response(*start)
        return body

    def _answer(self, environ: Environ, token: FencingToken) -> Answer:
        environ[TOKEN] = token
        try:
            with self._transaction(token) if self._transaction else nullcontext() as given:
                environ[TRANSACTION] = given
                answer = _collected(self._app, environ)
                answer.check()
        except Undone as exc:
            return exc.answer
        return answer


def _collected(app: WSGI, environ: Environ) -> Answer:
    answer = Answer()
    start: list[Any] = []
    body: list[bytes] = []

    def start_response(status: str, fields: list[tuple[str, str]], *_: Any) -> Any:
        start[:] = [(status, fields)]
        return body.append

    chunks = app(environ, start_response)
    try:
        body.extend(chunks)
    finally:
        getattr(chunks, "close", lambda: None)()
    answer.messages = [start[0], *body]
    answer.status = int(start[0][0].split()[0])
    return answer


def _refuse_wsgi(refused: Refused, start_response: Callable[..., Any]) -> Iterable[bytes]:
    text = refused.text.encode()
    fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
    start_response(f"{refused.status.value} {refused.status.phrase}", fields)
    return [text]
