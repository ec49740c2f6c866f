"""Fences an object in a store that has conditional writes, such as S3.  Deletes nothing.

The token stands in the object's own bytes, in a line before the content.  Metadata would not do:
an S3 tag (ETag) is made from the bytes alone, so a newer holder that claims the object, or writes
equal content, would leave the tag as it was, and an older holder's conditional write would pass.

To fence much data, or data that others read as it is, write it under a name that is used once, and
keep that name in the fenced object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, unquote

from celery_redlock.exceptions import ImproperlyConfigured, RedlockError, StaleTokenError
from celery_redlock.fencing import FencingToken
from celery_redlock.guards.argument import checked

__all__ = ["FencedObject", "ObjectStore", "S3Store", "StoredObject", "content_of"]

_FRAME = re.compile(rb"\Aredlock-fence ([0-9]{19}) ([!-~]+) (empty|content)\n", re.ASCII)

# Each failed try means that somebody else's write succeeded, so more are never needed in earnest.
_TRIES = 10


@dataclass(frozen=True)
class StoredObject:
    """What a store answers.

    Attributes:
        data: the object's bytes.
        tag: changes whenever the bytes change (S3: the ETag).
    """

    data: bytes
    tag: str


class ObjectStore(Protocol):
    """A store with conditional writes; what it raises by itself is passed on."""

    def get(self, name: str) -> StoredObject | None:
        """The object, or None if there is none."""

    def put(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write the object in one step if nobody has changed it.

        Args:
            name: the object's name.
            data: its new bytes.
            tag: the tag that it must still have; None: it must not exist.

        Returns:
            the new tag, or None if the condition did not hold and nothing was written.
        """


class S3Store:
    """An S3 bucket as an :class:`ObjectStore`.

    Args:
        client: ``boto3.client("s3")`` or one like it (``If-Match`` needs botocore 1.36).
        bucket: the bucket's name.
    """

    def __init__(self, client: Any, bucket: str) -> None:
        """Keep the client; nothing is sent yet."""
        self._client = client
        self._bucket = bucket

    def get(self, name: str) -> StoredObject | None:
        """The object, or None if there is none."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=name)
        except self._client.exceptions.NoSuchKey:
            return None
        return StoredObject(answer["Body"].read(), answer["ETag"])

    def put(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write with ``If-Match``, or ``If-None-Match: *`` where there must be no object."""
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            answer = self._client.put_object(Bucket=self._bucket, Key=name, Body=data, **condition)
        except self._client.exceptions.ClientError as exc:
            # 404: there is nothing to match; 409: a write of somebody else was under way.
            if exc.response["ResponseMetadata"]["HTTPStatusCode"] in {404, 409, 412} and (
                exc.response["Error"]["Code"] != "NoSuchBucket"
            ):
                return None
            raise
        return str(answer["ETag"])

    def check(self, name: str = "redlock-fence-check") -> None:
        """Return if the server keeps the conditions; some ignore them without a word.

        Args:
            name: an object that may be written for it; it stays.

        Raises:
            ImproperlyConfigured: it wrote where it must not, so it can't be fenced.
        """
        self._client.put_object(Bucket=self._bucket, Key=name, Body=b"")
        for tag in (None, '"00000000000000000000000000000000"'):
            if self.put(name, b"", tag) is not None:
                header = "If-None-Match" if tag is None else "If-Match"
                raise ImproperlyConfigured(
                    f"the server of bucket {self._bucket!r} ignores {header} on a put, so it "
                    "can't refuse a stale holder: use one with conditional writes"
                )


