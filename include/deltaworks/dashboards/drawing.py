"""The frame of an SVG chart: axes, grid, and hover tooltips.

Colours are CSS classes, so one drawing works in the light and the dark theme. No scripts.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from deltaworks.dashboards.scales import Scale, Tick

HEIGHT = 230
WIDTH = {False: 620, True: 1_280}
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 24
#: Width of a character in chart labels, in pixels.
_CHARACTER_WIDTH = 6.2
_LINE_HEIGHT = 16
_EDGE_MARGIN = 20


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area of a chart: its size and axis scales."""

    width: int
    x: Scale
    y: Scale

    @classmethod
    def for_ranges(cls, x: tuple[float, float], y: tuple[float, float], *, wide: bool) -> Frame:
        """Returns a frame whose scales cover these value ranges."""
        width = WIDTH[wide]
        return cls(width, Scale(*x, _LEFT, width - _RIGHT), Scale(*y, HEIGHT - _BOTTOM, _TOP))

    @property
    def top(self) -> int:
        """The upper edge of the drawing area."""
        return _TOP

    @property
    def bottom(self) -> int:
        """The lower edge of the drawing area."""
        return HEIGHT - _BOTTOM

    @property
    def height(self) -> int:
        """The height of the drawing area."""
        return self.bottom - self.top

    def axes(self, x: Sequence[Tick], y: Sequence[Tick]) -> str:
        """Renders the grid and the labels of both axes."""
        right = self.width - _RIGHT
        parts = [
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{at + 4}" text-anchor="end">{escape(tick.label)}</text>'
            for tick in y
            for at in [self.y(tick.value)]
        ]
        for tick in x:
            at = self.x(tick.value)
            half = len(tick.label) * _CHARACTER_WIDTH / 2
            # Labels are moved so that they stay inside the picture.
            middle = round(min(max(at, half), self.width - half), 1)
            parts.append(
                f'<line class="mark" x1="{at}" x2="{at}" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - _BOTTOM + 4}"/>'
                f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(tick.label)}</text>'
            )
        base = self.y(0) if self.y.low <= 0 <= self.y.high else HEIGHT - _BOTTOM
        parts.append(f'<line class="base" x1="{_LEFT}" x2="{right}" y1="{base}" y2="{base}"/>')
        return "".join(parts)

    def hover(self, left: float, right: float, at: float, lines: Sequence[tuple[str, str]], *, head: str) -> str:
        """Renders an invisible strip that shows values while the pointer is over it.

        Args:
            at: the position of the marker line.
            lines: CSS class (may be empty) and text of each line.
        """
        texts = [head, *(text for _, text in lines)]
        width = round(max(map(len, texts)) * _CHARACTER_WIDTH + (30 if lines else 18), 1)
        x = at + 10 if at + 10 + width <= self.width else max(at - 10 - width, 0)
        rows = "".join(
            (
                f'<rect class="fill {name}" x="9" y="{_LINE_HEIGHT * number + 11}" width="9" height="9" rx="2"/>'
                if name
                else ""
            )
            + f'<text x="{24 if name else 9}" y="{_LINE_HEIGHT * number + 19}">{escape(text)}</text>'
            for number, (name, text) in enumerate(lines, start=1)
        )
        return (
            f'<g class="hit"><rect x="{left}" y="{_TOP}" width="{round(max(right - left, 1), 1)}" '
            f'height="{HEIGHT - _TOP - _BOTTOM}"/>'
            f'<g class="tip"><line x1="{at}" x2="{at}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
            f'<g transform="translate({round(x, 1)} {_TOP + 2})">'
            f'<rect class="box" width="{width}" height="{_LINE_HEIGHT * len(texts) + 12}" rx="6"/>'
            f'<text class="head" x="9" y="19">{escape(head)}</text>{rows}</g></g></g>'
        )

    def svg(self, title: str, parts: Iterable[str]) -> str:
        """Renders the complete SVG element."""
        return (
            f'<svg viewBox="0 0 {self.width} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        )


def hover_strips(pixels: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """Returns the range of the hover strip of each point: half way to its neighbours, limited at the ends."""
    low, high = max(low, pixels[0] - _EDGE_MARGIN), min(high, pixels[-1] + _EDGE_MARGIN)
    middles = [round((before + after) / 2, 1) for before, after in pairwise(pixels)]
    return list(zip([low, *middles], [*middles, high], strict=True))


def escape(value: object) -> str:
    """Escapes text for HTML."""
    return html.escape(str(value), quote=True)
