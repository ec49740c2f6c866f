"""ASGI middleware for the ``Fencing-Token`` header.  Claims nothing itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias

from celery_redlock.exceptions import StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.http.header import HEADER, Refused, token_from, unsafe_method
from celery_redlock.guards.http.held_back import TOKEN, TRANSACTION, Answer, Undone

__all__ = ["FencedASGI"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
ASGI: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class FencedASGI:
    """ASGI middleware that lets a request with a stale fencing token change nothing.

    As :class:`FencedWSGI`, for HTTP requests; the token is in ``scope[TOKEN]``, and other
    kinds of connection are passed on untouched.

    Args:
        app: the application.
        transaction: called with the token, gives an asynchronous context in which the token is
            claimed and the application runs; what it gives is in ``scope[TRANSACTION]``.
        required: of the method and the path: whether a missing token is refused.
        lock: of the scope: the name of the lock that the resource belongs to.
    """

    def __init__(
        self,
        app: ASGI,
        *,
        transaction: Callable[[FencingToken], AbstractAsyncContextManager[Any]] | None = None,
        required: Callable[[str, str], bool] = unsafe_method,
        lock: Callable[[Scope], str | None] | None = None,
    ) -> None:
        """Wrap the application."""
        self._app = app
        self._transaction = transaction
        self._required = required
        self._lock = lock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            token = self._token(scope)
            if token is None:
                return await self._app(scope, receive, send)
            answer = await self._answer(scope, receive, token)
        except StaleTokenError as exc:
            return await _refuse_asgi(Refused.stale(exc), send)
        except Refused as exc:
            return await _refuse_asgi(exc, send)
        for message in answer.messages:
            await send(message)
        return None

    def _token(self, scope: Scope) -> FencingToken | None:
        name = HEADER.lower().encode()
        # Several headers become one malformed value, as a proxy would join them.
        value = ",".join(v.decode("latin-1") for k, v in scope["headers"] if k.lower() == name)
        required = self._required(scope["method"], scope["path"])
        return token_from(value, required=required, lock=self._lock(scope) if self._lock else None)

    async def _answer(self, scope: Scope, receive: Receive, token: FencingToken) -> Answer:
        scope[TOKEN] = token
        answer = Answer()

        async def hold_back(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
            answer.messages.append(message)

        try:
            async with self._transaction(token) if self._transaction else nullcontext() as given:
                scope[TRANSACTION] = given
                await self._app(scope, receive, hold_back)
                answer.check()
        except Undone as exc:
            return exc.answer
        return answer


async def _refuse_asgi(refused: Refused, send: Send) -> None:
    text = refused.text.encode()
    fields = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(text)).encode()),
    ]
    await send({"type": "http.response.start", "status": refused.status.value, "headers": fields})
    await send({"type": "http.response.body", "body": text})
