"""Drawings: read back as geometry, whatever the plan; and as XML, whatever the names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.problems.workflow.drawing import PALETTE, task_colours, to_svg
from etude.problems.workflow.plan import Node, Plan

SVG = "{http://www.w3.org/2000/svg}"
LAW = settings(deadline=None, derandomize=True, max_examples=60)
Point = tuple[float, float]
CHAIN, DIAMOND, FAN = [[], [0], [1]], [[], [0], [0], [1, 2]], [[], *[[0]] * 8, range(1, 9)]


def plan_of(
    needs: Sequence[Sequence[int]], *, name: str = "make_chart", worker: str | None = "tool", said: str = "do it"
) -> Plan:
    nodes = tuple(Node(task_type=name, dependencies=tuple(links), worker=worker) for links in needs)
    return Plan(instruction=said, nodes=nodes)


def drawn_at_random(seed: int, nodes: int, most: int) -> list[list[int]]:
    random = Random(seed)
    return [sorted(random.sample(range(i), min(i, random.randint(0, most)))) for i in range(nodes)]


@dataclass(frozen=True)
class Rect:
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, x: float, y: float) -> bool:
        return self.left < x < self.right and self.top < y < self.bottom


@dataclass(frozen=True)
class Edge:
    points: list[Point]
    arrow: bool


class Picture:
    """An SVG read back."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        self.width, self.height = (float(v) for v in self.root.attrib["viewBox"].split()[2:])
        self.nodes = [g for g in self.root.iter(f"{SVG}g") if "data-node" in g.attrib]
        self.boxes = [rect_of(one(g, "rect")) for g in self.nodes]
        self.edges = [edge_of(p) for p in self.root.findall(f"{SVG}g/{SVG}path")]
        self.caption = [t.text or "" for t in self.root.findall(f"{SVG}text")]

    def texts(self, i: int) -> list[str]:
        return [t.text or "" for t in self.nodes[i].iter(f"{SVG}text")]

    def links(self) -> set[tuple[int, int]]:
        """What a finger that follows the lines finds: (source, target) of every way from a box to an arrowhead."""
        found = set()
        for i, box in enumerate(self.boxes):
            ends = [(box.right, (box.top + box.bottom) / 2)]
            while ends:
                x, y = ends.pop()
                for edge in self.edges:
                    if near(edge.points[0], (x, y)):
                        end = edge.points[-1]
                        if edge.arrow:
                            found.add((i, next(k for k, b in enumerate(self.boxes) if b.holds(end[0] + 9, end[1]))))
                        else:
                            ends.append(end)
        return found


def one(parent: ElementTree.Element, tag: str) -> ElementTree.Element:
    found = parent.find(f"{SVG}{tag}")
    assert found is not None
    return found


def near(a: Point, b: Point) -> bool:
    return abs(a[0] - b[0]) < 0.2 and abs(a[1] - b[1]) < 0.2


def rect_of(element: ElementTree.Element) -> Rect:
    x, y, width, height = (float(element.attrib[k]) for k in ("x", "y", "width", "height"))
    return Rect(x, y, x + width, y + height)


def edge_of(path: ElementTree.Element) -> Edge:
    x0, y0, x1, y1, x2, y2, x3, y3, *over = (float(v) for v in re.findall(r"[\d.]+", path.attrib["d"]))
    points = []
    for k in range(33):
        t = k / 32
        a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
        points.append((a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3))
    for x in over:
        points += [(x3 + (x - x3) * k / 16, y3) for k in range(1, 17)]
    return Edge(points, "marker-end" in path.attrib)


def hold_the_laws(plan: Plan) -> Picture:
    picture = Picture(to_svg(plan))
    assert len(picture.boxes) == len(plan.nodes)
    for a, b in combinations(picture.boxes, 2):
        assert a.right + 20 < b.left or b.right + 20 < a.left or a.bottom + 8 < b.top or b.bottom + 8 < a.top
    everywhere = [p for edge in picture.edges for p in edge.points]
    everywhere += [p for b in picture.boxes for p in ((b.left, b.top), (b.right, b.bottom))]
    assert all(10 < x < picture.width - 10 and 10 < y < picture.height - 10 for x, y in everywhere)
    for box in picture.boxes:
        wider = Rect(box.left + 1, box.top - 4, box.right - 1, box.bottom + 4)
        assert not any(wider.holds(*p) for edge in picture.edges for p in edge.points)
    assert picture.links() == {(j, i) for i, node in enumerate(plan.nodes) for j in node.dependencies}
    for i, node in enumerate(plan.nodes):
        for j in node.dependencies:
            assert picture.boxes[j].right < picture.boxes[i].left
    return picture


