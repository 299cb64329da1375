"""Published figures are read back from benchmarks/results/: README.md and docs/benchmarks.md cannot disagree with them.

A figure stands between two HTML comments, which are invisible when rendered:

    <!--= time_to_target: contenders/etude/greedy/seconds/mean; .1f -->1.9<!--/--> s

The first comment names a results file (without .json), a path of keys in it, optional steps, and a format:

    mean, min, max, sum, low, high          of a list of numbers; low and high are the 95 % interval of its mean
    count                                   entries of a list that are not empty
    * 100, / 1000, - 1, + 1                 arithmetic
    over PATH                               divided by another number (or mean of a list) of the same file
    .1f  ,.0f  +.3f                         Python's formats; .1% writes 12.3 %; .3 writes .865, without its zero

`python -m tests.test_figures [PAGE …]` writes the figures of these pages again, from the results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.evidence.intervals import interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")

FIGURE = re.compile(r"<!--= (\w+): (.+?) -->(.*?)<!--/-->")
NUMBER = re.compile(r"(?<![A-Za-z\d])\d")
"""Digits that are no part of a name, such as F1 or float32."""
NOT_MEASURED = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->")
SETTING_COLUMNS = {"wanted", "extra"}
"""Columns of tables whose numbers are aims or settings, as those of the first column are."""
SETTINGS = {
    "1, 3, 3, 2 and 1",  # the layers of a workflow
    "140,000 workflows",
    "16,000 plans",
}
"""Numbers in other columns that are no measurements."""

LIST_STEPS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda x: float(x.mean()),
    "min": lambda x: float(x.min()),
    "max": lambda x: float(x.max()),
    "sum": lambda x: float(x.sum()),
    "low": lambda x: interval(x)[0],
    "high": lambda x: interval(x)[1],
}


def rendered(name: str, expression: str) -> str:
    """The text of a figure, from its results file."""
    data = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    path, *steps, form = (part.strip() for part in expression.split(";"))
    value = find(data, path)
    for step in steps:
        value = apply(value, step, data)
    return formatted(float(value), form)


def find(data: Any, path: str) -> Any:
    """The value at a path of keys and list positions, joined by `/`."""
    for key in path.split("/"):
        data = data[int(key)] if isinstance(data, list) else data[key]
    return data


def apply(value: Any, step: str, data: Any) -> float:
    if step == "count":
        return float(sum(map(bool, value)))
    if step in LIST_STEPS:
        return LIST_STEPS[step](np.array(value, dtype=float))
    sign, _, rest = step.partition(" ")
    if sign == "over":
        below = find(data, rest)
        return float(np.mean(value)) / float(np.mean(below))
    number = float(rest)
    return float({"*": value * number, "/": value / number, "-": value - number, "+": value + number}[sign])


def formatted(value: float, form: str) -> str:
    if form.endswith("%"):
        text = f"{100 * value:{form[:-1]}f} %"
    elif re.fullmatch(r"\+?\.\d", form):
        text = re.sub(r"^([-+]?)0\.", r"\1.", f"{value:{form}f}")
    else:
        text = f"{value:{form}}"
    return text.replace("-", "−")


def rewritten(text: str) -> str:
    """The page with every figure as its results file has it."""
    return FIGURE.sub(lambda m: f"<!--= {m[1]}: {m[2]} -->{rendered(m[1], m[2])}<!--/-->", text)


def wrong(text: str) -> list[str]:
    """Figures that differ from their results, each with what they should say."""
    found = FIGURE.findall(text)
    return [
        f"{name}: {path} is {rendered(name, path)}, not {said}"
        for name, path, said in found
        if rendered(name, path) != said
    ]


def unmarked(text: str) -> Iterator[str]:
    """Cells of tables with numbers that no results file stands behind."""
    header: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in NOT_MEASURED.sub("", FIGURE.sub("", line)).strip("|").split("|")]
        if header is None:
            header = cells
            continue
        for title, cell in list(zip(header, cells, strict=False))[1:]:
            for setting in SETTINGS:
                cell = cell.replace(setting, "")
            if title not in SETTING_COLUMNS and NUMBER.search(cell):
                yield f"{cells[0]}: {cell}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_what_the_results_say(page: Path) -> None:
    assert wrong(page.read_text("utf-8")) == [], "`python -m tests.test_figures` writes them again"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_of_a_table_has_a_results_file(page: Path) -> None:
    assert list(unmarked(page.read_text("utf-8"))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_marked_up_completely(page: Path) -> None:
    text = page.read_text("utf-8")
    assert len(FIGURE.findall(text)) == text.count("<!--=") == text.count("<!--/-->")


def test_a_changed_digit_is_found_and_written_again() -> None:
    text = next(page.read_text("utf-8") for page in PAGES if FIGURE.search(page.read_text("utf-8")))
    match = FIGURE.search(text)
    assert match is not None
    digit = re.search(r"\d", match[3])
    assert digit is not None
    at = match.start(3) + digit.start()
    changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
    assert len(wrong(changed)) == len(wrong(text)) + 1
    assert rewritten(changed) == rewritten(text)


def test_a_number_without_results_is_found() -> None:
    table = "| what | wanted | measured |\n|---|---|---|\n| 5 seeds | ≥ 3 | {} |\n"
    assert list(unmarked(table.format("<!--= inference: x; .1f -->4.2<!--/--> s, see `f(1)`"))) == []
    assert list(unmarked(table.format("4.2 s"))) == ["5 seeds: 4.2 s"]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.8651, ".3", ".865"),
        (-0.0512, "+.3", "−.051"),
        (0.118, ".1%", "11.8 %"),
        (56108, ",.0f", "56,108"),
        (2.0, ".1f", "2.0"),
    ],
)
def test_formats(value: float, form: str, text: str) -> None:
    assert formatted(value, form) == text


def test_steps() -> None:
    assert apply([1.0, 3.0], "mean", {}) == 2.0
    assert apply([1.0, 3.0], "over base/0", {"base": [4.0]}) == 0.5
    assert apply(0.25, "* 100", {}) == 25.0
    assert apply(["refused", ""], "count", {}) == 1.0


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        page.write_text(rewritten(page.read_text("utf-8")), "utf-8")
