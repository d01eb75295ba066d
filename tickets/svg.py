"""Charts as inline SVG for a page: small, without scripts, in the colours of the page, light or dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 12, 46
"""Of the drawing, in its own units; a phone shows about one for each of its pixels."""

TICKS = 5

LETTER, BESIDE = 7.0, 32
"""Width of a letter of a tick, at most on average, and of what stands left of the ticks: the name of the axis, and a gap."""


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: for the legend.
        points: x and y of each.
        style: ``line``, ``marked`` (with a dot at each point), ``dashed``, ``dots``, or ``dotted`` for comparison only.
        bars: low and high of each point, for ``dots``; empty for none.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "line"
    bars: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: what it shows, for people who hear it as well.
        x, y: along the axes.
        series: at least one point together.
        percent: whether y is a share.
        percent_x: whether x is a share.
        log: whether x is logarithmic; points at 0 or below are left out then.
        x_range, y_range: ends of the axes; None for those of the points.
        caption: a sentence below.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series] = field(default_factory=tuple)
    percent: bool = False
    percent_x: bool = False
    log: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    caption: str = ""

    def svg(self) -> str:
        """The chart as an SVG element; every text in it is escaped."""
        series = [(number, one, self._finite(one)) for number, one in enumerate(self.series)]
        heights = [value for _, _, points in series for _, y, bar in points for value in (y, *bar)]
        up = _Axis(self.y_range or _ends(heights), HEIGHT - BOTTOM, TOP)
        longest = max((len(_number(value, self.percent)) for value in up.ticks()), default=0)
        left = max(LEFT, math.ceil(BESIDE + LETTER * longest))
        across = _Axis(
            self.x_range or _ends(x for _, _, points in series for x, _, _ in points), left, WIDTH - RIGHT, self.log
        )
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}"'
            ' xmlns="http://www.w3.org/2000/svg">',
            *(self._across_tick(across, value) for value in across.ticks()),
            *(self._up_tick(up, value, left) for value in up.ticks()),
            f'<path class="axis" d="M{left} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
            _label(self.x, f'x="{(left + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6}"'),
            _label(self.y, f'transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2:g}) rotate(-90)"'),
            *(_drawn(number, one, points, across, up) for number, one, points in series),
            "</svg>",
        ]
        return "".join(parts)

    def _finite(self, series: Series) -> list[tuple[float, float, tuple[float, ...]]]:
        bars: Sequence[tuple[float, ...]] = series.bars or [()] * len(series.points)
        return [
            (x, y, tuple(bar)) for (x, y), bar in zip(series.points, bars, strict=True)
            if math.isfinite(x) and math.isfinite(y) and not (self.log and x <= 0)
        ]  # fmt: skip

    def _across_tick(self, axis: _Axis, value: float) -> str:
        at, bottom = axis.at(value), HEIGHT - BOTTOM
        return (
            f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>'
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(value, self.percent_x)}</text>'
        )

    def _up_tick(self, axis: _Axis, value: float, left: int) -> str:
        at = axis.at(value)
        return (
            f'<path class="grid" d="M{left} {at:.1f}H{WIDTH - RIGHT}"/>'
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(value, self.percent)}</text>'
        )


@dataclass(frozen=True)
class _Axis:
    """From values to places."""

    ends: tuple[float, float]
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = (math.log10(end) if self.log else end for end in self.ends)
        place = math.log10(value) if self.log else value
        share = (place - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, -0.02), 1.02) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round values between the ends."""
        low, high = self.ends
        if self.log:
            tens = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
            if len(tens) < 4:
                tens = [factor * ten for ten in tens for factor in (1, 2, 5)]
            return [ten for ten in tens if low * 0.999 <= ten <= high * 1.001]
        rough = (high - low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
        first = math.ceil(low / step - 1e-9)
        return [step * place for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _ends(values: Iterable[float]) -> tuple[float, float]:
    """The least and the most, a little apart."""
    known = list(values) or [0.5, 1.0]  # of nothing: any two that a logarithm has
    low, high = min(known), max(known)
    margin = 0.0 if high > low else abs(high) * 0.1 or 1.0
    return low - margin if low - margin > 0 or low <= 0 else low / 2, high + margin


def _label(text: str, place: str) -> str:
    return f'<text class="label" {place} text-anchor="middle">{escape(text)}</text>'


def _number(value: float, share: bool) -> str:
    return f"{100 * value:.4g} %" if share else f"{value:.4g}"


def _drawn(
    number: int, series: Series, points: Sequence[tuple[float, float, tuple[float, ...]]], across: _Axis, up: _Axis
) -> str:
    name = f"s{number % 4}"
    if series.style == "dots":
        return "".join(_dot(name, x, y, bar, across, up) for x, y, bar in points)
    marks = "".join(_dot(name, x, y, (), across, up, 2.5) for x, y, _ in points) if series.style == "marked" else ""
    path = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y, _ in points)
    return f'<path class="{name} {series.style}" d="M{path}"/>{marks}' if path else ""


def _dot(name: str, x: float, y: float, bar: tuple[float, ...], across: _Axis, up: _Axis, radius: float = 4) -> str:
    at = across.at(x)
    whisker = f'<path class="{name} bar" d="M{at:.1f} {up.at(bar[0]):.1f}V{up.at(bar[1]):.1f}"/>' if bar else ""
    return f'{whisker}<circle class="{name} dot" cx="{at:.1f}" cy="{up.at(y):.1f}" r="{radius:g}"/>'