class FencedObject:
    """One object, as the holder of a lock sees it.

    Args:
        store: where it is kept.
        name: its name there.
        fencing_token: the token of the grant.
        lock: the name of the lock that the object belongs to: required beside a plain int,
            checked beside a :class:`~celery_redlock.FencingToken`.
        adopt: take an object that was written without a fence over; otherwise it is refused.

    Raises:
        ImproperlyConfigured: the token is missing, malformed or of another lock.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        fencing_token: int | None,
        *,
        lock: str | None = None,
        adopt: bool = False,
    ) -> None:
        """Check the arguments; nothing is sent yet."""
        self.name = name
        self.fencing_token = checked(fencing_token, lock)
        self._store = store
        self._adopt = adopt
        self._tag: str | None = None

    def claim(self) -> bytes | None:
        """Make the token known to the object, and read it; None if it has no content yet.

        From then on no older holder can write it.  New content that depends on the old must
        be made from what this returns.

        Raises:
            StaleTokenError: the object has seen a higher token.
            ImproperlyConfigured: the object isn't fenced, or is another lock's.
        """
        for _ in range(_TRIES):
            stored = self._store.get(self.name)
            token, content = self._opened(stored)
            tag = stored.tag if stored else None
            if token < self.fencing_token:
                tag = self._store.put(self.name, _frame(self.fencing_token, content), tag)
            if tag is not None:
                self._tag = tag
                return content
        raise RedlockError(f"object {self.name!r} changed {_TRIES} times while it was claimed")

    def write(self, content: bytes) -> None:
        """Replace the content; claims the object first if that wasn't done.

        Raises:
            StaleTokenError: the object has seen a higher token; nothing was written.
            ImproperlyConfigured: the object isn't fenced, or is another lock's.
            RedlockError: it was changed by another writer with this token, or deleted.
        """
        if self._tag is None:
            self.claim()
        data = _frame(self.fencing_token, content)
        for _ in range(_TRIES):
            tag = self._store.put(self.name, data, self._tag)
            if tag is None:
                tag = self._after_a_refusal(data)
            if tag is not None:
                self._tag = tag
                return
        raise RedlockError(f"object {self.name!r} could not be written in {_TRIES} tries")

    def _after_a_refusal(self, data: bytes) -> str | None:
        """The tag if our write is there all the same; None if it may be tried again."""
        stored = self._store.get(self.name)
        self._opened(stored)
        if stored is None:
            raise RedlockError(f"object {self.name!r} was deleted, and its fence with it")
        if stored.data == data:  # the client had sent it twice, because an answer was lost
            return stored.tag
        if stored.tag != self._tag:
            raise RedlockError(
                f"object {self.name!r} was changed by another writer since it was claimed here: "
                "one grant needs one FencedObject, or claim() again and start from its content"
            )
        return None

    def _opened(self, stored: StoredObject | None) -> tuple[int, bytes | None]:
        """The stored token (0: none) and content, unless we may not write."""
        if stored is None:
            return 0, None
        frame = _FRAME.match(stored.data)
        if frame is None:
            if self._adopt:
                return 0, stored.data
            raise ImproperlyConfigured(
                f"object {self.name!r} was written without a fence: let only FencedObject write "
                "it, and take it over once with adopt=True"
            )
        token, lock = int(frame[1]), unquote(frame[2].decode())
        if lock != self.fencing_token.lock:
            raise ImproperlyConfigured(
                f"object {self.name!r} belongs to lock {lock!r}, not to "
                f"{self.fencing_token.lock!r}: tokens of two locks can't be compared"
            )
        if token > self.fencing_token:
            raise StaleTokenError(lock, self.fencing_token, token)
        return token, _content(stored.data, frame)

    def __repr__(self) -> str:
        state = "not claimed" if self._tag is None else "claimed"
        return f"<FencedObject {self.name!r} token={self.fencing_token} {state}>"


def content_of(store: ObjectStore, name: str) -> bytes | None:
    """What a fenced object holds, for readers without a lock; None if there is nothing yet.

    Args:
        store: where it is kept.
        name: its name there.

    Raises:
        ImproperlyConfigured: the object isn't fenced.
    """
    stored = store.get(name)
    if stored is None:
        return None
    frame = _FRAME.match(stored.data)
    if frame is None:
        raise ImproperlyConfigured(f"object {name!r} was written without a fence")
    return _content(stored.data, frame)


def _frame(token: FencingToken, content: bytes | None) -> bytes:
    state = "empty" if content is None else "content"
    head = f"redlock-fence {token:019d} {quote(token.lock, safe='/:')} {state}\n"
    return head.encode() + (content or b"")


def _content(data: bytes, frame: re.Match[bytes]) -> bytes | None:
    return None if frame[3] == b"empty" else data[frame.end() :]
