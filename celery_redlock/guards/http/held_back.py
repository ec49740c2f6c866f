"""An answer that is held back until its transaction is over.  Sends nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

__all__ = ["TOKEN", "TRANSACTION", "Answer", "Undone"]

TOKEN = "celery_redlock.fencing_token"  # noqa: S105 -- a key, no secret
"""Where an application finds the request's token, in the WSGI environ or the ASGI scope."""

TRANSACTION = "celery_redlock.transaction"
"""Where it finds what the ``transaction`` context gave, such as a session."""


@dataclass
class Answer:
    """What an application wants to send.

    Attributes:
        status: its status code, once it is known.
        messages: what to send, in order.
    """

    status: int = 0
    messages: list[Any] = field(default_factory=list)

    def check(self) -> None:
        """Return if what the application did may be committed.

        Raises:
            Undone: it answers 400 or above.
        """
        if self.status >= HTTPStatus.BAD_REQUEST:
            raise Undone(self)


class Undone(Exception):
    """Leaves a transaction by the way that rolls it back, with the answer that says why."""

    def __init__(self, answer: Answer) -> None:
        """Keep the answer."""
        self.answer = answer
        super().__init__(answer.status)
