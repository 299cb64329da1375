"""A plan as a picture: a plan in, an SVG out, with nothing to load and no script.

Layers run from left to right (Sugiyama et al., 1981). An edge that skips layers gets a slot of its own in each of
them, its track, so edges bend in the gaps between layers only and never run through a box.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from unicodedata import combining, east_asian_width
from zlib import crc32

from etude.problems.workflow.plan import Node, Plan

BOX_WIDTH, BOX_HEIGHT, BOX_ROOM, TRACK_ROOM = 152.0, 62.0, 43.0, 6.0  # room: half of what an item takes of its layer
MARGIN, GAP, MAX_GAP, MIN_WIDTH, ARROW = 24.0, 56.0, 140.0, 420.0, 8.0
CAPTION, LABEL, SMALL, TINY = 15.0, 13.0, 11.0, 10.5  # font sizes
LINE_HEIGHT = 1.3
SWEEPS = 12
TRACK_WEIGHT = 0.01
"""Of a track against a box where both need the same place: tracks make room."""

INK, PALE_INK, FAULT_INK, EDGE = "#1f2937", "#475569", "#b91c1c", "#7c8798"
PALETTE = (  # fill and border; both inks have a contrast of 4.5 or more on every fill
    ("#dbeafe", "#3b82f6"),
    ("#ffedd5", "#ea8a2f"),
    ("#dcfce7", "#35a35f"),
    ("#f3e8ff", "#a05ce0"),
    ("#fef9c3", "#c09a10"),
    ("#fce7f3", "#d9528f"),
    ("#ccfbf1", "#1a9c90"),
    ("#e7e0d8", "#8f7458"),
    ("#e0e7ff", "#6366f1"),
    ("#fee2e2", "#ef5a5a"),
    ("#ecfccb", "#7ba428"),
    ("#cffafe", "#0e9bb5"),
    ("#f5d0fe", "#c02bd3"),
    ("#fde4c8", "#b45309"),
    ("#d9e2ec", "#5f7a94"),
    ("#d5ead8", "#4d8a5b"),
    ("#ece8c4", "#9a8f2a"),
    ("#f8d7da", "#b0475a"),
)
STATUS = {  # border: its colour, width and dashes
    "planned": 'stroke="#94a3b8" stroke-width="2" stroke-dasharray="5 4"',
    "done": 'stroke="#15803d" stroke-width="2.5"',
    "failed": 'stroke="#dc2626" stroke-width="3"',
    "skipped": 'stroke="#64748b" stroke-width="2" stroke-dasharray="1.5 3.5"',
}
NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, those that turn the direction of what follows, lone surrogates, non-characters."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A line of text below a node."""

    text: str
    is_fault: bool = False


Colours = Mapping[str, tuple[str, str]]
"""Fill and border by task type."""


def task_colours(names: Iterable[str]) -> Colours:
    """A task type's colour follows from its name, unless two of these would have the same while others are free."""
    free: list[int] = []
    out = {}
    for name in sorted({_clean(name) for name in names}):
        free = free or list(range(len(PALETTE)))
        start = crc32(name.encode()) % len(PALETTE)
        chosen = min(free, key=lambda c: (c - start) % len(PALETTE))
        free.remove(chosen)
        out[name] = PALETTE[chosen]
    return out


