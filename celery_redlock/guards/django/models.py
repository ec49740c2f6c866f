"""The model of the fence row, for migrations and to look at.  Never written through the ORM."""

from __future__ import annotations

from typing import Any

from django.db import models

from celery_redlock.guards.argument import LONGEST_LOCK
from celery_redlock.guards.fence_row import LOCK_NAME, TABLE, TOKEN

__all__ = ["Fence", "LockNameField"]


class LockNameField(models.CharField):
    """Text that is compared byte by byte: MySQL's text ignores case and trailing blanks."""

    def db_type(self, connection: Any) -> str | None:
        """``varbinary`` on MySQL and MariaDB, text elsewhere."""
        if connection.vendor == "mysql":
            return f"varbinary({self.max_length})"
        kind: str | None = super().db_type(connection)
        return kind

    def from_db_value(self, value: Any, *_: Any) -> Any:
        """The name as text."""
        return value.decode() if isinstance(value, bytes) else value

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: FBT001, FBT002
        """The name as this database keeps it."""
        value = super().get_db_prep_value(value, connection, prepared)
        if connection.vendor == "mysql" and isinstance(value, str):
            return value.encode()
        return value


class Fence(models.Model):
    """The highest fencing token that has claimed a lock's data.

    Rows must outlive every holder of the lock: one that is deleted, or restored from an older
    backup, lets a stale holder write again.
    """

    lock_name = LockNameField(
        "lock", db_column=LOCK_NAME, max_length=LONGEST_LOCK, primary_key=True
    )
    fencing_token = models.BigIntegerField("fencing token", db_column=TOKEN)

    class Meta:
        """Its table is the one that the guard of SQLAlchemy writes, too."""

        db_table = TABLE
        verbose_name = "fence"
        verbose_name_plural = "fences"

    def __str__(self) -> str:
        return f"{self.lock_name};{self.fencing_token}"
