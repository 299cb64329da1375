"""Charts as HTML: numbers in, a piece of a page out, with nothing to load and no script.

Lines and areas are an SVG stretched over its box; all text is HTML laid over it by percentages. So a chart fills any
width, its text keeps its size on a phone, and a tip is an element that appears where the pointer or finger is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from etude.learning.formats import Format


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series over x. A value that is not finite breaks it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str  # a custom property of the style sheet, such as `--policy`
    band: tuple[Sequence[float], Sequence[float]] | None = None  # low and high around it
    dots: bool = False
    faint: bool = False

    @property
    def values(self) -> list[float]:
        low, high = self.band or ((), ())
        return [*self.y, *low, *high]


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    y: float
    colour: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place in the plane with its name beside it."""

    name: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True)
class Scale:
    """Data to percentages of the box."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 3)


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    levels: Sequence[Level] = (),
    points: Sequence[Point] = (),
    tips: Sequence[tuple[float, str]] = (),
    x_from: float | None = None,
    x_unit: float = 0.0,
    y_range: tuple[float, float] | None = None,
    x_format: Format,
    y_format: Format,
    x_name: str = "",
    size: str = "",
) -> str:
    """`tips` are (x, text): the text shows while the pointer is nearest to x. `size` is a class of the style sheet.

    Ticks of x are multiples of `x_unit`: 1 where x counts.
    """
    points = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    xs = [*(v for line in lines for v in line.x), *(point.x for point in points)]
    x = _scale([*([] if x_from is None else [x_from]), *xs])
    ys = [*(v for line in lines for v in line.values), *(level.y for level in levels), *(point.y for point in points)]
    y = _scale(ys, room=0.06) if y_range is None else Scale(*y_range)
    x_ticks, y_ticks = ticks(x, 4 if size else 6, unit=x_unit), ticks(y, 3 if size else 5)
    shapes = "".join(_grid(y(v)) for v in y_ticks)
    shapes += "".join(_level(level, y) for level in levels) + "".join(_line(line, x, y) for line in lines)
    shapes += "".join(_point(point, x, y) for point in points)
    texts = "".join(f'<span class="y-tick" style="bottom:{y(v)}%">{y_format(v)}</span>' for v in y_ticks)
    texts += "".join(f'<span class="x-tick" style="left:{x(v)}%">{x_format(v)}</span>' for v in x_ticks)
    texts += f'<span class="x-name">{escape(x_name)}</span>' if x_name else ""
    texts += _names(lines, levels, y) + _point_names(points, x, y) + _tips(tips, x)
    return _box(label, shapes, texts, size=size)


def histograms(
    groups: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, label: str, x_format: Format
) -> str:
    """One row a group over one shared x axis; the line through each is its mean."""
    groups = {name: finite for name, values in groups.items() if (finite := [v for v in values if math.isfinite(v)])}
    if not groups:
        return ""
    x = _scale([v for values in groups.values() for v in values], room=0.03)
    edges = np.linspace(x.low, x.high, 81)
    counts = {name: np.histogram(values, edges)[0] for name, values in groups.items()}
    row, top = 100 / len(groups), max(int(c.max()) for c in counts.values())
    shapes, texts = "", ""
    for i, (name, count) in enumerate(counts.items()):
        floor, mean = row * (i + 1), float(np.mean(groups[name]))
        heights = floor - count / top * row * 0.86
        steps = " ".join(
            f"H{x(left)}V{h:.2f}H{x(right)}" for left, right, h in zip(edges, edges[1:], heights, strict=False)
        )
        shapes += _grid(100 - floor)
        shapes += f'<path class="area" style="--c:var({colours[name]})" d="M0 {floor:.2f} {steps} V{floor:.2f}Z"/>'
        shapes += f'<path class="mean" style="--c:var({colours[name]})" d="M{x(mean)} {floor:.2f}v{-row * 0.9:.2f}"/>'
        says = f"{name}: mean {x_format(mean)}, {x_format(min(groups[name]))} to {x_format(max(groups[name]))}"
        texts += f'<div class="row-name" style="top:{floor - row:.2f}%;height:{row:.2f}%" title="{escape(says)}">'
        texts += f'<b style="color:var({colours[name]})">{escape(name)}</b>{x_format(mean)}</div>'
    texts += "".join(f'<span class="x-tick" style="left:{x(v)}%">{x_format(v)}</span>' for v in ticks(x, 6))
    return _box(label, shapes, texts, size="rows", style=f"height:{52 * len(groups)}px")


def heat_map(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    top: float,
    colour: str,
    unit: str,
) -> str:
    """A table whose cells are tinted by value; the last column is each row's sum as a bar."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *columns, "all"))
    most = max((sum(row) for row in values), default=0.0) or 1.0
    body = ""
    for name, row in zip(rows, values, strict=True):
        cells = "".join(
            _heat_cell(v, v / (top or 1.0), f"{name}, {c}: {v:.2f} {unit}") for c, v in zip(columns, row, strict=True)
        )
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}<td>{bar(sum(row) / most, f"{sum(row):.1f}")}</td></tr>'
    return f'<table class="heat" style="--c:var({colour})"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def bar(share: float, text: str) -> str:
    """A number over a thin bar; what is not finite has none."""
    width = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    return f'<span class="bar"><i style="width:{100 * width:.1f}%"></i></span><span class="num">{escape(text)}</span>'


