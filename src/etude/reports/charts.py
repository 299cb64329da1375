"""Charts: turn numbers into the geometry of a block of the page, without scripts or external files.

Lines and areas are an SVG stretched over its box; all text is HTML laid over it by percentages. So a chart fills any
width, its text keeps its size on a phone, and a tip is an element that appears where the pointer or finger is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from etude.contracts.formats import Format
from etude.reports.blocks import Strong, Text, view


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series over x. A non-finite value interrupts the line."""

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
    """A named point."""

    name: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True)
class Shape:
    """A path of the SVG; `kind` is a class of the style sheet."""

    kind: str
    path: str
    colour: str = ""


@dataclass(frozen=True)
class Mark:
    """Text over the SVG, placed by `style`."""

    kind: str
    style: str
    text: Text
    about: str = ""


@dataclass(frozen=True)
class Tip:
    """Text that shows while the pointer is within a part of the width; `within` is its place there, all in percent."""

    left: float
    width: float
    within: float
    on_left: bool
    text: Text


@dataclass(frozen=True, kw_only=True)
class Chart:
    label: str
    shapes: Sequence[Shape]
    marks: Sequence[Mark]
    tips: Sequence[Tip] = ()
    size: str = ""  # a class of the style sheet
    height_px: int = 0

    def __html__(self) -> str:
        return view("chart", chart=self).__html__()


@dataclass(frozen=True)
class Scale:
    """Maps data to percentages of the box."""

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
    events: Sequence[tuple[float, str]] = (),
    tips: Sequence[tuple[float, Text]] = (),
    x_from: float | None = None,
    x_unit: float = 0.0,
    y_range: tuple[float, float] | None = None,
    y_unit: float = 0.0,
    x_format: Format,
    y_format: Format,
    x_name: str = "",
    size: str = "",
) -> Chart:
    """`tips` are (x, text): the text shows while the pointer is nearest to x; `events` are (x, name): a vertical line
    with its name above it. `size` is a class of the style sheet.

    Ticks are multiples of `x_unit` and `y_unit`: 1 where x counts.
    """
    points = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    xs = [*(v for line in lines for v in line.x), *(point.x for point in points), *(at for at, _ in events)]
    x = _scale([*([] if x_from is None else [x_from]), *xs])
    ys = [*(v for line in lines for v in line.values), *(level.y for level in levels), *(point.y for point in points)]
    y = _scale(ys, room=0.06) if y_range is None else Scale(*y_range)
    y_ticks = ticks(y, 3 if size == "small" else 5, unit=y_unit)
    return Chart(
        label=label,
        shapes=[
            *(Shape("grid", f"M0 {100 - y(v):.3f}H100") for v in y_ticks),
            *(Shape("event", f"M{x(at)} 0V100") for at, _ in events),
            *(Shape("level", f"M0 {100 - y(level.y):.3f}H100", level.colour) for level in levels),
            *(shape for line in lines for shape in _line(line, x, y)),
            *(Shape("dots point", f"M{x(p.x)} {100 - y(p.y):.3f}h0", p.colour) for p in points),
        ],
        marks=[
            *(Mark("y-tick", f"bottom:{y(v)}%", y_format(v)) for v in y_ticks),
            *_x_ticks(x, ticks(x, 4 if size else 6, unit=x_unit), x_format),
            *([Mark("x-name", "", x_name)] if x_name else []),
            *_event_names(events, x),
            *_names(lines, levels, y),
            *_point_names(points, x, y),
        ],
        tips=_tips(tips, x),
        size=size,
    )


def histograms(
    groups: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, label: str, x_format: Format
) -> Chart | None:
    """Histograms, one row per group over a shared x axis, each with a line at its mean. None without numbers."""
    groups = {name: finite for name, values in groups.items() if (finite := [v for v in values if math.isfinite(v)])}
    if not groups:
        return None
    x = _scale([v for values in groups.values() for v in values], room=0.03)
    edges = np.linspace(x.low, x.high, 81)
    counts = {name: np.histogram(values, edges)[0] for name, values in groups.items()}
    row, top = 100 / len(groups), max(int(c.max()) for c in counts.values())
    shapes, marks = [], []
    for i, (name, count) in enumerate(counts.items()):
        floor, mean, colour = row * (i + 1), float(np.mean(groups[name])), colours[name]
        heights = floor - count / top * row * 0.86
        steps = " ".join(f"H{x(a)}V{h:.2f}H{x(b)}" for (a, b), h in zip(pairwise(edges), heights, strict=True))
        shapes += [
            Shape("grid", f"M0 {floor:.3f}H100"),
            Shape("area", f"M0 {floor:.2f} {steps} V{floor:.2f}Z", colour),
            Shape("mean", f"M{x(mean)} {floor:.2f}v{-row * 0.9:.2f}", colour),
        ]
        about = f"{name}: mean {x_format(mean)}, {x_format(min(groups[name]))} to {x_format(max(groups[name]))}"
        place = f"top:{floor - row:.2f}%;height:{row:.2f}%;--c:var({colour})"
        marks.append(Mark("row-name", place, [Strong(name), x_format(mean)], about))
    marks += _x_ticks(x, ticks(x, 6), x_format)
    return Chart(label=label, shapes=shapes, marks=marks, size="rows", height_px=52 * len(groups))


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
    """The positions, moved by as little as labels of height `gap` need."""
    placed = [0.0] * len(positions)
    floor = -math.inf
    for i in sorted(range(len(positions)), key=lambda i: positions[i]):
        placed[i] = floor = max(positions[i], floor + gap)
    return placed


