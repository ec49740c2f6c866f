"""Makes the table of fences.  Holds no data."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from celery_redlock.guards.django.models import LockNameField


class Migration(migrations.Migration):
    """The table ``redlock_fence``."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[migrations.CreateModel]] = [
        migrations.CreateModel(
            name="Fence",
            fields=[
                (
                    "lock_name",
                    LockNameField(
                        db_column="lock_name",
                        max_length=512,
                        primary_key=True,
                        serialize=False,
                        verbose_name="lock",
                    ),
                ),
                (
                    "fencing_token",
                    models.BigIntegerField(db_column="fencing_token", verbose_name="fencing token"),
                ),
            ],
            options={
                "db_table": "redlock_fence",
                "verbose_name": "fence",
                "verbose_name_plural": "fences",
            },
        )
    ]