def to_svg(
    plan: Plan,
    *,
    status: Sequence[str] | None = None,
    notes: Sequence[Note] = (),
    colours: Colours | None = None,
    figure: int | None = None,
) -> str:
    """One `<svg>` in ASCII, for a file, or as the `figure` of that number for a page, whose ids it tells apart.

    `status` has a word of `STATUS` for each node, `notes` one each. On a page with several plans, `colours` are
    those of all of them.
    """
    graph = _graph(plan)
    y, bottom = _heights(graph, _order(graph))
    x = _columns(graph, y)
    inner = max(x[-1] + BOX_WIDTH, MIN_WIDTH)
    said = _clean(plan.instruction) if figure is None else ""  # a page has the instruction already
    caption = _wrap(said, inner / CAPTION, 3)
    left = MARGIN + (inner - x[-1] - BOX_WIDTH) / 2
    top = MARGIN + (len(caption) * CAPTION * LINE_HEIGHT + 18 if caption else 0)
    x, y = [left + at for at in x], [top + at for at in y]
    width, height = f"{inner + 2 * MARGIN:.1f}", f"{top + bottom + MARGIN:.1f}"
    size = f'width="{width}" height="{height}"'
    where = 'xmlns="http://www.w3.org/2000/svg"' if figure is None else f'style="--w:{width}px"'
    out = f'<svg {where} role="img" {size} viewBox="0 0 {width} {height}" '
    out += 'font-family="system-ui, -apple-system, Segoe UI, sans-serif">'
    out += f"<title>{escape(said) or 'A plan'}</title><desc>{escape(_in_words(plan, status))}</desc>"
    out += f'<rect {size} rx="12" fill="#ffffff"/>'
    out += _lines(caption, MARGIN, MARGIN + CAPTION, size=CAPTION, style=f'fill="{INK}" font-weight="600"')
    marker = f"arrow-{crc32(out.encode()):08x}" if figure is None else f"arrow-{figure}"
    out += f'<defs><marker id="{marker}" viewBox="0 0 8 8" markerWidth="{ARROW:g}" markerHeight="{ARROW:g}" refY="4" '
    out += f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.5L8 4L0 7.5Z" fill="{EDGE}"/></marker></defs>'
    out += f'<g fill="none" stroke="{EDGE}" stroke-width="1.5">'
    out += "".join(_edge(graph, x, y, link, marker) for link in graph.links) + "</g>"
    colours = task_colours(node.task_type for node in plan.nodes) if colours is None else colours
    for i, node in enumerate(plan.nodes):
        corner = x[graph.depth[i]], y[i] - BOX_HEIGHT / 2
        out += _box(i, node, corner, colours[_clean(node.task_type)], status[i] if status else "")
        out += _note(notes[i], corner) if notes else ""
    return f"{out}</svg>\n".encode("ascii", "xmlcharrefreplace").decode()


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """Items are the plan's nodes, then the tracks; links join items of neighbouring layers."""

    boxes: int
    depth: list[int]
    links: list[tuple[int, int]]
    before: list[list[int]]
    after: list[list[int]]


def _graph(plan: Plan) -> _Graph:
    depth: list[int] = []
    for node in plan.nodes:
        depth.append(1 + max((depth[j] for j in node.dependencies), default=-1))
    links, tracks = [], dict[tuple[int, int], int]()  # (source, layer): a source's long edges share their tracks
    for i, node in enumerate(plan.nodes):
        for j in node.dependencies:
            at = j
            for layer in range(depth[j] + 1, depth[i]):
                if (j, layer) not in tracks:
                    tracks[j, layer] = len(depth)
                    links.append((at, len(depth)))
                    depth.append(layer)
                at = tracks[j, layer]
            links.append((at, i))
    before: list[list[int]] = [[] for _ in depth]
    after: list[list[int]] = [[] for _ in depth]
    for a, b in links:
        before[b].append(a)
        after[a].append(b)
    return _Graph(boxes=len(plan.nodes), depth=depth, links=links, before=before, after=after)


def _order(graph: _Graph) -> list[list[int]]:
    """The items of each layer from top to bottom: of some sweeps of barycentres, the one with the fewest crossings."""
    layers: list[list[int]] = [[] for _ in range(max(graph.depth) + 1)]
    for item, layer in enumerate(graph.depth):
        layers[layer].append(item)
    place = [0.0] * len(graph.depth)  # within the layer, 0 to 1
    for items in layers:
        _rank(items, place)
    best, crossings = [list(items) for items in layers], _crossings(graph, layers, place)
    for sweep in range(SWEEPS):
        if not crossings:
            break
        near = graph.after if sweep % 2 else graph.before
        for items in layers[:: -1 if sweep % 2 else 1]:
            means = {k: sum(place[n] for n in near[k]) / len(near[k]) if near[k] else place[k] for k in items}
            items.sort(key=means.__getitem__)
            _rank(items, place)
        if (found := _crossings(graph, layers, place)) < crossings:
            best, crossings = [list(items) for items in layers], found
    return best


def _rank(items: Sequence[int], place: list[float]) -> None:
    for k, item in enumerate(items):
        place[item] = (k + 0.5) / len(items)