def _below(places: Sequence[float], most: float, gap: float) -> list[float]:
    """Positions that `spread` moved above `most`, moved back under it, and others as far as they need."""
    if max(places, default=0.0) <= most:
        return list(places)
    return [most - place for place in spread([most - min(place, most) for place in places], gap)]


def _scale(values: Sequence[float], room: float = 0.0) -> Scale:
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    extra = (high - low) * room if high > low else abs(high) * 0.1 or 1.0
    return Scale(low - extra if high == low or room else low, high + extra)


def _x_ticks(x: Scale, values: Sequence[float], x_format: Format) -> list[Mark]:
    return [Mark("x-tick", f"left:{x(v)}%", x_format(v)) for v in values]


def _line(line: Line, x: Scale, y: Scale) -> list[Shape]:
    shapes = []
    if line.band is not None:
        low, high = ([p for part in _points(line.x, side, x, y) for p in part] for side in line.band)
        shapes += [Shape("band", f"M{' L'.join([*high, *reversed(low)])}Z", line.colour)] if high else []
    parts = _points(line.x, line.y, x, y)
    if parts:
        path = "".join(f"M{' L'.join(part)}" for part in parts)
        shapes.append(Shape("line faint" if line.faint else "line", path, line.colour))
    if line.dots:  # a stroke of no length with round caps stays a circle however the box is stretched
        shapes.append(Shape("dots", "".join(f"M{p}h0" for part in parts for p in part), line.colour))
    return shapes


def _points(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[list[str]]:
    """Uninterrupted sequences of `x y` pairs."""
    parts: list[list[str]] = [[]]
    for a, b in zip(xs, ys, strict=True):
        if math.isfinite(a) and math.isfinite(b):
            parts[-1].append(f"{x(a)} {100 - y(b):.3f}")
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _names(lines: Sequence[Line], levels: Sequence[Level], y: Scale) -> list[Mark]:
    """Names at the right edge, where each line ends."""
    ends = [
        (line.name, line.colour, next((v for v in reversed(line.y) if math.isfinite(v)), math.nan)) for line in lines
    ]
    ends = [e for e in [*ends, *((v.name, v.colour, v.y) for v in levels)] if e[0] and math.isfinite(e[2])]
    places = _below(spread([y(v) for _, _, v in ends], gap=5.6), 100.0, gap=5.6)
    return [
        Mark("name", f"bottom:{place:.2f}%;color:var({colour})", name)
        for (name, colour, _), place in zip(ends, places, strict=True)
    ]


def _point_names(points: Sequence[Point], x: Scale, y: Scale) -> list[Mark]:
    """Each next to its point, on the side where there is more room."""
    marks = []
    for point, place in zip(points, spread([y(point.y) for point in points], gap=5.6), strict=True):
        left = x(point.x)
        side, at = (" on-left", f"right:{100 - left:.2f}%") if left > 60 else ("", f"left:{left:.2f}%")
        style = f"{at};bottom:{place:.2f}%;color:var({point.colour})"
        marks.append(Mark(f"point-name{side}", style, point.name))
    return marks


def _event_names(events: Sequence[tuple[float, str]], x: Scale) -> list[Mark]:
    places = spread([x(at) for at, _ in events], gap=6.0)
    return [Mark("event-name", f"left:{place:.2f}%", name) for (_, name), place in zip(events, places, strict=True)]


def _tips(tips: Sequence[tuple[float, Text]], x: Scale) -> list[Tip]:
    places = [x(at) for at, _ in tips]
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    found = []
    for place, left, right, (_, text) in zip(places, [0.0, *middles], [*middles, 100.0], tips, strict=bool(tips)):
        within = 100 * (place - left) / (right - left) if right > left else 0.0
        found.append(Tip(round(left, 2), round(right - left, 2), round(within, 1), place > 55, text))
    return found
