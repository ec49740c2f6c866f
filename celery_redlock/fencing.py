"""The fencing token: an ordering number that a resource can compare.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from celery_redlock.exceptions import ImproperlyConfigured

if TYPE_CHECKING:  # at run time only from Python 3.11 on
    from typing_extensions import Self

__all__ = ["FencingToken"]

_PLAIN = "!\"#$&'()*+,-./:<=>?@[\\]^_`{|}~ "  # stays readable in a header; '%' and ';' are quoted


class FencingToken(int):
    """An ``int`` that rises with every grant of one lock, and knows which lock that is.

    A resource keeps the highest token it has seen for a lock and refuses a lower one, so a
    former owner that was paused can't write any more.  It prints as a decimal and compares,
    hashes and serialises like the number it is.

    Args:
        value: the number, 1 or more and below 2**63.
        lock: the name of the lock that granted it.

    Raises:
        ImproperlyConfigured: the value is below 1 or the lock's name is empty.
    """

    lock: str

    def __new__(cls, value: int, lock: str) -> Self:
        """Make a token of lock ``lock``."""
        if not 1 <= value < 2**63:
            raise ImproperlyConfigured(
                f"a fencing token must be an integer from 1 to 2**63 - 1, not {int(value)}"
            )
        if not lock:
            raise ImproperlyConfigured("a fencing token needs the name of its lock")
        self = super().__new__(cls, value)
        self.lock = lock
        return self

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
        lock, separator, digits = header.rpartition(";")
        if not (separator and lock and digits.isascii() and digits.isdigit()):
            raise ImproperlyConfigured(
                f"malformed Fencing-Token header {header!r}: expected '<lock>;<decimal token>'"
            )
        return cls(int(digits), unquote(lock))

    def __repr__(self) -> str:
        return f"FencingToken({int(self)}, lock={self.lock!r})"

    def __str__(self) -> str:
        return int.__repr__(self)

    def __format__(self, spec: str) -> str:
        return int(self).__format__(spec)

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.lock
