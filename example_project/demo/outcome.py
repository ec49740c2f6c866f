"""What an act hands back.  A plain value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType


@dataclass(frozen=True)
class Outcome:
    """How one act ended.

    Attributes:
        title: its heading.
        body: what is printed under it, in order.
        summary: what was shown, for when all is well.
        problems: what must not have happened, in words; empty if all is well.
    """

    title: str
    body: Sequence[RenderableType]
    summary: str
    problems: Sequence[str] = field(default_factory=list)