@pytest.mark.parametrize(
    "needs",
    [
        [[]],
        [[], [], []],
        CHAIN,
        DIAMOND,
        FAN,
        [[], [0], [1], [2], [0, 3]],
        drawn_at_random(1, 12, 4),
        drawn_at_random(2, 64, 3),
        [[i - 1] if i else [] for i in range(64)],
        [range(i) for i in range(16)],
    ],
)
def test_boxes_do_not_overlap_and_edges_avoid_them_and_follow_the_plan(needs: Sequence[Sequence[int]]) -> None:
    hold_the_laws(plan_of(needs))


@LAW
@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(0, 4))
def test_the_same_for_any_plan(seed: int, nodes: int, most: int) -> None:
    hold_the_laws(plan_of(drawn_at_random(seed, nodes, most)))


def test_layers_go_by_the_longest_path() -> None:
    boxes = Picture(to_svg(plan_of([[], [], [0], [2, 1], [1]]))).boxes
    columns = sorted({box.left for box in boxes})
    assert [columns.index(box.left) for box in boxes] == [0, 0, 1, 2, 1]


def test_layers_are_ordered_so_that_edges_do_not_cross() -> None:
    boxes = Picture(to_svg(plan_of([[], [], [], [2], [1], [0]]))).boxes
    tops = [box.top for box in boxes]
    assert [tops[5], tops[4], tops[3]] == tops[:3]


def test_chains_are_straight_and_fans_symmetric() -> None:
    past = Picture(to_svg(plan_of([[], [0], [1], [2], [0, 3]]))).boxes
    assert max(box.top for box in past) - min(box.top for box in past) < 1.5
    fan = Picture(to_svg(plan_of(FAN))).boxes
    assert fan[0].top == fan[9].top == pytest.approx((fan[1].top + fan[8].top) / 2, abs=0.1)


def test_a_small_plan_stands_in_the_middle() -> None:
    picture = Picture(to_svg(plan_of([[]])))
    assert picture.boxes[0].left + picture.boxes[0].right == picture.width


def test_long_edges_of_one_source_share_their_way() -> None:
    assert len(Picture(to_svg(plan_of([[], [0], [1], [2, 0], [2, 0]]))).edges) == 8


def test_task_types_are_words_and_workers_stand_beneath() -> None:
    named = Plan(
        instruction="x",
        nodes=(
            Node(task_type="query_database", worker="small-llm"),
            Node(task_type="queryDatabase", dependencies=(0,)),
            Node(task_type="run SQL", worker=""),
            Node(task_type=" ", worker=None),
        ),
    )
    picture = Picture(to_svg(named))
    assert [picture.texts(i) for i in range(4)] == [
        ["query database", "small-llm"],
        ["query Database"],
        ["run SQL"],
        ["(no name)"],
    ]
    assert [one(g, "title").text for g in picture.nodes[:2]] == ["query_database: small-llm", "queryDatabase"]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("reconcile_all_open_invoices_of_every_subsidiary", ["reconcile all open", "invoices of eve…"]),
        ("analyse_sentiment", ["analyse", "sentiment"]),
        ("M" * 40, ["M" * 9, "M" * 8 + "…"]),
        ("漢" * 40, ["漢" * 10, "漢" * 9 + "…"]),
        ("e\u0301" * 17 + "x", ["e\u0301" * 14, "e\u0301" * 3 + "x"]),
    ],
)
def test_long_names_are_wrapped_cut_and_whole_in_the_title(name: str, lines: list[str]) -> None:
    picture = Picture(to_svg(plan_of([[]], name=name, worker="w" * 60)))
    *label, worker = picture.texts(0)
    assert label == lines
    assert re.fullmatch("w{8,12}…", worker)
    assert one(picture.nodes[0], "title").text == f"{name}: {'w' * 60}"


def test_the_instruction_stands_above_in_three_lines_at_most() -> None:
    words = " ".join(f"word{i}" for i in range(80))
    picture = Picture(to_svg(plan_of(CHAIN, said=words)))
    assert len(picture.caption) == 3
    assert words.startswith(" ".join(picture.caption).removesuffix("…"))
    assert picture.caption[-1].endswith("…")
    assert one(picture.root, "title").text == words
    baselines = [float(t.attrib["y"]) for t in picture.root.findall(f"{SVG}text")]
    assert max(baselines) + 10 < min(box.top for box in picture.boxes)
    wide = Picture(to_svg(plan_of([[], [0], [1], [2], [3], [4]], said=words)))
    assert len(wide.caption[0]) > 1.5 * len(picture.caption[0])
    assert Picture(to_svg(plan_of(CHAIN, said="Short."))).caption == ["Short."]


def test_an_empty_instruction_leaves_no_room_and_a_title() -> None:
    without, with_one = (Picture(to_svg(plan_of([[]], said=said))) for said in (" \n", "do it"))
    assert (without.caption, one(without.root, "title").text) == ([], "A plan")
    assert without.height < with_one.height


HOSTILE = "<script>alert('&\"')</script>]]>\x00\x0b\x1b\x85\u202e\ud800\ufffe\uffff&#0;<!--"


