"""Pages are templates: HTML is written there, all text in it is escaped, and reports name no problem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import etude
from etude.problems.table import OURS
from etude.reports.blocks import view

SRC = Path(etude.__file__).parent
TEMPLATES = sorted(path.relative_to(SRC) for path in SRC.rglob("*.jinja"))
TAG = re.compile(r"</?(?:a|b|br|code|details|div|footer|h[1-6]|i|li|p|section|span|summary|table|td|th|tr)\b[ />]")
INLINE = {"reports/blocks.py"}  # Strong and Code are one element each


def test_python_writes_no_html() -> None:
    found = {
        str(path.relative_to(SRC)): match[0]
        for path in SRC.rglob("*.py")
        if (match := TAG.search(path.read_text("utf-8"))) and str(path.relative_to(SRC)) not in INLINE
    }
    assert found == {}


def test_reports_name_no_problem() -> None:
    names = re.compile(rf"\b({'|'.join(OURS)})s?\b")
    files = [path for path in (SRC / "reports").rglob("*") if path.suffix in (".py", ".jinja", ".css")]
    assert len(files) > 12
    for path in files:
        text = path.read_text("utf-8")
        assert not names.search(text), path
        assert "etude.problems" not in text, path


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_a_template_switches_no_escaping_off(path: Path) -> None:
    assert not re.search(r"\bsafe\b|autoescape|Markup", (SRC / path).read_text("utf-8"))


def test_a_value_that_is_missing_is_an_error_and_not_a_hole_in_the_page() -> None:
    with pytest.raises(Exception, match="'rows' is undefined"):
        view("table", heads=[], name="").__html__()
