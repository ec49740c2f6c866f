"""Timing diagrams, drawn as SVG from a few lines of text in the page.  Needs no other program.

The text of a ``{timing}`` directive, one thing on each line::

    time 0 30                          # from, to (any unit)
    lane worker A                      # a horizontal line with a name
      bar 2 12 held | lease of A       # from, to, kind, and a text in it
      tick 5 renewed                   # an instant with a text above the line
      cross 8 killed                   # an instant that went wrong
    arrow worker A 2 -> server 1 3 | what is said

Kinds of bars: ``held`` (trusted), ``stored`` (kept by a server), ``busy`` (a body runs), ``idle``
(paused, waiting), ``bad`` (must not be).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar, NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

WIDTH, LEFT, RIGHT = 760, 128, 24
TOP, LANE, BAR = 24, 62, 22
_SPACE = 'xmlns="http://www.w3.org/2000/svg"'
_TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
)
_ARROW = re.compile(r"arrow (.+?) ([\d.]+) -> (.+?) ([\d.]+)(?: \| (.*))?")
_BAR = re.compile(r"bar ([\d.]+) ([\d.]+) (held|stored|busy|idle|bad)(?: \| (.*))?")
_MARK = re.compile(r"(tick|cross) ([\d.]+)(?: (.*))?")


@dataclass
class Lane:
    """One actor: its bars, and its instants."""

    name: str
    bars: list[tuple[float, float, str, str]] = field(default_factory=list)
    marks: list[tuple[str, float, str]] = field(default_factory=list)


class Arrow(NamedTuple):
    """A message from one lane to another, and what it says."""

    source: str
    leaves: float
    target: str
    arrives: float
    text: str


@dataclass
class Diagram:
    """A parsed diagram."""

    start: float = 0.0
    end: float = 10.0
    lanes: list[Lane] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Diagram:
        """The diagram that a text describes.

        Raises:
            ValueError: a line is not understood, or names a lane that isn't there.
        """
        diagram = cls()
        for line in filter(None, (each.strip() for each in text.splitlines())):
            if not diagram._take(line):
                raise ValueError(f"a line of a timing diagram is not understood: {line!r}")
        names = {lane.name for lane in diagram.lanes}
        for arrow in diagram.arrows:
            if not {arrow.source, arrow.target} <= names:
                raise ValueError(f"an arrow names a lane that isn't there: {arrow}")
        return diagram

    def _take(self, line: str) -> bool:
        word, _, rest = line.partition(" ")
        if word == "time":
            self.start, self.end = map(float, rest.split())
        elif word == "lane":
            self.lanes.append(Lane(rest))
        elif match := _BAR.fullmatch(line):
            begin, end, kind, text = match.groups()
            self.lanes[-1].bars.append((float(begin), float(end), kind, text or ""))
        elif match := _MARK.fullmatch(line):
            self.lanes[-1].marks.append((match[1], float(match[2]), match[3] or ""))
        elif match := _ARROW.fullmatch(line):
            source, leaves, target, arrives, text = match.groups()
            arrow = Arrow(source, float(leaves), target, float(arrives), text or "")
            self.arrows.append(arrow)
        else:
            return False
        return True

    def svg(self, title: str) -> str:
        """The picture, with a title for those who can't see it."""
        height = TOP + LANE * len(self.lanes) + 8
        parts = [
            f'<svg class="timing" viewBox="0 0 {WIDTH} {height}" role="img" {_SPACE}>',
            f"<title>{escape(title)}</title>",
            f"<defs>{_TIP}</defs>",
        ]
        for number, lane in enumerate(self.lanes):
            # Arrows leave downwards as a rule, so the text of an instant stands above its line,
            # and below it where no further lane follows.
            label = 26 if number == len(self.lanes) - 1 else -18
            parts += self._lane(lane, self._y(number), label)
        parts += [self._arrow(arrow) for arrow in self.arrows]
        return "".join([*parts, "</svg>"])

    def _x(self, instant: float) -> float:
        share = (instant - self.start) / (self.end - self.start)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def _y(self, number: int) -> float:
        return TOP + LANE * number + BAR

    def _lane(self, lane: Lane, y: float, label: int) -> list[str]:
        end = WIDTH - RIGHT + 10
        parts = [
            f'<text class="name" x="{LEFT - 12}" y="{y + 4}">{escape(lane.name)}</text>',
            f'<line class="lane" x1="{LEFT}" y1="{y}" x2="{end}" y2="{y}"/>',
        ]
        for begin, until, kind, text in lane.bars:
            left, right = self._x(begin), self._x(until)
            box = f'x="{left}" y="{y - BAR / 2}" width="{right - left:.1f}" height="{BAR}" rx="3"'
            parts.append(f'<rect class="paper" {box}/><rect class="{kind}" {box}/>')
            middle = (left + right) / 2
            parts.append(f'<text class="in" x="{middle:.1f}" y="{y + 4}">{escape(text)}</text>')
        for kind, instant, text in lane.marks:
            parts += _mark(kind, self._x(instant), y, y + label, text)
        return parts

    def _arrow(self, arrow: Arrow) -> str:
        names = [lane.name for lane in self.lanes]
        start, end = self._y(names.index(arrow.source)), self._y(names.index(arrow.target))
        down = 1 if end > start else -1
        x1, y1 = self._x(arrow.leaves), start + down * BAR / 2
        x2, y2 = self._x(arrow.arrives), end - down * BAR / 2
        label = ""
        if arrow.text:
            middle = f'x="{(x1 + x2) / 2 + 6:.1f}" y="{(y1 + y2) / 2 + 4:.1f}"'
            label = f'<text class="said" {middle}>{escape(arrow.text)}</text>'
        line = f'x1="{x1}" y1="{y1}" x2="{x2:.1f}" y2="{y2:.1f}"'
        return f'<line class="arrow" {line} marker-end="url(#tip)"/>{label}'


def _mark(kind: str, x: float, y: float, below: float, text: str) -> list[str]:
    label = f'<text class="{kind}" x="{x}" y="{below}">{escape(text)}</text>'
    if kind == "tick":
        return [f'<line class="tick" x1="{x}" y1="{y - 13}" x2="{x}" y2="{y + 13}"/>', label]
    cross = f"M{x - 6} {y - 6}L{x + 6} {y + 6}M{x - 6} {y + 6}L{x + 6} {y - 6}"
    return [f'<path class="cross" d="{cross}"/>', label]


class Timing(SphinxDirective):
    """The ``{timing}`` directive."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {"name": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Draw the picture into the page, with its title below."""
        try:
            svg = Diagram.parse("\n".join(self.content)).svg(self.arguments[0])
        except ValueError as exc:
            raise self.error(str(exc)) from None
        figure = nodes.figure("", nodes.raw("", svg, format="html"))
        figure += nodes.caption("", "", *self.state.inline_text(self.arguments[0], self.lineno)[0])
        return [figure]


def setup(app: Any) -> dict[str, bool]:
    """Make the directive known to Sphinx."""
    app.add_directive("timing", Timing)
    return {"parallel_read_safe": True}