def ticks(scale: Scale, count: int, unit: float = 0.0) -> list[float]:
    """About `count` round numbers within the scale, multiples of `unit` where it is given."""
    rough = max((scale.high - scale.low) / count, unit)
    power = 10 ** math.floor(math.log10(rough))
    steps = [power * m for m in (1, 2, 2.5, 5, 10) if not unit or (power * m / unit).is_integer()]
    step = next(step for step in steps if step >= rough * 0.999)
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def thin(x: Sequence[float], y: Sequence[float], most: int = 150) -> tuple[list[float], list[float]]:
    """At most `most` points: neighbours are averaged, so a long run makes no larger page than a short one."""
    if len(x) <= most:
        return list(x), list(y)
    parts = zip(np.array_split(np.asarray(x), most), np.array_split(np.asarray(y), most), strict=True)
    pairs = [(float(a[-1]), float(b[np.isfinite(b)].mean()) if np.isfinite(b).any() else math.nan) for a, b in parts]
    return [a for a, _ in pairs], [b for _, b in pairs]


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """The positions, moved apart as little as needed for labels `gap` high."""
    placed = [0.0] * len(positions)
    floor = -math.inf
    for i in sorted(range(len(positions)), key=lambda i: positions[i]):
        placed[i] = floor = max(positions[i], floor + gap)
    return placed


def _scale(values: Sequence[float], room: float = 0.0) -> Scale:
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    extra = (high - low) * room if high > low else abs(high) * 0.1 or 1.0
    return Scale(low - extra if high == low or room else low, high + extra)


def _box(label: str, shapes: str, texts: str, *, size: str, style: str = "") -> str:
    svg = (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{shapes}</svg>'
    )
    return f'<div class="chart {size}"><div class="plot" style="{style}">{svg}{texts}</div></div>'


def _grid(bottom: float) -> str:
    return f'<path class="grid" d="M0 {100 - bottom:.3f}H100"/>'


def _level(level: Level, y: Scale) -> str:
    return f'<path class="level" style="--c:var({level.colour})" d="M0 {100 - y(level.y):.3f}H100"/>'


def _line(line: Line, x: Scale, y: Scale) -> str:
    style = f'style="--c:var({line.colour})"'
    out = ""
    if line.band is not None:
        low, high = (_points(line.x, side, x, y) for side in line.band)
        edge = [p for part in high for p in part] + [p for part in low for p in part][::-1]
        out += f'<path class="band" {style} d="M{" L".join(edge)}Z"/>' if edge else ""
    parts = _points(line.x, line.y, x, y)
    path = "".join(f"M{' L'.join(part)}" for part in parts)
    out += f'<path class="line{" faint" if line.faint else ""}" {style} d="{path}"/>' if path else ""
    if line.dots:  # a stroke of no length with round caps stays a circle however the box is stretched
        out += f'<path class="dots" {style} d="{"".join(f"M{p}h0" for part in parts for p in part)}"/>'
    return out


def _point(point: Point, x: Scale, y: Scale) -> str:
    return f'<path class="dots point" style="--c:var({point.colour})" d="M{x(point.x)} {100 - y(point.y):.3f}h0"/>'


def _points(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[list[str]]:
    """Unbroken stretches of `x y` pairs."""
    parts: list[list[str]] = [[]]
    for a, b in zip(xs, ys, strict=True):
        if math.isfinite(a) and math.isfinite(b):
            parts[-1].append(f"{x(a)} {100 - y(b):.3f}")
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _names(lines: Sequence[Line], levels: Sequence[Level], y: Scale) -> str:
    """Names at the right edge, where each line ends."""
    ends = [
        (line.name, line.colour, next((v for v in reversed(line.y) if math.isfinite(v)), math.nan)) for line in lines
    ]
    ends = [e for e in [*ends, *((v.name, v.colour, v.y) for v in levels)] if e[0] and math.isfinite(e[2])]
    places = spread([y(v) for _, _, v in ends], gap=5.6)
    return "".join(
        f'<span class="name" style="bottom:{place:.2f}%;color:var({colour})">{escape(name)}</span>'
        for (name, colour, _), place in zip(ends, places, strict=True)
    )


def _point_names(points: Sequence[Point], x: Scale, y: Scale) -> str:
    """Each beside its point, on the side where there is more room."""
    places = spread([y(point.y) for point in points], gap=5.6)
    out = ""
    for point, place in zip(points, places, strict=True):
        left = x(point.x)
        side, at = (" on-left", f"right:{100 - left:.2f}%") if left > 60 else ("", f"left:{left:.2f}%")
        out += f'<span class="point-name{side}" style="{at};bottom:{place:.2f}%;color:var({point.colour})">'
        out += f"{escape(point.name)}</span>"
    return out


def _tips(tips: Sequence[tuple[float, str]], x: Scale) -> str:
    if not tips:
        return ""
    places = [x(at) for at, _ in tips]
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    out = ""
    for place, left, right, (_, text) in zip(places, [0.0, *middles], [*middles, 100.0], tips, strict=True):
        side = " on-left" if place > 55 else ""
        within = 100 * (place - left) / (right - left) if right > left else 0
        out += f'<div class="hit" style="left:{left:.2f}%;width:{right - left:.2f}%"><i style="left:{within:.1f}%"></i>'
        out += f'<div class="tip{side}" style="left:{within:.1f}%">{text}</div></div>'
    return out


def _heat_cell(value: float, share: float, says: str) -> str:
    # At most half the colour: the page's ink stays readable on it, in the light and in the dark.
    strength = round(50 * min(max(share, 0.0), 1.0)) if math.isfinite(share) else 0
    return f'<td class="cell" style="--p:{strength}%" title="{escape(says)}">{value:.1f}</td>'
