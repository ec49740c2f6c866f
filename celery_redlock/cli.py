"""The command ``celery -A <project> redlock``: what operators do by hand."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_redlock.coordinators.base import Finding
from celery_redlock.exceptions import RedlockError
from celery_redlock.locks import Locks

__all__ = ["redlock"]

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.group(name="redlock")
def redlock() -> None:
    """Look after the lock servers of an application."""


@redlock.command(cls=CeleryCommand)
@click.pass_context
@handle_preload_options
def doctor(ctx: Any) -> None:
    """Check every coordinator: reachable, roles, durability, clocks, permissions.

    What is an error stops workers that have tasks in correctness mode; each finding names its
    cure.  The exit status is 1 if there is an error, else 0.
    """
    locks = _locks(ctx)
    worst = "ok"
    for name in locks.settings.coordinators:
        click.secho(f"{name}", bold=True)
        for finding in locks.coordinator(name, "efficiency").check():
            _show(finding)
            worst = "error" if "error" in {worst, finding.level} else finding.level
    ctx.exit(1 if worst == "error" else 0)


@redlock.command(cls=CeleryCommand)
@click.argument("coordinator", default="default")
@click.pass_context
@handle_preload_options
def admit(ctx: Any, coordinator: str) -> None:
    """Re-admit replaced or emptied servers of a Redlock with fencing tokens, or a changed set.

    COORDINATOR is a name in redlock_coordinators.  The survivors are sealed, the highest token
    is copied, and a new epoch begins, so that no token ever goes back.  Every server must
    answer.  Running it again after a failure goes on where it stopped.
    """
    try:
        found = _locks(ctx).coordinator(coordinator, "correctness")
        if not hasattr(found, "admit"):
            raise click.ClickException(f"{coordinator!r} is no Redlock: it needs no epoch")
        for node, said in found.admit().items():
            click.echo(f"{node}: {said}")
    except RedlockError as exc:
        raise click.ClickException(str(exc)) from exc


def _locks(ctx: Any) -> Locks:
    try:
        return Locks.for_app(ctx.obj.app)
    except RedlockError as exc:
        raise click.ClickException(str(exc)) from exc


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:8}", fg=COLOURS[finding.level])
    click.echo(f"  {level} {finding.subject}: {finding.message}")
    if finding.cure:
        click.echo(f"           {finding.cure}")
