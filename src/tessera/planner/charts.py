"""Plots as SVG text: axes, lines, dots and marks. Colours are classes of the page's style sheet."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 66, 18, 16, 52
Point = tuple[float, float]

_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from low to high; `log` is the base of a logarithmic axis, or 0 for a linear one."""

    label: str
    low: float
    high: float
    log: int = 0

    def share(self, value: float) -> float:
        """Where a value lies: 0 at low, 1 at high."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Powers of the base, or round numbers, about six of them."""
        if self.log:
            first = math.ceil(math.log(self.low, self.log) - 1e-9)
            last = math.floor(math.log(self.high, self.log) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / 7))
            return [float(self.log) ** power for power in range(first, last + 1, every)]
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        size = next(unit * step for step in (1, 2, 5, 10) if unit * step >= rough)
        start = math.ceil(self.low / size)
        return [size * i for i in range(start, math.floor(self.high / size + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in order; `style` names classes of the style sheet; `dots` titles points."""

    name: str
    points: Sequence[Point]
    style: str
    dots: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A dashed vertical line at x with a word beside it."""

    name: str
    x: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines in a frame; the legend is in the corner where they are not, at the left above or below."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    legend: Literal["above", "below"] = "above"

    def svg(self) -> str:
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            *self._grid(),
            *self._lines(),
            *self._marks(),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts)

    def _at(self, point: Point) -> tuple[float, float]:
        """Pixels of a point, kept inside the frame."""
        across = min(1.0, max(0.0, self.x.share(point[0])))
        up = min(1.0, max(0.0, self.y.share(point[1])))
        x = LEFT + across * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    def _grid(self) -> Iterator[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for value in self.x.ticks():
            x, _ = self._at((value, self.y.low))
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
            name = short(value, binary=self.x.log == 2)
            yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{name}</text>'
        for value in self.y.ticks():
            _, y = self._at((self.x.low, value))
            yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{short(value)}</text>'
        middle, up = (LEFT + right) / 2, (TOP + bottom) / 2
        for label, place in (
            (self.x.label, f"translate({middle} {HEIGHT - 10})"),
            (self.y.label, f"translate(16 {up}) rotate(-90)"),
        ):
            yield f'<text class="axis" transform="{place}" text-anchor="middle">{escape(label)}</text>'

    def _lines(self) -> Iterator[str]:
        for line in self.lines:
            pixels = [self._at(point) for point in line.points]
            path = " ".join(f"{x},{y}" for x, y in pixels)
            if len(pixels) > 1:
                yield f'<polyline class="line {line.style}" points="{path}">{_title(line.name)}</polyline>'
            for (x, y), title in zip(pixels, line.dots, strict=False):
                yield f'<circle class="dot {line.style}" cx="{x}" cy="{y}" r="4.5">{_title(title)}</circle>'

    def _marks(self) -> Iterator[str]:
        shown = [mark for mark in self.marks if self.x.low <= mark.x <= self.x.high]
        for index, mark in enumerate(shown):
            x, _ = self._at((mark.x, self.y.low))
            end = "end" if x > WIDTH * 0.75 else "start"
            y = HEIGHT - BOTTOM - 10 - 16 * index
            yield f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            yield (
                f'<text class="label" x="{x + (-6 if end == "end" else 6)}" y="{y}" text-anchor="{end}">'
                f"{escape(mark.name)}</text>"
            )

    def _legend(self) -> Iterator[str]:
        for index, line in enumerate(self.lines):
            y = TOP + 16 + 18 * index
            if self.legend == "below":
                y += HEIGHT - TOP - BOTTOM - 18 * len(self.lines) - 10
            yield f'<rect class="key {line.style}" x="{LEFT + 12}" y="{y - 8}" width="14" height="8" rx="2"/>'
            yield f'<text class="label" x="{LEFT + 32}" y="{y}">{escape(line.name)}</text>'


def _title(text: str) -> str:
    """What a browser shows under the pointer."""
    return f"<title>{escape(text)}</title>"


def short(value: float, binary: bool = False) -> str:
    """2e12 -> "2T"; `binary` counts thousands as 1024, as lengths of contexts are: 32768 -> "32k"."""
    if binary and value >= 1024:
        return f"{value / 1024:.3g}k"
    for size, letter in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def steps(low: float, high: float, count: int) -> list[float]:
    """`count` values from low to high, equally spaced on a logarithmic axis."""
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