def _crossings(graph: _Graph, layers: Sequence[Sequence[int]], place: Sequence[float]) -> int:
    total = 0
    for items in layers:
        ends: list[float] = []
        for _, end in sorted((place[a], place[b]) for a in items for b in graph.after[a]):
            total += len(ends) - bisect_right(ends, end)
            insort(ends, end)
    return total


def _heights(graph: _Graph, layers: Sequence[Sequence[int]]) -> tuple[list[float], float]:
    """The middle of each item, near its neighbours with the order kept, and the lowest point; the highest is 0."""
    room = [BOX_ROOM if k < graph.boxes else TRACK_ROOM for k in range(len(graph.depth))]
    y = [0.0] * len(room)
    floors = [[0.0, *accumulate(room[a] + room[b] for a, b in pairwise(items))] for items in layers]
    for items, floor in zip(layers, floors, strict=True):
        for item, least in zip(items, floor, strict=True):
            y[item] = least - floor[-1] / 2
    both = list(zip(layers, floors, strict=True))
    for sweep in range(SWEEPS):
        for items, floor in both[:: -1 if sweep % 2 else 1]:
            targets = [_target(graph, k, y) for k in items]
            weights = [1.0 if k < graph.boxes else TRACK_WEIGHT for k in items]
            for item, at in zip(items, _separated(targets, floor, weights), strict=True):
                y[item] = at
    halves = [BOX_HEIGHT / 2 if k < graph.boxes else 0.0 for k in range(len(y))]
    top = min(at - half for at, half in zip(y, halves, strict=True))
    bottom = max(at + half for at, half in zip(y, halves, strict=True))
    return [at - top for at in y], bottom - top


def _target(graph: _Graph, item: int, y: Sequence[float]) -> float:
    """Where an item's edges are straightest. Boxes follow boxes where they can, so that a chain stays straight."""
    near = graph.before[item] + graph.after[item]
    if item < graph.boxes:
        near = [k for k in near if k < graph.boxes] or near
    return sum(y[k] for k in near) / len(near) if near else y[item]


def _separated(targets: Sequence[float], floor: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The places nearest to the targets (least squares) whose steps are those of `floor` or more.

    Less the floor, the places have to rise: an isotonic regression, by pooling adjacent violators.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, items
    for target, least, weight in zip(targets, floor, weights, strict=True):
        mean, count = target - least, 1
        while pools and pools[-1][0] >= mean:
            other, more, items = pools.pop()
            mean, weight, count = (mean * weight + other * more) / (weight + more), weight + more, count + items
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + least for mean, least in zip(means, floor, strict=True)]


def _columns(graph: _Graph, y: Sequence[float]) -> list[float]:
    """The left side of each layer; a gap with steep edges is wider."""
    gaps = [GAP] * max(graph.depth)
    for a, b in graph.links:
        at = graph.depth[a]
        gaps[at] = min(max(gaps[at], GAP + 0.2 * (abs(y[a] - y[b]) - BOX_HEIGHT)), MAX_GAP)
    return [0.0, *accumulate(BOX_WIDTH + gap for gap in gaps)]


def _edge(graph: _Graph, x: Sequence[float], y: Sequence[float], link: tuple[int, int], marker: str) -> str:
    a, b = link
    to_box = b < graph.boxes
    start, end = x[graph.depth[a]] + BOX_WIDTH, x[graph.depth[b]] - (ARROW if to_box else 0)
    middle = (start + end) / 2
    path = f"M{start:.1f} {y[a]:.1f}C{middle:.1f} {y[a]:.1f} {middle:.1f} {y[b]:.1f} {end:.1f} {y[b]:.1f}"
    if to_box:
        return f'<path d="{path}" marker-end="url(#{marker})"/>'
    return f'<path d="{path}H{end + BOX_WIDTH:.1f}"/>'


