"""The name under which a lock is stored, for any key.  Pure."""

from __future__ import annotations

from hashlib import sha256

__all__ = ["stored_name"]

LONGEST = 255  # bytes, as the column has them in MySQL


def stored_name(prefix: str, kind: str, key: str) -> str:
    """A name that no other prefix, kind or key has.

    Args:
        prefix: of the application.
        kind: of the lock.
        key: the lock's name; one that is too long, or that a database couldn't store, is cut
            and told apart by its hash.
    """
    name = f"{prefix}:{kind}:{key}"
    encoded = name.encode("utf-8", "backslashreplace")
    if len(encoded) <= LONGEST and b"\0" not in encoded and encoded == _encoded(name):
        return name
    digest = sha256(encoded).hexdigest()
    head = encoded.replace(b"\0", b"")[: LONGEST - len(digest) - 1].decode(errors="ignore")
    return f"{head}#{digest}"


def _encoded(name: str) -> bytes | None:
    try:
        return name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