def test_hostile_names_are_text() -> None:
    svg = to_svg(plan_of(DIAMOND, name=HOSTILE, worker=HOSTILE, said=HOSTILE))
    picture = Picture(svg)
    clean = "<script>alert('&\"')</script>]]> &#0;<!--"
    assert one(picture.root, "title").text == clean
    assert one(picture.nodes[0], "title").text == f"{clean}: {clean}"
    tags = {"svg", "title", "desc", "rect", "text", "defs", "marker", "path", "g"}
    assert {element.tag.removeprefix(SVG) for element in picture.root.iter()} == tags
    assert svg.isascii()


@LAW
@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())), st.text())
def test_any_text_makes_valid_xml(name: str, worker: str, said: str) -> None:
    Picture(to_svg(plan_of([[], [0]], name=name, worker=worker, said=said), status=["done", "failed"]))


def test_status_is_a_border_and_a_word() -> None:
    states = ["done", "failed", "skipped", "planned"]
    picture = Picture(to_svg(plan_of(DIAMOND), status=states))
    assert [picture.texts(i)[-1] for i in range(4)] == [f"tool · {word}" for word in states]
    assert len({one(g, "rect").attrib["stroke"] for g in picture.nodes}) == 4
    assert len({one(g, "rect").attrib["fill"] for g in picture.nodes}) == 1
    assert Picture(to_svg(plan_of([[]], worker=None), status=["done"])).texts(0)[-1] == "done"


def fills(*names: str, worker: str | None = None, page: Sequence[str] = ()) -> list[str]:
    plan = Plan(instruction="", nodes=tuple(Node(task_type=name, worker=worker) for name in names))
    colours = task_colours([*page, *names]) if page else None
    return [one(g, "rect").attrib["fill"] for g in Picture(to_svg(plan, colours=colours)).nodes]


def test_task_types_have_colours_of_their_own_as_long_as_there_are_some() -> None:
    names = [f"task_{i}" for i in range(len(PALETTE))]
    assert 1 < len({fills(name)[0] for name in names}) < len(PALETTE)  # by name, so some would have the same
    assert len(set(fills(*names))) == len(PALETTE)
    assert set(fills(*names, "more", "again")) == {fill for fill, _ in PALETTE}
    assert fills(*names)[::-1] == fills(*names[::-1])
    assert fills("alone", "alone") == [fills("alone")[0]] * 2
    assert fills("alone", worker="a") == fills("alone", worker="b")


def test_a_task_type_has_one_colour_in_all_plans_of_a_page() -> None:
    names = [f"task_{i}" for i in range(12)]
    pairs = list(combinations(names, 2))

    def found(page: Sequence[str]) -> set[int]:
        """How many colours a task type has."""
        return {len({fills(*p, page=page)[p.index(name)] for p in pairs if name in p}) for name in names}

    assert max(found([])) > 1  # each plan by itself
    assert found(names) == {1}


def test_a_figure_of_a_page_leaves_its_ids_and_caption_to_the_page() -> None:
    svg = to_svg(plan_of(CHAIN), figure=7)
    assert 'id="arrow-7"' in svg
    assert "xmlns" not in svg
    assert "do it" not in svg


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_is_readable_on_every_colour() -> None:
    picture = Picture(to_svg(plan_of([[]])))
    inks = {t.attrib["fill"] for t in picture.root.iter(f"{SVG}text")}
    assert len(inks) == 2
    for fill in ["#ffffff", *(fill for fill, _ in PALETTE)]:
        assert all((luminance(fill) + 0.05) / (luminance(ink) + 0.05) >= 4.5 for ink in inks)


def test_it_says_what_it_shows_to_those_who_cannot_see_it() -> None:
    picture = Picture(to_svg(plan_of(DIAMOND, worker=None), status=["done"] * 3 + ["planned"]))
    assert picture.root.attrib["role"] == "img"
    assert picture.root[0].tag == f"{SVG}title"
    says = "1. make chart: done; 2. make chart, after 1: done; 3. make chart, after 1: done"
    assert one(picture.root, "desc").text == f"{says}; 4. make chart, after 2, 3: planned"


def test_it_brings_its_own_ground_and_the_same_picture_each_time() -> None:
    plan = plan_of(drawn_at_random(3, 12, 3))
    picture = Picture(to_svg(plan))
    ground = one(picture.root, "rect").attrib
    assert (ground["fill"], float(ground["width"]), float(ground["height"])) == (
        "#ffffff",
        picture.width,
        picture.height,
    )
    assert to_svg(plan) == to_svg(plan_of(drawn_at_random(3, 12, 3)))
    marker = next(picture.root.iter(f"{SVG}marker")).attrib["id"]
    assert f"url(#{marker})" in to_svg(plan)
    assert marker not in to_svg(plan_of(CHAIN))