def _box(i: int, node: Node, corner: tuple[float, float], colours: tuple[str, str], status: str) -> str:
    """The text is an SVG of its own, which clips: no glyph, however large, leaves its box."""
    room = BOX_WIDTH - 16
    task, worker = _readable(node.task_type), _clean(node.worker or "")
    label = _wrap(task, room / LABEL, 2)
    state = f" · {status}" if worker and status else status
    small = _wrap(worker, room / SMALL - sum(map(_em, state)), 1)
    beneath = ["".join(small) + state] if small or state else []
    text_height = LINE_HEIGHT * (LABEL * len(label) + SMALL * len(beneath))
    first = (BOX_HEIGHT - text_height) / 2 + LABEL
    second = first + LINE_HEIGHT * LABEL * len(label) - (LABEL - SMALL)
    border = STATUS[status] if status else f'stroke="{colours[1]}" stroke-width="1.5"'
    at = f'x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{BOX_WIDTH:.1f}" height="{BOX_HEIGHT:.1f}"'
    says = ": ".join(part for part in (_clean(node.task_type), worker) if part) + (f" ({status})" if status else "")
    out = f'<g data-node="{i}"><title>{escape(says)}</title><rect {at} rx="10" fill="{colours[0]}" {border}/>'
    out += f'<svg {at} text-anchor="middle">'
    out += _lines(label, BOX_WIDTH / 2, first, size=LABEL, style=f'fill="{INK}" font-weight="600"')
    return out + _lines(beneath, BOX_WIDTH / 2, second, size=SMALL, style=f'fill="{PALE_INK}"') + "</svg></g>"


def _note(note: Note, corner: tuple[float, float]) -> str:
    style = f'class="what" text-anchor="middle" fill="{FAULT_INK if note.is_fault else PALE_INK}"'
    at = corner[0] + BOX_WIDTH / 2, corner[1] + BOX_HEIGHT + 2 + TINY
    return _lines([_clean(note.text)], *at, size=TINY, style=style)


def _lines(lines: Sequence[str], x: float, y: float, *, size: float, style: str) -> str:
    places = (f'x="{x:.1f}" y="{y + k * size * LINE_HEIGHT:.1f}" font-size="{size:g}"' for k in range(len(lines)))
    return "".join(f"<text {at} {style}>{escape(line)}</text>" for at, line in zip(places, lines, strict=True))


def _in_words(plan: Plan, status: Sequence[str] | None) -> str:
    """The same plan for those who cannot see it."""
    out = []
    for i, node in enumerate(plan.nodes):
        worker, needs = _clean(node.worker or ""), ", ".join(str(j + 1) for j in node.dependencies)
        out.append(f"{i + 1}. {_readable(node.task_type)}" + (f" by {worker}" if worker else ""))
        out[-1] += (f", after {needs}" if needs else "") + (f": {status[i]}" if status else "")
    return "; ".join(out)


def _readable(name: str) -> str:
    """`query_database` and `queryDatabase` as words."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", _clean(name)).replace("_", " ")
    return " ".join(words.split()) or "(no name)"


def _clean(text: str) -> str:
    """One line of what XML 1.0 allows."""
    return " ".join(word for part in text.split() if (word := NO_TEXT.sub("", part)))


def _wrap(text: str, room_em: float, most: int) -> list[str]:
    """At most `most` lines of `room_em`, broken between words where possible; an ellipsis says that more follows."""
    lines: list[str] = []
    while text and len(lines) < most:
        fits = _fitting(text, room_em)
        if fits < len(text) and len(lines) == most - 1:
            lines.append(text[: _fitting(text, room_em - _em("…"))].rstrip() + "…")
            break
        if fits < len(text) and (space := text.rfind(" ", 0, fits + 1)) > 0:
            fits = space
        lines.append(text[:fits].rstrip())
        text = text[fits:].lstrip()
    return lines


def _fitting(text: str, room_em: float) -> int:
    """How many characters fit, at least one."""
    widths = accumulate(map(_em, text))
    return max(next((k for k, width in enumerate(widths) if width > room_em), len(text)), 1)


def _em(char: str) -> float:
    """About the width of a character in bold DejaVu Sans, the widest of the fonts a page is likely to be shown in."""
    if combining(char):
        return 0.0
    if east_asian_width(char) in "WF":
        return 1.0
    if char in "mwMW@%—…":
        return 1.08
    if char in "ijl.,:;'| ":
        return 0.38
    if char in "tfrI-()[]!":
        return 0.48
    return 0.8 if char.isupper() else 0.7
