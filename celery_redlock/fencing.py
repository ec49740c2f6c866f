"""The fencing token: an ordering number that a resource can compare.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, unquote

from celery_redlock.exceptions import ImproperlyConfigured

if TYPE_CHECKING:  # at run time only from Python 3.11 on
    from typing_extensions import Self

__all__ = ["FencingToken", "FencingTokens"]

_DIGITS = 19  # of 2**63 - 1; more are refused before Python makes a number of them
_PLAIN = "!\"#$&'()*+,-./:<=>?@[\\]^_`{|}~ "  # stays readable in a header; '%' and ';' are quoted


class FencingToken(int):
    """An ``int`` that rises with every grant of one lock, and knows which lock that is.

    A resource keeps the highest token it has seen for a lock and refuses a lower one, so a
    former owner that was paused can't write any more.  It prints as a decimal and compares,
    hashes and serialises like the number it is.

    Of a body that holds several locks it is the token of the first one, in the sorted order of
    their names; ``fencing_token["account:7"]`` is the token of the lock ``account:7``, and
    ``fencing_token.tokens`` are all of them.

    Args:
        value: the number, 1 or more and below 2**63.
        lock: the name of the lock that granted it.

    Raises:
        ImproperlyConfigured: the value is below 1 or the lock's name is empty.
    """

    lock: str
    __iter__: ClassVar[None] = None  # a number, although it can be asked for the token of a lock

    def __new__(cls, value: int, lock: str) -> Self:
        """Make a token of lock ``lock``."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 1 <= value < 2**63:
            raise ImproperlyConfigured(
                f"a fencing token must be an integer from 1 to 2**63 - 1, not {value!r}"
            )
        if not lock:
            raise ImproperlyConfigured("a fencing token needs the name of its lock")
        self = super().__new__(cls, value)
        self.lock = lock
        return self

    @property
    def tokens(self) -> tuple[FencingToken, ...]:
        """The token of each lock that was granted together, in the sorted order of their names."""
        return (self,)

    def __getitem__(self, lock: str) -> FencingToken:
        """The token of one of the locks that were granted together.

        Args:
            lock: the lock's name, as its ``lock_key`` spells it.

        Raises:
            ImproperlyConfigured: that lock was not among them.
        """
        for token in self.tokens:
            if token.lock == lock:
                return token
        held = ", ".join(repr(token.lock) for token in self.tokens)
        raise ImproperlyConfigured(
            f"there is no fencing token of lock {lock!r} here: the locks that were taken are {held}"
        )

    @property
    def header(self) -> str:
        """The value of an HTTP ``Fencing-Token`` header: ``"<lock>;<token>"``.

        What can't stand in a header (control characters, non-ASCII, ``%`` and ``;``) is
        percent-encoded in the lock's name.
        """
        return f"{quote(self.lock, safe=_PLAIN)};{int(self)}"

    @classmethod
    def from_header(cls, header: str) -> FencingToken:
        """The token that :attr:`header` was made from.

        Raises:
            ImproperlyConfigured: the text is not of the form ``<lock>;<token>``.
        """
        lock, _, digits = header.rpartition(";")
        number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS
        if not number or not lock or ";" in lock:
            raise ImproperlyConfigured(
                f"malformed Fencing-Token header {header[:200]!r}: expected "
                f"'<lock>;<decimal token>', with at most {_DIGITS} digits and any ';' of the "
                "lock's name as %3B"
            )
        return FencingToken(int(digits), unquote(lock))

    def __repr__(self) -> str:
        return f"FencingToken({int(self)}, lock={self.lock!r})"

    def __str__(self) -> str:
        return int.__repr__(self)

    def __format__(self, spec: str) -> str:
        return int(self).__format__(spec)

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.lock


class FencingTokens(FencingToken):
    """The tokens of several locks that were granted together; as a number, that of the first.

    Args:
        tokens: one token of each lock, at least one.

    Raises:
        ImproperlyConfigured: there is none.
    """

    _tokens: tuple[FencingToken, ...]

    def __new__(cls, tokens: Iterable[FencingToken]) -> Self:
        """Sort them by the names of their locks."""
        several = tuple(sorted(tokens, key=lambda token: token.lock))
        if not several:
            raise ImproperlyConfigured("several fencing tokens were promised, and there is none")
        self = super().__new__(cls, int(several[0]), several[0].lock)
        self._tokens = several
        return self

    @property
    def tokens(self) -> tuple[FencingToken, ...]:
        """The token of each lock that was granted together, in the sorted order of their names."""
        return self._tokens

    def __repr__(self) -> str:
        return f"FencingTokens({list(self._tokens)!r})"

    def __getnewargs__(self) -> tuple[tuple[FencingToken, ...]]:  # type: ignore[override]
        return (self._tokens,)
